"""Every public function of arrays, called in every way that JAX takes: what types is right, and nothing else fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import shtypes as sh
from tests.peers.compare import answer, combinations, verdict
from tests.peers.oracle import structure
from tests.peers.programs import Program
from tests.peers.public import calls, names
from tests.peers.values import Case, problems, reference


def _unsound(chosen: Sequence[Program], mesh: tuple[int, ...], count: int) -> list[str]:
    return [
        f"{call} of {' '.join(map(str, given))}: {got.result}"
        for call in chosen
        for given in combinations(call, mesh, count)
        # the oracle changes an index within its range, in which sums wrap
        if not any(v.high and "U" in t.letters for v, t in zip(call.operands, given, strict=True))
        for said, got in [verdict(call, given)]
        if said == "unsound"
    ]


def test_the_functions_that_jax_has_too_are_found() -> None:
    found = set(names())
    assert {"sin", "add", "sum", "sort", "take", "fft.fft", "linalg.norm"} <= found
    assert len(found) > 250


def _can_be_judged(call: Program) -> bool:
    """Whether plain JAX also compiles a call, takes it in double precision, and knows its derivative."""
    if "reduce_precision" in str(call):  # its derivative rounds the cotangent: each term, where one device has the sum
        return False
    if "bitcast_convert_type" in str(call):  # of doubles it has another shape
        return False
    try:
        structure(call)
        value, gradients = reference(call)[0]
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return False
    return not np.isfinite(value).all() or all(np.isfinite(g).all() for g in gradients)


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(60))
def test_what_types_is_right(start: int) -> None:
    """Every fourth call, so that each function is among them."""
    chosen = [call for call in calls()[4 * start :: 240] if _can_be_judged(call)]
    assert len(chosen) > 4
    assert _unsound(chosen, (2,), 30) == []
    cases = [Case(c, g) for i, c in enumerate(chosen) for g in combinations(c, (2,), 4, seed=i) if answer(c, g).result]
    assert problems(sh.make_mesh({"x": 2}), cases) == []
