"""Quantiles, covariances and comparisons of whole values; reductions that skip what is not a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.calls import refuse_unknown
from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.arithmetic import astype, divide, subtract
from shtypes.ops.cumulative import cumprod, cumsum, diff
from shtypes.ops.diagonals import diagonal
from shtypes.ops.dispatch import beside, beside_others, dtype_name, is_number, lift, meeting
from shtypes.ops.einsum import einsum
from shtypes.ops.elementwise import conj, isclose, isnan, log, sqrt
from shtypes.ops.elementwise import equal as equal_
from shtypes.ops.extremes import all as all_
from shtypes.ops.joins import concatenate
from shtypes.ops.means import mean as mean_
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.reduce_nonlinear import logsumexp
from shtypes.ops.select import where as where_
from shtypes.ops.shape import expand_dims, ravel
from shtypes.ops.whole import apply_whole, function, one_dim, reduced
from shtypes.types import dtypes


def _number(name: str, what: str, value: Any) -> Any:
    """A parameter that must be known: a number or a tuple of them."""
    if isinstance(value, jax.core.Tracer) or type(value).__module__.startswith("shtypes"):
        raise ShardingTypeError(f"`{name}` needs {what} that is known when it is traced")
    table = np.asarray(value)
    return table.item() if table.ndim == 0 else tuple(table.tolist())


def _quantile(name: str) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(
        a: Any,
        q: Any,
        axis: Axis = None,
        out: Any = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: bool = False,
    ) -> Array:
        _no_out(name, out)
        ((x,), _) = lift([a])
        dims = normalize_dims(axis, jax.typeof(x).ndim, name)
        chosen = _number(name, "`q`", q)
        fn = function(name, _at_quantiles, native=native, q=chosen, axis=dims, method=method, keepdims=bool(keepdims))
        kept = [d if d not in dims else None for d in range(jax.typeof(x).ndim) if keepdims or d not in dims]
        if isinstance(chosen, tuple):
            kept = [None, *kept]
        return apply_whole(name, fn, x, dims, [kept])

    return published(
        op,
        name,
        f"""`jax.numpy.{name}`: nonlinear, and the dims must be whole.

    Args:
        a (...): A value.
        q: Which, known when it is traced: a number, or a vector of them.
        axis: The dims; all by default.
        out: Not supported.
        overwrite_input: Accepted for compatibility; ignored.
        method: As in JAX.
        keepdims: Keeps the dims with size 1.

    Raises:
        ShardingTypeError: one of the dims is sharded, or the value is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """,
    )


def _at_quantiles(x: Any, native: Callable[..., Any], q: Any, **params: Any) -> Any:
    return native(x, jnp.asarray(q, jnp.result_type(x.dtype, jnp.float32)), **params)


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise ShardingTypeError(f"`{name}` takes no `out`", hints=["sh.reshard(x, type) first: the dims must be whole"])


quantile, percentile = _quantile("quantile"), _quantile("percentile")
nanquantile, nanpercentile = _quantile("nanquantile"), _quantile("nanpercentile")


def _reduction(name: str, *parameters: str) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(
        a: Any,
        axis: Axis = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        *,
        where: Any = None,
        **rest: Any,
    ) -> Array:
        _no_out(name, out)
        refuse_unknown(name, rest, ("axis", "dtype", "keepdims", "where", *parameters))
        ((x,), _) = lift([a])
        if where is not None:
            x = where_(where, x, float("nan"))
        dims = normalize_dims(axis, jax.typeof(x).ndim, name)
        given = {} if dtype is None else {"dtype": dtypes.to_numpy(dtype_name(dtype))}
        return reduced(name, native, x, dims, keepdims, **given, **{k: _number(name, k, v) for k, v in rest.items()})

    return published(
        op,
        name,
        f"""`jax.numpy.{name}`: skips NaNs; nonlinear, and the dims must be whole.

    Args:
        a (...): A value.
        axis: The dims; all by default.
        dtype: The dtype to compute in.
        out: Not supported.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count.
        **rest: {", ".join(f"``{p}``" for p in parameters) or "Nothing more"}, as in JAX.

    Raises:
        ShardingTypeError: one of the dims is sharded, or the value is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """,
    )


nanmean, nanprod = _reduction("nanmean"), _reduction("nanprod", "initial")
nanvar, nanstd = _reduction("nanvar", "ddof"), _reduction("nanstd", "ddof")


@public
def nanmedian(
    a: ArrayLike, axis: Axis = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """The median that skips NaNs, as `jax.numpy.nanmedian`; typed as `quantile`."""
    return nanquantile(a, 0.5, axis, out, keepdims=keepdims)


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


def _without_nan(x: Any, number: float) -> Array:
    ((x,), _) = lift([x])
    return where_(isnan(x), number, x) if jax.typeof(x).differentiable else x


@public
def nancumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """`cumsum` with zeros for NaNs; nonlinear."""
    _no_out("nancumsum", out)
    return cumsum(_without_nan(a, 0.0), axis, dtype)


@public
def nancumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: None = None) -> Array:
    """`cumprod` with ones for NaNs."""
    _no_out("nancumprod", out)
    return cumprod(_without_nan(a, 1.0), axis, dtype)


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
    """The covariance of variables, as `jax.numpy.cov`, without weights.

    Per axis: nonlinear; variables may be sharded where there is no ``y``. Sharded observations make the mean pending,
    so they must be whole.

    Args:
        m (n, k): ``n`` variables with ``k`` observations each, or a vector of observations.
        y (m, k): More variables.
        rowvar: Whether variables are rows.
        bias: Divides by ``k``, not ``k - 1``.
        ddof: Divides by ``k - ddof``.
        fweights: Not supported.
        aweights: Not supported.
        dtype: The dtype to compute in.

    Communicates: nothing.
    """
    if fweights is not None or aweights is not None:
        raise ShardingTypeError("`cov` knows no weights", hints=["sh.average and sh.einsum"])

    def rows(v: Any) -> Any:
        ((v,), _) = lift([v])
        if jax.typeof(v).ndim > 2:
            raise ShardingTypeError(f"`cov` takes vectors and matrices, not {jax.typeof(v)}")
        v = v if dtype is None else v.astype(dtype)
        v = expand_dims(v, 0) if jax.typeof(v).ndim < 2 else v
        return v.T if not rowvar and jax.typeof(v).shape[0] != 1 else v

    x = rows(m) if y is None else concatenate([*map(rows, meeting([m, y]))], 0)
    count = jax.typeof(x).shape[1]
    x = subtract(x, mean_(x, 1, keepdims=True))
    taken = (0 if bias else 1) if ddof is None else ddof
    made = divide(einsum("ik,jk->ij", x, conj(x)), count - taken)
    return made.reshape(()) if jax.typeof(made).shape == (1, 1) else made


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
    """Central differences along dims, as `jax.numpy.gradient` with equal distances: linear; the dims must be whole.

    Args:
        f (...): A value; an unreduced one stays unreduced.
        *varargs: A distance for all dims, or one for each.
        axis: The dims; all by default.
        edge_order: As in JAX, None.

    Returns:
        (...): The differences; a list of them for several dims.

    Communicates: nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([f])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "gradient")
    steps = [_number("gradient", "a distance", v) for v in varargs]
    if edge_order is not None or len(steps) not in (0, 1, len(dims)) or not all(map(is_number, steps)):
        raise ShardingTypeError("`gradient` takes one distance for all dims or one for each, and no `edge_order`")
    steps = steps * len(dims) if len(steps) == 1 else steps or [1.0] * len(dims)
    made = [
        apply_whole("gradient", function("gradient", _differences, linear=True, axis=d, step=h), x, [d])
        for d, h in zip(dims, steps, strict=True)
    ]
    return made[0] if len(made) == 1 and (axis is None or not isinstance(axis, (tuple, list))) else made


def _differences(x: Any, axis: int, step: float) -> Any:
    return jnp.gradient(x, step, axis=axis)


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
