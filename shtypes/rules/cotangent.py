"""The type of a gradient, and the cotangent that a loss starts the backward pass with. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

from shtypes.errors import ShardingTypeError
from shtypes.types import REPLICATED, ShType, State


class Seed(enum.Enum):
    """Where the cotangent of a loss holds the value 1 along one mesh axis."""

    EACH = "on each device"
    FIRST = "on index 0, zero elsewhere"


#: By the state of the loss: the *value* 1 in its cotangent's state. Absent: the loss has no single value.
SEEDS: Final[Mapping[State, Seed]] = {
    State.INVARIANT: Seed.EACH,  # the cotangent is invariant
    State.UNREDUCED: Seed.EACH,  # reduced: each device differentiates its own term, and nothing is communicated
    State.REDUCED: Seed.FIRST,  # unreduced: a 1 on each of n devices would make the gradient n times too large
}
# Not SHARDED: a scalar has no dim to shard. Not VARYING: a family of losses has no single gradient.


def seed_type(loss: ShType, *, holomorphic: bool = False, mapped: Sequence[str] = ()) -> ShType:
    """The type of the cotangent that a loss of this type is seeded with.

    Args:
        loss: The type of the loss.
        holomorphic: Whether the function was promised to be holomorphic, so that the loss may be complex.
        mapped: Axes along which each device is at steps of its own, so that its loss is that of its step.
    """
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


def check_cotangent(given: ShType | str, primal: ShType, what: str) -> None:
    """Checks that a cotangent, ``what`` in messages, has the type that its primal's maps to; a text says what it is."""
    expected = primal.cotangent()
    if isinstance(given, str) or given != expected:
        raise ShardingTypeError(
            f"{what} has type {given} instead of {expected}",
            why=f"the type of a gradient is a function of the type of the value, which is {primal}",
            hints=ways_to("ct", None if isinstance(given, str) else given, expected),
        )


def check_tangent(given: ShType | str, primal: ShType) -> None:
    """Checks that a tangent has the type of its primal, since JAX compares no types but its own."""
    if isinstance(given, str) or given != primal:
        raise ShardingTypeError(
            f"a tangent is {given} instead of {primal}",
            why="a tangent has the type of its value",
            hints=ways_to("tangent", None if isinstance(given, str) else given, primal),
        )


def ways_to(name: str, given: ShType | None, wanted: ShType) -> list[str]:
    """What a user can write to give a value a type; nothing where there is no way.

    Args:
        name: What the value is called.
        given: Its type; None of a plain array.
        wanted: The type.
    """
    if given is not None and (given.mesh, given.shape, given.dtype_name) != (
        wanted.mesh,
        wanted.shape,
        wanted.dtype_name,
    ):
        return []
    gained = [a for a in wanted.axes(State.VARYING) if given is None or given.state(a) is not State.VARYING]
    if gained:
        replicated = given is None or all(given.state(a) in REPLICATED for a in gained)
        same = given is None or all(
            given.state(a) is wanted.state(a) for a in wanted.mesh.axis_names if a not in gained
        )
        axes = ", ".join(f'"{a}"' for a in gained)
        return [f"sh.lax.pvary({name}, {axes if len(gained) == 1 else f'({axes})'})"] if replicated and same else []
    if given is not None and any(wanted.state(a) is not State.VARYING for a in given.axes(State.VARYING)):
        return []
    return [f'sh.{"array" if given is None else "reshard"}({name}, "{wanted.canonical()}")']
