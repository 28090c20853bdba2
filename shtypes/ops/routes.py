"""Rows that go to the devices that have their numbers, or come from there, by all-to-alls of a stated capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shtypes.core.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.local_rows import clamped
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import Axes, axes_of, count, of_device, placed, turned, type_of
from shtypes.types import Dim, State
from shtypes.types.parts import check_divides


def _check(name: str, capacity: Any, axes: Axes, ids: Any, others: Sequence[str]) -> None:
    """Refuses what has no routes: ids that are not sharded as what they are numbers of."""
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise ShardingTypeError(f"`capacity` of `{name}` must be a positive integer, not {capacity!r:.60}")
    lies = [dim.axes for dim in type_of(ids).dims if dim.axes]
    if not axes or lies.count(axes) != 1:
        raise ShardingTypeError(
            f"`{name}` with a capacity needs ids that are sharded as what they number, over the same axes",
            why=f"a device sends its ids to those that have their rows; rows lie over {axes}, ids are {type_of(ids)}",
            hints=["without `capacity`, they may lie in other ways"],
        )
    spent = [a for dim in lies if dim != axes for a in dim]
    if twice := [a for a in (*spent, *axes) if (*spent, *others, *axes).count(a) > 1]:
        raise ShardingTypeError(f"`{name}` with a capacity would shard two dims over {', '.join(map(repr, twice))}")


@of_device("routes")
def _routes(ids: Any, size: int, n: int, capacity: int, clips: bool) -> tuple[Any, Any]:
    """The slot of each id among those that are sent, past the end if it has none, and the row that each slot asks."""
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
    """The sums of the rows of each number below ``size``."""
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[at].add(rows, mode="drop")


@of_device("rows")
def _flat(data: Any, ndim: int) -> Any:
    return data.reshape(-1, *data.shape[ndim:])


def _sent(ids: Any, axes: Axes, size: int, capacity: int, clips: bool) -> tuple[Any, Any]:
    """The slots of each device's ids, and the rows that others ask of it."""
    slots, asked = _routes(ids, size, count(ids, axes), min(capacity, type_of(ids).size), clips)
    return slots, turned(asked, axes, 0, 0)


def _lies(ids: Any) -> Axes:
    return tuple(a for dim in type_of(ids).dims for a in dim.axes)


def embedded(table: Any, ids: Any, capacity: int, fill_value: Any) -> Array:
    """The rows of a table; each device asks at most ``capacity`` of each other, and has the fill for more."""
    t, axes = type_of(ids), axes_of(table, 0)
    if type_of(table).axes(State.UNREDUCED):
        raise ShardingTypeError(
            f"`embedding` with a capacity takes no pending sum, and the table is {type_of(table)}",
            why="what fills the rows above the capacity would count in each term",
            hints=["finish it first: sh.all_reduce(table)"],
        )
    _check("embedding", capacity, axes, ids, [a for dim in type_of(table).dims[1:] for a in dim.axes])
    ids, own = as_varying(ids, _lies(ids)), as_varying(table, axes)
    shape = type_of(ids).shape
    slots, asked = _sent(ids, axes, type_of(own).shape[0], capacity, clips=True)
    rows = turned(_rows(own, asked, 0, (type_of(asked).size,)), axes, 0, 0)
    y: Array = _rows(rows, slots, fill_value, shape)
    for d, dim in enumerate(t.dims):
        y = placed(y, d, dim.axes) if dim.axes else y
    return y


def summed_by_segment(data: Any, ids: Any, num_segments: int, axes: Axes, capacity: int, clips: bool) -> Array:
    """The sums of segments that are sharded as the rows; each device sends at most ``capacity`` rows to each other."""
    ndim = type_of(ids).ndim
    _check("segment_sum", capacity, axes, ids, [a for dim in type_of(data).dims[ndim:] for a in dim.axes])
    if type_of(data).dims[:ndim] != type_of(ids).dims:
        raise ShardingTypeError("`segment_sum` with a capacity needs rows that are sharded as their segments' numbers")
    lies, n = _lies(ids), count(ids, axes)
    check_divides(type_of(ids).mesh, Dim(num_segments, axes), 0)
    ids, data = as_varying(ids, lies), as_varying(data, lies)
    slots, asked = _sent(ids, axes, num_segments // n, capacity, clips)
    rows = turned(_sums(_flat(data, ndim), slots, type_of(asked).size), axes, 0, 0)
    return placed(_sums(rows, asked, num_segments // n), 0, axes)
