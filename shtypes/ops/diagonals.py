"""Triangles and diagonals: which elements stay is asked of their global index. Nothing here communicates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, lift
from shtypes.ops.einsum import einsum
from shtypes.ops.whole import apply_whole, function, one_dim
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class OwnIndices:
    """Which indices of a global dim a device holds: ``size`` of them, as ``axes`` share them out."""

    axes: tuple[str, ...]
    size: int

    def indices(self) -> Any:
        """The global indices."""
        own = jnp.arange(self.size)
        return own + lax.axis_index(self.axes) * self.size if self.axes else own


def span(t: ShType, dim: int) -> OwnIndices:
    """The indices of one dim that each device holds."""
    return OwnIndices(t.dims[dim].axes, t.local_shape[dim])


@dataclass(frozen=True)
class Triangle(LocalFn):
    """The elements on one side of diagonal ``k`` of the last two dims, zeros elsewhere."""

    lower: bool
    k: int
    rows: OwnIndices
    columns: OwnIndices
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        name = "tril" if self.lower else "triu"
        return f"{name}[{self.k}]" if self.k else name

    def __call__(self, x: Any) -> Any:
        behind = self.columns.indices() - self.rows.indices()[:, None]
        return jnp.where(behind <= self.k if self.lower else behind >= self.k, x, jnp.zeros((), x.dtype))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return self if dims[0] == 0 else None


def _triangle(name: str, m: Any, k: int) -> Array:
    ((x,), _) = lift([m])
    t = jax.typeof(x)
    if t.ndim < 2:
        raise ShardingTypeError(f"`{name}` takes at least two dims, not {t}")
    offset = operator.index(k)

    def local(types: tuple[ShType, ...]) -> Triangle:
        return Triangle(name == "tril", offset, span(types[0], t.ndim - 2), span(types[0], t.ndim - 1))

    return apply(name, local, lambda types: rules.linear_unary(name, types[0], t.dtype_name), x)


@public
def tril(m: ArrayLike, k: int = 0) -> Array:
    """The elements on and below diagonal ``k`` of the last two dims, zeros elsewhere, as in `jax.numpy.tril`.

    Every state is kept, and any dim may be sharded: which elements stay is asked of their global index.

    Args:
        m (..., n, m): A value; an unreduced one stays unreduced.
        k: How far above the main diagonal.

    Transpose: the same triangle. Communicates: nothing.
    """
    return _triangle("tril", m, k)


@public
def triu(m: ArrayLike, k: int = 0) -> Array:
    """The elements on and above diagonal ``k`` of the last two dims, zeros elsewhere; typed as `tril`."""
    return _triangle("triu", m, k)


@dataclass(frozen=True)
class DiagMatrix(LocalFn):
    """The own rows of the matrix that has a vector on its diagonal."""

    rows: OwnIndices
    size: int
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return "diag"

    def __call__(self, v: Any) -> Any:
        on = jnp.arange(self.size) == self.rows.indices()[:, None]
        return jnp.where(on, v[:, None], jnp.zeros((), v.dtype))


@public
def diag(v: ArrayLike, k: int = 0) -> Array:
    """The matrix with a vector on diagonal ``k``, or diagonal ``k`` of a matrix, as in `jax.numpy.diag`.

    Args:
        v (n) or (n, m): A vector, of which every state is kept; where it is sharded, the rows of the matrix are. Or a
            matrix, typed as `diagonal`.
        k: How far above the main diagonal.

    Raises:
        ShardingTypeError: the vector is sharded and ``k`` is not 0; or as for `diagonal`.

    Communicates: nothing.
    """
    ((x,), _) = lift([v])
    t = jax.typeof(x)
    if t.ndim not in (1, 2):
        raise ShardingTypeError(f"`diag` takes a vector or a matrix, not {t}")
    if t.ndim == 2:
        return diagonal(x, k)
    if operator.index(k) == 0:
        return apply("diag", lambda own: DiagMatrix(span(own[0], 0), t.shape[0]), lambda types: rules.diag(types[0]), x)
    return apply_whole("diag", function("diag", jnp.diag, linear=True, k=k), x, [0], [(None, None)])


@dataclass(frozen=True)
class Diagonal(LocalFn):
    """The own elements of a diagonal. Where one of the dims is sharded, as ``own`` says, the other ``follows`` it."""

    rows: int
    columns: int
    offset: int
    follows: int
    own: OwnIndices
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"diagonal[{self.offset}]" if self.offset else "diagonal"

    def __call__(self, x: Any) -> Any:
        if not self.own.axes:
            return jnp.diagonal(x, self.offset, self.rows, self.columns)
        start = abs(self.offset) + lax.axis_index(self.own.axes) * self.own.size  # its first index is on the diagonal
        part = lax.dynamic_slice_in_dim(x, start, self.own.size, self.follows)
        return jnp.diagonal(part, 0, self.rows, self.columns)


@public
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The elements at equal indices of two dims, as one last dim, as in `jax.numpy.diagonal`.

    Per axis: every state is kept. Of the two dims one may be sharded, if the diagonal has an element at each of its
    indices, as the main one of a square; the result is then sharded like it. Elsewhere both must be whole.

    Args:
        a (..., n, m): A value; an unreduced one stays unreduced.
        offset: How far above the main diagonal.
        axis1: The rows.
        axis2: The columns.

    Raises:
        ShardingTypeError: both dims are sharded, or one of them of which the diagonal leaves some indices out.

    Transpose: the cotangent on the diagonal, zeros elsewhere. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    t, rows, columns = _matrix("diagonal", x, axis1, axis2)
    if not offset and t.shape[rows] == t.shape[columns] and (t.dims[rows].axes or t.dims[columns].axes):
        labels = [chr(ord("a") + d) for d in range(t.ndim)]
        labels[columns] = labels[rows]
        rest = [c for d, c in enumerate(labels) if d not in (rows, columns)]
        return einsum(f"{''.join(labels)}->{''.join([*rest, labels[rows]])}", x)
    k = operator.index(offset)
    count = max(0, min(t.shape[rows] + min(k, 0), t.shape[columns] - max(k, 0)))

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.diagonal(types[0], rows, columns, count)

    def local(types: tuple[ShType, ...]) -> Diagonal:
        own = types[0]
        along, follows = (columns, rows) if own.dims[columns].axes else (rows, columns)
        return Diagonal(rows, columns, k, follows, span(own, along))

    return apply("diagonal", local, rule, x)


@dataclass(frozen=True)
class DiagonalSum(LocalFn):
    """The sum over the own elements of a diagonal."""

    dims: tuple[int, int]
    offset: int
    rows: OwnIndices
    columns: OwnIndices
    dtype: str
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"trace[{self.offset}]" if self.offset else "trace"

    def __call__(self, x: Any) -> Any:
        moved = jnp.moveaxis(x, self.dims, (-2, -1))
        on = self.columns.indices() - self.rows.indices()[:, None] == self.offset
        kept = jnp.where(on, moved, jnp.zeros((), x.dtype))
        return jnp.sum(kept, (-2, -1), dtype=dtypes.to_numpy(self.dtype))


@public
def trace(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """The sum over a diagonal of two dims, as in `jax.numpy.trace`.

    Per axis: sharded on one of the two dims becomes unreduced, as for `sum`; every other state is kept.

    Args:
        a (..., n, m): A value; an unreduced one stays unreduced.
        offset: How far above the main diagonal.
        axis1: The rows.
        axis2: The columns.
        dtype: The dtype to sum in.

    Transpose: the cotangent on the diagonal, zeros elsewhere. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    t, rows, columns = _matrix("trace", x, axis1, axis2)
    struct = jax.ShapeDtypeStruct((1, 1), t.dtype)
    found = dtypes.from_numpy(jax.eval_shape(lambda m: jnp.trace(m, dtype=dtype), struct).dtype)
    k = operator.index(offset)

    def local(types: tuple[ShType, ...]) -> DiagonalSum:
        return DiagonalSum((rows, columns), k, span(types[0], rows), span(types[0], columns), found)

    return apply("trace", local, lambda types: rules.reduce_sum(types[0], (rows, columns), False, found, "trace"), x)


def _matrix(name: str, x: Any, axis1: int, axis2: int) -> tuple[ShType, int, int]:
    """The type, the dim of the rows and that of the columns."""
    rows, columns = one_dim(name, x, axis1), one_dim(name, x, axis2)
    if rows == columns:
        raise ShardingTypeError(f"`{name}` needs two different dims, not {axis1} and {axis2}")
    return jax.typeof(x), rows, columns
