"""Functions of `jax.numpy`, `jax.nn`, `jax.scipy` and `jax.lax`, lifted, on types of their operands over two axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import shtypes as sh
from tests.lifting.function_calls import function_of, lifted, other_calls, shared_calls
from tests.peers.compare import answer, combinations
from tests.peers.oracle import is_right
from tests.peers.programs import Program, programs
from tests.peers.test_public import _can_be_judged
from tests.peers.values import Case, problems
from tests.rules.cases import to_layout

pytestmark = pytest.mark.one_in(4)

MESH = (2, 2)
NIGHTS = 40
#: What the typed ops accept and the lifted program does not, at most.
LOST = 0.01
#: Of a fortieth of all calls one function may be among the lost ones, with all of its cases.
A_FUNCTION = 6
#: Programs that are not among these, and why.
LEFT_OUT = {
    "a.at[1].divide(5)": "its program divides by ones with a five in them, and a pending sum by numbers only",
}


def _wraps(call: Program, given: Sequence[Any]) -> bool:
    """Whether an index is a sum, which the oracle changes within its range only."""
    return any(v.high and "U" in t.letters for v, t in zip(call.operands, given, strict=True))


def _faults(chosen: Iterable[Program], count: int, seed: int) -> list[str]:
    """Types that are wrong, and errors that are no refusals."""
    found = []
    for call in chosen:
        for given in combinations(call, MESH, count, seed):
            got = answer(lifted(call), given)
            right = got.result is None or _wraps(call, given) or is_right(call, given, to_layout(got.result))
            if got.crash is not None or not right:
                found.append(f"{call} of {' '.join(map(str, given))}: {got.result or repr(got.crash)}")
    return found


def _accepted(call: Program, count: int, seed: int) -> list[Case]:
    found = lifted(call)
    return [Case(found, g) for g in combinations(call, MESH, count, seed) if answer(found, g).result is not None]


def _wrong(chosen: Iterable[Program], count: int, seed: int) -> list[str]:
    cases = [case for call in chosen for case in _accepted(call, count, seed)]
    mesh = sh.make_mesh({"x": 2, "y": 2})
    return [p for at in range(0, len(cases), 40) for p in problems(mesh, cases[at : at + 40])]


def _compared(chosen: Iterable[Program], count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often the typed op accepts, and the lifted program beside it."""
    tally: Counter[str] = Counter()
    lost = []
    for call in chosen:
        for given in combinations(call, MESH, count, seed):
            if answer(call, given).result is None:
                continue
            got = answer(lifted(call), given)
            accepted = got.result is not None or got.plain  # a constant, of a program that uses no value
            tally["typed"] += 1
            tally["lifted"] += accepted
            if not accepted:
                lost.append(f"{call} of {' '.join(map(str, given))}")
    return tally, lost


def test_what_types_is_right_and_free_where_the_typed_op_is() -> None:
    """A few programs; of all calls, only which JAX takes costs more than this."""
    assert _faults([*programs()[7::200], *other_calls()[2::60]], 8, 0) == []
    tally, lost = _compared([p for p in programs()[3::12] if p.text not in LEFT_OUT], 3, 0)
    assert tally["lifted"] >= (1 - LOST) * tally["typed"], lost
    assert _wrong([*programs()[11::250], *other_calls()[1::60]], 2, 0) == []


@pytest.mark.nightly
def test_three_hundred_functions_are_called() -> None:
    found = {function_of(call) for call in (*shared_calls(), *other_calls())}
    assert len(found) >= 300
    assert len(other_calls()) == len(set(other_calls()))


@pytest.mark.nightly
@pytest.mark.parametrize("night", range(NIGHTS))
def test_every_function_lifted(night: int) -> None:
    """Types of all calls; values, gradients and the oracle of every eighth, and of all that the library lacks."""
    every = shared_calls()[night::NIGHTS]
    few = [call for call in [*every[night % 8 :: 8], *other_calls()[night::NIGHTS]] if _can_be_judged(call)]
    assert _faults(few, 60, night) == []
    assert _wrong(few, 4, night) == []
    tally, lost = _compared(every, 8, night)
    assert len(lost) <= LOST * tally["typed"] + A_FUNCTION, lost
    assert not [call for call in every for g in combinations(call, MESH, 8, night + 1) if answer(lifted(call), g).crash]
