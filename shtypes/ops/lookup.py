"""Lookups by integers: take, take_along_axis, embedding, one_hot, segment_sum. None of them communicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.shard_fn import Linear
from shtypes.dispatch.apply import apply, as_operands, dtype_name
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import normalize_dims
from shtypes.ops.functions import take
from shtypes.ops.routes import embedded, summed_by_segment
from shtypes.rules.lookups import one_hot as _one_hot_rule
from shtypes.rules.lookups import segment_sum as _segment_sum_rule
from shtypes.types import ShType, dtypes


def as_positions(ids: Any, name: str) -> Any:
    """Positions, which must be integers, as an argument for `as_operands`."""
    ids = np.asarray(ids) if isinstance(ids, (list, tuple, int)) else ids
    if not hasattr(ids, "dtype") or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ShardingTypeError(f"`{name}` needs integers, not {getattr(ids, 'dtype', type(ids).__name__)}")
    return ids


@public
def embedding(table: Any, ids: Any, *, capacity: int | None = None, fill_value: Any = None) -> Array:
    """The rows of a table, one for each id; with the vocabulary sharded the result is unreduced, without communication.

    Args:
        table (vocab, ...): Rows to look up.
        ids (...): Integers in ``[0, vocab)``; others are brought to the nearest end.
        capacity: Of ids that are sharded over the axes of the vocabulary: so many of them at most each device asks each
            other for, the first in order. The result is sharded as the ids are. With as many as a device has ids, none
            is above the capacity.
        fill_value: The rows of ids above the capacity; by default NaN, of integers the least, or of unsigned ones the
            greatest. They have no gradient.

    Returns:
        (..., ...): The rows. Per axis as `take`.

    Raises:
        ShardingTypeError: as for `take`; with a capacity, ids that are not sharded as the vocabulary.

    Communicates: nothing; with a capacity, two all-to-alls, of ids and of rows, ``capacity`` for each pair of devices.
    Transpose: a scatter-add of the cotangent; unreduced where ids are sharded and the table is reduced.
    """
    ids = as_positions(ids, "embedding")
    if capacity is None:
        return take(table, ids, axis=0, mode="clip")
    ((table, ids), _) = as_operands([table, ids])
    return embedded(table, ids, capacity, fill_value)


def _over(over: str | Sequence[str]) -> tuple[str, ...]:
    return (over,) if isinstance(over, str) else tuple(over)


def _one_hot(ids: Any, size: int, dim: int, axes: tuple[str, ...], dtype: str) -> Any:
    """One where the class is the operand's, zero elsewhere, for the ``size`` classes of a device."""
    first = lax.axis_index(axes) * size if axes else 0
    indices = ids if ids.dtype.itemsize >= 4 else ids.astype(jnp.int32)
    return jax.nn.one_hot(indices - jnp.asarray(first, indices.dtype), size, dtype=dtypes.to_numpy(dtype), axis=dim)


@public
def one_hot(
    x: ArrayLike, num_classes: int, *, dtype: Any = None, axis: int = -1, over: str | Sequence[str] = ()
) -> Array:
    """A new dim of classes with a one at each id, as `jax.nn.one_hot`; each device computes its shard.

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
    ((x,), _) = as_operands([as_positions(x, "one_hot")])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim + 1, "one_hot")
    name = dtype_name(np.float64 if dtype is None else dtype)
    axes = _over(over)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _one_hot_rule("one_hot", types[0], num_classes, dim, name, axes)

    size = num_classes // t.mesh.product(axes)
    params = (("size", size), ("dim", dim), ("axes", axes), ("dtype", name))
    return apply("one_hot", NamedFn(f"one_hot[{size}]", _one_hot, params), rule, x)


def _segment_sum(data: Any, ids: Any, size: int, local: int, axes: tuple[str, ...], clips: bool) -> Any:
    """Rows summed by segment, for the ``local`` segments of a device."""
    if jnp.issubdtype(ids.dtype, jnp.unsignedinteger) and ids.dtype.itemsize >= 4:
        ids = jnp.minimum(ids, ids.dtype.type(size)).astype(f"int{8 * ids.dtype.itemsize}")
    at = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids
    if clips:
        at = jnp.clip(at, 0, size - 1)
    if axes:
        at = at - lax.axis_index(axes) * local
    at = jnp.where((at >= 0) & (at < local), at, local)
    zeros = jnp.zeros((local, *data.shape[ids.ndim :]), data.dtype)
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
    capacity: int | None = None,
) -> Array:
    """The rows of each segment summed, as `jax.ops.segment_sum`.

    Per axis: rows and numbers that are sharded together give a pending sum; every other state of the rows stays.

    Args:
        data (n, ...): Rows.
        segment_ids (n): The segment of each row; rows with a number out of range are dropped.
        num_segments: The number of segments; required.
        indices_are_sorted: Accepted for compatibility; ignored.
        unique_indices: Accepted for compatibility; ignored.
        bucket_size: Accepted for compatibility; ignored.
        mode: ``"clip"`` brings numbers out of range to the nearest segment.
        over: Mesh axes that shard the segments; the rows must be replicated on them.
        capacity: Of rows that are sharded over these axes, too: so many of them at most each device sends to each
            other, the first in order; rows above the capacity are dropped, as those of no segment are.

    Returns:
        (num_segments, ...): The sums.

    Communicates: nothing; with a capacity, two all-to-alls, of numbers and of rows. Transpose: the rows of the
    cotangent at the segments' numbers.
    """
    if num_segments is None:
        raise ShardingTypeError("`segment_sum` needs `num_segments`", why="the size of the result must be known")
    (data, ids), constants = as_operands([data, as_positions(segment_ids, "segment_sum")])
    axes = _over(over)
    clips = mode is not None and lax.GatherScatterMode.from_any(mode) is lax.GatherScatterMode.CLIP
    if capacity is not None:
        return summed_by_segment(data, ids, num_segments, axes, capacity, clips)
    local = num_segments // jax.typeof(data).mesh.product(axes)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return _segment_sum_rule("segment_sum", types, num_segments, axes, constants)

    params = (("size", num_segments), ("local", local), ("axes", axes), ("clips", clips))
    fn = NamedFn(f"segment_sum[{num_segments}]", _segment_sum, params, Linear.MULTILINEAR, nonlinear=frozenset({1}))
    return apply("segment_sum", fn, rule, data, ids)
