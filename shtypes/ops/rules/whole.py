"""Typing of ops that act along dims which every device must hold whole, whatever shape they make. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.ops.rules import reasons
from shtypes.ops.rules.elementwise import nonlinear
from shtypes.ops.rules.reduce import role
from shtypes.ops.rules.tables import LINEAR_UNARY, NONLINEAR, Role
from shtypes.ops.rules.typing import NO_CONSTANTS, Typing, build, kept_state, rule
from shtypes.types import Dim, ShType, State


class Made(NamedTuple):
    """One result of an op: its dtype, and for each dim the size and the dim of the operand that it was, if any."""

    dtype: str
    dims: tuple[tuple[int, int | None], ...]


@rule
def whole(name: str, operand: ShType, along: Sequence[int], results: Sequence[Made], linear: bool) -> Typing:
    """``pad``, ``split``, ``fft``, ``svd``, ...: the dims ``along`` must be whole, the others keep their axes.

    A linear op keeps every state, UNREDUCED too; one that is not linear refuses UNREDUCED.
    """
    table = LINEAR_UNARY if linear else NONLINEAR
    states: dict[str, State] = {}
    for axis in operand.mesh.axis_names:
        needed = role(operand, axis, along)
        if needed is Role.ALONG:
            raise reasons.along(name, operand, axis, dims=along)
        if needed not in table:
            raise reasons.nonlinear(name, axis)
        states[axis] = table[needed]
    made = []
    for result in results:
        dims = [_dim(operand, size, source) for size, source in result.dims]
        kept = {axis: kept_state(operand, state, result.dtype) for axis, state in states.items()}
        made.append(build(operand.mesh, result.dtype, dims, kept))
    return Typing((operand,), tuple(made))


def _dim(operand: ShType, size: int, source: int | None) -> Dim:
    """The operand's own dim where its size is kept; another size has another name."""
    if source is not None and operand.shape[source] == size:
        return operand.dims[source]
    return Dim(size)


@rule
def nonlinear_along_all(
    name: str,
    operands: Sequence[ShType],
    along: Sequence[int],
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """``softmax`` with a mask: operands that broadcast, of which the dims ``along`` of the result must be whole."""
    typing = nonlinear(name, operands, dtype, constants)
    (result,) = typing.results
    for d in along:
        for axis in result.dims[d].axes:
            raise _along_all(name, operands, result, axis)
    return typing


def _along_all(name: str, operands: Sequence[ShType], result: ShType, axis: str) -> ShardingTypeError:
    """The error of the first operand that is sharded along the dim."""
    return reasons.along(name, next(t for t in (*operands, result) if t.dim_of(axis) is not None), axis)
