"""Moves between types, where axes become varying, too."""

from __future__ import annotations

import jax

from shtypes.core.array import Array
from shtypes.primitives.collective import vary
from shtypes.primitives.reshard import resharded
from shtypes.resharding import plan
from shtypes.scopes.check_comm import check_written
from shtypes.types import REPLICATED, ShType, State


def move(x: Array, dst: ShType, *, inserted: bool = False, constant: bool = False) -> Array:
    """Reshards a typed value to a type of the same mesh, dtype and shape; nothing happens if it has it.

    Args:
        x: The value.
        dst: The type.
        inserted: Whether a typing rule asks for it.
        constant: Whether the value has no gradient, whatever its type says.
    """
    src = jax.typeof(x)
    if src == dst:
        return x
    if inserted:
        check_written(src, dst)
    if State.VARYING in dst.states and src.axes(State.VARYING) != dst.axes(State.VARYING):
        return move_to_varying(x, dst, inserted=inserted, constant=constant)
    return resharded(x, dst, inserted=inserted, constant=constant)


def move_to_varying(x: Array, dst: ShType, *, inserted: bool, constant: bool = False) -> Array:
    """A cast some axes of which go from replicated to varying; the others move as ever.

    Raises:
        ShardingTypeError: another state would become varying, or varying another state.
    """
    src = middle = jax.typeof(x)
    gained = [a for a in dst.axes(State.VARYING) if src.state(a) is not State.VARYING]
    middle = dst
    for axis in gained:
        if src.state(axis) not in REPLICATED:
            plan(src, dst)  # says why not
        middle = middle.with_axis(axis, State.REDUCED if constant else src.state(axis))
    return vary(move(x, middle, inserted=inserted, constant=constant), gained, inserted=inserted)
