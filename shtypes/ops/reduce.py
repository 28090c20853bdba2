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
from shtypes.ops.dispatch import apply, as_ints, beside, dtype_name, is_number, lift, typed
from shtypes.ops.elementwise import add, astype
from shtypes.ops.reshard import reshard
from shtypes.ops.select import where as select
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


def only(name: str, x: Any, where: Any, instead: Any) -> Any:
    """The elements that a mask keeps; the others are ``instead``.

    Raises:
        ShardingTypeError: the mask does not broadcast to the operand.
    """
    mask = tuple(jax.typeof(where).shape) if hasattr(where, "dtype") else np.shape(where)
    shape = jax.typeof(x).shape
    if len(mask) > len(shape) or any(m not in (1, n) for m, n in zip(mask[::-1], shape[::-1], strict=False)):
        raise ShardingTypeError(f"`{name}` of {jax.typeof(x)} cannot take a mask of shape {list(mask)}")
    return select(where, x, instead)


def sum_of(
    name: str, x: Any, dims: tuple[int, ...], keepdims: Any = False, dtype: str | None = None, count: int = 1
) -> Any:
    """The sum over dims of a typed value, over ``count``."""
    fn = Sum(dims, bool(keepdims), dtype, count)
    found = local_dtype(fn, (jax.typeof(x).dtype_name,), jax.typeof(x).ndim)
    return apply(name, fn, lambda types: rules.reduce_sum(types[0], dims, bool(keepdims), found, name), x)


def _dtype(name: str, t: ShType, dtype: Any) -> str | None:
    """The dtype to sum in, where it is given."""
    if dtype is None:
        return None
    if t.axes(State.UNREDUCED):  # each term would be rounded
        typed(name, lambda types: rules.cast(types[0], dtype_name(dtype), name=name), (t,))
    return dtype_name(dtype)


@public
def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The sum over dims, as `jax.numpy.sum`; over a sharded dim it is unreduced on the axes that sharded it.

    Args:
        a (...): Summand.
        axis: Dims to sum over; all by default.
        dtype: The dtype to sum in.
        out: A type to reshard the result to.
        keepdims: Keeps the summed dims with size 1.
        initial: A number to add, once: to an unreduced sum it is added on index 0.
        where: A bool array that says which elements count; linear in ``a``, so that it may be unreduced.
        promote_integers: Whether narrow integers are summed in JAX's default ones.

    Returns:
        (...): The sum. Per axis: sharded on a summed dim becomes unreduced, any other state is kept.

    Communicates: nothing but what ``out`` asks for. Transpose: broadcast along the dims; moves nothing.
    """
    ((x,), _) = lift([a])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, "sum")
    wanted = _dtype("sum", t, dtype)
    if wanted is None and not promote_integers and not t.differentiable:
        wanted = t.dtype_name
    y = sum_of("sum", x if where is None else only("sum", x, where, 0), dims, keepdims, wanted)
    if initial is not None:
        y = add(y, scalar("sum", initial, y))
    return y if out is None else reshard(y, out)


def scalar(name: str, initial: Any, y: Any) -> Any:
    """An ``initial=`` in the dtype of a result.

    Raises:
        ShardingTypeError: it is no scalar.
    """
    (_, value), held = lift([y, np.asarray(initial) if is_number(initial) else initial])
    if jax.typeof(value).ndim:
        raise ShardingTypeError(f"the `initial` of `{name}` is a scalar, not {jax.typeof(value)}")
    value = astype(value, jax.typeof(y).dtype_name)
    return beside(value, y) if 1 in held else value


@public
def mean(
    a: Any, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The mean over dims: the sum over the *global* number of elements; typed as `sum`.

    Args:
        a (...): The operand.
        axis: Dims, as in `jax.numpy`; all by default.
        dtype: The dtype to sum in.
        out: A type to reshard the result to.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count. Where it is sharded along the dims, their number is a
            pending sum too, and must be reduced before it divides: only with ``out`` or in `implicit_comm`.

    Raises:
        ShardingTypeError: ``where`` is sharded along the dims, and nothing asks to communicate.

    Communicates: nothing but what ``out`` asks for, and with a sharded ``where`` an all-reduce of one integer for each
    row. Transpose: broadcast and division; moves nothing.
    """
    ((x,), _) = lift([a])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, "mean")
    wanted = _dtype("mean", t, dtype)
    if wanted is not None and not dtypes.differentiable(wanted):  # the parts of a mean are not whole numbers
        return astype(mean(x, dims, None, out, keepdims, where=where), wanted)
    if wanted is None and not t.differentiable:
        wanted = dtype_name(np.float64)  # as JAX: before the sum, which could overflow
    if where is None:
        y = sum_of("mean", x, dims, keepdims, wanted, math.prod(t.shape[d] for d in dims))
        return y if out is None else reshard(y, out)
    from shtypes.ops.reduce_where import mean_of

    return mean_of(x, where, dims, keepdims, wanted, out)
