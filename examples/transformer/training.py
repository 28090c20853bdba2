"""Training the model in any layout: the step, and a run that goes on exactly where it was interrupted.

A run is a folder: ``losses.txt`` has the loss of each step, in full, and ``checkpoints/`` the weights and the state of
the optimizer every so many steps. Whoever continues a run, on these devices or on others, loads the last checkpoint in
the types of its own layout; a batch depends on its number alone. So nothing else need be kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]

import shtypes as sh
from examples.transformer import data, model
from examples.transformer.layouts import Layout
from examples.transformer.pipeline import Schedule, pipelined_value_and_grad

Tree = Any


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run does; where, its layout says.

    Attributes:
        layout: Where values lie.
        sizes: The model.
        batch: Sequences in a step, on all devices together.
        seq: Positions in a sequence.
        accumulate: Into how many microbatches a step cuts its batch. Their gradients are summed on each device, and
            over devices once for all. A pipeline has those of its layout instead.
        steps: After how many steps the rate has gone down to nothing.
        rate: The largest learning rate, after ``warmup`` steps.
        warmup: Steps in which the rate goes up.
        decay: The decay of weights; norms have none.
        clip: The largest norm of the whole gradient.
        every: Steps between checkpoints.
    """

    layout: Layout
    sizes: model.Sizes
    batch: int = 32
    seq: int = 64
    accumulate: int = 1
    steps: int = 200
    rate: float = 1e-2
    warmup: int = 20
    decay: float = 0.1
    clip: float = 1.0
    every: int = 50

    def __post_init__(self) -> None:
        """ZeRO-2 keeps the weights that its layers gather. What cannot be cut or counted is refused."""
        object.__setattr__(self, "sizes", dataclasses.replace(self.sizes, gather_again=self.layout.zero != 2))
        for name in ("batch", "seq", "accumulate", "steps", "every"):
            if getattr(self, name) < 1:
                raise sh.ShardingTypeError(f"`{name}` is at least 1, not {getattr(self, name)}")
        if self.layout.schedule and self.accumulate > 1:
            raise sh.ShardingTypeError(
                f"layout `{self.layout.name}` has {self.layout.microbatches} microbatches, and `accumulate` other ones"
            )
        parts = math.prod(self.layout.mesh[axis] for axis in self.layout.dims.get("batch", ()))
        count = self.layout.microbatches or self.accumulate
        if self.batch % (parts * count):
            what = f"{count} equal microbatches" if count > 1 else "equal parts"
            raise sh.ShardingTypeError(f"{self.batch} sequences on {parts} devices cannot be {what}")

    @property
    def tokens(self) -> sh.ShType:
        """The type of a batch's tokens, and of its targets."""
        return sh.ShType.parse(f"i32[batch={self.batch}, seq={self.seq}]")


def optimizer(run: Run) -> optax.GradientTransformation:
    """AdamW behind a clip of the whole gradient's norm; gradients that are pending are summed first, all together.

    Under ZeRO-1 it works on the part of each weight that the layout's masters say: the sum is a reduce-scatter, and the
    updates come back by an all-gather.
    """
    rate = optax.warmup_cosine_decay_schedule(0.0, run.rate, run.warmup, max(run.steps, run.warmup + 1))
    adam = optax.adamw(
        rate,
        weight_decay=run.decay,
        mask=lambda w: jax.tree.map_with_path(lambda path, _: not path[-1].key.endswith("norm"), w),
    )
    with run.layout.as_masters():
        masters = model.types(run.sizes) if run.layout.zero == 1 else None
    return sh.optim.lift(optax.chain(optax.clip_by_global_norm(run.clip), adam), pending="finish", types=masters)


def start(run: Run) -> tuple[Tree, Tree]:
    """New weights, and the state of the optimizer."""
    with run.layout.as_weights():
        weights = sh.jit(lambda: model.init(sh.random.key(0), run.sizes))()
    return weights, optimizer(run).init(weights)


def abstract(run: Run) -> tuple[Any, ...]:
    """The arguments of a step without their data, on any mesh: for ledgers and for `sh.memory`."""
    with run.layout.as_weights():
        weights = jax.tree.map(sh.abstract_array, model.types(run.sizes))
    tokens = sh.abstract_array(run.tokens)
    state = jax.tree.map(sh.abstract_array, jax.eval_shape(optimizer(run).init, weights))
    return weights, state, tokens, tokens


def loss_and_gradients(run: Run) -> Callable[..., Any]:
    """``(weights, tokens, targets)`` to the loss and its gradients: pending sums, where the policy leaves them."""
    layout = run.layout
    if layout.schedule:
        return pipelined_value_and_grad(run.sizes, Schedule(layout.schedule, layout.stages, layout.microbatches))
    whole = sh.value_and_grad(functools.partial(model.loss, sizes=run.sizes))
    if run.accumulate == 1:
        return whole

    def cut(x: Any) -> Any:
        """Microbatches, each with rows of every device."""
        return sh.moveaxis(sh.reshape(x, (-1, run.accumulate, run.seq)), 1, 0)

    def accumulated(weights: Tree, tokens: Any, targets: Any) -> Any:
        parts = cut(tokens), cut(targets)
        zeros = jax.tree.map(sh.zeros, jax.eval_shape(whole, weights, *(part[0] for part in parts)))
        sums, _ = sh.scan(
            lambda sums, part: (jax.tree.map(operator.add, sums, whole(weights, *part)), None), zeros, parts
        )
        return jax.tree.map(lambda x: x / run.accumulate, sums)

    return accumulated


def step(run: Run) -> Callable[..., Any]:
    """``(weights, state, tokens, targets)`` to the next weights, the next state and the loss."""
    gradients, updating = loss_and_gradients(run), optimizer(run)

    def trained(weights: Tree, state: Tree, tokens: Any, targets: Any) -> Any:
        loss, found = gradients(weights, tokens, targets)
        updates, state = updating.update(found, state, weights)
        return sh.optim.apply_updates(weights, updates), state, sh.all_reduce(loss)

    return trained


def evaluate(run: Run, weights: Tree, batches: int = 8) -> float:
    """The mean loss of some batches of the text that is held back."""
    trained = loss_and_gradients(run)
    loss = sh.jit(lambda *args: sh.all_reduce(trained(*args)[0]))  # what only gradients need is not compiled
    parts = sh.prefetch_to_device(data.batches(data.text("held"), run.tokens), run.tokens)
    return sum(float(loss(weights, *part)) for part in itertools.islice(parts, batches)) / batches


def checkpoints(folder: pathlib.Path) -> Any:
    """Orbax's manager of a run's checkpoints; it writes them whole or not at all."""
    return ocp.CheckpointManager(
        (folder / "checkpoints").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
    )


def restored(run: Run, folder: pathlib.Path) -> tuple[int, Tree, Tree]:
    """The steps done, the weights and the optimizer's state, of the last checkpoint or new, in this layout's types."""
    weights, state = start(run)
    with checkpoints(folder) as kept:
        done = kept.latest_step() or 0
        if done:
            try:
                weights, state = kept.restore(done, args=ocp.args.StandardRestore((weights, state)))
            except Exception as error:  # whatever orbax, or who reads files for it, says of one that is broken
                raise sh.ShardingTypeError(
                    f"the checkpoint of step {done} in {folder} is broken, or of a model of other sizes",
                    why=str(error),
                    hints=[f"rm -r {kept.directory / str(done)} goes on from the one before, or from new weights"],
                ) from error
    return done, weights, state


def train(run: Run, folder: pathlib.Path, until: int | None = None) -> Iterator[tuple[int, float, Tree]]:
    """Trains, from the last checkpoint in a folder if there is one: yields each step's number, its loss, and weights.

    The weights that are yielded are good until the next step, which takes their memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done, weights, state = restored(run, folder)
    compiled = sh.jit(step(run), donate_argnums=(0, 1))
    parts = sh.prefetch_to_device(data.batches(data.text("train"), run.tokens, done), run.tokens)
    with checkpoints(folder) as kept:
        for number in range(done + 1, (until or run.steps) + 1):
            weights, state, found = compiled(weights, state, *next(parts))
            loss = float(found)
            if jax.process_index() == 0:
                with (folder / "losses.txt").open("a") as log:
                    print(number, loss.hex(), file=log)
            if number % run.every == 0 or number == (until or run.steps):
                kept.save(number, args=ocp.args.StandardSave((weights, state)))
                kept.wait_until_finished()
            yield number, loss, weights


def losses(folder: pathlib.Path) -> dict[int, float]:
    """The loss of each step that a run has done; of one that was done twice, the last."""
    lines = (folder / "losses.txt").read_text().splitlines()
    found = (line.split() for line in lines if len(line.split()) == 2)
    return dict(sorted((int(number), float.fromhex(loss)) for number, loss in found))
