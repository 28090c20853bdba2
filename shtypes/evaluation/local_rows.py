"""Lookups and changes at positions in a sharded dim: each device does those at the positions of its shard.

Positions are brought into range by the global size. One that another device has gives zeros, or changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.evaluation.bound_primitive import Bound


class Start(NamedTuple):
    """A position at run time: the index of its operand."""

    operand: int


class Place(NamedTuple):
    """Where a slice of a sharded dim begins."""

    dim: int  # the dim
    size: int  # its global size
    axes: tuple[str, ...]  # the mesh axes that shard it
    start: int | Start  # the position

    def at(self, operands: Sequence[Any], count: int) -> Any:
        """The position for ``count`` elements, brought into range."""
        if isinstance(self.start, int):
            return np.int32(min(max(self.start, 0), self.size - count))
        return clamped(operands[self.start.operand], self.size - count)


def clamped(at: Any, last: int, beyond: int = 0) -> Any:
    """Positions brought between 0 and the last one, or so far ``beyond``, as integers that hold all positions."""
    held = jnp.iinfo(at.dtype)  # type: ignore[no-untyped-call]
    least, most = max(-beyond, int(held.min)), min(last + beyond, int(held.max))
    return _counting(lax.clamp(at.dtype.type(least), at, at.dtype.type(most)))


def _counting(at: Any) -> Any:
    """Integers of a dtype that is signed and wide enough for positions."""
    return at if at.dtype in (np.int32, np.int64) else at.astype(np.int64 if at.dtype.itemsize == 8 else np.int32)


@dataclass(frozen=True)
class _Local(ShardFn):
    """A primitive on a shard, at the positions that the shard has: linear as the primitive is."""

    fn: Bound

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it is the primitive's
        return self.fn.linear

    def linear_in(self, index: int) -> bool:
        return self.fn.linear_in(index)

    def __str__(self) -> str:
        return f"{self.fn}[own]"


@dataclass(frozen=True)
class LocalRow(_Local):
    """A slice, by ``fn``, in which one position of some sharded dims is looked up; zero where another device has it."""

    places: tuple[Place, ...]  # the positions

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
    """A slice replaced, by ``fn``, of which some dims are sharded: each device replaces the positions of its shard."""

    places: tuple[Place, ...]  # where it begins in them

    def __call__(self, x: Any, update: Any, *starts: Any) -> Any:
        if not update.size:
            return x
        inside: Any = None
        operands = [x, update, *starts]
        for place in self.places:
            d, n, count = place.dim, x.shape[place.dim], update.shape[place.dim]
            away = lax.iota(np.int32, n) + (lax.axis_index(place.axes) * n - place.at(operands, count))
            mine = lax.expand_dims((away >= 0) & (away < count), [e for e in range(x.ndim) if e != d])
            # Each position of the shard gets its element of the update; where none is in the slice, any.
            update = jnp.take(update, lax.clamp(0, away, count - 1), d, mode="clip")
            inside = mine if inside is None else inside & mine
        changed = self.fn(x, update, *starts)
        return lax.select(jnp.broadcast_to(inside, x.shape), changed, x)


@dataclass(frozen=True)
class LocalSorted(_Local):
    """Keys sorted by ``fn``, and other operands along; of one that is sharded along them each device has a shard."""

    dim: int  # the dim along which it sorts
    axes: tuple[tuple[str, ...], ...]  # for each operand, the mesh axes that shard this dim

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
    """One component of the positions of a lookup."""

    place: int  # which
    last: int  # the last position that fits
    dim: int = -1  # the dim of the array that it is a position in, if that is sharded; else -1
    axes: tuple[str, ...] = ()  # the mesh axes that shard it


def _local_positions(x: Any, parts: list[Any], components: Sequence[Component], *, clip: bool, beyond: int = 0) -> Any:
    """Makes global positions in sharded dims local, and returns a mask of those in the shard; None if all are.

    With ``clip`` those that do not fit are of the device at whose end they are, so far ``beyond`` its shard.
    """
    here = None
    for c in components:
        if clip:
            parts[c.place] = clamped(parts[c.place], c.last, beyond)
        if not c.axes:
            continue
        n = x.shape[c.dim]
        first = lax.axis_index(c.axes) * n
        at = _counting(parts[c.place])
        fitting = jnp.clip(at, 0, c.last) if beyond else at
        parts[c.place], mine = at - first, (fitting >= first) & (fitting < first + n)
        here = mine if here is None else here & mine
    return here


def reading(numbers: Any, x: Any, updates: Any) -> tuple[Any, list[int]]:
    """The dimension numbers and the sizes of windows by which a lookup reads what a scatter changes."""
    windows = iter([updates.shape[d] for d in numbers.update_window_dims])
    taken = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    reads = lax.GatherDimensionNumbers(
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    return reads, [1 if d in taken else next(windows) for d in range(x.ndim)]


def _together(parts: Sequence[Any], indexed: Sequence[int], ids: Any) -> Any:
    """The components ``indexed``, as positions again."""
    if not indexed:
        return lax.slice_in_dim(ids, 0, 0, axis=ids.ndim - 1)
    return jnp.stack([_counting(parts[j]) for j in indexed], -1)


@dataclass(frozen=True)
class LocalWindows(_Local):
    """Windows of an array at positions, by ``fn``: those in the shard; zeros where another device has them."""

    components: tuple[Component, ...]  # those of the positions
    indexed: tuple[int, ...]  # those that the lookup takes: the others count along dims that run together
    clip: bool  # whether positions that do not fit are brought to where they do
    fill: Any = None  # the number in the place of windows that do not fit, if it is not 0
    once: tuple[str, ...] = ()  # the axes along which the first device alone puts the fill, since values are summed

    @property
    def linear(self) -> Linear:  # type: ignore[override]
        return Linear.NO if self.fill is not None else Linear.IN_DIFFERENTIABLE

    @property
    def linear_part(self) -> ShardFn | None:
        return replace(self, fill=None)

    def __call__(self, x: Any, ids: Any) -> Any:
        parts = [ids[..., j] for j in range(ids.shape[-1])]
        fits = None if self.fill is None else self._fits(parts, ids)
        # JAX brings promised positions to where they fit, and drops the cotangents of those that do not: so does `fn`.
        beyond = int(self.fn.params["mode"] is lax.GatherScatterMode.PROMISE_IN_BOUNDS)
        here = _local_positions(x, parts, self.components, clip=self.clip, beyond=beyond)
        for c in self.components:
            if c.axes:
                parts[c.place] = lax.select(here, parts[c.place], lax.full_like(parts[c.place], 0))
        y = self.fn(x, _together(parts, self.indexed, ids))
        windows = self.fn.params["dimension_numbers"].offset_dims
        rows = [d for d in range(y.ndim) if d not in windows]
        if here is not None:
            y = lax.select(lax.broadcast_in_dim(here, y.shape, rows), y, lax.full_like(y, 0))
        if fits is None:
            return y
        for axis in self.once:
            fits = fits | (lax.axis_index(axis) != 0)
        return lax.select(lax.broadcast_in_dim(fits, y.shape, rows), y, lax.full_like(y, self.fill))

    def _fits(self, parts: Sequence[Any], ids: Any) -> Any:
        """A mask of the positions that fit."""
        fits = jnp.ones(ids.shape[:-1], bool)
        for c in self.components:
            at = _counting(parts[c.place])
            fits = fits & (at >= 0) & (at <= c.last)
        return fits


@dataclass(frozen=True)
class LocalUpdates(_Local):
    """Windows of an array changed at positions, by ``fn``, which drops what does not fit: those in the shard."""

    components: tuple[Component, ...]  # those of the positions
    indexed: tuple[int, ...]  # those that the change takes: the others count along dims that run together
    clip: bool  # whether positions that do not fit are brought to where they do
    single: bool  # whether there is one position

    def __call__(self, x: Any, ids: Any, updates: Any) -> Any:
        parts = [ids[..., j] for j in range(ids.shape[-1])]
        here = _local_positions(x, parts, self.components, clip=self.clip)
        if here is not None and self.single:
            return self._one(x, ids, updates, parts, here)
        for c in self.components:
            if c.axes:  # each past the end at another place, so that positions that differ still do
                at = parts[c.place]
                past = x.shape[c.dim] + lax.iota(at.dtype, at.size).reshape(at.shape)
                parts[c.place] = lax.select(here, at, past)
        return self.fn(x, _together(parts, self.indexed, ids), updates)

    def _one(self, x: Any, ids: Any, updates: Any, parts: list[Any], here: Any) -> Any:
        """Read, change and write: XLA before JAX 0.12 writes to a wrong row where a scatter to one row drops it."""
        for c in self.components:
            if c.axes:
                parts[c.place] = jnp.clip(parts[c.place], 0, x.shape[c.dim] - 1)
        at, numbers = _together(parts, self.indexed, ids), self.fn.params["dimension_numbers"]
        reads = reading(numbers, x, updates)
        old = lax.gather(x, at, *reads, mode="clip")
        here_all = jnp.broadcast_to(here.reshape(()), old.shape)
        # What is discarded is changed harmlessly: its derivative may be NaN, and so zero times it.
        beside = lax.full_like(old, 1)
        changed = self.fn(x, at, lax.select(here_all, updates, beside))
        new = lax.select(here_all, lax.gather(changed, at, *reads, mode="clip"), old)
        return lax.scatter(x, at, new, numbers, unique_indices=True, mode="drop")
