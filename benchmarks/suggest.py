"""What the solver finds: against the layouts of papers, for `implicit_comm`, and how long it takes.

    python benchmarks/suggest.py             # known optima, arguments of given types, and models of many layers
    python benchmarks/suggest.py --only known

`found / known` is what a step sends with the types found, by the ledger, to what it sends by the paper's formula where
nothing counts but bytes; the formulas are in `tests/solver/test_known_optima.py`. Seconds are of a processor: to trace
the model, to ask what its equations may do, to find the plan and to type it. `inserted / op by op` is what a GPT of
four layers sends on 4x4 devices, forward and backward, where `implicit_comm` decides about the whole, to what it sends
where each op chooses for itself.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax

import shtypes as sh
from shtypes.lifting.lift import lift_op_by_op
from shtypes.types.tables import aligned
from tests.solver import models
from tests.solver.layouts import LAYOUTS, gpt_types
from tests.solver.test_known_optima import BYTES, N, known


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and seconds of a processor."""
    start = time.process_time()
    found = run()
    return found, time.process_time() - start


def known_optima() -> Iterator[tuple[str, ...]]:
    """For each layout of a paper, what is found."""
    for name, case in known().items():
        options = {"mesh": {"n": N}, **case.options, **BYTES}
        found, seconds = timed(functools.partial(sh.suggest, case.f, *case.args, **options))
        sent = found[0].ledger.total.bytes
        yield name, f"{sent / 1e6:,.3f}", f"{case.sent / 1e6:,.3f}", f"{sent / (case.sent + 64):.3f}", f"{seconds:.2f}"


def large_models() -> Iterator[tuple[str, ...]]:
    """Models of many layers: seconds without a bound on memory, and with four fifths of what that takes."""
    mesh = {"dp": 16, "tp": 16}
    for layers in (24, 96):
        for scanned in (True, False):
            args = models.gpt(layers, 512, 1024, 4096, 32, 128, 16384, 65536, scanned=scanned)
            name = f"GPT, {layers} layers, {'scanned' if scanned else 'unrolled'}"
            free, first = timed(functools.partial(sh.suggest, models.gpt_loss, *args, mesh=mesh))
            limit = 0.8 * free[0].memory
            bounded, second = timed(functools.partial(sh.suggest, models.gpt_loss, *args, mesh=mesh, memory=limit))
            slower = bounded[0].seconds / free[0].seconds
            yield name, f"{first:.1f}", f"{second:.1f}", str(bounded.solves), f"{slower:.3f}"


def given_types() -> Iterator[tuple[str, ...]]:
    """A language model in layouts of people, decided as a whole and op by op."""
    for width in (1024, 4096):
        for name, layout in LAYOUTS.items():
            with sh.use_mesh(sh.abstract_mesh({"dp": 4, "tp": 4})):
                args = jax.tree.map(sh.abstract_array, gpt_types(width, layout))
                whole, seconds = timed(functools.partial(sent_by_step, sh.lift(models.gpt_loss), *args))
                alone, _ = timed(functools.partial(sent_by_step, lift_op_by_op(models.gpt_loss), *args))
            ratio = whole / alone
            yield f"d={width} {name}", f"{whole / 1e6:,.0f}", f"{alone / 1e6:,.0f}", f"{ratio:.3f}", f"{seconds:.2f}"


def sent_by_step(f: Callable[..., Any], params: Any, *data: Any) -> int:
    """Bytes of the loss and its gradients, with what is inserted."""

    def loss(params: Any) -> Any:
        with sh.implicit_comm():
            return f(params, *data)

    return sh.ledger(sh.value_and_grad(loss), params).total.bytes


PARTS = {
    "known": (("layout", "found MB", "known MB", "found / known", "seconds"), known_optima),
    "given": (("model", "inserted MB", "op by op MB", "inserted / op by op", "seconds"), given_types),
    "large": (("model", "seconds", "with a bound", "solves", "slower by the bound"), large_models),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS))
    only = parser.parse_args().only
    for part, (headings, rows) in PARTS.items():
        if only in (None, part):
            print(*aligned(headings, list(rows()), headings[1:]), "", sep="\n")
