"""The types of gradients, and the cotangent of a loss that starts the backward pass."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from shtypes.errors import ShardingTypeError
from shtypes.rules.messages import axes_code
from shtypes.types import REPLICATED, ShType, State


class Seed(enum.Enum):
    """The devices along a mesh axis on which the cotangent of a loss is 1."""

    EACH = "on each device"
    FIRST = "on index 0, zero elsewhere"


#: By the state of the loss: the *value* 1 in its cotangent's state. Absent: the loss has no single value.
SEEDS: Final[Mapping[State, Seed]] = {
    State.INVARIANT: Seed.EACH,  # the cotangent is invariant
    State.UNREDUCED: Seed.EACH,  # reduced: each device differentiates its term, and nothing is communicated
    State.REDUCED: Seed.FIRST,  # unreduced: a 1 on each of n devices would make the gradient n times too large
}
# Not SHARDED: a scalar has no dim to shard. Not VARYING: a family of losses has no single gradient.


def seed_type(loss: ShType, *, holomorphic: bool = False, mapped: Sequence[str] = ()) -> ShType:
    """The type of the initial cotangent of a loss; along the axes ``mapped``, which are at other steps, it may vary."""
    if loss.ndim:
        raise ShardingTypeError(
            f"a gradient needs a scalar loss, not {loss}",
            why="a gradient is of one number",
            hints=["sh.sum(loss) or sh.mean(loss)", "sh.vjp takes a cotangent for results of any shape"],
        )
    if not loss.differentiable:
        raise ShardingTypeError(f"a gradient needs a loss of real numbers, not {loss}", hints=["loss.astype(float)"])
    if loss.dtype_name[0] == "c" and not holomorphic:
        raise ShardingTypeError(
            f"a gradient needs a real loss, not {loss}",
            hints=["return a real number, such as sh.abs(loss)", "holomorphic=True, if the function is holomorphic"],
        )
    for axis, state in zip(loss.mesh.axis_names, loss.states, strict=True):
        if state not in SEEDS and axis not in mapped:
            raise ShardingTypeError(
                f"the loss {loss} varies over mesh axis `{axis}`, and so it has no single gradient",
                why="each device holds a loss of its own",
                hints=[f'sh.reinterpret(loss, {axis}="U") if the loss is their sum'],
            )
    return loss.cotangent()


def check_cotangent(actual: ShType | str, primal: ShType, what: str) -> None:
    """Checks that a cotangent (``what`` in messages) has the cotangent type of its primal; a string is no type."""
    expected = primal.cotangent()
    if isinstance(actual, str) or actual != expected:
        raise ShardingTypeError(
            f"{what} has type {actual} instead of {expected}",
            why=f"the type of a gradient is a function of the type of the value, which is {primal}",
            hints=cast_hints("ct", None if isinstance(actual, str) else actual, expected),
        )


def check_tangent(actual: ShType | str, primal: ShType) -> None:
    """Checks that a tangent has the type of its primal, since JAX does not compare ours."""
    if isinstance(actual, str) or actual != primal:
        raise ShardingTypeError(
            f"a tangent is {actual} instead of {primal}",
            why="a tangent has the type of its value",
            hints=cast_hints("tangent", None if isinstance(actual, str) else actual, primal),
        )


def cast_hints(name: str, actual: ShType | None, expected: ShType) -> list[str]:
    """Hints of code that casts a value (``actual`` is None for a plain array) to a type; empty if there is none."""
    if actual is not None and (actual.mesh, actual.shape, actual.dtype_name) != (
        expected.mesh,
        expected.shape,
        expected.dtype_name,
    ):
        return []
    gained = [a for a in expected.axes(State.VARYING) if actual is None or actual.state(a) is not State.VARYING]
    if gained:
        replicated = actual is None or all(actual.state(a) in REPLICATED for a in gained)
        same = actual is None or all(
            actual.state(a) is expected.state(a) for a in expected.mesh.axis_names if a not in gained
        )
        return [f"sh.lax.pvary({name}, {axes_code(gained)})"] if replicated and same else []
    if actual is not None and any(expected.state(a) is not State.VARYING for a in actual.axes(State.VARYING)):
        return []
    return [f'sh.{"array" if actual is None else "reshard"}({name}, "{expected.canonical()}")']
