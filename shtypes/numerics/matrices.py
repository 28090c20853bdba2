"""More linear algebra of whole matrices: factors, least squares, matrices made of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import as_tuple
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.numerics.results import LstsqResult
from shtypes.ops import diagonals, einsum, products
from shtypes.ops.create import zeros
from shtypes.ops.dispatch import lift, meeting
from shtypes.ops.elementwise import conj
from shtypes.ops.index import getitem
from shtypes.ops.joins import concatenate
from shtypes.ops.labelled import all_whole, all_whole_tree
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.shape import atleast_1d, atleast_2d, broadcast_to
from shtypes.ops.whole import apply_whole, apply_whole_tree, function, made


@public
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Diagonals of matrices, as `jax.numpy.linalg.diagonal`; see `shtypes.diagonal`."""
    return diagonals.diagonal(x, offset, -2, -1)


@public
def trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sums of the diagonals of matrices, as `jax.numpy.linalg.trace`; see `shtypes.trace`."""
    return diagonals.trace(x, offset, -2, -1, dtype)


@public
def outer(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Every product of two elements of vectors, as `jax.numpy.linalg.outer`; see `shtypes.outer`."""
    x, y = meeting([x1, x2])
    if jax.typeof(x).ndim != 1 or jax.typeof(y).ndim != 1:
        raise ShardingTypeError(
            f"`linalg.outer` takes vectors, not {jax.typeof(x)} and {jax.typeof(y)}", hints=["sh.outer(x1, x2)"]
        )
    return einsum.outer(x, y)


@public
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three numbers, as `jax.numpy.linalg.cross`; see `shtypes.cross`."""
    x, y = meeting([x1, x2])
    for v in (x, y):
        t = jax.typeof(v)
        (dim,) = normalize_dims(axis, t.ndim, "linalg.cross")
        if t.shape[dim] != 3:
            raise ShardingTypeError(f"`linalg.cross` takes vectors of three numbers along dim {dim}, not {t}")
    return products.cross(x, y, axis=axis)


@public
def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = False) -> LstsqResult:
    """``x`` with the least ``|a @ x - b|``, as `jax.numpy.linalg.lstsq`; everything must be whole.

    Args:
        a (n, m): A matrix.
        b (n, k) or (n,): Right-hand sides.
        rcond: Which singular values count as zero.
        numpy_resid: Whether the sums of squared differences are empty where numpy's are.

    Returns:
        The solution (m, k) or (m,), the sums of squared differences (k,), the rank, the singular values (min(n, m),).

    Communicates: nothing. Transpose: by JAX.
    """
    fn = function("lstsq", jnp.linalg.lstsq, rcond=rcond, numpy_resid=bool(numpy_resid))
    return LstsqResult(*all_whole_tree("lstsq", fn, [a, b]))


@public
def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """The inverse for `tensordot`, as `jax.numpy.linalg.tensorinv`; nonlinear, and the value must be whole."""
    ((x,), _) = lift([a])
    ndim = jax.typeof(x).ndim
    fn = function("tensorinv", jnp.linalg.tensorinv, ind=int(ind))
    return apply_whole("tensorinv", fn, x, range(ndim), [(None,) * ndim])


@public
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """``x`` with ``tensordot(a, x, x.ndim) = b``, as `jax.numpy.linalg.tensorsolve`; the values must be whole."""
    fn = function("tensorsolve", jnp.linalg.tensorsolve, axes=None if axes is None else tuple(axes))
    return all_whole("tensorsolve", fn, [a, b])


@public
def block_diag(*arrs: Any) -> Array:
    """Matrices along a diagonal, as `jax.scipy.linalg.block_diag`; typed as `concatenate`, so the rows must be whole.

    Args:
        *arrs (n, m): Matrices; vectors are rows.

    Communicates: nothing. Transpose: the blocks of the cotangent.
    """
    blocks = [atleast_2d(a) for a in meeting(arrs)] or [zeros((1, 0))]
    if any(jax.typeof(b).ndim != 2 for b in blocks):
        raise ShardingTypeError("`block_diag` takes matrices")
    widths = [jax.typeof(b).shape[1] for b in blocks]
    rows = []
    for i, block in enumerate(blocks):
        t = jax.typeof(block)
        left, right = (np.zeros((t.shape[0], sum(w)), t.dtype) for w in (widths[:i], widths[i + 1 :]))
        rows.append(concatenate([part for part in (left, block, right) if part.shape[1]] or [block], 1))
    return concatenate(rows, 0)


@public
def toeplitz(c: Any, r: Any = None) -> Array:
    """The matrix of equal diagonals, as `jax.scipy.linalg.toeplitz`: linear; the vectors must be whole.

    Args:
        c (..., n): First columns.
        r (..., m): First rows; the first columns, conjugated, by default.

    Communicates: nothing. Transpose: sums along the diagonals.
    """
    column, *given = (atleast_1d(v) for v in meeting([c] if r is None else [c, r]))
    row = given[0] if given else conj(column)
    (*batch, n), (*other, m) = jax.typeof(column).shape, jax.typeof(row).shape
    both = np.broadcast_shapes(tuple(batch), tuple(other))
    column, row = broadcast_to(column, (*both, n)), broadcast_to(row, (*both, m))
    values = concatenate([column[..., ::-1], row[..., 1:]], -1)
    places = np.arange(n)[::-1][:, None] + np.arange(m)[None, :]
    return getitem(values, (..., places.astype(np.int32)))


def of_matrices(name: str, native: Callable[..., Any], a: Any, **params: Any) -> Any:
    """A function of the last two dims, which maps over the others; its results begin with those.

    Raises:
        ShardingTypeError: the operand has fewer dims, one of the last two is sharded, or it is unreduced.
    """
    ((x,), _) = lift([a])
    fn, t = function(name, native, **params), jax.typeof(x)
    if t.ndim < 2:
        raise ShardingTypeError(f"`{name}` takes matrices, not {t}")
    batch = t.ndim - 2
    outs = as_tuple(made(fn, (t.shape, t.dtype_name)))
    sources = [tuple(d if d < batch else None for d in range(len(out.shape))) for out in outs]
    return apply_whole_tree(name, fn, x, [batch, batch + 1], sources)


@public
def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, ...]:
    """The LU factors, as `jax.scipy.linalg.lu`: nonlinear; the matrices must be whole, leading dims may be sharded.

    Args:
        a (..., n, m): Matrices.
        permute_l: Whether the first factor is permuted already.
        overwrite_a: Accepted for compatibility; ignored.
        check_finite: Accepted for compatibility; ignored.

    Communicates: nothing. Transpose: by JAX.
    """
    found: tuple[Array, ...] = of_matrices("lu", jax.scipy.linalg.lu, a, permute_l=permute_l)
    return found


@public
def lu_factor(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Array, Array]:
    """The LU factors in one matrix, and the permutation, as `jax.scipy.linalg.lu_factor`; see `lu`."""
    factors, pivots = of_matrices("lu_factor", jax.scipy.linalg.lu_factor, a)
    return factors, pivots
