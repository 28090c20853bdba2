"""What is in order along a sharded dim: the first few of each device, and sorts by exchanges of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.dispatch.apply import is_typed
from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    axes_of,
    bound,
    count,
    exchanged,
    gathered,
    index,
    of_device,
    placed,
    sharded,
    type_of,
)


@of_device("shifted")
def _shifted(places: Any, me: Any, size: int) -> Any:
    """Places in a shard as places in all of the dim."""
    return places + (me * size).astype(places.dtype)


@of_device("take")
def _taken(places: Any, at: Any, dim: int) -> Any:
    return jnp.take_along_axis(places, at, dim)


@way("top_k")
def first_of_each(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``k (devices - 1)`` values and places of each row; backward nothing."""
    (x,), p = operands, eqn.params
    t = type_of(x)
    dim, k = int(p.get("axis", t.ndim - 1)) % t.ndim, int(p["k"])
    axes = axes_of(x, dim)
    if not axes or k == 0:
        return None
    size = t.local_shape[dim]
    values, places = bound(eqn, k=min(k, size))(as_varying(x, axes))
    places = _shifted(places, index(x, axes), size)
    best, at = bound(eqn, k=k)(gathered(values, axes, dim))
    return [best, _taken(gathered(places, axes, dim), at, dim)]  # apart: nobody may ask for the places


@of_device("merged")
def _merged(own: Sequence[Any], others: Sequence[Any], low: Any, dim: int, keys: int) -> Any:
    """The lower or the upper half of two sorted shards."""
    size = own[0].shape[dim]
    both = lax.sort([jnp.concatenate(pair, dim) for pair in zip(own, others, strict=True)], dim, num_keys=keys)
    halves = [(lax.slice_in_dim(x, 0, size, axis=dim), lax.slice_in_dim(x, size, 2 * size, axis=dim)) for x in both]
    return [jnp.where(low, *pair) for pair in halves]


@of_device("half")
def _is_low(me: Any, stage: int, bit: int) -> Any:
    """Whether a device keeps the lower half in a step of a bitonic merge."""
    return ((me >> bit) & 1 == 0) == ((me >> stage) & 1 == 0)


@of_device("places")
def _places(x: Any, me: Any, dim: int, size: int) -> Any:
    """The place of each element along a dim, of all devices, in as few bytes as its size takes."""
    places = lax.broadcasted_iota(jnp.int32, x.shape, dim) + me * x.shape[dim]
    return places.astype(np.min_scalar_type(size - 1))


@way("sort")
def by_exchanges(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``l (l + 1) / 2`` shards of ``2 ** l`` devices, and holds three; where ties count, places beside them.

    They count where equal elements can be told apart: by other operands, by their gradients, zeros by their signs.
    """
    p = eqn.params
    dim, keys = int(p["dimension"]), int(p["num_keys"])
    axes = next((axes_of(x, dim) for x in operands if is_typed(x) and axes_of(x, dim)), ())
    if not all(map(is_typed, operands)) or not axes or any(axes_of(x, dim) not in (axes, ()) for x in operands):
        return None
    n = count(operands[0], axes)
    if n & (n - 1) or not type_of(operands[0]).size:
        return None
    xs = [as_varying(x if axes_of(x, dim) else sharded(x, dim, axes), axes) for x in operands]
    me = index(operands[0], axes)
    told_apart = keys < len(xs) or any(jnp.issubdtype(type_of(x).dtype, jnp.inexact) for x in xs)
    if p["is_stable"] and told_apart:
        xs = [*xs[:keys], _places(xs[0], me, dim, type_of(operands[0]).shape[dim]), *xs[keys:]]
        keys += 1
    xs = list(_sorted(*xs, dim=dim, keys=keys))
    for stage in range(1, n.bit_length()):
        for bit in reversed(range(stage)):
            others = [exchanged(x, axes, 1 << bit) for x in xs]
            xs = list(_merged(xs, others, _is_low(me, stage, bit), dim, keys))
    if len(xs) > len(operands):
        del xs[keys - 1]
    return [placed(x, dim, axes) for x in xs]


@of_device("sort")
def _sorted(*xs: Any, dim: int, keys: int) -> Any:
    return lax.sort(xs, dim, num_keys=keys)
