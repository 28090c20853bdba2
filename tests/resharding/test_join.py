"""Joins: each one free in both directions, and none that could be had is refused but the two left out on purpose."""

from __future__ import annotations

import itertools

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.resharding import Grade, grade_of, plan
from shtypes.resharding.join import JOIN, join
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 2})
SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


def of_state(state: State) -> ShType:
    """A type in that state along `x`."""
    base = ShType(MESH, "f32", (8, 8), {"x": REDUCED, "y": REDUCED})
    return base.with_axis("x", state, 0)


def is_free(a: ShType, b: ShType) -> bool:
    """Whether one becomes the other without communication in either direction."""
    try:
        return grade_of(plan(a, b)) is Grade.FREE
    except ShardingTypeError:
        return False


PAIRS = list(itertools.combinations([SHARDED, REDUCED, INVARIANT, UNREDUCED], 2))


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=lambda s: s.value)
def test_two_states_join_where_both_become_it_for_free(a: State, b: State) -> None:
    common = {c for c in State if is_free(of_state(a), of_state(c)) and is_free(of_state(b), of_state(c))}
    left_out = {frozenset({SHARDED, UNREDUCED}), frozenset({SHARDED, INVARIANT})}
    if frozenset({a, b}) in left_out:
        assert common <= {UNREDUCED}, "only as a pending sum, which holds more memory"
        with pytest.raises(ShardingTypeError, match="need one type"):
            join([of_state(a), of_state(b)])
    else:
        joined = JOIN[frozenset({a, b})]
        assert joined in common
        assert joined in (a, b)
        assert join([of_state(a), of_state(b)]) == of_state(joined) == join([of_state(b), of_state(a)])


@pytest.mark.parametrize("state", list(State), ids=lambda s: s.value)
def test_equal_types_join_as_they_are(state: State) -> None:
    assert join([of_state(state)] * 3) == of_state(state)


def test_a_reduced_value_joins_varying_ones() -> None:
    assert join([of_state(REDUCED), of_state(VARYING)]) == of_state(VARYING)
    assert join([of_state(VARYING), of_state(REDUCED), of_state(VARYING)]) == of_state(VARYING)


@pytest.mark.parametrize("state", [s for s in State if s not in (VARYING, REDUCED)], ids=lambda s: s.value)
def test_varying_joins_nothing_else(state: State) -> None:
    with pytest.raises(ShardingTypeError):
        join([of_state(state), of_state(VARYING)])


def sharded(*axes: tuple[str, ...]) -> ShType:
    used = {a for on in axes for a in on}
    return ShType(MESH, "f32", [Dim(8, on) for on in axes], {a: REDUCED for a in MESH.axis_names if a not in used})


def test_a_dim_is_sliced_only_below_the_axes_that_shard_it() -> None:
    assert join([sharded(("x",), ()), sharded(("x", "y"), ())]) == sharded(("x", "y"), ())
    assert join([sharded(("x",), ()), sharded((), ("y",))]) == sharded(("x",), ("y",))
    for other in (sharded(("y", "x"), ()), sharded((), ("x",)), sharded(("y",), ())):
        with pytest.raises(ShardingTypeError):
            join([sharded(("x",), ()), other])


def test_three_types_join_in_one() -> None:
    found = join([of_state(REDUCED), of_state(INVARIANT), of_state(UNREDUCED)])
    assert found == of_state(UNREDUCED)


@pytest.mark.parametrize(
    "other",
    [
        ShType(MESH, "f32", (8, 4), {"x": REDUCED, "y": REDUCED}),
        ShType(MESH, "bf16", (8, 8), {"x": REDUCED, "y": REDUCED}),
    ],
    ids=["shape", "dtype"],
)
def test_another_shape_or_dtype_does_not_join(other: ShType) -> None:
    with pytest.raises(ShardingTypeError, match=r"the results need one type: .* and .* differ"):
        join([of_state(REDUCED), other], "the results")


def test_names_that_agree_are_kept() -> None:
    named = sharded((), ()).named(["a", "b"])
    assert str(join([named, named.with_axis("x", INVARIANT)])) == "f32[a, b]{I:x}"
