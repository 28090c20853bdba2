"""Typing of reductions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shtypes.errors import ShardingTypeError
from shtypes.ops.rules import reasons
from shtypes.ops.rules.tables import NONLINEAR, SUM, Need, Role
from shtypes.ops.rules.typing import Typing, build, kept_state, rule
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


def role(operand: ShType, axis: str, dims: Sequence[int]) -> Need:
    """The state of an axis, or ALONG where it shards one of ``dims``."""
    return Role.ALONG if operand.dim_of(axis) in dims else operand.state(axis)


def _reduce(
    name: str, table: Mapping[Need, State], operand: ShType, dims: tuple[int, ...], keepdims: bool, dtype: str
) -> Typing:
    states: dict[str, State] = {}
    for axis in operand.mesh.axis_names:
        needed = role(operand, axis, dims)
        if needed is Role.ALONG and needed not in table:
            raise reasons.along(name, operand, axis, reduces=True)
        if needed not in table:
            raise reasons.nonlinear(name, axis)
        states[axis] = kept_state(operand, table[needed], dtype)
    left = [Dim(1) if i in dims else d for i, d in enumerate(operand.dims) if keepdims or i not in dims]
    return Typing((operand,), (build(operand.mesh, dtype, left, states),))


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
