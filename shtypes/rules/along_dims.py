"""Types reductions, and other unary ops along dims that must not be sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.tables import LINEAR_UNARY, NONLINEAR, SUM, Need, Role
from shtypes.rules.typing import Typing, rule, unary_result
from shtypes.types import Dim, ShType, State


def normal_dims(name: str, operand: ShType, dims: int | Iterable[int] | None) -> tuple[int, ...]:
    """Non-negative dims, sorted; None means all."""
    dims = range(operand.ndim) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    for d in dims:
        if not -operand.ndim <= d < operand.ndim:
            raise ShardingTypeError(f"`{name}` has no dim {d}: the operand has {operand.ndim} dims")
    normal = sorted(d % operand.ndim for d in dims)
    if len(set(normal)) != len(normal):
        raise ShardingTypeError(f"`{name}` names a dim twice: {tuple(dims)}")
    return tuple(normal)


def _states_by(
    name: str, table: Mapping[Need, State], operand: ShType, dims: Sequence[int], *, reduces: bool = False
) -> list[State]:
    """The result's state on each axis, by a table; its key is ALONG if the axis shards one of ``dims``."""
    states = []
    for axis, state in zip(operand.mesh.axis_names, operand.states, strict=True):
        needed: Need = Role.ALONG if operand.dim_of(axis) in dims else state
        if needed not in table:
            if needed is Role.ALONG:
                raise messages.along(name, operand, axis, reduces, dims)
            raise messages.nonlinear(name, axis)
        states.append(table[needed])
    return states


def _reduce(
    name: str, table: Mapping[Need, State], operand: ShType, dims: tuple[int, ...], keepdims: bool, dtype: str
) -> Typing:
    states = _states_by(name, table, operand, dims, reduces=True)
    left = [Dim(1) if i in dims else d for i, d in enumerate(operand.dims) if keepdims or i not in dims]
    return Typing((operand,), (unary_result(operand, dtype, left, states),))


@rule
def reduce_sum(
    operand: ShType, dims: int | tuple[int, ...] | None, keepdims: bool, dtype: str, name: str = "sum"
) -> Typing:
    """The sum or mean over dims. Sharded on a summed dim becomes UNREDUCED; other states stay."""
    return _reduce(name, SUM, operand, normal_dims(name, operand, dims), keepdims, dtype)


@rule
def reduce_nonlinear(
    name: str, operand: ShType, dims: int | tuple[int, ...] | None, keepdims: bool, dtype: str
) -> Typing:
    """``max``, ``min``, ``prod``, ``argmax``, ``any``, ...: no reduced dim may be sharded, and no axis unreduced."""
    return _reduce(name, NONLINEAR, operand, normal_dims(name, operand, dims), keepdims, dtype)


class ResultDims(NamedTuple):
    """A result: its dtype, and for each dim its size and the operand's dim that it comes from, if any."""

    dtype: str
    dims: tuple[tuple[int, int | None], ...]


@rule
def unary_along(
    name: str, operand: ShType, along: Sequence[int], results: Sequence[ResultDims], linear: bool
) -> Typing:
    """``pad``, ``split``, ``fft``, ``svd``, ...: the dims ``along`` must not be sharded, the others keep their axes.

    A linear op keeps every state; a nonlinear one refuses UNREDUCED.
    """
    states = _states_by(name, LINEAR_UNARY if linear else NONLINEAR, operand, along)

    def dim(size: int, source: int | None) -> Dim:
        """The operand's dim; of another size, without its name."""
        if source is None:
            return Dim(size)
        t = operand.dims[source]
        return t if t.size == size else Dim(size, axes=t.axes)

    types = (unary_result(operand, r.dtype, [dim(*pair) for pair in r.dims], states) for r in results)
    return Typing((operand,), tuple(types))
