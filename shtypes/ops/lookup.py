"""Lookups by integers: take, take_along_axis, embedding, one_hot, segment_sum. None of them communicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, dtype_name, lift
from shtypes.ops.index import DROP, GET_MODES, InRange, bound_of, filled, gather
from shtypes.ops.positions import Bound, LocalPosition, found, only_where
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.shape import ravel
from shtypes.rules.index import IndexEntry, Position, Slice
from shtypes.rules.lookup import one_hot as _one_hot_rule
from shtypes.rules.lookup import segment_sum as _segment_sum_rule
from shtypes.rules.lookup import take_along as _take_along_rule
from shtypes.types import ShType, dtypes

_TAKE_MODES = {
    "none": DROP,
    "fill": DROP,
    "wrap": Bound(modulo=True),
    "clip": Bound(negative=False),
}


def as_positions(ids: Any, name: str) -> Any:
    """Positions, which must be integers, as something that `lift` takes."""
    ids = np.asarray(ids) if isinstance(ids, (list, tuple, int)) else ids
    if not hasattr(ids, "dtype") or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ShardingTypeError(f"`{name}` needs integers, not {getattr(ids, 'dtype', type(ids).__name__)}")
    return ids


@public
def take(
    a: ArrayLike,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """The rows of ``a`` at positions, as `jax.numpy.take`.

    Per axis: one that shards the dim looked up makes the result unreduced, without communication: each device finds the
    rows that it has and gives zero for the others. Sharded positions make the result sharded, and the gradient of a
    reduced ``a`` then is pending.

    Args:
        a (..., n, ...): What is looked up; ``n`` is dim ``axis``.
        indices (...): Integers; never unreduced, and not sharded on an axis that shards ``a``.
        axis: The dim; by default that of ``a`` as one dim.
        out: Must be None, as in JAX.
        mode: ``"fill"`` (the default: NaN, or the least integer), ``"clip"`` or ``"wrap"``, for positions out of range.
        unique_indices: Accepted for compatibility; ignored.
        indices_are_sorted: Accepted for compatibility; ignored.
        fill_value: The value for ``"fill"``.

    Returns:
        (...): The rows, with the dims of ``indices`` in the place of the dim.

    Raises:
        ShardingTypeError: ``indices`` and ``a`` are sharded on one axis; one is sharded where the other is unreduced.

    Communicates: nothing. Transpose: a scatter-add of the cotangent.
    """
    if out is not None:
        raise ShardingTypeError("`take` takes no `out`")
    ((a,), _) = lift([ravel(a) if axis is None else a])
    t = jax.typeof(a)
    (dim,) = normalize_dims(axis or 0, t.ndim, "take")
    return _taken("take", a, as_positions(indices, "take"), dim, bound_of(mode, _TAKE_MODES), fill_value)


def _taken(name: str, x: Any, ids: Any, dim: int, bound: Bound, fill_value: Any) -> Array:
    shape = jax.typeof(x).shape
    entries: list[IndexEntry] = [Slice(0, n) for n in shape]
    entries[dim] = Position(operand=0)
    return gather(x, tuple(entries), [ids], bound, fill_value, name)


@public
def embedding(table: Any, ids: Any) -> Array:
    """The rows of a table, one for each id; with the vocabulary sharded the result is unreduced, without communication.

    Args:
        table (vocab, ...): Rows to look up.
        ids (...): Integers in ``[0, vocab)``; others are brought to the nearest end.

    Returns:
        (..., ...): The rows. Per axis as `take`.

    Raises:
        ShardingTypeError: as for `take`.

    Communicates: nothing. Transpose: a scatter-add of the cotangent; unreduced where ids are sharded and the table is
    reduced.
    """
    ((table,), _) = lift([table])
    return _taken("embedding", table, as_positions(ids, "embedding"), 0, Bound(negative=False), None)


@dataclass(frozen=True)
class TakeAlong(LocalFn):
    """``take_along_axis`` of a device's own part; zero where another device has the row, or none."""

    dim: int
    place: LocalPosition
    bound: Bound
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"take_along[{self.dim}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, ids: Any) -> Any:
        at, here = found(self.place, [ids], self.bound)
        if here is not None:
            at = jnp.clip(at, 0, self.place.local - 1)
        y = jnp.take_along_axis(x, at, self.dim, mode="promise_in_bounds")
        return only_where(here, y, 0)


@public
def take_along_axis(
    arr: ArrayLike,
    indices: Any,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Array:
    """One position of a dim for each place of the other dims, as `jax.numpy.take_along_axis`.

    Per axis: the other dims of ``arr`` and of ``indices`` run together, as in a product; an axis that shards the dim
    that is looked up makes the result unreduced. So the logits of labels are found in a sharded vocabulary without
    communication.

    Args:
        arr (..., n, ...): What is looked up; ``n`` is dim ``axis``.
        indices (..., m, ...): Integers, with as many dims; dims of size 1 stretch.
        axis: The dim; None takes both values as one dim.
        mode: ``"fill"`` (the default) or ``"clip"``, for positions out of range; negative ones count from the end.
        fill_value: The value for ``"fill"``.
        wrap_negative_indices: Whether they do; so they do by default.

    Returns:
        (..., m, ...): The elements.

    Communicates: nothing. Transpose: a scatter-add of the cotangent.
    """
    ids = as_positions(indices, "take_along_axis")
    arr, ids, axis = (ravel(arr), ravel(ids), 0) if axis is None else (arr, ids, axis)
    (arr, ids), constants = lift([arr, ids])
    t = jax.typeof(arr)
    (dim,) = normalize_dims(axis, t.ndim, "take_along_axis")
    bound = bound_of("fill" if mode is None else mode, GET_MODES)
    bound = bound._replace(negative=wrap_negative_indices in (None, True))
    if not t.shape[dim]:
        raise ShardingTypeError(f"`take_along_axis` looks up dim {dim} of {t}, which has no elements")

    def local(types: tuple[ShType, ...]) -> TakeAlong:
        (own, *_) = types
        return TakeAlong(dim, LocalPosition(0, 0, own.shape[dim], own.dims[dim].axes, own.local_shape[dim]), bound)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _take_along_rule("take_along_axis", types, dim, constants)

    y = apply("take_along_axis", local, rule, arr, ids)
    if bound.clip:
        return y
    inside = InRange((t.shape[dim],), bound)
    return filled(apply("in_range", inside, lambda ts: rules.nonlinear("in_range", ts, "bool"), ids), y, fill_value)


def _over(over: str | Sequence[str]) -> tuple[str, ...]:
    return (over,) if isinstance(over, str) else tuple(over)


@dataclass(frozen=True)
class OneHot(LocalFn):
    """One where the class is the operand's, zero elsewhere; by the global number of the class."""

    size: int
    dim: int
    axes: tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"one_hot[{self.size}]"

    def __call__(self, ids: Any) -> Any:
        dtype = dtypes.to_numpy(self.dtype)
        first = lax.axis_index(self.axes) * self.size if self.axes else 0
        own = ids if ids.dtype.itemsize >= 4 else ids.astype(jnp.int32)
        return jax.nn.one_hot(own - jnp.asarray(first, own.dtype), self.size, dtype=dtype, axis=self.dim)


@public
def one_hot(
    x: ArrayLike, num_classes: int, *, dtype: Any = None, axis: int = -1, over: str | Sequence[str] = ()
) -> Array:
    """A new dim of classes with a one at each id, as `jax.nn.one_hot`; each device makes its own part.

    Args:
        x (...): Integers; those out of range have zeros only.
        num_classes: The size of the new dim.
        dtype: The dtype; the default float.
        axis: Where the new dim stands in the result.
        over: Mesh axes that shard the new dim; ``x`` must be replicated on them.

    Returns:
        (..., num_classes): Sharded as ``x`` and over ``over``. It has no gradient.

    Communicates: nothing.
    """
    ((x,), _) = lift([as_positions(x, "one_hot")])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim + 1, "one_hot")
    name = dtype_name(np.float64 if dtype is None else dtype)
    axes = _over(over)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _one_hot_rule("one_hot", types[0], num_classes, dim, name, axes)

    size = num_classes // t.mesh.product(axes)
    return apply("one_hot", OneHot(size, dim, axes, name), rule, x)


@dataclass(frozen=True)
class SegmentSum(LocalFn):
    """Rows summed by segment, for a device's own segments."""

    size: int
    local: int
    axes: tuple[str, ...]
    bound: Bound
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"segment_sum[{self.size}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, data: Any, ids: Any) -> Any:
        at, here = found(LocalPosition(0, 0, self.size, self.axes, self.local), [ids], self.bound)
        if here is not None:
            at = jnp.where(here, at, self.local)
        zeros = jnp.zeros((self.local, *data.shape[ids.ndim :]), data.dtype)
        return zeros.at[at].add(data, mode="drop", wrap_negative_indices=False)


@public
def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    *,
    over: str | Sequence[str] = (),
) -> Array:
    """The rows of each segment summed, as `jax.ops.segment_sum`.

    Per axis: rows and numbers that are sharded together give a pending sum; every other state of the rows is kept.

    Args:
        data (n, ...): Rows.
        segment_ids (n): The segment of each row; rows with a number out of range are dropped.
        num_segments: The number of segments, which must be given.
        indices_are_sorted: Accepted for compatibility; ignored.
        unique_indices: Accepted for compatibility; ignored.
        bucket_size: Accepted for compatibility; ignored.
        mode: ``"clip"`` brings numbers out of range to the nearest segment.
        over: Mesh axes that shard the segments; the rows must be replicated on them.

    Returns:
        (num_segments, ...): The sums.

    Communicates: nothing. Transpose: the rows of the cotangent at the segments' numbers.
    """
    if num_segments is None:
        raise ShardingTypeError("`segment_sum` needs `num_segments`", why="the size of the result must be known")
    (data, ids), constants = lift([data, as_positions(segment_ids, "segment_sum")])
    axes = _over(over)
    bound = Bound(negative=False, clip=bound_of("drop" if mode is None else mode, GET_MODES).clip)
    local = num_segments // jax.typeof(data).mesh.product(axes)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _segment_sum_rule("segment_sum", types, num_segments, axes, constants)

    return apply("segment_sum", SegmentSum(num_segments, local, axes, bound), rule, data, ids)
