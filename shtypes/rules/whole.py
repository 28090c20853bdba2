"""Typing of ops that act along dims which every device must hold whole, whatever shape they make. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shtypes.rules import reasons
from shtypes.rules.elementwise import nonlinear
from shtypes.rules.reduce import states_by
from shtypes.rules.tables import LINEAR_UNARY, NONLINEAR
from shtypes.rules.typing import NO_CONSTANTS, Typing, made_of, rule
from shtypes.types import Dim, ShType


class WholeResult(NamedTuple):
    """One result of an op: its dtype, and for each dim the size and the dim of the operand that it was, if any."""

    dtype: str
    dims: tuple[tuple[int, int | None], ...]


@rule
def whole(name: str, operand: ShType, along: Sequence[int], results: Sequence[WholeResult], linear: bool) -> Typing:
    """``pad``, ``split``, ``fft``, ``svd``, ...: the dims ``along`` must be whole, the others keep their axes.

    A linear op keeps every state, UNREDUCED too; one that is not linear refuses UNREDUCED.
    """
    states = states_by(name, LINEAR_UNARY if linear else NONLINEAR, operand, along)
    made = ((r.dtype, [_dim(operand, size, source) for size, source in r.dims]) for r in results)
    return Typing((operand,), tuple(made_of(operand, dtype, dims, states) for dtype, dims in made))


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
    for axis in (a for d in along for a in result.dims[d].axes):
        raise reasons.along(name, next(t for t in (*operands, result) if t.dim_of(axis) is not None), axis)
    return typing
