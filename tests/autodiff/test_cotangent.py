"""The gradient's type and the seed, derived from meanings; nothing here needs JAX."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules.cotangent import SEEDS, Seed, cast_hints, check_cotangent, seed_type
from shtypes.types import COTANGENT, ShType, State
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 3})


def scalar(x: State, y: State = State.INVARIANT, dtype: str = "f32") -> ShType:
    return ShType(MESH, dtype, (), {"x": x, "y": y})


def denoted(state: State, shards: list[Fraction]) -> Fraction | None:
    """The number that a scalar's shards denote along one axis; None if they denote none."""
    if state is State.UNREDUCED:
        return sum(shards, Fraction(0))
    return shards[0] if len(set(shards)) == 1 else None


@pytest.mark.parametrize("state", [s for s in State if s not in (State.SHARDED, State.VARYING)])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_seed_denotes_the_number_one(state: State, size: int) -> None:
    rest = Fraction(1) if SEEDS[state] is Seed.EACH else Fraction(0)
    assert denoted(COTANGENT[state], [Fraction(1)] + [rest] * (size - 1)) == 1


def test_a_loss_without_one_value_has_no_seed() -> None:
    assert set(State) - set(SEEDS) == {State.SHARDED, State.VARYING}


@pytest.mark.parametrize("x", list(SEEDS))
@pytest.mark.parametrize("y", list(SEEDS))
def test_a_seed_has_the_type_of_the_gradient_of_the_loss(x: State, y: State) -> None:
    assert seed_type(scalar(x, y)) == scalar(COTANGENT[x], COTANGENT[y])


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (scalar(State.VARYING), "varies over mesh axis `x`"),
        (scalar(State.REDUCED, dtype="i32"), "real numbers"),
        (scalar(State.REDUCED, dtype="bool"), "real numbers"),
        (scalar(State.REDUCED, dtype="c64"), "real loss"),
        (ShType(MESH, "f32", (3,), {"x": State.REDUCED, "y": State.REDUCED}), "scalar loss"),
    ],
    ids=["varying", "int", "bool", "complex", "vector"],
)
def test_a_loss_that_has_no_gradient_is_refused_with_a_hint(loss: ShType, words: str) -> None:
    with pytest.raises(ShardingTypeError, match=words) as caught:
        seed_type(loss)
    assert caught.value.hints


def test_a_holomorphic_loss_may_be_complex() -> None:
    assert seed_type(scalar(State.REDUCED, dtype="c64"), holomorphic=True).dtype_name == "c64"


def test_a_cotangent_of_another_type_is_refused_with_the_reshard_that_mends_it() -> None:
    primal = ShType(MESH, "f32", (6,), {"x": State.REDUCED, "y": State.INVARIANT})
    check_cotangent(primal.cotangent(), primal, "the cotangent")
    with pytest.raises(ShardingTypeError) as caught:
        check_cotangent(primal, primal, "the cotangent")
    assert str(caught.value) == (
        "the cotangent has type f32[6]{I:y} instead of f32[6]{U:x, I:y}\n"
        "  why:   the type of a gradient is a function of the type of the value, which is f32[6]{I:y}\n"
        '  try:   sh.reshard(ct, "f32[6]{U:x, I:y}")'
    )
    with pytest.raises(ShardingTypeError) as caught:
        check_cotangent(primal.replace(dims=(5,)), primal, "the cotangent")
    assert not caught.value.hints


@pytest.mark.parametrize(
    ("given", "wanted", "ways"),
    [
        (scalar(State.REDUCED), scalar(State.INVARIANT), ['sh.reshard(x, "f32[]{I:(x,y)}")']),
        (scalar(State.INVARIANT), scalar(State.VARYING), ['sh.lax.pvary(x, "x")']),
        (scalar(State.REDUCED, State.REDUCED), scalar(State.VARYING, State.VARYING), ['sh.lax.pvary(x, ("x", "y"))']),
        (None, scalar(State.VARYING), ['sh.lax.pvary(x, "x")']),
        (None, scalar(State.INVARIANT), ['sh.array(x, "f32[]{I:(x,y)}")']),
        (scalar(State.UNREDUCED), scalar(State.VARYING), []),
        (scalar(State.VARYING), scalar(State.REDUCED), []),
        (scalar(State.REDUCED, dtype="f64"), scalar(State.INVARIANT), []),
    ],
)
def test_a_type_is_reached_by_what_can_reach_it(given: ShType | None, wanted: ShType, ways: list[str]) -> None:
    assert cast_hints("x", given, wanted) == ways
