"""Types reductions, and other unary ops along dims that must not be sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.tables import LINEAR_UNARY, NONLINEAR, SUM, Need, Role
from shtypes.rules.typing import Typing, rule, unary_result
from shtypes.types import Dim, ShType, State

#: One dim or several; None means all.
Dims = int | Iterable[int] | None


def normal_dims(name: str, operand: ShType, dims: Dims) -> tuple[int, ...]:
    """Non-negative dims, sorted."""
    dims = range(operand.ndim) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    for d in dims:
        if not -operand.ndim <= d < operand.ndim:
            raise ShardingTypeError(f"`{name}` has no dim {d}: the operand has {operand.ndim} dims")
    normal = sorted(d % operand.ndim for d in dims)
    if len(set(normal)) != len(normal):
        raise ShardingTypeError(f"`{name}` names a dim twice: {tuple(dims)}")
    return tuple(normal)


def _result_states(
    name: str, table: Mapping[Need, State], operand: ShType, dims: Sequence[int], *, reduces: bool = False
) -> list[State]:
    """The result's state on each axis, from a table by the operand's; by ALONG if the axis shards one of ``dims``."""
    states = []
    for axis, state in zip(operand.mesh.axis_names, operand.states, strict=True):
        needed: Need = Role.ALONG if operand.dim_of(axis) in dims else state
        if needed not in table:
            if needed is Role.ALONG:
                raise messages.along(name, operand, axis, reduces, dims)
            raise messages.nonlinear(name, axis)
        states.append(table[needed])
    return states


def _reduce(name: str, table: Mapping[Need, State], operand: ShType, dims: Dims, keepdims: bool, dtype: str) -> Typing:
    reduced = normal_dims(name, operand, dims)
    states = _result_states(name, table, operand, reduced, reduces=True)
    result_dims = [Dim(1) if i in reduced else d for i, d in enumerate(operand.dims) if keepdims or i not in reduced]
    return Typing((operand,), (unary_result(operand, dtype, result_dims, states),))


@rule
def reduce_sum(name: str, operand: ShType, dims: Dims, keepdims: bool, dtype: str) -> Typing:
    """The sum or mean over dims. Sharded on a summed dim becomes UNREDUCED; other states stay."""
    return _reduce(name, SUM, operand, dims, keepdims, dtype)


@rule
def reduce_nonlinear(name: str, operand: ShType, dims: Dims, keepdims: bool, dtype: str) -> Typing:
    """``max``, ``min``, ``prod``, ``argmax``, ``any``, ...: no reduced dim may be sharded, and no axis unreduced."""
    return _reduce(name, NONLINEAR, operand, dims, keepdims, dtype)


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
    states = _result_states(name, LINEAR_UNARY if linear else NONLINEAR, operand, along)

    def dim(size: int, source: int | None) -> Dim:
        """The operand's dim; of another size, without its name."""
        if source is None:
            return Dim(size)
        same = operand.dims[source]
        return same if same.size == size else Dim(size, axes=same.axes)

    types = (unary_result(operand, r.dtype, [dim(*pair) for pair in r.dims], states) for r in results)
    return Typing((operand,), tuple(types))
