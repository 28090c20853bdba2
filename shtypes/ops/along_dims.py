"""Sums over dims, and functions of `jax.numpy` along dims that no axis shards: one local function each."""

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
from shtypes.dispatch.apply import apply, as_ints
from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes

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


def reduced(
    name: str, fn: Callable[..., Any], x: Any, axis: int | tuple[int, ...], keepdims: bool, **params: Any
) -> Array:
    """A reduction over dims, as one local function."""
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, name)
    local = function(name, fn, axis=dims[0] if isinstance(axis, int) else dims, keepdims=keepdims, **params)
    dtype = dtypes.from_numpy(shapes_of(local, (t.shape, t.dtype_name)).dtype)
    return apply(name, local, lambda types: rules.reduce_nonlinear(name, types[0], dims, keepdims, dtype), x)


def sum_of(name: str, x: Any, dims: tuple[int, ...], count: int = 1) -> Array:
    """The sum over dims of a typed value with keepdims, over ``count``."""
    fn = Sum(dims, True, None, count)
    result_dtype = local_dtype(fn, (jax.typeof(x).dtype_name,), jax.typeof(x).ndim)
    return apply(name, fn, lambda types: rules.reduce_sum(name, types[0], dims, True, result_dtype), x)
