"""Functions of arrays, typed and lifted, called in every way that JAX takes: alike, right, and as on one device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

import shtypes as sh
from tests.peers.compare import answer, combinations
from tests.peers.lifted import lifted, other_calls
from tests.peers.oracle import is_right, structure
from tests.peers.programs import Program, programs
from tests.peers.public import calls, calls_of, calls_with_parameters, names
from tests.peers.values import Case, problems, reference
from tests.rules.cases import to_layout

MESH = (2, 2)
NIGHTS = 40
#: Of what the typed functions accept, their lifted namesakes refuse so much at most; one function with all its calls.
LOST, A_FUNCTION = 0.01, 6


def faults(chosen: Iterable[Program], count: int, seed: int = 0) -> list[str]:
    """Types that are wrong, and errors that are no refusals, of calls typed and lifted."""
    found = []
    for call in chosen:
        for given in combinations(call, MESH, count, seed):
            # the oracle changes an index within its range, in which sums wrap
            wraps = any(v.high and "U" in t.letters for v, t in zip(call.operands, given, strict=True))
            for form in (call, lifted(call)):
                got = answer(form, given)
                right = got.result is None or wraps or is_right(form, given, to_layout(got.result))
                if got.crash is not None or not right:
                    found.append(f"{form} of {' '.join(map(str, given))}: {got.result or repr(got.crash)}")
    return found


def lost(chosen: Iterable[Program], count: int, seed: int = 0) -> tuple[list[str], int]:
    """What the typed function accepts and its lifted namesake does not, and how often it accepts."""
    found, typed = [], 0
    for call in chosen:
        for given in combinations(call, MESH, count, seed):
            if answer(call, given).result is not None:
                typed += 1
                got = answer(lifted(call), given)
                if got.result is None and not got.plain:  # plain: a constant, of a program that uses no value
                    found.append(f"{call} of {' '.join(map(str, given))}")
    return found, typed


def wrong(chosen: Iterable[Program], count: int, seed: int = 0) -> list[str]:
    """Values and gradients that are not those of one device."""
    cases = [
        Case(form, given)
        for i, call in enumerate(chosen)
        for given in combinations(call, MESH, count, seed + i)
        for form in (call, lifted(call))
        if answer(form, given).result is not None
    ]
    mesh = sh.make_mesh({"x": 2, "y": 2})
    return [p for at in range(0, len(cases), 40) for p in problems(mesh, cases[at : at + 40])]


def can_be_judged(call: Program) -> bool:
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


def judged(chosen: Sequence[Program]) -> list[Program]:
    return [call for call in chosen if can_be_judged(call)]


def test_the_functions_that_jax_has_too_are_found() -> None:
    found = set(names())
    assert {"sin", "add", "sum", "sort", "take", "fft.fft", "linalg.norm"} <= found
    assert len(found) > 250


@pytest.mark.nightly
def test_a_few_functions_are_alike_typed_and_lifted_and_as_on_one_device() -> None:
    few = [call for name in ("mod", "cumsum") for call in calls_of(name)[::8]]
    few += [*calls_with_parameters()[::16], *programs()[7::160], *other_calls()[2::60]]
    assert faults(few[::3], 6) == []
    assert lost(few, 3)[0] == []
    assert wrong(few, 1) == []


@pytest.mark.nightly
@pytest.mark.parametrize("night", range(NIGHTS))
def test_every_function_is_alike_typed_and_lifted_and_as_on_one_device(night: int) -> None:
    """All calls are compared; the oracle and one device judge every eighth, and all that only JAX has."""
    every = calls()[night::NIGHTS]
    few = judged([*every[night % 8 :: 8], *other_calls()[night::NIGHTS]])
    assert len(few) > 4
    assert faults(few, 60, night) == []
    assert wrong(few, 4, night) == []
    found, typed = lost(every, 8, night)
    assert len(found) <= LOST * typed + A_FUNCTION, found
    assert not [call for call in every for g in combinations(call, MESH, 8, night + 1) if answer(lifted(call), g).crash]
