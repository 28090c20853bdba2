"""Quantiles, and reductions that skip what is not a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.calls import bound, signature_of
from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.cumulative import cumprod, cumsum
from shtypes.ops.dispatch import dtype_name, is_typed, lift
from shtypes.ops.elementwise import isnan, logical_and, logical_not
from shtypes.ops.labelled import Planned, labelled
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.reduce_nonlinear import std, var
from shtypes.ops.select import where as where_
from shtypes.ops.whole import apply_whole, function, reduced
from shtypes.rules.labelled import ProductDims
from shtypes.types import ShType, dtypes


def known(name: str, what: str, value: Any) -> Any:
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
        *,
        weights: Any = None,
    ) -> Array:
        _no_out(name, out)
        ((x,), _) = lift([a])
        t = jax.typeof(x)
        dims = normalize_dims(axis, t.ndim, name)
        given = {"native": native, "axis": dims, "method": method, "keepdims": bool(keepdims)}
        if weights is None and is_known(q):
            chosen = known(name, "`q`", q)
            fn = function(name, _at_quantiles, q=chosen, **given)
            kept = [d if d not in dims else None for d in range(t.ndim) if keepdims or d not in dims]
            return apply_whole(name, fn, x, dims, [[None, *kept] if isinstance(chosen, tuple) else kept])
        operands = lift([x, np.asarray(q) if is_known(q) else q, *([] if weights is None else [weights])])[0]
        fn = function(name, _weighted_quantiles, **given)
        return labelled(name, fn, operands, _quantile_dims([jax.typeof(v) for v in operands], dims, keepdims))

    return published(
        op,
        name,
        f"""`jax.numpy.{name}`: nonlinear, and the dims must be whole.

    Args:
        a (...): A value.
        q: Which: a number, or a vector of them.
        axis: The dims; all by default.
        out: Not supported.
        overwrite_input: Accepted for compatibility; ignored.
        method: As in JAX.
        keepdims: Keeps the dims with size 1.
        weights (...): Of the shape of ``a``, or of its dims: for ``method="inverted_cdf"``.

    Raises:
        ShardingTypeError: one of the dims is sharded, or the value is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """,
    )


def is_known(x: Any) -> bool:
    """Whether a parameter has a value that can be looked at, and no type."""
    return not (isinstance(x, jax.core.Tracer) or is_typed(x))


def _at_quantiles(x: Any, native: Callable[..., Any], q: Any, **params: Any) -> Any:
    return native(x, jnp.asarray(q, jnp.result_type(x.dtype, jnp.float32)), **params)


def _weighted_quantiles(x: Any, q: Any, *weights: Any, native: Callable[..., Any], **params: Any) -> Any:
    return native(x, q, **params, **({"weights": weights[0]} if weights else {}))


def _quantile_dims(types: Sequence[ShType], dims: tuple[int, ...], keepdims: bool) -> Planned:
    """The labels of a value, of which quantiles, and of weights of the value's shape or of its dims."""
    x, q, *weights = types

    def plan(shape: tuple[int, ...]) -> ProductDims:
        own = tuple(("dim", d) for d in range(x.ndim))
        which = tuple(("quantile", i) for i in range(q.ndim))
        beside = [own if w.ndim == x.ndim else tuple(own[d] for d in dims[: w.ndim]) for w in weights]
        kept = [("reduced", d) if d in dims else label for d, label in enumerate(own) if keepdims or d not in dims]
        whole = frozenset(own[d] for d in dims)
        return ProductDims((own, which, *beside), tuple(zip([*which, *kept], shape, strict=True)), whole)

    return plan


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise ShardingTypeError(f"`{name}` takes no `out`", hints=["sh.reshard(x, type) first: the dims must be whole"])


quantile, percentile = _quantile("quantile"), _quantile("percentile")
nanquantile, nanpercentile = _quantile("nanquantile"), _quantile("nanpercentile")


#: The parameters of reductions that skip what is not a number, in JAX's order.
_REDUCTIONS: Final = {
    "nanmean": "a, axis=None, dtype=None, out=None, keepdims=False, where=None",
    "nanprod": "a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None",
    "nanvar": "a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, where=None, mean=None",
    "nanstd": "a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, where=None, mean=None",
}
_SAID: Final = {
    "axis": "The dims; all by default.",
    "dtype": "The dtype to compute in.",
    "out": "Not supported.",
    "ddof": "By how much less than the number of elements to divide.",
    "keepdims": "Keeps the dims with size 1.",
    "initial": "The number to start from.",
    "where": "A bool array that says which elements count.",
    "mean": "The means, with the dims kept, if they are known.",
}


def _reduction(name: str) -> Callable[..., Array]:
    native = getattr(jnp, name)
    signature = signature_of(_REDUCTIONS[name])

    def op(*args: Any, **kwargs: Any) -> Array:
        given = bound(name, signature, args, kwargs)
        a, axis, where, dtype = (given.pop(n) for n in ("a", "axis", "where", "dtype"))
        _no_out(name, given.pop("out"))
        keepdims, mean = given.pop("keepdims"), given.pop("mean", None)
        ((x,), _) = lift([a])
        if mean is not None:
            counted = logical_not(isnan(x)) if where is None else logical_and(where, logical_not(isnan(x)))
            spread = var if name == "nanvar" else std
            return spread(x, axis, dtype, None, given["ddof"], keepdims, where=counted, mean=mean)
        if where is not None:
            x = where_(where, x, float("nan"))
        dims = normalize_dims(axis, jax.typeof(x).ndim, name)
        if dtype is not None:
            given["dtype"] = dtypes.to_numpy(dtype_name(dtype))
        rest = {k: v if k == "dtype" else known(name, k, v) for k, v in given.items() if v is not None}
        return reduced(name, native, x, dims, keepdims, **rest)

    listed = "".join(f"\n        {p}: {_SAID[p]}" for p in list(signature.parameters)[1:])
    return published(
        op,
        name,
        f"""`jax.numpy.{name}`: skips NaNs; nonlinear, and the dims must be whole.

    Args:
        a (...): A value.{listed}

    Raises:
        ShardingTypeError: one of the dims is sharded, or the value is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """,
        signature,
    )


nanmean, nanprod, nanvar, nanstd = map(_reduction, _REDUCTIONS)


@public
def nanmedian(
    a: ArrayLike, axis: Axis = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """The median that skips NaNs, as `jax.numpy.nanmedian`; typed as `quantile`."""
    return nanquantile(a, 0.5, axis, out, keepdims=keepdims)


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
