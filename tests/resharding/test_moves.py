"""The table of moves, derived again: which rows can be silent, what each one does, and what it sends."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shtypes.resharding import MOVES, REINTERPRETATIONS, Grade, Kind, plan
from shtypes.resharding.moves import all_in_words, ring_bytes
from shtypes.types import COTANGENT, Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.resharding import simulate

STATES = tuple(State)
GLOBAL = tuple(s for s in STATES if s is not State.VARYING)
PAIRS = list(itertools.permutations(GLOBAL, 2))

Matrix = np.ndarray[Any, Any]


def transposed(src: State, dst: State) -> tuple[State, State]:
    """The states between which the transpose of a move goes."""
    return COTANGENT[dst], COTANGENT[src]


def shards(state: State, n: int) -> tuple[list[Matrix], Matrix]:
    """A vector of n elements on n devices: each shard, and the meaning, as matrices on the numbers chosen freely."""
    eye = np.eye(n, dtype=int)
    if state is State.SHARDED:
        return [eye[i : i + 1] for i in range(n)], eye
    if state is State.UNREDUCED:
        terms = np.eye(n * n, dtype=int).reshape(n, n, n * n)
        return list(terms), terms.sum(0)
    return [eye] * n, eye


def follows_from(wanted: Matrix, known: Matrix) -> bool:
    rank = np.linalg.matrix_rank
    return bool(rank(np.vstack([known, wanted])) == rank(known))


def can_be_silent(src: State, dst: State, n: int) -> bool:
    """Whether each device can compute its new shard from its old one, for every value."""
    own, value = shards(src, n)
    if dst is State.UNREDUCED:  # any local terms will do, as long as they can add up to the value
        return follows_from(value, np.vstack(own))
    wanted, _ = shards(dst, n)
    return all(follows_from(w @ value, o) for w, o in zip(wanted, own, strict=True))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda s: s.value)
def test_a_move_is_silent_exactly_when_each_device_can_do_it_alone(src: State, dst: State, n: int) -> None:
    assert MOVES[src, dst].kind.communicates == (not can_be_silent(src, dst, n))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda s: s.value)
def test_the_grade_follows_from_the_move_and_its_transpose(src: State, dst: State, n: int) -> None:
    back = transposed(src, dst)
    backward_silent = back[0] is back[1] or can_be_silent(*back, n)
    forward_silent = can_be_silent(src, dst, n)
    wanted = Grade.COMMUNICATING if not forward_silent else Grade.FREE if backward_silent else Grade.FREE_FORWARD
    assert MOVES[src, dst].grade is wanted


def test_every_pair_of_states_with_a_global_meaning_has_a_move() -> None:
    assert set(MOVES) == {*PAIRS, (State.SHARDED, State.SHARDED)}


def test_the_transpose_of_every_move_is_a_move_or_nothing() -> None:
    for src, dst in MOVES:
        back = transposed(src, dst)
        assert back in MOVES or back[0] is back[1]
        assert transposed(*back) == (src, dst)


def test_a_move_sends_nothing_exactly_when_its_kind_is_silent() -> None:
    for move in MOVES.values():
        assert (move.bytes(4, 64) == 0) == (not move.kind.communicates)


def test_bytes_are_rounded_up() -> None:
    for rounds, n, size in itertools.product((1, 2), range(1, 9), range(1, 20)):
        assert ring_bytes(rounds, n, size) == math.ceil(Fraction(rounds * (n - 1) * size, n))


def one_axis(state: State, n: int, dim: int) -> ShType:
    mesh = Mesh({"x": n})
    if state is State.SHARDED:
        return ShType(mesh, "f32", [Dim(n * n, ("x",) if i == dim else ()) for i in range(2)], {})
    return ShType(mesh, "f32", [n * n, n * n], {"x": state})


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(("src", "dst"), list(MOVES), ids=lambda s: s.value)
def test_a_row_on_one_axis_is_one_step_of_its_kind_that_sends_its_bytes(src: State, dst: State, n: int) -> None:
    a, b = one_axis(src, n, 0), one_axis(dst, n, 1)
    rng = np.random.default_rng(0)
    value = rng.integers(-9, 9, a.shape)
    (step,) = plan(a, b).steps
    family = simulate.run(step, simulate.split(a, value, rng))
    np.testing.assert_array_equal(simulate.meaning(b, family), value)
    move = MOVES[src, dst]
    assert step.kind is move.kind
    assert step.bytes == move.bytes(n, max(a.local_bytes, b.local_bytes)) == simulate.received(step)


def test_reinterpretations_are_graded_by_their_transpose() -> None:
    for (src, dst), stored in REINTERPRETATIONS.items():
        assert State.VARYING in (src, dst)
        assert stored is (Grade.FREE if transposed(src, dst) in REINTERPRETATIONS else Grade.FREE_FORWARD)


def test_a_pending_sum_is_never_reinterpreted_as_a_family() -> None:
    assert (State.UNREDUCED, State.VARYING) not in REINTERPRETATIONS
    assert (State.VARYING, State.INVARIANT) not in REINTERPRETATIONS
    assert COTANGENT[State.INVARIANT] is State.INVARIANT


def test_a_kind_is_silent_or_communicates() -> None:
    silent = {Kind.RELABEL, Kind.MASK, Kind.SLICE, Kind.PLACE}
    assert {k for k in Kind if not k.communicates} == silent


def test_equal_steps_are_counted_in_words() -> None:
    gather, both = "all-gather over `x`, `y`", "all-gather over `x`, `y` and 3 times permute over `x` in bf16"
    assert all_in_words(["", gather, both, gather]) == f"3 times {both}"
    assert all_in_words([both], 2) == "2 times all-gather over `x`, `y` and 6 times permute over `x` in bf16"
    assert all_in_words(["", ""], 2) == ""
