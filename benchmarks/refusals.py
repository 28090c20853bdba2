"""What a refused op costs: caught and not read, and read with its fixes, against an accepted op of the same kind.

    python benchmarks/refusals.py             # every second program of the tests' random refusals, about two minutes
    python benchmarks/refusals.py --quick     # one in sixteen
    python benchmarks/refusals.py --json      # machine-readable

An op is applied to values that have types alone. Each program takes random types until one is accepted and one is
refused; times are the least of three calls, by processor time, after a first one. Ratios are within one run: of a
refused call to the accepted call of the same program. What each number means is in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import numpy as np
from rich.console import Console
from rich.table import Table

import shtypes as sh
from tests.end_to_end import assignments
from tests.error_checks import run
from tests.test_errors_everywhere import ONE, TWO

MESHES: Final[tuple[dict[str, int], ...]] = ({"x": 2}, {"x": 2, "y": 2}, {"x": 2, "y": 4, "z": 2})
#: Programs of many operands, of a loop and of lifted calls.
MORE: Final = {
    "einsum of four": "m.einsum('ab,bc,cd,de->ae', {0}, {1}, {2}, {3})",
    "concatenate of twenty": f"m.concatenate([{', '.join(f'{{{i}}}' for i in range(20))}])",
    "scan body": "m.scan(lambda c, w: (m.tanh(c @ w), None), {0}, m.stack([{1}] * 3))",
    "lifted cumsum": "sh.lift(lambda a: jnp.cumsum(a, axis=0))({0})",
    "lifted median": "sh.lift(lambda a: jnp.median(a, axis=0))({0})",
}


class Refusal(NamedTuple):
    """Milliseconds of the calls of one program."""

    program: str
    accepted: float  # an accepted call
    caught: float  # a refused call whose error nobody reads
    read: float  # a refused call whose error is printed
    fixes: int  # how many fixes it has


def measured(program: str, mesh: Any, rng: np.random.Generator, tries: int = 12) -> Refusal | None:
    """One program; None where no types of some are accepted, or none are refused."""
    count = sum(f"{{{i}}}" in program for i in range(20))
    shape = (16, 16) if program in MORE.values() else (8, 4)
    texts = list(assignments(mesh, shape))
    names = [f"v{i}" for i in range(count)]
    accepted = refused = None
    for _ in range(tries):
        if accepted is not None and refused is not None:
            return Refusal(program, accepted, *refused)
        chosen = [str(list(shape))] * count if refused is not None else rng.choice(texts, count)
        call = Call(
            program.format(*names), {n: sh.abstract_array(f"f32{t}") for n, t in zip(names, chosen, strict=True)}
        )
        try:
            error = call.refused()
        except Exception:  # it wants values
            return None
        if error is None and accepted is None:
            accepted = least(call.refused)
        elif error is not None and refused is None:
            refused = least(call.refused), least(call.told), len(error.fixes)
    return None


class Call(NamedTuple):
    """A call of a program on values that have types alone."""

    text: str
    values: dict[str, Any]

    def refused(self) -> sh.ShardingTypeError | None:
        """What the call is refused with; None if it is accepted."""
        try:
            run(self.text, self.values)
        except sh.ShardingTypeError as error:
            return error
        return None

    def told(self) -> str:
        """What the refusal says."""
        return str(self.refused())


def least(call: Callable[[], object]) -> float:
    """Milliseconds of processor time of the quickest of three calls."""
    found = []
    for _ in range(3):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found) * 1e3


def collect(*, quick: bool = False, seed: int = 0) -> list[Refusal]:
    """The refusals of each program on each mesh."""
    rng = np.random.default_rng(seed)
    found = []
    for axes in MESHES:
        mesh = sh.abstract_mesh(axes)
        with sh.use_mesh(mesh):
            programs = [*ONE, *TWO][:: 16 if quick else 2]
            found += [measured(program, mesh, rng) for program in (*programs, *MORE.values())]
    return [refusal for refusal in found if refusal is not None]


def summary(found: list[Refusal]) -> dict[str, dict[str, float]]:
    """Median, nine tenths and the most of each number."""
    numbers = {
        "accepted, ms": [r.accepted for r in found],
        "refused and caught, ms": [r.caught for r in found],
        "refused and read, ms": [r.read for r in found],
        "caught / accepted": [r.caught / r.accepted for r in found],
        "read / accepted": [r.read / r.accepted for r in found],
    }
    return {
        name: {"median": statistics.median(n), "p90": float(np.percentile(n, 90)), "most": max(n)}
        for name, n in numbers.items()
    }


def show(found: list[Refusal], console: Console) -> None:
    """Prints the numbers, and the programs whose refusals take longest."""
    table = Table("", "median", "90 %", "most", title=f"{len(found)} refusals")
    for name, numbers in summary(found).items():
        table.add_row(name, *(f"{value:.2f}" for value in numbers.values()))
    console.print(table)
    dearest = Table("program", "accepted", "caught", "read", "fixes", title="the dearest, ms")
    for r in sorted(found, key=lambda r: -r.read)[:10]:
        dearest.add_row(r.program[:60], *(f"{n:.2f}" for n in (r.accepted, r.caught, r.read)), str(r.fixes))
    console.print(dearest)


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = collect(quick=options.quick)
    if options.json:
        print(json.dumps({"summary": summary(found), "refusals": [r._asdict() for r in found]}))
    else:
        show(found, Console())


if __name__ == "__main__":
    main()
