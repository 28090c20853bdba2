"""What merging reshards saves in a training step: collectives and bytes by the ledger, launches as compiled.

The model is that of `examples/transformer/`, its residual stream replicated over `tp` or its positions split, on a
mesh `dp=2, tp=2`, under both policies; the gradients are summed at the end of the step. The variants:

- as written: `sh.merge_reshards(False)`;
- merged: what `sh.jit` does by itself, reshards in a row;
- one tree: merged, and the gradients finished by `sh.all_reduce(grads)`, one collective for each group of axes.

XLA combines all-reduces itself, into instructions with several operands. So launches of the compiled program are
counted with its passes on, as it runs, and off. Loops count as often as they run.

    python benchmarks/merging.py             # several minutes
    python benchmarks/merging.py --rounds 0  # counts alone, no times
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import numpy as np

import shtypes as sh
from examples.hlo import collectives_run
from examples.transformer import model
from examples.transformer.layouts import layout
from shtypes.types.tables import aligned

MESH = {"dp": 2, "tp": 2}
VARIANTS = ("as written", "merged", "one tree")
#: XLA's passes that combine collectives.
APART = {
    "xla_disable_hlo_passes": "all-reduce-combiner,all-gather-combiner,reduce-scatter-combiner,cpu-all-reduce-combiner"
}
#: An all-reduce of several operands: it is launched once.
_COMBINED = re.compile(r"= \((\w+\[[\d,]*\]).*?\) all-reduce")


class Row(NamedTuple):
    """One variant of one program."""

    policy: str
    residual: str
    variant: str
    collectives: int  # by the ledger
    bytes: int  # by the ledger, that each device sends
    launches: int  # of the compiled program as it runs
    uncombined: int  # of the compiled program where XLA combines nothing
    error: float  # the largest difference from one device, relative to the largest element
    milliseconds: float  # of a step; nan where none was timed


SIZES = model.Sizes(vocab=64, layers=3, hidden=16, heads=4, key_heads=2, head=4, inner=32, dtype="f32")
#: How the residual stream lies, and the layout.
RESIDUAL = {"tensor": "dp_tp", "sequence": "dp_tp_sp"}


def step(residual: str, *, one_tree: bool) -> Callable[..., Any]:
    """A training step: the loss and all gradients, every sum done."""

    def run(weights: Any, *batch: Any) -> Any:
        with sh.dim_axes(layout(RESIDUAL[residual]).dims):
            value, grads = sh.value_and_grad(functools.partial(model.loss, sizes=SIZES))(weights, *batch)
            return sh.all_reduce(value), sh.all_reduce(grads) if one_tree else jax.tree.map(sh.all_reduce, grads)

    return run


def arguments(mesh: dict[str, int]) -> tuple[Any, ...]:
    """Weights and a batch, the same on every mesh, which is set."""
    sh.set_mesh(sh.make_mesh(mesh))
    tokens = np.random.default_rng(0).integers(0, SIZES.vocab, (4, 8)).astype(np.int32)
    with sh.dim_axes(layout("dp_tp").dims):
        weights = model.init(sh.random.key(0), SIZES)
        return weights, *(sh.array(t, "i32[batch, seq]") for t in (tokens, np.roll(tokens, -1, 1)))


def whole(tree: Any) -> list[Any]:
    """The values of a tree, on the host."""
    return [np.asarray(sh.reshard(x, "[_...]")) for x in jax.tree.leaves(jax.block_until_ready(tree))]


def rows(rounds: int) -> Iterator[Row]:
    """All variants."""
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            for residual in RESIDUAL:
                right = whole(sh.jit(step(residual, one_tree=False))(*arguments(dict.fromkeys(MESH, 1))))
                args = arguments(MESH)
                for variant in VARIANTS:
                    with sh.merge_reshards(variant != "as written"):
                        yield _row((policy, residual, variant), args, right, rounds)


def _row(names: tuple[str, str, str], args: tuple[Any, ...], right: list[Any], rounds: int) -> Row:
    _, residual, variant = names
    program = sh.jit(step(residual, one_tree=variant == "one tree"))
    total = sh.ledger(program, *args).total
    found = whole(program(*args))
    error = max(float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-6)) for a, b in zip(found, right, strict=True))
    launches = [_launches(program, args, options) for options in (None, APART)]
    return Row(*names, total.launches, total.bytes, launches[0], launches[1], error, _clock(program, args, rounds))


def _launches(program: Any, args: tuple[Any, ...], options: Any) -> int:
    text = program.lower(*args).compile(compiler_options=options).as_text()
    return sum(collectives_run(_COMBINED.sub(r"= \1 all-reduce", text)).values())


def _clock(program: Any, args: tuple[Any, ...], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times)) if times else float("nan")


def main(argv: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="what merging reshards saves in a training step")
    parser.add_argument("--rounds", type=int, default=100, help="timed steps of each variant")
    found = list(rows(parser.parse_args(argv).rounds))
    headings = ("policy", "residual", "variant", "collectives", "B/device", "launches", "uncombined", "error", "ms")
    cells = [(*r[:3], *map(str, r[3:7]), f"{r.error:.0e}", f"{r.milliseconds:.2f}") for r in found]
    print("\n".join(aligned(headings, cells, headings[3:])))


if __name__ == "__main__":
    main()
