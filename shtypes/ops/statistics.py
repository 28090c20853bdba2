"""Covariances, differences, and comparisons of whole values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.arithmetic import astype, divide, multiply, subtract
from shtypes.ops.cumulative import cumprod, cumsum, diff
from shtypes.ops.diagonals import diagonal
from shtypes.ops.dispatch import beside, beside_others, is_number, lift, meeting
from shtypes.ops.einsum import einsum
from shtypes.ops.elementwise import abs as abs_
from shtypes.ops.elementwise import conj, isclose, isnan, log, sqrt
from shtypes.ops.elementwise import equal as equal_
from shtypes.ops.extremes import all as all_
from shtypes.ops.joins import concatenate
from shtypes.ops.labelled import multilinear, product
from shtypes.ops.means import average
from shtypes.ops.means import mean as mean_
from shtypes.ops.quantiles import is_known, known
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.reduce import sum as sum_
from shtypes.ops.reduce_nonlinear import logsumexp
from shtypes.ops.select import where as where_
from shtypes.ops.shape import ravel, reshape
from shtypes.ops.whole import apply_whole, function, one_dim
from shtypes.rules.labelled import ProductDims


@public
def logmeanexp(x: ArrayLike, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Array:
    """The logarithm of the mean of exponentials, as `jax.nn.logmeanexp`; typed as `logsumexp`."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, "logmeanexp")
    if where is not None:
        counted = log(mean_(where_(where, 1.0, 0.0), dims, keepdims=keepdims))
        whole = logsumexp(where_(where, x, float("-inf")), dims, keepdims=keepdims)
        return subtract(whole - _log(math.prod(t.shape[d] for d in dims)), beside(counted, whole))
    return logsumexp(x, dims, keepdims=keepdims) - _log(math.prod(t.shape[d] for d in dims))


def _log(count: int) -> float:
    return math.log(count) if count else -math.inf


def _cumulative(name: str, native: Callable[..., Any], first: int) -> Callable[..., Array]:
    def op(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
        ((x,), _) = lift([x])
        if axis is None and jax.typeof(x).ndim != 1:
            raise ShardingTypeError(f"`{name}` needs `axis` for {jax.typeof(x)}")
        dim = one_dim(name, x, 0 if axis is None else axis)
        made: Array = native(x, dim, dtype)
        if not include_initial:
            return made
        t = jax.typeof(made)
        shape = tuple(1 if d == dim else n for d, n in enumerate(t.shape))
        return concatenate([np.full(shape, first, t.dtype), made], dim)

    return published(
        op, name, f"`jax.numpy.{name}`: as `{native.__name__}`; with ``include_initial`` from the empty one on."
    )


cumulative_sum, cumulative_prod = _cumulative("cumulative_sum", cumsum, 0), _cumulative("cumulative_prod", cumprod, 1)


@public
def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
) -> Array:
    """The covariance of variables, as `jax.numpy.cov`.

    Per axis: nonlinear; variables may be sharded where there is no ``y``. Sharded observations make the mean pending,
    so they must be whole.

    Args:
        m (n, k): ``n`` variables with ``k`` observations each, or a vector of observations.
        y (m, k): More variables.
        rowvar: Whether variables are rows.
        bias: Divides by ``k``, not ``k - 1``.
        ddof: Divides by ``k - ddof``.
        fweights (k): How often each observation counts: integers.
        aweights (k): Weights of the observations.
        dtype: The dtype to compute in.

    Communicates: nothing.
    """

    def rows(v: Any) -> Any:
        ((v,), _) = lift([v])
        if jax.typeof(v).ndim > 2:
            raise ShardingTypeError(f"`cov` takes vectors and matrices, not {jax.typeof(v)}")
        v = v if dtype is None else v.astype(dtype)
        v = reshape(v, (1, -1)) if jax.typeof(v).ndim < 2 else v
        return v.T if not rowvar and jax.typeof(v).shape[0] != 1 else v

    x = rows(m) if y is None else concatenate([*map(rows, meeting([m, y]))], 0)
    count = jax.typeof(x).shape[1]
    taken = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        x = subtract(x, mean_(x, 1, keepdims=True))
        made = divide(einsum("ik,jk->ij", x, conj(x)), count - taken)
    else:
        made = _weighted_cov(x, fweights, aweights, taken, dtype)
    return made.reshape(()) if jax.typeof(made).shape == (1, 1) else made


def _weighted_cov(x: Any, fweights: Any, aweights: Any, taken: Any, dtype: Any) -> Array:
    """The covariance of rows whose elements have weights."""
    given = [abs_(_of_observations(x, w, w is fweights)) for w in (fweights, aweights) if w is not None]
    w = given[0] if len(given) == 1 else multiply(*given)
    w = w if dtype is None else astype(w, dtype)
    centres, sums = average(x, 1, w, returned=True, keepdims=True)
    whole: Any = reshape(sums[:1], ())
    if taken:
        relative = sum_(multiply(w, given[-1])) / whole if aweights is not None else 1
        whole = whole - taken * relative
    x = subtract(x, centres)
    return divide(einsum("ik,jk->ij", x, conj(multiply(x, w))), whole)


def _of_observations(x: Any, w: Any, counts: bool) -> Array:
    """Weights of observations, one for each column."""
    ((w,), constants) = lift([w])
    t, name = jax.typeof(w), "fweights" if counts else "aweights"
    if t.shape != jax.typeof(x).shape[1:]:
        raise ShardingTypeError(f"`{name}` of `cov` has one number for each observation of {jax.typeof(x)}, not {t}")
    if counts and not jnp.issubdtype(t.dtype, jnp.integer):
        raise ShardingTypeError(f"`fweights` of `cov` are integers, not {t}", hints=["aweights="])
    found: Array = beside(w, x) if constants else w
    return found


@public
def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """Correlations of variables, as `jax.numpy.corrcoef`; typed as `cov`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not jax.typeof(c).ndim:
        return divide(c, c)
    deviation = sqrt(diagonal(c).real)
    made = divide(divide(c, deviation[:, None]), deviation[None, :])
    return made.clip(-1.0, 1.0) if jax.typeof(made).dtype_name[0] != "c" else made


@public
def gradient(f: ArrayLike, *varargs: Any, axis: Any = None, edge_order: Any = None) -> Array | list[Array]:
    """Central differences along dims, as `jax.numpy.gradient`: linear; the dims must be whole.

    Args:
        f (...): A value; an unreduced one stays unreduced.
        *varargs: A distance for all dims, or one for each; or, for each, the places (n) along it.
        axis: The dims; all by default.
        edge_order: As in JAX, None.

    Returns:
        (...): The differences; a list of them for several dims.

    Communicates: nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([f])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "gradient")
    if edge_order is not None or len(varargs) not in (0, 1, len(dims)):
        raise ShardingTypeError("`gradient` takes one distance for all dims or one for each, and no `edge_order`")
    steps = list(varargs) * len(dims) if len(varargs) == 1 else list(varargs) or [1.0] * len(dims)
    dtype = jnp.result_type(jax.typeof(x).dtype, *(h if is_number(h) else h.dtype for h in map(_as_distance, steps)))
    x = astype(x, dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float))
    made = [_gradient(x, d, h) for d, h in zip(dims, steps, strict=True)]
    return made[0] if len(made) == 1 and (axis is None or not isinstance(axis, (tuple, list))) else made


def _as_distance(step: Any) -> Any:
    return step if is_number(step) or hasattr(step, "dtype") else np.asarray(step)


def _gradient(x: Any, dim: int, step: Any) -> Array:
    """Differences along a dim by a known distance, by one that is an operand, or between places."""
    if is_known(step) and not np.ndim(step):
        fn = function("gradient", _differences, linear=True, axis=dim, step=known("gradient", "a distance", step))
        return apply_whole("gradient", fn, x, [dim])
    x, places = lift([x, step])[0]
    t, p = jax.typeof(x), jax.typeof(places)
    if p.shape not in ((), (t.shape[dim],)):
        raise ShardingTypeError(f"`gradient` along dim {dim} of {t} takes a distance, or as many places, not {p}")
    own = tuple(("dim", d) for d in range(t.ndim))

    def plan(shape: tuple[int, ...]) -> ProductDims:
        labels = own, (own[dim],) * p.ndim
        return ProductDims(labels, tuple(zip(own, shape, strict=True)), frozenset({own[dim]}), ids=frozenset({1}))

    fn = multilinear("gradient", _between, frozenset({1}), axis=dim)
    return product("gradient", fn, [x, places], plan)


def _differences(x: Any, axis: int, step: float) -> Any:
    return jnp.gradient(x, step, axis=axis)


def _between(x: Any, places: Any, axis: int) -> Any:
    return jnp.gradient(x, places, axis=axis)


@public
def unwrap(p: ArrayLike, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Array:
    """Angles without jumps along a dim, as `jax.numpy.unwrap`; nonlinear, and the dim must be whole."""
    ((x,), _) = lift([p])
    dim = one_dim("unwrap", x, axis)
    return apply_whole("unwrap", function("unwrap", jnp.unwrap, discont=discont, axis=dim, period=period), x, [dim])


@public
def ediff1d(ary: ArrayLike, to_end: Any = None, to_begin: Any = None) -> Array:
    """Differences of neighbours of all elements, as `jax.numpy.ediff1d`; linear, and they must be whole.

    What is put before and behind them gets their dtype, as there.
    """
    given = [ary, *(v for v in (to_begin, to_end) if v is not None)]
    values, constants = lift([np.asarray(v) if is_number(v) else v for v in given])
    x, *ends = beside_others([astype(v, jax.typeof(values[0]).dtype) for v in values], constants)
    inner = diff(ravel(x))
    before = [ravel(ends.pop(0))] if to_begin is not None else []
    whole = [*before, inner, *map(ravel, ends)]
    return concatenate(whole, 0) if len(whole) > 1 else inner


@public
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803  # the name that JAX gives it
    """Powers of a vector's elements in rows, as `jax.numpy.vander`; every state but unreduced is kept."""
    ((x,), _) = lift([x])
    if jax.typeof(x).ndim != 1:
        raise ShardingTypeError(f"`vander` takes a vector, not {jax.typeof(x)}")
    count = jax.typeof(x).shape[0] if N is None else int(N)
    fn = function("vander", jnp.vander, N=count, increasing=bool(increasing))
    return apply_whole("vander", fn, x, [], [(0, None)])


# comparisons of all elements


def _all(x: Any) -> Array:
    return all_(x)


@public
def allclose(a: ArrayLike, b: ArrayLike, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Array:
    """Whether all elements are close, as `jax.numpy.allclose`; typed as `all` of `isclose`."""
    return _all(isclose(a, b, rtol=rtol, atol=atol, equal_nan=bool(equal_nan)))


@public
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Array:
    """Whether shapes and elements are equal, as `jax.numpy.array_equal`; typed as `all`."""
    (x, y), _ = lift([a1, a2])
    if jax.typeof(x).shape != jax.typeof(y).shape:
        return lift([np.asarray(False)])[0][0]
    same = equal_(x, y)
    return _all(same | (isnan(x) & isnan(y)) if equal_nan else same)


@public
def array_equiv(a1: Any, a2: Any) -> Array:
    """Whether elements are equal where shapes broadcast, as `jax.numpy.array_equiv`; typed as `all`."""
    (x, y), _ = lift([a1, a2])
    try:
        np.broadcast_shapes(jax.typeof(x).shape, jax.typeof(y).shape)
    except ValueError:
        return lift([np.asarray(False)])[0][0]
    return _all(equal_(x, y))
