"""Gathers, scatters and sorts along a sharded dim: each device handles the indices in its shard.

Indices are clamped by the global size. A device gives zeros for indices in other shards, or changes nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.derived_fns import Wrapped
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.evaluation.bound_primitive import Bound


class Start(NamedTuple):
    """A start index that is an operand of the function."""

    operand: int


class Place(NamedTuple):
    """The start of a slice of a sharded dim."""

    dim: int
    size: int  # of the dim, globally
    axes: tuple[str, ...]  # the mesh axes that shard it
    start: int | Start

    def at(self, operands: Sequence[Any], count: int) -> Any:
        """The start index, clamped for a slice of ``count`` elements."""
        if isinstance(self.start, int):
            return np.int32(min(max(self.start, 0), self.size - count))
        return clamped(operands[self.start.operand], self.size - count)


def clamped(at: Any, last: int, past_ends: int = 0) -> Any:
    """Clamps indices between ``-beyond`` and ``last + beyond``, as signed integers of at least 32 bits."""
    info = jnp.iinfo(at.dtype)  # type: ignore[no-untyped-call]
    least, most = max(-past_ends, int(info.min)), min(last + past_ends, int(info.max))
    return _signed_index(lax.clamp(at.dtype.type(least), at, at.dtype.type(most)))


def _signed_index(at: Any) -> Any:
    """Casts indices to signed integers of at least 32 bits."""
    return at if at.dtype in (np.int32, np.int64) else at.astype(np.int64 if at.dtype.itemsize == 8 else np.int32)


@dataclass(frozen=True)
class _Local(Wrapped):
    """A primitive on a shard, for the indices in the shard: linear where the primitive is."""

    fn: Bound

    def __str__(self) -> str:
        return f"{self.fn}[own]"


@dataclass(frozen=True)
class LocalRow(_Local):
    """A slice, by ``fn``, then one index of each sharded dim in ``places``; zero if another device has it."""

    places: tuple[Place, ...]

    def __call__(self, *operands: Any) -> Any:
        y = self.fn(*operands)
        for place in self.places:
            n = y.shape[place.dim]
            at = place.at(operands, 1) - lax.axis_index(place.axes) * n
            row = lax.dynamic_slice_in_dim(y, lax.clamp(at.dtype.type(0), at, at.dtype.type(n - 1)), 1, place.dim)
            y = lax.select(lax.broadcast((at >= 0) & (at < n), row.shape), row, lax.full_like(row, 0))
        return y


@dataclass(frozen=True)
class LocalPart(_Local):
    """Replaces a slice, by ``fn``, with some sharded dims: each device replaces the part in its shard."""

    places: tuple[Place, ...]  # the starts in the sharded dims

    def __call__(self, x: Any, update: Any, *starts: Any) -> Any:
        if not update.size:
            return x
        inside: Any = None
        operands = [x, update, *starts]
        for place in self.places:
            d, n, count = place.dim, x.shape[place.dim], update.shape[place.dim]
            away = lax.iota(np.int32, n) + (lax.axis_index(place.axes) * n - place.at(operands, count))
            in_bounds = lax.expand_dims((away >= 0) & (away < count), [e for e in range(x.ndim) if e != d])
            # For each index of the shard the element of the update; any element outside of the slice.
            update = jnp.take(update, lax.clamp(0, away, count - 1), d, mode="clip")
            inside = in_bounds if inside is None else inside & in_bounds
        changed = self.fn(x, update, *starts)
        return lax.select(jnp.broadcast_to(inside, x.shape), changed, x)


@dataclass(frozen=True)
class LocalSorted(_Local):
    """Sorts unsharded keys by ``fn``, and other operands with them, which may be sharded along the dim."""

    dim: int
    axes: tuple[tuple[str, ...], ...]  # for each operand, the mesh axes that shard the dim

    def __call__(self, *operands: Any) -> Any:
        keys = [x for x, axes in zip(operands, self.axes, strict=True) if not axes]
        *sorted_keys, order = self.fn(*keys, lax.broadcasted_iota(np.int32, keys[0].shape, self.dim))
        rest, outs = iter(sorted_keys), []
        for x, axes in zip(operands, self.axes, strict=True):
            if not axes:
                outs.append(next(rest))
                continue
            n = x.shape[self.dim]
            at = order - lax.axis_index(axes) * n
            taken = jnp.take_along_axis(x, jnp.clip(at, 0, n - 1), self.dim, mode="clip")
            outs.append(lax.select((at >= 0) & (at < n), taken, lax.full_like(taken, 0)))
        return tuple(outs)


class Component(NamedTuple):
    """One component of the indices of a gather or scatter."""

    place: int  # its index in the last dim
    last: int  # the last index in bounds
    dim: int = -1  # the indexed dim if it is sharded, else -1
    axes: tuple[str, ...] = ()  # the mesh axes that shard it


def _local_positions(
    x: Any, parts: list[Any], components: Sequence[Component], *, clip: bool, past_ends: int = 0
) -> Any:
    """Makes global indices of sharded dims local, in place; returns the mask of those in the shard, None if all are.

    With ``clip``, indices out of bounds belong to the first or last shard, at most ``past_ends`` outside of it.
    """
    in_shard = None
    for c in components:
        if clip:
            parts[c.place] = clamped(parts[c.place], c.last, past_ends)
        if not c.axes:
            continue
        n = x.shape[c.dim]
        first = lax.axis_index(c.axes) * n
        at = _signed_index(parts[c.place])
        fitting = jnp.clip(at, 0, c.last) if past_ends else at
        parts[c.place], in_bounds = at - first, (fitting >= first) & (fitting < first + n)
        in_shard = in_bounds if in_shard is None else in_shard & in_bounds
    return in_shard


def reading(numbers: Any, x: Any, updates: Any) -> tuple[Any, list[int]]:
    """The dimension numbers and slice sizes of the gather that reads the windows of a scatter."""
    windows = iter([updates.shape[d] for d in numbers.update_window_dims])
    collapsed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    reads = lax.GatherDimensionNumbers(
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    return reads, [1 if d in collapsed else next(windows) for d in range(x.ndim)]


def _stack(parts: Sequence[Any], indexed: Sequence[int], ids: Any) -> Any:
    """Stacks the ``indexed`` components to indices like ``ids``."""
    if not indexed:
        return lax.slice_in_dim(ids, 0, 0, axis=ids.ndim - 1)
    return jnp.stack([_signed_index(parts[j]) for j in indexed], -1)


@dataclass(frozen=True)
class LocalWindows(_Local):
    """Gathers windows of a shard by ``fn``; zeros for windows in other shards."""

    components: tuple[Component, ...]
    indexed: tuple[int, ...]  # the components that ``fn`` takes; the others are batch dims
    clip: bool  # whether indices are clamped
    fill: Any = None  # the value of windows out of bounds, if it is not 0
    fill_axes: tuple[str, ...] = ()  # the axes along which only the first device fills, since results are summed

    @property
    def linear(self) -> Linear:  # type: ignore[override]
        return Linear.NO if self.fill is not None else Linear.IN_DIFFERENTIABLE

    @property
    def linear_part(self) -> ShardFn | None:
        return replace(self, fill=None)

    def __call__(self, x: Any, ids: Any) -> Any:
        parts = [ids[..., j] for j in range(ids.shape[-1])]
        fits = None if self.fill is None else self._fits(parts, ids)
        # With promised indices JAX clamps the gather, but drops the cotangents of indices out of bounds; so does `fn`.
        past_ends = int(self.fn.params["mode"] is lax.GatherScatterMode.PROMISE_IN_BOUNDS)
        in_shard = _local_positions(x, parts, self.components, clip=self.clip, past_ends=past_ends)
        for c in self.components:
            if c.axes:
                parts[c.place] = lax.select(in_shard, parts[c.place], lax.full_like(parts[c.place], 0))
        y = self.fn(x, _stack(parts, self.indexed, ids))
        windows = self.fn.params["dimension_numbers"].offset_dims
        rows = [d for d in range(y.ndim) if d not in windows]
        if in_shard is not None:
            y = lax.select(lax.broadcast_in_dim(in_shard, y.shape, rows), y, lax.full_like(y, 0))
        if fits is None:
            return y
        for axis in self.fill_axes:
            fits = fits | (lax.axis_index(axis) != 0)
        return lax.select(lax.broadcast_in_dim(fits, y.shape, rows), y, lax.full_like(y, self.fill))

    def _fits(self, parts: Sequence[Any], ids: Any) -> Any:
        """The mask of the indices in bounds."""
        fits = jnp.ones(ids.shape[:-1], bool)
        for c in self.components:
            at = _signed_index(parts[c.place])
            fits = fits & (at >= 0) & (at <= c.last)
        return fits


@dataclass(frozen=True)
class LocalUpdates(_Local):
    """Scatters to the windows in a shard by ``fn``, which drops those out of bounds."""

    components: tuple[Component, ...]
    indexed: tuple[int, ...]  # the components that ``fn`` takes; the others are batch dims
    clip: bool  # whether indices are clamped
    single: bool  # whether there is one index

    def __call__(self, x: Any, ids: Any, updates: Any) -> Any:
        parts = [ids[..., j] for j in range(ids.shape[-1])]
        in_shard = _local_positions(x, parts, self.components, clip=self.clip)
        if in_shard is not None and self.single:
            return self._update_one(x, ids, updates, parts, in_shard)
        for c in self.components:
            if c.axes:  # different indices past the end, so that unique indices stay unique
                at = parts[c.place]
                past = x.shape[c.dim] + lax.iota(at.dtype, at.size).reshape(at.shape)
                parts[c.place] = lax.select(in_shard, at, past)
        return self.fn(x, _stack(parts, self.indexed, ids), updates)

    def _update_one(self, x: Any, ids: Any, updates: Any, parts: list[Any], in_shard: Any) -> Any:
        """Gathers, changes and sets one window: XLA before JAX 0.12 miscompiles a scatter that drops its one row."""
        for c in self.components:
            if c.axes:
                parts[c.place] = jnp.clip(parts[c.place], 0, x.shape[c.dim] - 1)
        at, numbers = _stack(parts, self.indexed, ids), self.fn.params["dimension_numbers"]
        reads = reading(numbers, x, updates)
        old = lax.gather(x, at, *reads, mode="clip")
        in_shard_all = jnp.broadcast_to(in_shard.reshape(()), old.shape)
        # Discarded windows are updated by 1: else a derivative may be NaN, and so zero times it.
        harmless = lax.full_like(old, 1)
        changed = self.fn(x, at, lax.select(in_shard_all, updates, harmless))
        new = lax.select(in_shard_all, lax.gather(changed, at, *reads, mode="clip"), old)
        return lax.scatter(x, at, new, numbers, unique_indices=True, mode="drop")
