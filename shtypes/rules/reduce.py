"""Typing of reductions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.tables import NONLINEAR, SUM, Need, Role
from shtypes.rules.typing import Typing, made_of, rule
from shtypes.types import Dim, ShType, State


def normal_dims(name: str, operand: ShType, dims: int | Iterable[int] | None) -> tuple[int, ...]:
    """Dims counted from the front, in order; None means all.

    Raises:
        ShardingTypeError: a dim is out of range, or named twice.
    """
    given = range(operand.ndim) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    for d in given:
        if not -operand.ndim <= d < operand.ndim:
            raise ShardingTypeError(f"`{name}` has no dim {d}: the operand has {operand.ndim} dims")
    normal = sorted(d % operand.ndim for d in given)
    if len(set(normal)) != len(normal):
        raise ShardingTypeError(f"`{name}` names a dim twice: {tuple(given)}")
    return tuple(normal)


def states_by(
    name: str, table: Mapping[Need, State], operand: ShType, dims: Sequence[int], *, reduces: bool = False
) -> list[State]:
    """The result's state on each axis by a table of roles: ALONG where the axis shards one of ``dims``.

    Raises:
        ShardingTypeError: the table has no such role.
    """
    states = []
    for axis, state in zip(operand.mesh.axis_names, operand.states, strict=True):
        needed: Need = Role.ALONG if operand.dim_of(axis) in dims else state
        if needed not in table:
            if needed is Role.ALONG:
                raise reasons.along(name, operand, axis, reduces, dims)
            raise reasons.nonlinear(name, axis)
        states.append(table[needed])
    return states


def _reduce(
    name: str, table: Mapping[Need, State], operand: ShType, dims: tuple[int, ...], keepdims: bool, dtype: str
) -> Typing:
    states = states_by(name, table, operand, dims, reduces=True)
    left = [Dim(1) if i in dims else d for i, d in enumerate(operand.dims) if keepdims or i not in dims]
    return Typing((operand,), (made_of(operand, dtype, left, states),))


@rule
def reduce_sum(
    operand: ShType, dims: int | tuple[int, ...] | None, keepdims: bool, dtype: str, name: str = "sum"
) -> Typing:
    """The sum over dims, and the mean: sharded on a summed dim becomes UNREDUCED, every other state is kept."""
    return _reduce(name, SUM, operand, normal_dims(name, operand, dims), keepdims, dtype)


@rule
def reduce_nonlinear(
    name: str, operand: ShType, dims: int | tuple[int, ...] | None, keepdims: bool, dtype: str
) -> Typing:
    """``max``, ``min``, ``prod``, ``argmax``, ``any``, ...: the reduced dims must be whole, and nothing unreduced."""
    return _reduce(name, NONLINEAR, operand, normal_dims(name, operand, dims), keepdims, dtype)
