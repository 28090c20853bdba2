"""Typing of linear systems: linear in the right-hand side alone, whose columns are solved each by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.elementwise import aligned, broadcast_shapes
from shtypes.rules.tables import FACTOR, MULTILINEAR, NONLINEAR
from shtypes.rules.typing import NO_CONSTANTS, Label, Meeting, Typing, rule
from shtypes.types import Dim, ShType, State


@rule
def solve(
    matrix: ShType,
    rhs: ShType,
    vector: bool,
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "solve",
    left: bool = True,
) -> Typing:
    """``matrix @ x = rhs``, batched over leading dims: the rows and columns of the matrix must be whole.

    Typed as a quotient: the right-hand side may be UNREDUCED, and its columns may be sharded.

    Args:
        matrix: ``[..., n, n]``.
        rhs: ``[..., n, k]``, or ``[n]`` where it is a ``vector``, or ``[..., k, n]`` where it is not ``left``.
        vector: Whether the right-hand side is one vector.
        dtype: The result's dtype.
        constants: Operands without a gradient; see `rule`.
        name: The op, for messages.
        left: Whether the matrix is on the left: else ``x @ matrix = rhs``.
    """
    own = 1 if vector else 2
    row = own if left else 1
    if matrix.ndim < 2 or rhs.ndim < own or len({*matrix.shape[-2:], rhs.shape[-row]}) > 1:
        raise ShardingTypeError(
            f"`{name}` needs square matrices and right-hand sides of as many rows", why=f"they are {matrix} and {rhs}"
        )
    reasons.check_whole(name, matrix, (matrix.ndim - 2, matrix.ndim - 1))
    reasons.check_whole(name, rhs, (rhs.ndim - row,))
    batch = broadcast_shapes(name, [_leading(matrix, 2), _leading(rhs, own)])
    sides: tuple[Label, ...] = ("row",) if vector else ("row", "solution") if left else ("solution", "row")
    labels: list[tuple[Label | None, ...]] = [
        (*aligned(matrix.shape[:-2], batch), "row", "column"),
        (*aligned(rhs.shape[:-own], batch), *sides),
    ]
    met = Meeting(name, (matrix, rhs), labels, _join, [FACTOR] * 2, dtype, constants)
    dims = [met.dim(d, n) for d, n in enumerate(batch)]
    dims += [met.dim(label, n) if label == "solution" else dim for label, n, dim in _own(sides, rhs)]
    return met.typing(dims)


def _join(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    matrix, rhs = states
    if matrix is not None and matrix not in NONLINEAR:
        why = "each device holds one term of the sum, and the inverse of a sum is not the sum of the inverses"
        raise reasons.nonlinear(meeting.name, axis, "the matrix", why)
    return meeting.fold(MULTILINEAR, axis, (matrix, rhs))


def _own(sides: Sequence[Label], rhs: ShType) -> list[tuple[Label, int, Dim]]:
    """The dims of a right-hand side: their labels and sizes, and as they are."""
    return list(zip(sides, rhs.shape[-len(sides) :], rhs.dims[-len(sides) :], strict=True))


def _leading(operand: ShType, own: int) -> ShType:
    """The dims of a batch, for their sizes and names."""
    dims = [Dim(d.size, (), d.name) for d in operand.dims[: operand.ndim - own]]
    return ShType(operand.mesh, operand.dtype_name, dims, dict.fromkeys(operand.mesh.axis_names, State.REDUCED))
