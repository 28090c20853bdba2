"""Positions in sharded dims: brought into range by the global size, then found among the rows that a device has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


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
