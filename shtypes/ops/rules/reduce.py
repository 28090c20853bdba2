"""Typing of reductions, and of ops that act along dims and keep the shape. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shtypes.errors import ShardingTypeError
from shtypes.ops.rules import reasons
from shtypes.ops.rules.tables import LINEAR_UNARY, NONLINEAR, SUM, Need, Role
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


def _states(
    name: str, table: Mapping[Need, State], operand: ShType, dims: tuple[int, ...], dtype: str, reduces: bool
) -> dict[str, State]:
    """The result's state on each axis, by a table of roles."""
    states: dict[str, State] = {}
    for axis in operand.mesh.axis_names:
        needed = role(operand, axis, dims)
        if needed not in table:
            if needed is Role.ALONG:
                raise reasons.along(name, operand, axis, reduces, dims)
            raise reasons.nonlinear(name, axis)
        states[axis] = kept_state(operand, table[needed], dtype)
    return states


def _reduce(
    name: str, table: Mapping[Need, State], operand: ShType, dims: tuple[int, ...], keepdims: bool, dtype: str
) -> Typing:
    states = _states(name, table, operand, dims, dtype, reduces=True)
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


def _along(
    name: str, table: Mapping[Need, State], operand: ShType, dims: int | tuple[int, ...] | None, dtype: str
) -> Typing:
    normal = normal_dims(name, operand, dims)
    states = _states(name, table, operand, normal, dtype, reduces=False)
    return Typing((operand,), (build(operand.mesh, dtype, operand.dims, states),))


@rule
def linear_along(name: str, operand: ShType, dims: int | tuple[int, ...] | None, dtype: str) -> Typing:
    """``flip``, ``roll``, ``cumsum``, ``fft``, ...: linear, keeps the shape, needs those dims whole."""
    return _along(name, LINEAR_UNARY, operand, dims, dtype)


@rule
def nonlinear_along(name: str, operand: ShType, dims: int | tuple[int, ...] | None, dtype: str) -> Typing:
    """``softmax``, ``sort``, ``argsort``, ``cumprod``, ...: keeps the shape, needs those dims whole."""
    return _along(name, NONLINEAR, operand, dims, dtype)
