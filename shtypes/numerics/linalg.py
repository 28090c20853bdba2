"""Linear algebra of matrices that every device holds whole, batched over any dims; names of `jax.numpy.linalg`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, overload

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from shtypes import rules
from shtypes.context.calls import bound, signature_of
from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.numerics.matrices import (
    block_diag,
    cross,
    diagonal,
    lstsq,
    lu,
    lu_factor,
    of_matrices,
    outer,
    tensorinv,
    tensorsolve,
    toeplitz,
    trace,
)
from shtypes.numerics.results import QRResult, SVDResult
from shtypes.ops.across import extreme
from shtypes.ops.arithmetic import astype, multiply, power
from shtypes.ops.asking import over
from shtypes.ops.dispatch import apply, as_ints, inexact, lift
from shtypes.ops.einsum import einsum, matmul, tensordot, vecdot
from shtypes.ops.elementwise import abs as abs_
from shtypes.ops.elementwise import conj, not_equal, real, sqrt
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.reduce import sum as sum_
from shtypes.ops.reduce_nonlinear import added
from shtypes.ops.reshard import finished
from shtypes.ops.shape import matrix_transpose
from shtypes.ops.whole import function, reduced, reduced_by
from shtypes.types import ShType, dtypes


def _matrix_function(name: str, what: str, parameters: str, returns: str = "Array") -> Callable[..., Any]:
    native = getattr(jnp.linalg, name, None) or getattr(jax.scipy.linalg, name)
    signature = signature_of(parameters, returns)

    def op(*args: Any, **kwargs: Any) -> Any:
        given = bound(name, signature, args, kwargs)
        return of_matrices(name, native, given.pop(first.name), **given)

    first, *others = signature.parameters.values()
    listed = "".join(f"\n        {p.name}: As in JAX{_by_default(p)}." for p in others)
    doc = f"""{what}, as `{native.__module__.replace("jax._src.", "jax.")}.{name}`.

    Per axis: every state but unreduced is kept; leading dims may be sharded, the last two must be whole.

    Args:
        {first.name} (..., n, m): Matrices.{listed}

    Raises:
        ShardingTypeError: one of the last two dims is sharded, or the matrices are unreduced.

    Communicates: nothing. Transpose: by JAX.
    """
    return published(op, name, doc, signature)


def _by_default(p: inspect.Parameter) -> str:
    return "" if p.default is p.empty else f"; {p.default!r} by default"


cholesky = _matrix_function("cholesky", "The Cholesky factor", "a, upper=False, symmetrize_input=True")
inv = _matrix_function("inv", "The inverse", "a")
pinv = _matrix_function("pinv", "The pseudo-inverse", "a, rtol=None, hermitian=False, *, rcond=None")
det = _matrix_function("det", "The determinant", "a")
slogdet = _matrix_function("slogdet", "Sign and logarithm of the determinant", "a, *, method=None", "SlogdetResult")
svdvals = _matrix_function("svdvals", "The singular values", "x")
eigh = _matrix_function(
    "eigh", "Eigenvalues and eigenvectors of Hermitian matrices", "a, UPLO=None, symmetrize_input=True", "EighResult"
)
eigvalsh = _matrix_function("eigvalsh", "Eigenvalues of Hermitian matrices", "a, UPLO='L', *, symmetrize_input=True")
matrix_power = _matrix_function("matrix_power", "The matrix to a whole power", "a, n")
matrix_rank = _matrix_function("matrix_rank", "The rank", "M, rtol=None, *, hermitian=False, tol=None")
expm = _matrix_function("expm", "The exponential of a matrix", "A, *, upper_triangular=False, max_squarings=16")
sqrtm = _matrix_function("sqrtm", "The square root of a matrix; on CPUs only", "A, blocksize=1")
eig = _matrix_function("eig", "Eigenvalues and eigenvectors; on CPUs only", "a", "EigResult")
eigvals = _matrix_function("eigvals", "Eigenvalues; on CPUs only", "a")
cond = _matrix_function("cond", "The condition number", "x, p=None")
matrix_norm = _matrix_function("matrix_norm", "The norm of matrices", "x, keepdims=False, ord='fro'")


@overload
def qr(a: ArrayLike, mode: Literal["reduced", "complete"] = "reduced") -> QRResult: ...
@overload
def qr(a: ArrayLike, mode: str) -> QRResult | Array: ...
@public
def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """The QR factors, as `jax.numpy.linalg.qr`; typed as `cholesky`.

    Args:
        a (..., n, m): Matrices.
        mode: ``"reduced"``, ``"complete"``, or ``"r"`` for the second factor alone.
    """
    return of_matrices("qr", jnp.linalg.qr, a, mode=mode)


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Array: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult | Array: ...
@public
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """The singular value decomposition, as `jax.numpy.linalg.svd`; typed as `cholesky`.

    Args:
        a (..., n, m): Matrices.
        full_matrices: Whether the factors are square.
        compute_uv: Whether to give the factors, or the singular values alone.
        hermitian: Whether the matrices are Hermitian.
        subset_by_index: Which singular values to give, the first and the end.
    """
    chosen = {"full_matrices": full_matrices, "compute_uv": compute_uv, "hermitian": hermitian}
    subset = None if subset_by_index is None else as_ints(subset_by_index, "`subset_by_index` of `svd`")
    return of_matrices("svd", jnp.linalg.svd, a, **chosen, subset_by_index=subset)


@public
def norm(x: ArrayLike, ord: Any = None, axis: Axis = None, keepdims: bool = False, *, out: Any = None) -> Array:
    """The norm of vectors or matrices, as `jax.numpy.linalg.norm`; typed as `max`.

    Norms of vectors with ``ord`` 0 and 1 are sums: typed as `sum`, and over a sharded dim unreduced.

    Args:
        x (...): A value.
        ord: Which norm.
        axis: One dim for vectors, two for matrices; by default all dims, as one vector if ``ord`` is not given.
        keepdims: Keeps the dims with size 1.
        out: A type for the result; allows to communicate where a dim is sharded.

    Raises:
        ShardingTypeError: one of the dims is sharded and nothing allows to communicate, or the norm needs singular
            values of a matrix that is sharded; the value is unreduced.

    Communicates: nothing; along a sharded dim, an all-reduce of one number for each row. Transpose: by JAX.
    """
    ((x,), _) = lift([x])
    _check_ord("norm", ord)
    ndim = jax.typeof(x).ndim
    dims = normalize_dims(axis, ndim, "norm")
    if len(dims) == 2 and (axis is not None or ord is not None):
        pair = tuple(int(d) % ndim for d in (axis if isinstance(axis, (tuple, list)) else dims))
        fn = function("norm", jnp.linalg.norm, ord=ord, axis=pair, keepdims=bool(keepdims))
        whole = partial(reduced_by, "norm", fn, dims=dims, keepdims=keepdims)
        join = _MATRIX_NORMS.get(ord)
        if join is None:
            return finished(whole(x), out)
        return over("linalg.norm", x, dims, keepdims, out, lambda x, dims: whole(x), lambda x, dims: join(x, pair))
    if len(dims) > 2 and (axis is not None or ord is not None):
        raise ShardingTypeError(f"`norm` with axis={axis} and ord={ord} does not fit {jax.typeof(x)}: one dim, or two")
    if ord in (0, 1):
        return _added(x, ord, dims, keepdims, out)
    given = None if axis is None else dims[0] if len(dims) == 1 else dims
    return over(
        "linalg.norm",
        x,
        dims,
        keepdims,
        out,
        lambda x, dims: reduced("norm", jnp.linalg.norm, x, given, keepdims, ord=ord),
        lambda x, dims: _vector_norm(x, 2 if ord is None else ord, dims),
    )


@public
def vector_norm(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2, out: Any = None) -> Array:
    """The norm of vectors, as `jax.numpy.linalg.vector_norm`; typed as `norm`."""
    ((x,), _) = lift([x])
    _check_ord("vector_norm", ord)
    if ord in (0, 1):
        return _added(x, ord, normalize_dims(axis, jax.typeof(x).ndim, "vector_norm"), keepdims, out)
    return over(
        "linalg.vector_norm",
        x,
        axis,
        keepdims,
        out,
        lambda x, dims: reduced("vector_norm", jnp.linalg.vector_norm, x, axis, keepdims, ord=ord),
        lambda x, dims: _vector_norm(x, ord, dims),
    )


def _check_ord(name: str, ord: Any) -> None:
    if not (ord is None or isinstance(ord, (int, float, str, np.integer, np.floating))):
        raise ShardingTypeError(f"the `ord` of `{name}` is a number or a text, not {ord!r:.40}")


def _added(x: Any, ord: int, dims: tuple[int, ...], keepdims: bool, out: Any) -> Array:
    """The norm that is a sum of sizes, or a count: over a sharded dim it is pending."""
    if not jax.typeof(x).differentiable:
        x = astype(x, inexact(jax.typeof(x).dtype))
    size = abs_(x)
    terms = size if ord else astype(not_equal(x, 0), jax.typeof(size).dtype_name)
    return sum_(terms, dims, out=out, keepdims=keepdims)


def _vector_norm(x: Any, ord: Any, dims: tuple[int, ...]) -> Array:
    """The norm over dims, which may be sharded; they are kept."""
    if not jax.typeof(x).differentiable:
        x = astype(x, inexact(jax.typeof(x).dtype))
    is_complex = jax.typeof(x).dtype_name[0] == "c"
    if ord in (np.inf, -np.inf):
        return extreme("max" if ord > 0 else "min", abs_(x), dims)
    if ord == 2:
        return sqrt(added(real(multiply(x, conj(x))) if is_complex else multiply(x, x), dims))
    size = abs_(x)
    return power(added(power(size, ord), dims), 1 / ord)


def _by_sums(name: str, place: int) -> Callable[[Any, tuple[int, ...]], Any]:
    """The greatest or least of the sums of absolute values over one dim of a matrix."""
    return lambda x, pair: extreme(name, added(abs_(x), (pair[place],)), (pair[1 - place],))


#: The norms of matrices that are made of sums and extremes, by ``ord``; the others need singular values.
_MATRIX_NORMS: Final[dict[Any, Callable[[Any, tuple[int, ...]], Any]]] = {
    None: lambda x, pair: _vector_norm(x, 2, tuple(sorted(pair))),
    "fro": lambda x, pair: _vector_norm(x, 2, tuple(sorted(pair))),
    1: _by_sums("max", 0),
    -1: _by_sums("min", 0),
    np.inf: _by_sums("max", 1),
    -np.inf: _by_sums("min", 1),
}


# linear systems


@dataclass(frozen=True)
class Solve(LocalFn):
    """The solution of linear systems: linear in the right-hand side."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...] = ()
    linear = Linear.EACH

    def __str__(self) -> str:
        return self.name

    def __call__(self, matrix: Any, rhs: Any) -> Any:
        return self.fn(matrix, rhs, **dict(self.params))

    def linear_in(self, index: int) -> bool:
        return index == 1


def _solved(name: str, native: Callable[..., Any], a: Any, b: Any, **params: Any) -> Array:
    (matrix, rhs), constants = lift([a, b])
    fn = Solve(name, native, tuple(sorted(params.items())))
    types = jax.typeof(matrix), jax.typeof(rhs)
    vector = types[1].ndim == 1
    own = inexact(*(t.dtype for t in types))
    dtype = dtypes.from_numpy(jnp.result_type(dtypes.to_numpy(own), jnp.float32))

    def rule(given: tuple[ShType, ...]) -> rules.Typing:
        return rules.solve(given[0], given[1], vector, dtype, constants, name)

    return apply(name, fn, rule, matrix, rhs)


@public
def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """``x`` with ``a @ x = b``, batched over leading dims, as `jax.numpy.linalg.solve`.

    Per axis: as a quotient of ``b`` by ``a``: ``b`` may be unreduced where ``a`` is replicated, its columns and the
    batch may be sharded; the rows and columns of ``a`` must be whole.

    Args:
        a (..., n, n): Matrices.
        b (..., n, k): Right-hand sides, or one vector (n,).

    Raises:
        ShardingTypeError: rows are sharded, the matrices are unreduced, or the operands do not meet.

    Communicates: nothing; the cast of an invariant operand communicates backward. Transpose: by JAX.
    """
    return _solved("solve", jnp.linalg.solve, a, b)


@public
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: Any = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """``x`` with ``a @ x = b`` for triangular ``a``, as `jax.scipy.linalg.solve_triangular`; typed as `solve`.

    ``overwrite_b``, ``debug`` and ``check_finite`` are accepted for compatibility and ignored, as in JAX.
    """
    if not isinstance(trans, (int, str)) or trans not in (0, 1, 2, "N", "T", "C"):
        raise ShardingTypeError(f"`solve_triangular` knows no `trans={trans!r:.40}`", hints=["0, 1 or 2", "N, T or C"])
    given = {"trans": trans, "lower": lower, "unit_diagonal": unit_diagonal}
    return _solved("solve_triangular", jax.scipy.linalg.solve_triangular, a, b, **given)


@public
def multi_dot(arrays: Any, *, precision: Any = None) -> Array:
    """The product of matrices in the order that costs least, as `jax.numpy.linalg.multi_dot`; typed as `einsum`."""
    values, _ = lift(arrays)
    ndims = [jax.typeof(x).ndim for x in values]
    if len(values) < 2 or any(n != 2 for n in ndims[1:-1]) or not {ndims[0], ndims[-1]} <= {1, 2}:
        raise ShardingTypeError("`multi_dot` takes two or more matrices; the first and the last may be vectors")
    letters = [chr(ord("a") + i) for i in range(len(values) + 1)]
    labels = [letters[i] + letters[i + 1] for i in range(len(values))]
    labels[0] = labels[0][2 - ndims[0] :]
    labels[-1] = labels[-1][: ndims[-1]]
    ends = letters[0] * (ndims[0] == 2) + letters[-1] * (ndims[-1] == 2)
    return einsum(f"{','.join(labels)}->{ends}", *values, precision=precision)


@public
def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Any, bool]:
    """The Cholesky factor and whether it is the lower one, as `jax.scipy.linalg.cho_factor`; see `cholesky`.

    ``overwrite_a`` and ``check_finite`` are accepted for compatibility and ignored, as in JAX.
    """
    return cholesky(a, upper=not lower), lower


@public
def cho_solve(
    c_and_lower: tuple[Any, bool], b: ArrayLike, overwrite_b: bool = False, check_finite: bool = True
) -> Array:
    """``x`` with ``a @ x = b``, from the result of `cho_factor`; linear in ``b``, typed as `solve`.

    ``overwrite_b`` and ``check_finite`` are accepted for compatibility and ignored, as in JAX.
    """
    factor, lower = c_and_lower
    first = solve_triangular(factor, b, trans=0 if lower else 2, lower=lower)
    return solve_triangular(factor, first, trans=2 if lower else 0, lower=lower)


__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals",
    "eigvalsh", "expm", "inv", "lstsq", "lu", "lu_factor", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "sqrtm",
    "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "toeplitz", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
