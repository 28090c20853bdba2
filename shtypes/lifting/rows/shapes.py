"""Rows of primitives that move elements, and put values together or take them apart."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from shtypes.lifting.registry import op, row
from shtypes.lifting.rows.annotations import annotated


def ints(values: Any) -> tuple[int, ...]:
    """Whole numbers as Python's."""
    return tuple(int(n) for n in values)


@row("broadcast_in_dim")
def _broadcast_in_dim(x: Any, *, shape: Any, broadcast_dimensions: Any, sharding: Any = None) -> Any:
    return annotated(op("broadcast_in_dim")(x, ints(shape), ints(broadcast_dimensions)), sharding)


@row("reshape")
def _reshape(x: Any, *, new_sizes: Any, dimensions: Any, sharding: Any = None) -> Any:
    if dimensions is not None:
        x = op("transpose")(x, ints(dimensions))
    return annotated(op("reshape")(x, ints(new_sizes)), sharding)


@row("squeeze")
def _squeeze(x: Any, *, dimensions: Any) -> Any:
    return op("squeeze")(x, ints(dimensions)) if dimensions else x


@row("transpose")
def _transpose(x: Any, *, permutation: Any) -> Any:
    return op("transpose")(x, ints(permutation))


@row("rev")
def _rev(x: Any, *, dimensions: Any) -> Any:
    return op("rev")(x, ints(dimensions)) if dimensions else x


@row("concatenate")
def _concatenate(*xs: Any, dimension: int) -> Any:
    some = [x for x in xs if np.shape(x)[dimension]] or xs
    return op("concatenate")(list(some), dimension) if len(some) > 1 else some[0]


@row("stack")
def _stack(*xs: Any, axis: int) -> Any:
    return op("stack")(list(xs), axis)


@row("unstack")
def _unstack(x: Any, *, axis: int) -> Any:
    return op("unstack")(x, axis=axis)


@row("split")
def _split(x: Any, *, sizes: Any, axis: int) -> Any:
    return op("split")(x, [int(n) for n in np.cumsum(sizes)[:-1]], axis)


@row("tile")
def _tile(x: Any, *, reps: Any) -> Any:
    return op("tile")(x, ints(reps))


@row("pad")
def _pad(x: Any, value: Any, *, padding_config: Any) -> Any:
    return op("pad")(x, value, [ints(edge) for edge in padding_config])


@row("slice")
def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    start, stop = list(ints(start_indices)), list(ints(limit_indices))
    step = list(ints(strides)) if strides is not None else [1] * len(start)
    if any(a == b and dim.axes for a, b, dim in zip(start, stop, x.type.dims, strict=True)):
        return jnp.zeros(np.subtract(stop, start), x.dtype)  # nothing of a sharded dim, as where it rolls by zero
    for d, n in enumerate(x.type.shape):
        if stop[d] - start[d] == 1 and n > 1:  # an index, which a sharded dim takes too
            x = op("index_in_dim")(x, start[d], d, keepdims=True)
            start[d], stop[d], step[d] = 0, 1, 1
    if all((a, b, c) == (0, n, 1) for a, b, c, n in zip(start, stop, step, x.type.shape, strict=True)):
        return x
    return op("slice")(x, tuple(start), tuple(stop), tuple(step))


@row("dynamic_slice")
def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Any) -> Any:
    places, sizes = list(starts), ints(slice_sizes)
    if not hasattr(x, "type"):
        return op("dynamic_slice")(x, places, sizes)
    for d, (n, m) in enumerate(zip(x.type.shape, sizes, strict=True)):
        if m == n:
            places[d] = 0
        elif m == 1 and x.type.dims[d].axes:  # a lookup in what is sharded
            x, places[d] = op("dynamic_index_in_dim")(x, places[d], d, keepdims=True), 0
    return x if x.type.shape == sizes else op("dynamic_slice")(x, places, sizes)


@row("dynamic_update_slice")
def _dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    return op("dynamic_update_slice")(x, update, list(starts))
