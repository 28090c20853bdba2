"""Positions in sharded dims: brought into range by the global size, then found among the rows that a device has."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jax import lax

from shtypes.errors import ShardingTypeError
from shtypes.rules.index import IndexEntry, New, Position, Slice, in_place
from shtypes.types import ShType


class Bound(NamedTuple):
    """What positions out of range mean.

    Attributes:
        negative: Negative ones count from the end.
        modulo: All are taken modulo the size.
        clip: Those that are still out of range are brought to the nearest end; else they are nowhere.
    """

    negative: bool = True
    modulo: bool = False
    clip: bool = True

    def __str__(self) -> str:
        return "wrap" if self.modulo else "clip" if self.clip else "drop"


class LocalPosition(NamedTuple):
    """A position in one dim as a device sees it: static, or in an operand.

    Attributes:
        position: The static position.
        operand: Which array of positions holds it instead.
        size: The global size of the dim.
        axes: The mesh axes that shard it.
        local: How many rows each device has.
    """

    position: int
    operand: int | None
    size: int
    axes: tuple[str, ...]
    local: int


LocalEntry = LocalPosition | Slice | New
#: All that a device has of a dim.
ALL: Final = Slice(0, -1)


def local_entries(entries: Sequence[IndexEntry], operand: ShType) -> tuple[LocalEntry, ...]:
    """Entries of an index with what each device has of the dims that are looked up."""
    dims = iter(range(operand.ndim))
    made: list[LocalEntry] = []
    for entry in entries:
        d = None if isinstance(entry, New) else next(dims)
        if d is not None and isinstance(entry, Position):
            dim = operand.dims[d]
            if not dim.size:
                raise ShardingTypeError(f"dim {d} has size 0: there are no positions in it")
            made.append(LocalPosition(entry.position, entry.operand, dim.size, dim.axes, operand.local_shape[d]))
        elif d is not None and isinstance(entry, Slice) and entry == (0, operand.shape[d], 1):
            made.append(ALL)
        elif d is not None and isinstance(entry, Slice) and in_place(entry, operand, d):
            made.append(entry._replace(size=operand.local_shape[d] // entry.step))
        elif d is not None and isinstance(entry, Slice) and operand.dims[d].axes:
            made.append(ALL)  # see `Window`
        elif not isinstance(entry, Position):
            made.append(entry)
    return tuple(made)


def shown(entries: Sequence[LocalEntry]) -> str:
    """An index as a jaxpr prints it."""
    return ",".join(_shown(e) for e in entries)


def _shown(entry: LocalEntry) -> str:
    if isinstance(entry, New):
        return "None"
    if isinstance(entry, LocalPosition):
        return "_" if entry.operand is not None else str(entry.position)
    if entry == ALL:
        return ":"
    stop = entry.start + entry.size * entry.step
    step = f":{entry.step}" if entry.step != 1 else ""
    return f"{entry.start}:{stop if stop >= 0 else ''}{step}"


def brought(ids: Any, size: int, bound: Bound) -> Any:
    """Positions in ``[0, size)``; those that are nowhere become ``size``."""
    if jnp.issubdtype(ids.dtype, jnp.unsignedinteger):
        wide = ids if ids.dtype.itemsize >= 4 else ids.astype(jnp.uint32)
        wide = wide % wide.dtype.type(size) if bound.modulo else jnp.minimum(wide, wide.dtype.type(size))
        ids = wide.astype(jnp.int32 if wide.dtype.itemsize == 4 else jnp.int64)
    elif ids.dtype.itemsize < 4:
        ids = ids.astype(jnp.int32)
    if bound.modulo:
        return jnp.mod(ids, size)
    if bound.negative:
        ids = jnp.where(ids < 0, ids + size, ids)
    if bound.clip:
        return jnp.clip(ids, 0, size - 1)
    return jnp.where((ids < 0) | (ids >= size), size, ids)


def found(place: LocalPosition, ids: Sequence[Any], bound: Bound) -> tuple[Any, Any]:
    """The rows of this device for one place, and which of them it has; None where it has all."""
    at = jnp.int32(place.position) if place.operand is None else brought(ids[place.operand], place.size, bound)
    if not place.axes:
        return at, None if bound.clip or bound.modulo or place.operand is None else at < place.size
    at = at - lax.axis_index(place.axes) * place.local
    return at, (at >= 0) & (at < place.local)


def local_index(
    entries: Sequence[LocalEntry], ids: Sequence[Any], bound: Bound, *, past_end: bool
) -> tuple[tuple[Any, ...], Any]:
    """An index for a device's own part, and which of its rows exist here; None where all do.

    The rows that do not are clipped to those that do or, for updates, past the end, where they are dropped: each at its
    own place there, so that positions that differ still do.
    """
    index: list[Any] = []
    present: list[Any] = []
    for entry in entries:
        if isinstance(entry, New):
            index.append(None)
        elif isinstance(entry, Slice):
            index.append(_as_slice(entry))
        elif entry.operand is None and not entry.axes:
            index.append(entry.position)
        else:
            at, here = found(entry, ids, bound)
            if here is not None:
                at = jnp.where(here, at, past(at, entry.local)) if past_end else jnp.clip(at, 0, entry.local - 1)
                present.append(here)
            index.append(at)
    return tuple(index), functools.reduce(jnp.logical_and, present) if present else None


def past(at: Any, size: int) -> Any:
    """As many different positions past the end of a dim."""
    return size + jnp.arange(at.size, dtype=at.dtype).reshape(at.shape)


def _as_slice(span: Slice) -> slice:
    stop = span.start + span.size * span.step
    return slice(None) if span == ALL else slice(span.start, stop if stop >= 0 else None, span.step)


def only_where(present: Any, x: Any, after: int) -> Any:
    """Zero but for the rows that are present; ``after`` dims of ``x`` follow those of the positions."""
    if present is None:
        return x
    return jnp.where(present.reshape(present.shape + (1,) * after), x, jnp.zeros((), x.dtype))
