"""Sums and means. A sum over a sharded dim is unreduced: the pending sum is in the type, nothing is communicated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.localfn import Linear, LocalFn, local_dtype
from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, as_ints, dtype_name, lift, typed
from shtypes.ops.reshard import reshard
from shtypes.types import ShType, State

Axis = int | Sequence[int] | None


@dataclass(frozen=True)
class Sum(LocalFn):
    """The local sum over ``dims``, divided by ``count``."""

    dims: tuple[int, ...]
    keepdims: bool = False
    dtype: str | None = None
    count: int = 1
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        dims = ",".join(map(str, self.dims))
        return f"{'sum' if self.count == 1 else 'mean'}[{dims}]"

    def __call__(self, x: Any) -> Any:
        dtype = dtypes.to_numpy(self.dtype) if self.dtype else None
        if self.count == 1:
            return jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=dtype)
        # Where the terms are narrow, the sum and the count may be too large for them.
        wide = jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=_wide(dtype or x.dtype))
        return (wide / float(self.count)).astype(dtype or x.dtype)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if operands[0].dtype_name != result.dtype_name:
            return None
        return Spread(operands[0].local_shape, self.dims, self.keepdims, self.count)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        moved = tuple(d + 1 for d in self.dims)
        return Sum(moved, self.keepdims, self.dtype, self.count) if dims[0] == 0 else None


@dataclass(frozen=True)
class Spread(LocalFn):
    """The transpose of `Sum`: the operand repeated along ``dims`` to ``shape``, divided by ``count``."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    keepdims: bool = False
    count: int = 1
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.dims))}]"

    def __call__(self, x: Any) -> Any:
        x = x if self.keepdims else lax.expand_dims(x, self.dims)
        x = x if self.count == 1 else (x.astype(_wide(x.dtype)) / float(self.count)).astype(x.dtype)
        return jnp.broadcast_to(x, self.shape)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Sum(self.dims, self.keepdims, None, self.count)


def _wide(dtype: Any) -> Any:
    """The dtype to compute a mean in."""
    return jnp.promote_types(dtype, jnp.float32)


def normalize_dims(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """``axis=`` as sorted dims from the front."""
    given = tuple(range(ndim)) if axis is None else as_ints(axis, f"the axis of `{what}`")
    dims = tuple(d + ndim if d < 0 else d for d in given)
    if any(not 0 <= d < ndim for d in dims) or len(set(dims)) != len(dims):
        raise ShardingTypeError(f"`{what}` over axis={axis} does not fit an array of {ndim} dims")
    return tuple(sorted(dims))


def _summed(name: str, x: Any, axis: Axis, keepdims: bool, dtype: Any, out: Any, mean: bool) -> Any:
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, name)
    count = math.prod(t.shape[d] for d in dims) if mean else 1
    wanted = None if dtype is None else dtype_name(dtype)
    if mean and wanted is not None and not dtypes.differentiable(wanted):  # the parts of a mean are not whole numbers
        whole = _summed(name, x, axis, keepdims, None, out, mean)
        return whole.astype(dtype)
    if dtype is not None and t.axes(State.UNREDUCED):  # each term would be rounded
        typed(name, lambda types: rules.cast(types[0], dtype_name(dtype), name=name), (t,))
    if mean and wanted is None and not t.differentiable:
        wanted = dtype_name(np.float64)  # as JAX: before the sum, which could overflow
    fn = Sum(dims, keepdims, wanted, count)
    found = local_dtype(fn, (t.dtype_name,), t.ndim)
    y = apply(name, fn, lambda types: rules.reduce_sum(types[0], dims, keepdims, found), x)
    return y if out is None else reshard(y, out)


@public
def sum(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False, out: Any = None) -> Any:
    """The sum over dims; over a sharded dim it is unreduced on the axes that sharded it.

    Args:
        x (...): Summand.
        axis: Dims to sum over, as in `jax.numpy`; all by default.
        dtype: The dtype to sum in.
        keepdims: Keeps the summed dims with size 1.
        out: A type to reshard the result to.

    Returns:
        (...): The sum. Per axis: sharded on a summed dim becomes unreduced, any other state is kept.

    Communicates: nothing but what ``out`` asks for. Transpose: broadcast along the dims; moves nothing.
    """
    return _summed("sum", x, axis, keepdims, dtype, out, mean=False)


@public
def mean(x: Any, axis: Axis = None, dtype: Any = None, *, keepdims: bool = False, out: Any = None) -> Any:
    """The mean over dims: the sum over the *global* number of elements; typed as `sum`.

    Args:
        x (...): The operand.
        axis: Dims, as in `jax.numpy`; all by default.
        dtype: The dtype to sum in.
        keepdims: Keeps the dims with size 1.
        out: A type to reshard the result to.

    Communicates: nothing but what ``out`` asks for. Transpose: broadcast and division; moves nothing.
    """
    return _summed("mean", x, axis, keepdims, dtype, out, mean=True)
