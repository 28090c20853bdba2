"""Running sums and their kind along a sharded dim: each device its own, then the totals of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax.numpy as jnp
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import axes_of, bound, count, index, of_device, part, placed, sent, type_of

#: What joins two totals, by what accumulates.
_JOIN: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "logsumexp": jnp.logaddexp,
}


@of_device("after")
def _after(before: Any, own: Any, place: Any, first: int, kind: str) -> Any:
    """What is joined with what was before, where the device has ``first`` devices before it."""
    if kind == "sum":  # linear: what is not sent is zero
        return before + own
    return jnp.where(place >= first, _JOIN[kind](before, own), own)


@of_device("from_end")
def _from_end(me: Any, count: int) -> Any:
    """The number of a device from the end."""
    return count - 1 - me


@way(*(f"cum{kind}" for kind in _JOIN))
def by_steps(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``1 + log2(devices)`` rows, from device to device; backward as many."""
    (x,), kind = operands, eqn.primitive.name.removeprefix("cum")
    dim, reverse = int(eqn.params["axis"]), bool(eqn.params["reverse"])
    axes = axes_of(x, dim)
    if not axes or not type_of(x).size:
        return None
    own, n, me = bound(eqn)(as_varying(x, axes)), count(x, axes), index(x, axes)
    last = 0 if reverse else type_of(own).shape[dim] - 1
    step, place = (-1, _from_end(me, n)) if reverse else (1, me)
    before, hops = sent(part(own, last, last + 1, dim), axes, step), 1
    while hops < n - 1:
        before = _after(sent(before, axes, step * hops), before, place, hops + 1, kind)
        hops *= 2
    return [placed(_after(before, own, place, 1, kind), dim, axes)]
