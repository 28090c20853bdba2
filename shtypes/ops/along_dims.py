"""Ops along dims: sums, one local function where no axis shards the dims, else across devices if that is allowed.

``out=`` or an `implicit_comm` scope allows it. Else the error offers it as a fix, typed again and priced by the ledger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from shtypes import rules
from shtypes.caches import CACHE_SIZE
from shtypes.core.array import Array
from shtypes.core.dim_fns import Sum
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.shard_fn import Linear, ShardFn, local_dtype, promotion, static_params
from shtypes.dispatch.apply import apply, as_ints, cast_once
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops.functions import squeeze
from shtypes.scopes.comm import allows_implicit, finishes_scalars
from shtypes.types import ShType, dtypes

Axis = int | Sequence[int] | None


def normalize_dims(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """``axis=`` as sorted dims from the front."""
    signed = tuple(range(ndim)) if axis is None else as_ints(axis, f"the axis of `{what}`")
    dims = tuple(d + ndim if d < 0 else d for d in signed)
    if any(not 0 <= d < ndim for d in dims) or len(set(dims)) != len(dims):
        raise ShardingTypeError(f"`{what}` over axis={axis} does not fit an array of {ndim} dims")
    return tuple(sorted(dims))


def function(name: str, fn: Callable[..., Any], **params: Any) -> NamedFn:
    """A local function from one of JAX's and its static parameters, which its name shows."""
    static = static_params(name, sorted(params.items()))
    settings = [f"{k}={v}".replace(" ", "") for k, v in static if v not in (None, False) and not callable(v)]
    return NamedFn(f"{name}[{', '.join(settings)}]" if settings else name, fn, static, Linear.NO)


_NO_MESH: Final = jax.sharding.AbstractMesh((), ())


def shapes_of(fn: ShardFn, *operands: tuple[tuple[int, ...], str]) -> Any:
    """The shapes and dtypes of a function's results, in its structure, for operands of these shapes and dtypes."""
    return _shapes_of(fn, operands, promotion())


@functools.lru_cache(maxsize=CACHE_SIZE)
def _shapes_of(fn: ShardFn, operands: tuple[tuple[tuple[int, ...], str], ...], promotion: tuple[Any, ...]) -> Any:
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    try:
        with jax.sharding.use_abstract_mesh(_NO_MESH):  # JAX's sharding rules do not matter here
            return jax.eval_shape(fn, *structs)
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        operand_texts = " and ".join(f"{dtype}{list(shape)}" for shape, dtype in operands)
        raise ShardingTypeError(
            f"`{fn}` cannot be applied to {operand_texts}", why=str(error).strip().split("\n")[0]
        ) from None


def apply_unsharded(name: str, fn: ShardFn, x: Any, along: Sequence[int]) -> Array:
    """Applies a nonlinear local function of one typed operand along dims that must be unsharded."""
    t = jax.typeof(x)
    out = shapes_of(fn, (t.shape, t.dtype_name))
    result = rules.ResultDims(dtypes.from_numpy(out.dtype), tuple((n, d) for d, n in enumerate(out.shape)))
    dims = tuple(sorted(set(along)))
    return apply(name, fn, lambda types: rules.unary_along(name, types[0], dims, (result,), False), x)


def reduced(
    name: str, fn: Callable[..., Any], x: Any, axis: int | tuple[int, ...], keepdims: bool, **params: Any
) -> Array:
    """A reduction over dims, as one local function."""
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, name)
    local = function(name, fn, axis=dims[0] if isinstance(axis, int) else dims, keepdims=keepdims, **params)
    dtype = dtypes.from_numpy(shapes_of(local, (t.shape, t.dtype_name)).dtype)
    return apply(name, local, lambda types: rules.reduce_nonlinear(name, types[0], dims, keepdims, dtype), x)


def sum_of(
    name: str, x: Any, dims: tuple[int, ...], keepdims: Any = False, dtype: str | None = None, count: int = 1
) -> Array:
    """The sum over dims of a typed value, over ``count``."""
    fn = Sum(dims, bool(keepdims), dtype, count)
    result_dtype = local_dtype(fn, (jax.typeof(x).dtype_name,), jax.typeof(x).ndim)
    return apply(name, fn, lambda types: rules.reduce_sum(types[0], dims, bool(keepdims), result_dtype, name), x)


ArrayFn = Callable[[Any], Array]


def sharding(t: ShType, dims: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes that shard the dims, dim by dim."""
    return tuple(a for d in dims for a in t.dims[d].axes)


def along(
    name: str,
    x: Any,
    dims: Sequence[int],
    unsharded: ArrayFn,
    across: ArrayFn,
    out: Any = None,
    *,
    may_send: bool = False,
) -> Array:
    """An op along ``dims``: ``unsharded`` where no axis shards them, else ``across`` if communication is allowed.

    ``name`` is the op after ``sh.``, for fixes. ``unsharded`` refuses sharded dims. ``out``, a type to reshard the
    result to, or ``may_send`` allows communication.
    """
    if not sharding(jax.typeof(x), dims):
        return finished(unsharded(x), out)
    if may_send or may_communicate(out):
        if allows_implicit():  # else the ops in `across` refuse a pending sum, in the words of the op
            x = cast_once(name, lambda types: rules.nonlinear(name, types, types[0].dtype_name), x)
        return finished(across(x), out)
    try:
        return unsharded(x)
    except ShardingTypeError as error:
        raise with_out_fixes(error, name, across, jax.typeof(x)) from None


def may_communicate(out: Any) -> bool:
    """Whether the user allowed communication."""
    return out is not None or allows_implicit()


def over(
    name: str,
    x: Any,
    axis: Axis,
    keepdims: Any,
    out: Any,
    unsharded: Callable[[Any, tuple[int, ...]], Any],
    across: Callable[[Any, tuple[int, ...]], Any],
) -> Array:
    """A reduction over ``axis``, as `along`: ``unsharded`` in its final shape, or ``across``, with keepdims."""
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)

    def joined(x: Any) -> Array:
        y = across(x, dims)
        return y if keepdims else squeeze(y, dims)

    one = all(size == 1 or d in dims for d, size in enumerate(jax.typeof(x).shape))
    return along(name, x, dims, lambda x: unsharded(x, dims), joined, out, may_send=one and finishes_scalars())
