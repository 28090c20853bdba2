"""Slices by functions, at positions known now or at run time. Nothing here communicates.

A partial slice of a sharded dim is an error. A position in a sharded dim is a lookup: the result is unreduced.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, as_ints, is_number, lift
from shtypes.ops.index import CLIP, get
from shtypes.ops.positions import Window
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.shape import expand_dims
from shtypes.rules.index import dynamic_slice as _dynamic_slice_rule
from shtypes.rules.index import dynamic_update_slice as _dynamic_update_slice_rule
from shtypes.types import ShType


@public
def slice_in_dim(operand: ArrayLike, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0) -> Array:
    """A slice of one dim, as `jax.lax.slice_in_dim`; typed as ``x[...]``."""
    ((x,), _) = lift([operand])
    (dim,) = normalize_dims(axis, jax.typeof(x).ndim, "slice_in_dim")
    return get(x, (*[slice(None)] * dim, slice(start_index, limit_index, stride)), name="slice_in_dim")


def _sliced(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """A slice of each dim, as `jax.lax.slice`; typed as ``x[...]``.

    Args:
        operand (...): A value.
        start_indices: The first position in each dim.
        limit_indices: The end in each dim, not included.
        strides: The steps; 1 by default.

    Communicates: nothing. Transpose: padding with zeros.
    """
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    starts, limits = as_ints(start_indices, "the starts of `slice`"), as_ints(limit_indices, "the limits of `slice`")
    steps = (1,) * t.ndim if strides is None else as_ints(strides, "the strides of `slice`")
    given = list(zip(starts, limits, steps, strict=False))
    fits = len(starts) == len(limits) == len(steps) == t.ndim
    if not fits or any(not 0 <= a <= b <= n or s < 1 for (a, b, s), n in zip(given, t.shape, strict=True)):
        raise ShardingTypeError(f"`slice` from {starts} to {limits} by {steps} does not fit {t}")
    return get(x, tuple(map(slice, starts, limits, steps)), name="slice")


_sliced.__name__ = "slice"


slice_ = public(_sliced)


@public
def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """One position of a dim, as `jax.lax.index_in_dim`; a sharded dim is looked up."""
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "index_in_dim")
    at = operator.index(index)
    if not -t.shape[dim] <= at < t.shape[dim]:
        raise ShardingTypeError(f"`index_in_dim` at {at} is not in dim {dim} of {t}")
    return dynamic_index_in_dim(x, at, dim, keepdims)


@public
def dynamic_index_in_dim(
    operand: ArrayLike, index: Any, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True
) -> Array:
    """One position of a dim, known at run time, as `jax.lax.dynamic_index_in_dim`; a sharded dim is looked up.

    Args:
        operand (...): A value.
        index: A position, a number or a scalar integer value; brought into range.
        axis: The dim.
        keepdims: Keeps the dim, with size 1.
        allow_negative_indices: Whether negative positions count from the end; else they are brought into range.

    Communicates: nothing. Transpose: the cotangent at that position, zeros elsewhere.
    """
    ((x,), _) = lift([operand])
    (dim,) = normalize_dims(axis, jax.typeof(x).ndim, "dynamic_index_in_dim")
    if is_number(index) and not allow_negative_indices:
        index = max(operator.index(index), 0)
    bound = CLIP._replace(negative=bool(allow_negative_indices))
    y = get(x, (*[slice(None)] * dim, index), bound, name="dynamic_index_in_dim")
    return expand_dims(y, dim) if keepdims else y


@dataclass(frozen=True)
class DynamicSlice(LocalFn):
    """A slice at run-time positions of the dims that are not sliced whole; None in ``starts`` marks an operand.

    ``negative`` says of which dims negative positions count from the end.
    """

    sizes: tuple[int, ...]
    starts: tuple[int | None, ...]
    negative: tuple[bool, ...]
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"dynamic_slice[{','.join(map(str, self.sizes))}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, *starts: Any) -> Any:
        at = _starts(self.starts, starts)
        return lax.dynamic_slice(x, at, self.sizes, allow_negative_indices=self.negative)


@dataclass(frozen=True)
class DynamicUpdateSlice(LocalFn):
    """A slice replaced at run-time positions; as `DynamicSlice`."""

    starts: tuple[int | None, ...]
    negative: tuple[bool, ...]
    windows: tuple[tuple[Window, int], ...] = ()
    linear = Linear.BESIDE

    def __str__(self) -> str:
        return "dynamic_update_slice"

    def __call__(self, x: Any, *rest: Any) -> Any:
        *given, update = rest
        starts = _starts(self.starts, given)
        kept = None
        for window, size in self.windows:
            d, n = window.dim, update.shape[window.dim]
            at = jnp.where(starts[d] < 0, starts[d] + size, starts[d]) if self.negative[d] else starts[d]
            # A device that has none of the slice makes one of its size all the same, and keeps nothing of it.
            update, inside = window.own(x, update, jnp.clip(at, 0, size - n), n)
            update = jnp.broadcast_to(update, [*update.shape[:d], x.shape[d], *update.shape[d + 1 :]])
            kept = inside if kept is None else kept & inside
            starts[d] = jnp.zeros_like(starts[d])
        changed = lax.dynamic_update_slice(x, update, starts, allow_negative_indices=self.negative)
        return changed if kept is None else jnp.where(kept, changed, x)


def _starts(static: Sequence[int | None], given: Sequence[Any]) -> list[Any]:
    rest = iter(given)
    return [jnp.int32(s) if s is not None else next(rest).astype(jnp.int32) for s in static]


def _start_parts(t: ShType, starts: Any, sizes: Sequence[int], name: str) -> tuple[tuple[int | None, ...], list[Any]]:
    """Start positions as static ones and scalar operands; a dim that is taken whole starts at 0."""
    parts = [starts[i] for i in range(starts.shape[0])] if getattr(starts, "ndim", 0) == 1 else list(starts)
    if len(parts) != t.ndim or len(sizes) != t.ndim:
        raise ShardingTypeError(f"`{name}` needs a start and a size for each dim of {t}")
    if any(not 0 <= n <= m for n, m in zip(sizes, t.shape, strict=True)):
        raise ShardingTypeError(f"`{name}` of sizes {tuple(sizes)} does not fit {t}")
    static: list[int | None] = []
    operands: list[Any] = []
    for part, n, m in zip(parts, sizes, t.shape, strict=True):
        known = 0 if n == m else operator.index(part) if is_number(part) or isinstance(part, np.integer) else None
        if known is None:
            operands.append(part)
        static.append(known)
    return tuple(static), operands


def _of_each_dim(allowed: bool | Sequence[bool], ndim: int, name: str) -> tuple[bool, ...]:
    found = (bool(allowed),) * ndim if isinstance(allowed, (bool, np.bool_)) else tuple(map(bool, allowed))
    if len(found) != ndim:
        raise ShardingTypeError(f"`allow_negative_indices` of `{name}` is one bool, or one for each of {ndim} dims")
    return found


@public
def dynamic_slice(
    operand: ArrayLike,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """A slice of given sizes at positions known at run time, as `jax.lax.dynamic_slice`.

    Per axis: every state is kept, unreduced too; a sharded dim must be taken whole.

    Args:
        operand (...): A value.
        start_indices: One position for each dim: numbers or scalar integer values, replicated; brought into range.
        slice_sizes: The sizes.
        allow_negative_indices: Whether negative positions count from the end: of all dims, or of each.

    Raises:
        ShardingTypeError: a sharded dim is not taken whole; the sizes do not fit.

    Communicates: nothing. Transpose: the cotangent at these positions, zeros elsewhere.
    """
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    negative = _of_each_dim(allow_negative_indices, t.ndim, "dynamic_slice")
    sizes = as_ints(slice_sizes, "the sizes of `dynamic_slice`")
    static, starts = _start_parts(t, start_indices, sizes, "dynamic_slice")
    operands, constants = lift([x, *starts])

    def local(types: tuple[ShType, ...]) -> DynamicSlice:
        own = zip(sizes, t.shape, types[0].local_shape, strict=True)
        return DynamicSlice(tuple(k if n == m else n for n, m, k in own), static, negative)

    return apply(
        "dynamic_slice",
        local,
        lambda types: _dynamic_slice_rule("dynamic_slice", types, sizes, constants),
        *operands,
    )


@public
def dynamic_slice_in_dim(
    operand: ArrayLike, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Array:
    """A slice of one dim at a position known at run time; see `dynamic_slice`."""
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "dynamic_slice_in_dim")
    starts, sizes = [0] * t.ndim, list(t.shape)
    starts[dim], sizes[dim] = start_index, slice_size
    return dynamic_slice(x, starts, sizes, allow_negative_indices=bool(allow_negative_indices))


@public
def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Array:
    """A value with a slice replaced at positions known at run time, as `jax.lax.dynamic_update_slice`.

    Per axis: typed as a sum of the operand and the update. Of a sharded dim that is not replaced whole each device
    replaces its own part, and the update must be whole there.

    Args:
        operand (...): A value.
        update (...): The new slice, of its dtype.
        start_indices: One position for each dim: numbers or scalar integer values, replicated; brought into range.
        allow_negative_indices: Whether negative positions count from the end: of all dims, or of each.

    Raises:
        ShardingTypeError: the update is sharded along a dim that is not replaced whole; one of the values is unreduced
            and the other sharded.

    Communicates: nothing. Transpose: the cotangent with zeros in the slice, and the slice of it.
    """
    ((x, update), _) = lift([operand, update])
    t, u = jax.typeof(x), jax.typeof(update)
    negative = _of_each_dim(allow_negative_indices, t.ndim, "dynamic_update_slice")
    if t.dtype_name != u.dtype_name:
        raise ShardingTypeError(f"`dynamic_update_slice` of {t} needs an update of its dtype, not {u}")
    static, starts = _start_parts(t, start_indices, u.shape, "dynamic_update_slice")
    operands, constants = lift([x, *starts, update])

    def local(types: tuple[ShType, ...]) -> DynamicUpdateSlice:
        sizes = zip(u.shape, types[0].shape, types[0].dims, strict=True)
        parts = [(Window(d, dim.axes, d - t.ndim), m) for d, (n, m, dim) in enumerate(sizes) if n != m and dim.axes]
        return DynamicUpdateSlice(static, negative, tuple(parts))

    return apply(
        "dynamic_update_slice",
        local,
        lambda types: _dynamic_update_slice_rule("dynamic_update_slice", types, constants),
        *operands,
    )


@public
def dynamic_update_slice_in_dim(
    operand: ArrayLike, update: ArrayLike, start_index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Array:
    """A slice of one dim replaced at a position known at run time; see `dynamic_update_slice`."""
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "dynamic_update_slice_in_dim")
    starts: list[Any] = [0] * t.ndim
    starts[dim] = start_index
    return dynamic_update_slice(x, update, starts, allow_negative_indices=bool(allow_negative_indices))
