"""Cumulative reductions along a sharded dim: each device scans its shard, then adds the totals of earlier shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax.numpy as jnp
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import as_sharded, axes_of, axis_index, axis_size, bound, of_device, part, shift, type_of

#: The binary function of each cumulative reduction.
_JOIN: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "logsumexp": jnp.logaddexp,
}


@of_device("after")
def _after(before: Any, own: Any, place: Any, first: int, kind: str) -> Any:
    """Combines a value with that of earlier devices, on devices that have at least ``first`` of them."""
    if kind == "sum":  # what did not arrive is zero
        return before + own
    return jnp.where(place >= first, _JOIN[kind](before, own), own)


@of_device("from_end")
def _from_end(device: Any, count: int) -> Any:
    """The index of a device from the last."""
    return count - 1 - device


@way(*(f"cum{kind}" for kind in _JOIN))
def by_steps(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Scans the totals of shards: sends ``1 + log2(devices)`` rows by permutes, and as many backward."""
    (x,), kind = operands, eqn.primitive.name.removeprefix("cum")
    dim, reverse = int(eqn.params["axis"]), bool(eqn.params["reverse"])
    axes = axes_of(x, dim)
    if not axes or not type_of(x).size:
        return None
    own, n, device = bound(eqn)(as_varying(x, axes)), axis_size(x, axes), axis_index(x, axes)
    last = 0 if reverse else type_of(own).shape[dim] - 1
    step, place = (-1, _from_end(device, n)) if reverse else (1, device)
    before, hops = shift(part(own, last, last + 1, dim), axes, step), 1
    while hops < n - 1:
        before = _after(shift(before, axes, step * hops), before, place, hops + 1, kind)
        hops *= 2
    return [as_sharded(_after(before, own, place, 1, kind), dim, axes)]
