"""Running sums and their kind along a sharded dim: each device its own, then the totals of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
from jax import lax

from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    Axes,
    axes_of,
    bound,
    collected,
    count,
    index,
    of_device,
    part,
    placed,
    sent,
    type_of,
)

#: What joins two totals, by what accumulates.
_JOIN: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "logsumexp": jnp.logaddexp,
}
_NAMES: Final = tuple(f"cum{kind}" for kind in _JOIN)


@of_device("after")
def _after(before: Any, own: Any, place: Any, first: int, kind: str) -> Any:
    """What is joined with what was before, where the device has ``first`` devices before it."""
    if kind == "sum":  # linear: what is not sent is zero
        return before + own
    return jnp.where(place >= first, _JOIN[kind](before, own), own)


@of_device("before")
def _before(totals: Any, place: Any, kind: str, dim: int, reverse: bool) -> Any:
    """The total of the devices before this one, of all totals; of the first its own."""
    n = totals.shape[dim]
    running = getattr(lax, f"cum{kind}")(totals, axis=dim, reverse=reverse)
    at = jnp.clip(n - place if reverse else place - 1, 0, n - 1)
    total = lax.dynamic_slice_in_dim(running, at, 1, dim)
    return jnp.where(place == 0, jnp.zeros_like(total), total) if kind == "sum" else total


@of_device("from_end")
def _from_end(me: Any, count: int) -> Any:
    """The number of a device from the end."""
    return count - 1 - me


class _Running(NamedTuple):
    """What each device has of a running sum and its kind before it knows of others."""

    kind: str
    dim: int
    axes: Axes
    reverse: bool
    own: Any  # of its shard alone
    total: Any  # the last of it
    place: Any  # its number in the direction of the sum

    def after(self, before: Any) -> Sequence[Any]:
        """The results, with the total of the devices before."""
        return [placed(_after(before, self.own, self.place, 1, self.kind), self.dim, self.axes)]


def _running(eqn: Any, operands: Sequence[Any]) -> _Running | None:
    (x,), p = operands, eqn.params
    dim, reverse = int(p["axis"]), bool(p["reverse"])
    axes = axes_of(x, dim)
    if not axes or not type_of(x).size:
        return None
    own, place = bound(eqn)(as_varying(x, axes)), index(x, axes)
    last = 0 if reverse else type_of(own).shape[dim] - 1
    place = _from_end(place, count(x, axes)) if reverse else place
    kind = eqn.primitive.name.removeprefix("cum")
    return _Running(kind, dim, axes, reverse, own, part(own, last, last + 1, dim), place)


@way(*_NAMES)
def by_steps(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``1 + log2(devices)`` rows, from device to device; backward as many."""
    r = _running(eqn, operands)
    if r is None:
        return None
    step, hops = -1 if r.reverse else 1, 1
    before = sent(r.total, r.axes, step)
    while hops < count(r.total, r.axes) - 1:
        before = _after(sent(before, r.axes, step * hops), before, r.place, hops + 1, r.kind)
        hops *= 2
    return r.after(before)


@way(*_NAMES)
def by_totals(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``devices - 1`` rows, by one gather of the totals; backward as many."""
    r = _running(eqn, operands)
    return r and r.after(_before(collected(r.total, r.axes, r.dim), r.place, r.kind, r.dim, r.reverse))
