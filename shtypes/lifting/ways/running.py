"""Running sums and their kind along a sharded dim: each device its own, then the totals of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax.numpy as jnp
from jax import lax

from shtypes.lifting.ways.choice import way
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
    shards,
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
def _after(before: Any, own: Any, me: Any, first: int, kind: str, reverse: bool) -> Any:
    """What is joined with what was before, where the device has ``first`` devices before it."""
    has = me <= -1 - first if reverse else me >= first
    if kind == "sum":  # linear: what is not sent is zero
        return before + own
    return jnp.where(has, _JOIN[kind](before, own), own)


@of_device("before")
def _before(totals: Any, me: Any, kind: str, dim: int, reverse: bool) -> Any:
    """The total of the devices before this one, of all totals; of the first its own."""
    n = totals.shape[dim]
    running = getattr(lax, f"cum{kind}")(totals, axis=dim, reverse=reverse)
    at = jnp.minimum(me + 1, n - 1) if reverse else jnp.maximum(me - 1, 0)
    total = lax.dynamic_slice_in_dim(running, at, 1, dim)
    first = me == (n - 1 if reverse else 0)
    return jnp.where(first, jnp.zeros_like(total), total) if kind == "sum" else total


def _parts(eqn: Any, x: Any) -> tuple[int, Axes, bool, Any, Any, Any]:
    """The dim, its axes, the direction, what each device has of its own, its total, and its number."""
    dim, reverse = int(eqn.params["axis"]), bool(eqn.params["reverse"])
    axes = axes_of(x, dim)
    own = bound(eqn)(shards(x, axes))
    size, me = type_of(own).shape[dim], index(x, axes)
    return dim, axes, reverse, own, part(own, 0, 1, dim) if reverse else part(own, size - 1, size, dim), me


def _runs_across(eqn: Any, x: Any) -> bool:
    return bool(axes_of(x, int(eqn.params["axis"]))) and type_of(x).size > 0


@way(*_NAMES)
def by_steps(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``1 + log2(devices)`` rows, from device to device; backward as many."""
    (x,), kind = operands, eqn.primitive.name.removeprefix("cum")
    if not _runs_across(eqn, x):
        return None
    dim, axes, reverse, own, total, me = _parts(eqn, x)
    n, step, hops = count(x, axes), -1 if reverse else 1, 1
    offset = _from_end(me, n) if reverse else me
    before = sent(total, axes, step)
    while hops < n - 1:
        before = _after(sent(before, axes, step * hops), before, offset, hops + 1, kind, reverse)
        hops *= 2
    return [placed(_after(before, own, offset, 1, kind, reverse), dim, axes)]


@of_device("from_end")
def _from_end(me: Any, count: int) -> Any:
    """The number of a device from the end: -1 for the last."""
    return me - count


@way(*_NAMES)
def by_totals(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``devices - 1`` rows, by one gather of the totals; backward as many."""
    (x,), kind = operands, eqn.primitive.name.removeprefix("cum")
    if not _runs_across(eqn, x):
        return None
    dim, axes, reverse, own, total, me = _parts(eqn, x)
    totals = collected(total, axes, dim)
    n = count(x, axes)
    before = _before(totals, me, kind, dim, reverse)
    return [placed(_after(before, own, _from_end(me, n) if reverse else me, 1, kind, reverse), dim, axes)]
