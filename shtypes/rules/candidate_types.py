"""Candidate types of an operand that differ on one mesh axis, and their costs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from shtypes.resharding import MOVES, Cost, Direction, Price, cost, least_bytes, price
from shtypes.rules.typing import Typing
from shtypes.types import REPLICATED, ShType, State, dtypes
from shtypes.types.parts import COTANGENT

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State

#: A state, or the dim that an axis shards as its minor axis (``~dim``: as its major axis).
Place = State | int


def place_of(t: ShType, axis: str) -> Place:
    """The dim that an axis shards, or else its state."""
    dim = t.dim_of(axis)
    return t.state(axis) if dim is None else dim


def other_places(t: ShType, axis: str) -> Iterator[Place]:
    """The places to which a reshard could move an axis: states, dims, and the minor or major end of its dim."""
    current = place_of(t, axis)
    if current is VARYING:
        return
    for dim, size in enumerate(t.local_shape):
        if dim == current:
            yield from (place for place in (dim, ~dim) if with_axis_at(t, axis, place) != t)
        elif size % t.mesh.shape[axis] == 0:
            yield dim
    yield from (place for place in unsharded_states(t) if place is not current)


def unsharded_states(t: ShType) -> Iterator[State]:
    """The states other than SHARDED that an axis of a type could have."""
    yield REDUCED
    if t.differentiable:
        yield INVARIANT
    if dtypes.summable(t.dtype_name):
        yield UNREDUCED


def with_axis_at(t: ShType, axis: str, place: Place) -> ShType | None:
    """The type with an axis at a place; None if it does not divide the dim, or the dtype cannot be unreduced."""
    return _with_axis_at(t, t.names, axis, place)


@functools.lru_cache(maxsize=4096)
def _with_axis_at(t: ShType, names: object, axis: str, place: Place) -> ShType | None:
    # Equal types may differ in names, which fixes print: they are part of the key.
    if isinstance(place, State):
        allowed = place is not UNREDUCED or dtypes.summable(t.dtype_name)
        return t.with_axis(axis, place) if allowed else None
    dim = place if place >= 0 else ~place
    if dim >= t.ndim or (axis not in t.dims[dim].axes and t.local_shape[dim] % t.mesh.shape[axis]):
        return None
    after = () if place >= 0 else t.dims[dim].axes
    t = t.with_axis(axis, SHARDED, dim)
    for other in after:
        t = t.with_axis(other, SHARDED, dim) if other != axis else t
    return t


@functools.lru_cache(maxsize=4096)
def estimate(t: ShType, moves: tuple[tuple[str, Place], ...], minimize: Direction) -> Cost:
    """An estimate of the cost of moving some axes from `MOVES`, without a plan; moves that shrink shards are first."""
    size, forward, backward = t.local_bytes, 0, 0
    ends = [(a, t.state(a), p if isinstance(p, State) else SHARDED, p) for a, p in moves]
    for axis, src, dst, place in sorted(ends, key=lambda end: (end[1] is SHARDED) - (end[2] is SHARDED)):
        n = t.mesh.shape[axis]
        if src is SHARDED and dst is not SHARDED:
            size *= n
        part = size * (n - 1) // n
        forward += _rounds(src, dst) * part
        backward += _rounds(COTANGENT[dst], COTANGENT[src]) * part
        if dst is SHARDED is not src:
            size //= n
            if not isinstance(place, State) and place < 0:  # the slices of the other axes move too
                forward, backward = forward + size, backward + size
    return cost(forward, backward if t.differentiable else 0, minimize)


def _rounds(src: State, dst: State) -> int:
    return MOVES[src, dst].rounds if (src, dst) in MOVES else 0


def finish_cost(t: ShType, minimize: Direction = "both") -> Cost:
    """The cost of the cheapest reshard to a type without pending sums."""
    goals = [t]
    for axis in t.axes(UNREDUCED):
        places = [*range(t.ndim), *(s for s in unsharded_states(t) if s is not UNREDUCED)]
        goals = [to for g in goals for p in places if (to := with_axis_at(g, axis, p)) is not None]
    best: Cost | None = None
    for least, goal in sorted(((least_cost(t, g, minimize), g) for g in goals), key=lambda pair: pair[0]):
        if best is not None and least >= best:
            break
        exact = price_of(t, goal).cost(minimize)
        best = exact if best is None else min(best, exact)
    return best or (0, 0)


def replication_penalty(src: ShType, dst: ShType, minimize: Direction = "both") -> Cost:
    """The penalty of a reshard that sends nothing but gives each device a full array: the price of an all-gather.

    To unreduced, the array is padded with zeros, forward and backward; to invariant, each device computes the full
    cotangent.
    """
    zeros, invariant = ({*src.axes(SHARDED)} & {*dst.axes(state)} for state in (UNREDUCED, INVARIANT))
    gathered = src.with_axes(zeros | invariant, REDUCED) if zeros or invariant else src
    gathers, forward = (price_of(src, t).forward_bytes for t in (gathered, src.with_axes(zeros, REDUCED)))
    return cost(forward, gathers * src.differentiable, minimize)


def price_of(src: ShType, dst: ShType) -> Price:
    """The price of a reshard, or of a cast that a rule inserts; a cast to varying costs as much as to reduced."""
    return price(src, not_yet_varying(src, dst))


@functools.lru_cache(maxsize=16384)
def _least_of(src: ShType, dst: ShType) -> int:
    return least_bytes(src, not_yet_varying(src, dst))


def least_cost(src: ShType, dst: ShType, minimize: Direction, *, returns: bool = True) -> Cost:
    """A lower bound of the cost of a reshard or cast, without a plan; forward only if no gradient ``returns``."""
    if src == dst:
        return 0, 0
    back = _least_of(dst.cotangent(), src.cotangent()) if returns and src.differentiable else 0
    return cost(_least_of(src, dst), back, minimize)


def keeps_varying(src: ShType, dst: ShType) -> bool:
    """Whether every varying axis of a type stays varying, since no cast undoes it."""
    return all(dst.state(a) is VARYING for a in src.axes(VARYING))


def not_yet_varying(src: ShType, dst: ShType) -> ShType:
    """The destination with axes that become varying reduced instead, at the same cost."""
    return dst.with_axes((a for a in dst.axes(VARYING) if src.state(a) is not VARYING), REDUCED)


def _backward_casts(operands: Sequence[ShType], typing: Typing, state: State) -> set[str]:
    """The axes on which the rule casts an invariant operand to a state, which communicates backward."""
    return {
        axis
        for t, goal in zip(operands, typing.operands, strict=True)
        for axis in (t.axes(State.INVARIANT) if t is not goal else ())
        if goal.state(axis) is state
    }


def alike_invariant(operands: tuple[ShType, ...], typing: Typing) -> tuple[ShType, ...]:
    """Makes reduced operands invariant on axes on which an invariant one would be cast to reduced."""
    axes = _backward_casts(operands, typing, State.REDUCED)
    return tuple(
        t.with_axes(axes.intersection(t.axes(State.REDUCED)), State.INVARIANT) if t.differentiable else t
        for t in operands
    )


def without_slices(operands: tuple[ShType, ...], typing: Typing) -> tuple[ShType, ...]:
    """Makes sharded operands unreduced on axes on which an invariant one would be sliced."""
    axes = _backward_casts(operands, typing, State.SHARDED)
    return tuple(as_pending(t, axes) for t in operands)


def aligned_with(t: ShType, other: ShType) -> ShType | None:
    """A type with the axes at the places of another, dims aligned from the right; None if it lacks a dim."""
    aligned: ShType | None = t.with_axes(t.axes(State.SHARDED), State.REDUCED)
    for axis in (a for dim in other.dims for a in dim.axes):
        dim = t.ndim - other.ndim + (other.dim_of(axis) or 0)
        aligned = None if aligned is None or dim < 0 else with_axis_at(aligned, axis, dim)
    for axis in other.axes(State.UNREDUCED, *REPLICATED):
        if aligned is not None and other.state(axis) in unsharded_states(aligned):
            aligned = with_axis_at(aligned, axis, other.state(axis))
    return aligned


def as_pending(t: ShType, axes: Iterable[str]) -> ShType:
    """Makes those of ``axes`` that shard a type unreduced, if its dtype can be summed."""
    return t.with_axes({*axes} & {*t.axes(State.SHARDED)}, State.UNREDUCED) if dtypes.summable(t.dtype_name) else t
