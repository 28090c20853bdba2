"""Pipelines: stages of layers, one behind the other along a mesh axis, and microbatches that go through them.

The weights of layers get a dim ``stage``, sharded over the axis of ``layer``, and what is at all stages at one time is
one value, ``[stage@pp, batch, stream, hidden]``. In a tick each stage computes on a microbatch of its own: the model's
layers, mapped over ``stage`` by `sh.vmap`. Between ticks the value moves on by one stage: a permute. Whatever else a
layout does it does inside a stage, so pipelines go with every other layout.

=========  ==========================================================================================================
``gpipe``  All microbatches go forward, then all go back: the derivative of the forward pass. A device keeps what
           enters its stage in each tick, and computes the stage again. Huang et al. 2019, arXiv:1811.06965.
``1f1b``   In a tick each stage takes one microbatch forward and another one back; each goes back as soon as it is
           through. A device keeps what entered its stage in the last ``2 S - 1`` ticks, however many microbatches
           there are. Narayanan et al. 2021, arXiv:2104.04473, where a stage does either in a tick and keeps up to S.
=========  ==========================================================================================================

M microbatches need ``M + S - 1`` ticks forward and as many back on S stages, of which ``S - 1`` are the bubble.

What a device sends along the axis in a step, where A are the bytes of a microbatch between layers and G those of the
gradients of the embedding and of the last norm, that it has, and P devices are along the axis:

- ``(M + S - 1) A`` in permutes forward, and as many backward. Where another axis shards the residual stream (`sequence`
  in the layouts), A is less; otherwise all devices along that axis send the same.
- ``2 G (P - 1) / P`` in all-reduces of the gradients of the ends, of which the first stage and the last have terms.
  Under the policy ``"partial"`` these sums stay pending: whoever takes the step finishes them, with those over other
  axes.
- Nothing for the loss, which is computed where the last stage is. The others compute one of what they have meanwhile,
  which is not used: all devices run one program. To have the last stage's output on all of them would be another
  ``2 M A (P - 1) / P``, and no time less unless they divide the loss among them.

`pipelined_value_and_grad` is for a `Schedule` what `sh.value_and_grad` of `model.loss` is without stages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import numpy as np

import shtypes as sh
from examples.transformer import model

Tree = Any


class Parts(NamedTuple):
    """A model cut in three, each a function for one microbatch.

    Attributes:
        first: Of the weights of the ends and the tokens, to what enters the first stage.
        stage: Of the weights of one stage and what enters it, to what leaves it, of the same type, and what the stage
            adds to the loss: a number, or None.
        last: Of the weights of the ends, what leaves the last stage and the targets, to the loss.
    """

    first: Callable[[Tree, Any], Any]
    stage: Callable[[Tree, Any], tuple[Any, Any]]
    last: Callable[[Tree, Any, Any], Any]


@dataclass(frozen=True)
class Schedule:
    """Which microbatch is where when.

    Attributes:
        kind: A name of `SCHEDULES`.
        stages: How many there are: a multiple of the devices along the axes of ``layer``, and a part of the layers.
        microbatches: Into how many equal parts the batch is cut.
    """

    kind: str
    stages: int
    microbatches: int


class Run:
    """What both schedules are made of: what the stages along some axes compute at one time, and how it moves on."""

    def __init__(self, parts: Parts, stages: int, axes: tuple[str, ...]) -> None:
        self.parts, self.stages, self.axes = parts, stages, axes
        self.over = f"_@({','.join(axes)})"
        self.place = sh.arange(stages, type=f"[{self.over}]")
        self.devices = sh.typeof(self.place).mesh.product(axes)

    def own(self, ends: Tree) -> Tree:
        """The weights of the ends inside `sh.vmap`, as each stage has them: their gradients are not summed there."""
        return jax.tree.map(lambda w: sh.lax.pvary(w, self.axes), ends)

    def first(self, ends: Tree, tokens: Any) -> Any:
        """What enters the first stage, at every stage: [stage, ...]."""
        f = sh.vmap(lambda _, ends, tokens: self.parts.first(self.own(ends), tokens), (0, None, None))
        return f(self.place, ends, tokens)

    def stage(self, weights: Tree, x: Any, which: Any, count: int) -> tuple[Any, Any]:
        """What leaves each stage, and what all add to the mean loss; ``which`` of ``count`` microbatches is at each."""
        x, terms = sh.vmap(self.parts.stage)(weights, x)
        if terms is not None:
            terms = sh.sum(sh.where((which >= 0) & (which < count), terms, 0)) / count
        return x, terms

    def last(self, ends: Tree, x: Any, targets: Any) -> Any:
        """The loss of what leaves the last stage: a pending sum over the axes, with one term that is not zero."""
        x = sh.shard_map(lambda x: x[-1:], out_specs=f"[{self.over}, ...]", axis_names=self.axes)(x)
        f = sh.vmap(lambda x, ends, targets: self.parts.last(self.own(ends), x, targets), (0, None, None))
        last = sh.arange(self.devices, type=f"[{self.over}]") == self.devices - 1
        return sh.sum(sh.where(last, f(x, ends, targets), 0))

    def moved(self, x: Any, by: int) -> Any:
        """What each stage has at the next one (``by`` is 1) or the one before (-1), and zero where nothing comes.

        Communicates: a permute of what one of a device's stages has.
        """
        pairs = [(i, i + by) for i in range(self.devices) if 0 <= i + by < self.devices]

        def on(x: Any) -> Any:
            leaves, stays = (x[-1:], x[:-1]) if by > 0 else (x[:1], x[1:])
            came = sh.lax.ppermute(leaves, self.axes, pairs)
            return sh.concatenate([came, stays] if by > 0 else [stays, came])

        return sh.shard_map(on, out_specs=sh.typeof(x), axis_names=self.axes)(x)

    def where(self, stages: Any, x: Any, y: Any) -> Any:
        """One value at some stages, another at the others."""
        return sh.where(stages[(..., *[None] * (x.ndim - 1))], x, y)

    def entered(self, x: Any, before: Any, tick: Any) -> Any:
        """What each stage computes on: the first one ``x``, others what left the stage before them.

        Those that no microbatch has reached compute on ``x``, too, and not on zeros, where their derivatives may be
        infinite.
        """
        return self.where((self.place == 0) | (self.place > tick), x, self.moved(before, 1))

    def waiting(self, kept: Any, tick: Any) -> Any:
        """What entered each stage with the microbatch that it takes back: at the last stage, in this very tick."""

        def own(place: Any, kept: Any) -> Any:
            entered = sh.maximum(tick - 2 * (self.stages - 1 - place), 0)  # before that, nothing has
            return sh.dynamic_index_in_dim(kept, entered % kept.shape[0], keepdims=False)

        return sh.vmap(own)(self.place, kept)

    def nothing(self, ends: Tree, tokens: Any) -> Any:
        """What has left the stages before the first tick."""
        return sh.zeros(jax.eval_shape(self.first, ends, tokens))


def both(loss: Any, *terms: Any) -> Any:
    """The loss with what stages add to it in all ticks, if anything."""
    return loss if None in terms else loss + sh.reshard(sum(map(sh.sum, terms)), sh.typeof(loss))


def gpipe(run: Run, weights: Tree, ends: Tree, tokens: Any, targets: Any) -> tuple[Any, Tree]:
    """The mean loss of all microbatches, and its gradients: all go forward, then all back.

    Args:
        run: The stages.
        weights: Of the stages: [stage, ...].
        ends: Those that are of no stage.
        tokens: [microbatch, ...].
        targets: As ``tokens``.

    Returns:
        The loss, and the gradients of ``weights`` and ``ends`` in their cotangent types.
    """
    count = len(tokens)
    of_stages = functools.partial(run.stage, count=count)
    stage, last = (sh.checkpoint(f, prevent_cse=False) for f in (of_stages, run.last))

    def loss(weights: Tree, ends: Tree) -> Any:
        def tick(x: Any, entering: Any, tick: Any) -> Any:
            x, terms = stage(weights, run.entered(entering, x, tick), tick - run.place)
            return x, (x, terms)

        def fill(x: Any, now: Any) -> Any:
            return tick(x, run.first(ends, now[0]), now[1])

        def drain(x: Any, now: Any) -> Any:
            return tick(x, x, now)

        x, (filling, early) = sh.scan(fill, run.nothing(ends, tokens[0]), (tokens, np.arange(count)))
        _, (draining, late) = sh.scan(drain, x, np.arange(count, count + run.stages - 1))
        left = sh.concatenate([filling, draining])[run.stages - 1 :]
        losses = sh.scan(lambda _, now: (None, last(ends, *now)), None, (left, targets))[1]
        return both(sh.mean(losses), early, late)

    found: tuple[Any, Tree] = sh.value_and_grad(loss, (0, 1))(weights, ends)
    return found


def one_f_one_b(run: Run, weights: Tree, ends: Tree, tokens: Any, targets: Any) -> tuple[Any, Tree]:
    """The same, where each microbatch goes back as soon as it is through; arguments and results as of `gpipe`.

    The microbatch m is at the stage s in the tick m + s on its way forward, and in m + 2 (S - 1) - s on its way back.
    """
    count, back_at = len(tokens), 2 * (run.stages - 1)

    def forward(x: Any, kept: Any, tick: Any, tokens: Any) -> Any:
        x = run.entered(run.first(ends, tokens), x, tick)
        left, terms = run.stage(weights, x, tick - run.place, count)
        return (left, sh.dynamic_update_index_in_dim(kept, x, tick % (back_at + 1), 1)), terms

    def back(ct: Any, sums: Tree, kept: Any, tick: Any, tokens: Any) -> Any:
        which = tick - back_at + run.place
        (_, terms), pull = sh.vjp(lambda w, x: run.stage(w, x, which, count), weights, run.waiting(kept, tick))
        of_weights, ct = pull((ct, None if terms is None else 1))
        (of_ends,) = sh.vjp(lambda ends: run.first(ends, tokens), ends)[1](run.where(run.place == 0, ct, 0))
        return ct, jax.tree.map(sh.add, sums, (of_weights, of_ends))

    def warm_up(carry: Any, now: Any) -> Any:
        return forward(*carry, *now)

    def steady(carry: Any, now: Any) -> Any:
        (x, kept), (ct, sums) = carry
        tick, coming, targets, going = now
        (x, kept), terms = forward(x, kept, tick, coming)
        loss, pull = sh.vjp(lambda ends, x: run.last(ends, x, targets) / count, ends, x)
        of_ends, of_x = pull(1)
        ct, (of_weights, of_both) = back(run.moved(ct, -1) + of_x, sums, kept, tick, going)
        return ((x, kept), (ct, (of_weights, jax.tree.map(sh.add, of_both, of_ends)))), (loss, terms)

    def at(ticks: Any, late: int = 0) -> Any:
        """The tokens that enter in these ticks, or are back; any, where none are."""
        return tokens[np.clip(ticks - late, 0, count - 1)]

    def zeros(x: Any) -> Any:
        return sh.zeros(sh.typeof(x).cotangent())

    start = run.nothing(ends, tokens[0])
    first, middle, end = np.split(np.arange(count + back_at), [run.stages - 1, run.stages - 1 + count])
    ahead = start, sh.stack([start] * (back_at + 1), 1)
    ahead, early = sh.scan(warm_up, ahead, (first, at(first)))
    behind = zeros(start), jax.tree.map(zeros, (weights, ends))
    now = middle, at(middle), targets, at(middle, back_at)
    (ahead, behind), (losses, late) = sh.scan(steady, (ahead, behind), now)

    def cool_down(carry: Any, now: Any) -> Any:
        return back(run.moved(carry[0], -1), carry[1], ahead[1], *now), None

    return both(sh.sum(losses), early, late), sh.scan(cool_down, behind, (end, at(end, back_at)))[0][1]


SCHEDULES: Final[dict[str, Callable[..., tuple[Any, Tree]]]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def _checked(schedule: Schedule, layers: sh.ShType, tokens: sh.ShType) -> tuple[str, ...]:
    """The axes of the stages, if layers and batch can be cut as the schedule says."""
    (count, axes, _), (batch, over, _) = layers.dims[0], tokens.dims[0]
    devices, parts = layers.mesh.product(axes), layers.mesh.product(over)
    if schedule.kind not in SCHEDULES:
        what = f"there is no schedule `{schedule.kind}`; it is {' or '.join(f'`{kind}`' for kind in SCHEDULES)}"
    elif not axes:
        what = "a pipeline needs a mesh axis for its stages, and none shards the dim `layer`"
    elif schedule.stages % devices or count % schedule.stages:
        what = f"{count} layers on {devices} devices cannot be {schedule.stages} equal stages"
    elif batch % (schedule.microbatches * parts):
        what = f"{batch} sequences on {parts} devices cannot be {schedule.microbatches} equal microbatches"
    else:
        return axes
    raise sh.ShardingTypeError(what)


def pipelined_value_and_grad(sizes: model.Sizes, schedule: Schedule) -> Callable[[Tree, Any, Any], tuple[Any, Tree]]:
    """`sh.value_and_grad` of `model.loss`, where the axes of the dim ``layer`` hold stages.

    Args:
        sizes: Of the model. The backward pass computes each stage again, and ``remat`` says what of a layer it keeps
            then. Weights that are sharded more finely than their use are gathered in each tick, and again where the
            stage is computed again; without ``gather_again`` they are gathered once in a step, and the gradients of
            all microbatches scattered once.
        schedule: Which microbatch is where when.

    Returns:
        A function of weights, tokens and targets to the mean loss and the gradients of the weights, in their cotangent
        types. It raises a `ShardingTypeError` where no axis shards ``layer``, or the parts of a cut would not be equal.
    """

    def used(ends: Tree) -> Tree:
        return jax.tree.map(lambda w: w.astype(sizes.dtype), ends)

    def stage(weights: Tree, x: Any) -> tuple[Any, Any]:
        x, uneven = model.layers(x, weights, sizes)
        return x, None if uneven is None else sizes.balance / schedule.stages * uneven

    parts = Parts(
        first=lambda ends, tokens: model.embed(used(ends), tokens),
        stage=stage,
        last=lambda ends, x, targets: model.mean_loss(used(ends), x, targets, sizes),
    )

    def prepared(weights: Tree) -> tuple[Tree, Tree]:
        """The weights of the stages and those of the ends, as all microbatches use them.

        They are reduced where they are not sharded, so that gradients are summed over devices after all microbatches.
        """

        def ready(w: Any, dims: str, gather: bool = True) -> Any:
            states = dict.fromkeys(sh.typeof(w).axes(sh.State.INVARIANT), "R")
            w = sh.reshard(w, **states) if states else w
            with sh.policy("partial"):
                return model.sent(w, dims, sizes) if gather else w

        cut = {}
        for name, dims in sizes.weights()["layers"].items():
            w = ready(weights["layers"][name], "[layer, " + dims[1:], not sizes.gather_again)
            if schedule.stages > 1:
                cut[name] = sh.reshape(w, (schedule.stages, -1, *w.shape[1:]))
            else:  # the axes of one device shard the stages, not the layers
                cut[name] = sh.reshard(w[None], **dict.fromkeys(sh.typeof(w).dims[0].axes, 0))
        return cut, {name: ready(weights[name], model.WEIGHTS[name]) for name in ("embedding", "norm")}

    def value_and_grad(weights: Tree, tokens: Any, targets: Any) -> tuple[Any, Tree]:
        axes = _checked(schedule, sh.typeof(weights["layers"]["query"]), sh.typeof(tokens))
        cut = (-1, schedule.microbatches, tokens.shape[1])
        tokens, targets = (sh.moveaxis(sh.reshape(x, cut), 1, 0) for x in (tokens, targets))
        (stages, ends), pull = sh.vjp(prepared, weights)
        run = Run(parts, schedule.stages, axes)
        value, gradients = SCHEDULES[schedule.kind](run, stages, ends, tokens, targets)
        return value, pull(gradients)[0]

    return value_and_grad
