"""The layouts of `examples/transformer`, written by hand, against the types that `sh.suggest` finds for the same model.

    python benchmarks/layouts.py               # about two minutes
    python benchmarks/layouts.py --rounds 0    # predictions alone

The decoder computes in f32 and keeps all that its backward pass needs. A step is the loss and its gradients in the
types of the weights, on eight CPU devices; the model in plain JAX is that of `benchmarks/models/decoder.py`. Predicted
are seconds (work by `sh.compute`, and the ledger's by the links of such a machine) and bytes of memory by
`sh.memory`; measured are seconds by the clock, as ratios to the found step of the same mesh within rounds in which all
take turns, and what XLA says that the compiled program needs.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp

import shtypes as sh
from benchmarks.auto_mode import DEVICE, LINK
from benchmarks.measure import timing
from benchmarks.models import decoder
from examples.transformer import model
from examples.transformer.layouts import layout
from shtypes.types.tables import aligned

MESHES: Final = {
    (("dp", 8),): ("dp", "zero3"),
    (("dp", 2), ("tp", 4)): ("dp_tp", "dp_tp_sp", "zero3_tp", "zero3_tp_sp"),
}
CONFIG: Final = decoder.Config()


class Step(NamedTuple):
    """A step, compiled, and what is predicted of it."""

    run: Callable[[], Any]
    seconds: float
    sent: int
    memory: int
    needs: int


def measured(step: Callable[..., Any], args: Any, mesh: Any) -> Step:
    """What is predicted of a typed step, and the compiled program."""
    signature = sh.check(step, *args, mesh=mesh)
    compiled = sh.jit(step).lower(*args).compile()
    analysis = compiled.memory_analysis()
    needs = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    seconds = signature.compute(DEVICE).seconds() + signature.ledger.time(sh.cost_model(LINK))
    memory = signature.memory.peak
    return Step(lambda: compiled(*args), seconds, signature.ledger.total.bytes, memory, needs)


def by_hand(name: str) -> Step:
    """A step of the example in one of its layouts."""
    weights, *batch = decoder.data(CONFIG)
    with layout(name).use() as mesh:
        with layout(name).as_weights():
            held = jax.tree.map(sh.array, weights, model.types(CONFIG.sizes))
        tokens = [sh.array(x, "i32[batch, seq]") for x in batch]
        loss = functools.partial(model.loss, sizes=CONFIG.sizes)
        return measured(sh.train_step(loss), (held, *tokens), mesh)


def found(sizes: dict[str, int]) -> Step:
    """The step of the model in plain JAX, in the types that are found."""
    loss, args = decoder.plain(), decoder.data(CONFIG)
    plan = sh.suggest(loss, *jax.tree.map(shape, args), mesh=sizes, links=LINK, compute=DEVICE)[0]
    mesh = sh.make_mesh(sizes)
    with sh.use_mesh(mesh):
        placed = jax.tree.map(sh.array, args, plan.arguments)
        return measured(sh.train_step(sh.apply(loss, plan)), placed, mesh)


def shape(x: Any) -> Any:
    """The shape of an array."""
    return jax.ShapeDtypeStruct(x.shape, jnp.asarray(x).dtype)


def rows(rounds: int) -> Iterator[tuple[str, ...]]:
    """A line for each layout and each mesh's found types."""
    for axes, names in MESHES.items():
        steps = {"found": found(dict(axes)), **{name: by_hand(name) for name in names}}
        losses = [float(sh.all_reduce(step.run()[0]).to_jax()) for step in steps.values()]
        if max(losses) - min(losses) > 1e-4:
            raise SystemExit(f"the layouts compute different losses: {losses}")
        took: dict[str, list[timing.Spent]] = {name: [] for name in steps}
        for _ in range(rounds):
            for name, step in steps.items():
                took[name].append(timing.until_done(step.run, 3))
        for name, step in steps.items():
            clock = f"{timing.ratio(took[name], took['found'])['wall']:.2f}" if rounds else "-"
            yield (
                ", ".join(f"{a}={n}" for a, n in axes),
                name,
                f"{step.seconds / steps['found'].seconds:.2f}",
                clock,
                f"{step.sent / 1e3:,.0f}",
                f"{step.memory / 2**20:.1f}",
                f"{step.needs / 2**20:.1f}",
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="0 for no times")
    headings = ("mesh", "layout", "predicted time", "time", "sent kB", "predicted MiB", "MiB")
    print(*aligned(headings, list(rows(parser.parse_args().rounds)), headings[2:]), sep="\n")
