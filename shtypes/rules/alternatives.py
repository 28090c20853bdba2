"""The other types that an operand could have, and what it costs to give it one. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shtypes.resharding import Cost, Direction, Price, cost, least_bytes, price
from shtypes.types import ShType, State, dtypes


def others(operand: ShType, axes: Sequence[str]) -> Iterator[ShType]:
    """The other types that an operand could be resharded to on these axes."""
    free = [a for a in axes if operand.state(a) is not State.VARYING]
    bare = operand.with_axes(free, State.REDUCED)
    seen = {operand}
    for places in itertools.product(places_of(operand), repeat=len(free)):
        for order in _orders(free, places):
            target = with_places(bare, [free[i] for i in order], [places[i] for i in order])
            if target is not None and target not in seen:
                seen.add(target)
                yield target


def _orders(axes: Sequence[str], places: Sequence[State | int]) -> Iterator[tuple[int, ...]]:
    """The orders in which axes are placed that differ: of axes on one dim, which is major."""
    shared = [i for i, p in enumerate(places) if not isinstance(p, State) and places.count(p) > 1]
    rest = [i for i in range(len(axes)) if i not in shared]
    for order in itertools.permutations(shared):
        yield (*order, *rest)


def places_of(operand: ShType) -> list[State | int]:
    """Where an axis could be: a state, or sharding a dim."""
    states = [State.REDUCED, State.INVARIANT] if operand.differentiable else [State.REDUCED]
    if dtypes.summable(operand.dtype_name):
        states.append(State.UNREDUCED)
    return [*range(operand.ndim), *states]


def with_places(bare: ShType, axes: Sequence[str], places: Sequence[State | int]) -> ShType | None:
    """``bare`` with each axis at its place; None where an axis does not divide, or what cannot be summed is pending."""
    for axis, place in zip(axes, places, strict=True):
        if place is State.UNREDUCED and not dtypes.summable(bare.dtype_name):
            return None
        if isinstance(place, State):
            bare = bare.with_axis(axis, place)
        elif bare.local_shape[place] % bare.mesh.shape[axis]:
            return None
        else:
            bare = bare.with_axis(axis, State.SHARDED, place)
    return bare


def finishing(t: ShType, minimize: Direction = "both") -> Cost:
    """What it costs to reduce the pending sums of a value in the cheapest way."""
    axes = t.axes(State.UNREDUCED)
    ends = [p for p in places_of(t) if p is not State.UNREDUCED]
    bare = t.with_axes(axes, State.REDUCED)
    goals = (with_places(bare, axes, chosen) for chosen in itertools.product(ends, repeat=len(axes)))
    found: Cost | None = None
    for least, goal in sorted(
        ((least_cost(t, g, minimize), g) for g in goals if g is not None and axes), key=lambda pair: pair[0]
    ):
        if found is not None and least >= found:
            break
        price = price_of(t, goal).cost(minimize)
        found = price if found is None else min(found, price)
    return found or (0, 0)


def price_of(src: ShType, dst: ShType) -> Price:
    """What a reshard, or a cast that a rule inserts, costs; to varying costs what to reduced does."""
    return price(src, not_yet_varying(src, dst))


def least_of(src: ShType, dst: ShType) -> int:
    """Bytes that a reshard or cast sends forward at least, found without planning it."""
    return least_bytes(src, not_yet_varying(src, dst))


def least_cost(src: ShType, dst: ShType, minimize: Direction, *, returns: bool = True) -> Cost:
    """What a reshard or cast costs at least; of a value without a gradient, or where none ``returns``, forward only."""
    back = least_of(dst.cotangent(), src.cotangent()) if returns and src.differentiable else 0
    return cost(least_of(src, dst), back, minimize)


def varies_no_more(src: ShType, dst: ShType) -> bool:
    """Whether a value of one type can become one of another, as far as what varies goes: there is no way back."""
    return all(dst.state(a) is State.VARYING for a in src.axes(State.VARYING))


def not_yet_varying(src: ShType, dst: ShType) -> ShType:
    """What a cast is planned to: to varying it costs what to reduced does."""
    return dst.with_axes((a for a in dst.axes(State.VARYING) if src.state(a) is not State.VARYING), State.REDUCED)
