"""Lookups and segment sums with a capacity: ids and rows go to the devices of the rows by all-to-alls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shtypes.core.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.local_rows import clamped
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import Axes, all_to_all, as_sharded, axes_of, axis_size, of_device, type_of
from shtypes.types import Dim, State
from shtypes.types.parts import check_divides


def _check_routes(name: str, capacity: Any, axes: Axes, ids: Any, others: Sequence[str]) -> None:
    """Checks the capacity, and that the ids are sharded over the same axes as the rows that they index."""
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise ShardingTypeError(f"`capacity` of `{name}` must be a positive integer, not {capacity!r:.60}")
    axes_of_ids = [dim.axes for dim in type_of(ids).dims if dim.axes]
    if not axes or axes_of_ids.count(axes) != 1:
        raise ShardingTypeError(
            f"`{name}` with a capacity needs ids that are sharded as what they number, over the same axes",
            why=f"a device sends its ids to those that have their rows; rows lie over {axes}, ids are {type_of(ids)}",
            hints=["without `capacity`, they may lie in other ways"],
        )
    used = [a for dim in axes_of_ids if dim != axes for a in dim]
    if repeated := [a for a in (*used, *axes) if (*used, *others, *axes).count(a) > 1]:
        raise ShardingTypeError(f"`{name}` with a capacity would shard two dims over {', '.join(map(repr, repeated))}")


@of_device("routes")
def _routes(ids: Any, size: int, n: int, capacity: int, clips: bool) -> tuple[Any, Any]:
    """The slot of each id among those to send, past the end for none, and the row that each slot requests."""
    flat = ids.reshape(-1)
    at = clamped(flat, n * size - 1)
    owner = jnp.where(clips | (at == flat.astype(at.dtype)), at // size, n)
    order = jnp.argsort(owner)
    in_order = owner[order]
    nth = jnp.arange(at.size) - jnp.searchsorted(in_order, in_order)
    slots = jnp.where((in_order < n) & (nth < capacity), in_order * capacity + nth, n * capacity)
    slots = jnp.zeros_like(slots).at[order].set(slots, unique_indices=True)
    return slots, jnp.full(n * capacity, size, at.dtype).at[slots].set(at % size, mode="drop")


@of_device("rows")
def _rows(x: Any, at: Any, fill_value: Any, shape: Sequence[int]) -> Any:
    return jnp.take(x, at, axis=0, mode="fill", fill_value=fill_value).reshape(*shape, *x.shape[1:])


@of_device("sums")
def _sums(rows: Any, at: Any, size: int) -> Any:
    """Sums rows by segment, for ``size`` segments."""
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[at].add(rows, mode="drop")


@of_device("rows")
def _flat(data: Any, ndim: int) -> Any:
    return data.reshape(-1, *data.shape[ndim:])


def _request(ids: Any, axes: Axes, size: int, capacity: int, clips: bool) -> tuple[Any, Any]:
    """The slots of each device's ids, and the rows that other devices request of it."""
    slots, requested = _routes(ids, size, axis_size(ids, axes), min(capacity, type_of(ids).size), clips)
    return slots, all_to_all(requested, axes, 0, 0)


def _dim_axes(ids: Any) -> Axes:
    return tuple(a for dim in type_of(ids).dims for a in dim.axes)


def embedded(table: Any, ids: Any, capacity: int, fill_value: Any) -> Array:
    """The rows of a table; each device requests at most ``capacity`` of each other, and the fill value for more."""
    t, axes = type_of(ids), axes_of(table, 0)
    if type_of(table).axes(State.UNREDUCED):
        raise ShardingTypeError(
            f"`embedding` with a capacity takes no pending sum, and the table is {type_of(table)}",
            why="what fills the rows above the capacity would count in each term",
            hints=["finish it first: sh.all_reduce(table)"],
        )
    _check_routes("embedding", capacity, axes, ids, [a for dim in type_of(table).dims[1:] for a in dim.axes])
    ids, shard = as_varying(ids, _dim_axes(ids)), as_varying(table, axes)
    shape = type_of(ids).shape
    slots, requested = _request(ids, axes, type_of(shard).shape[0], capacity, clips=True)
    rows = all_to_all(_rows(shard, requested, 0, (type_of(requested).size,)), axes, 0, 0)
    y: Array = _rows(rows, slots, fill_value, shape)
    for d, dim in enumerate(t.dims):
        y = as_sharded(y, d, dim.axes) if dim.axes else y
    return y


def summed_by_segment(data: Any, ids: Any, num_segments: int, axes: Axes, capacity: int, clips: bool) -> Array:
    """The sums of segments, sharded like the rows; each device sends at most ``capacity`` rows to each other."""
    ndim = type_of(ids).ndim
    _check_routes("segment_sum", capacity, axes, ids, [a for dim in type_of(data).dims[ndim:] for a in dim.axes])
    if type_of(data).dims[:ndim] != type_of(ids).dims:
        raise ShardingTypeError("`segment_sum` with a capacity needs rows that are sharded as their segments' numbers")
    axes_of_ids, n = _dim_axes(ids), axis_size(ids, axes)
    check_divides(type_of(ids).mesh, Dim(num_segments, axes), 0)
    ids, data = as_varying(ids, axes_of_ids), as_varying(data, axes_of_ids)
    slots, requested = _request(ids, axes, num_segments // n, capacity, clips)
    rows = all_to_all(_sums(_flat(data, ndim), slots, type_of(requested).size), axes, 0, 0)
    return as_sharded(_sums(rows, requested, num_segments // n), 0, axes)
