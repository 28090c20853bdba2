"""The cheapest plan by trying everything: all that collectives can do with the prime parts of axes, step by step.

An array is looked at as digits: each dim as so many of the mesh's primes, major first, as divide it, and a rest. A
state says where each part of an axis is: on a digit, replicated, or pending. It knows nothing of how the planner
searches.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator

from shtypes.types import ShType, State

R, U = "R", "U"
Place = tuple[int, int] | str
Places = tuple[Place, ...]


def primes(n: int) -> list[int]:
    """The prime factors of a size."""
    return [p for p in range(2, n + 1) if all(p % q for q in range(2, p)) for k in range(1, n) if n % p**k == 0]


def least(src: ShType, dst: ShType) -> int:
    """The bytes that the cheapest plan sends, of axes of one prime alone."""
    parts = [(axis, p) for axis, n in src.mesh.shape.items() for p in primes(n)]
    (prime,) = {p for _, p in parts}
    room = [max(k for k in range(len(parts) + 1) if n % prime**k == 0) for n in src.shape]

    def places(t: ShType) -> Places:
        found: dict[str, list[Place]] = {}
        for axis, n in t.mesh.shape.items():
            found[axis] = [U if t.state(axis) is State.UNREDUCED else R] * len(primes(n))
        for d, dim in enumerate(t.dims):
            digits = itertools.count()
            for axis in dim.axes:
                found[axis] = [(d, next(digits)) for _ in found[axis]]
        return tuple(place for axis in t.mesh.axis_names for place in found[axis])

    start, end = places(src), places(dst)
    kept = frozenset(i for i, place in enumerate(end) if place == U)
    cap = min(sum(p not in (R, U) for p in at) for at in (start, end))  # no more memory than the larger end
    whole = src.size * 4 * prime ** len(parts)
    best: dict[Places, int] = {start: 0}
    heap: list[tuple[int, int, Places]] = [(0, 0, start)]
    ticket = itertools.count(1)
    while heap:
        spent, _, at = heapq.heappop(heap)
        if at == end:
            return int(spent // prime ** len(parts))
        if spent > best[at]:
            continue
        for there, price in moves(at, whole, prime, room, kept):
            if sum(p not in (R, U) for p in there) >= cap and spent + price < best.get(there, math.inf):
                best[there] = spent + price
                heapq.heappush(heap, (spent + price, next(ticket), there))
    raise AssertionError("nothing leads there")


def moves(at: Places, whole: int, p: int, room: list[int], kept: frozenset[int]) -> Iterator[tuple[Places, int]]:
    """Every state that one collective or one silent move makes of another, and what each device sends for it."""
    axes = range(len(at))
    on = [i for i in axes if at[i] not in (R, U)]
    local = whole // p ** len(on)
    free: list[Place] = [(d, k) for d, n in enumerate(room) for k in range(n) if (d, k) not in at]
    for i in axes:
        if at[i] == R:
            yield from ((_put(at, {i: place}), 0) for place in free)  # slices
        if i in kept and at[i] != U:
            yield _put(at, {i: U}), 0  # masks, and places
    for chosen in _subsets(on):
        n = p ** len(chosen)
        yield _put(at, dict.fromkeys(chosen, R)), (n - 1) * local
        yield from (
            (_put(at, dict(zip(chosen, to, strict=True))), (n - 1) * local // n)
            for to in itertools.permutations(free, len(chosen))
        )
    for chosen in _subsets([i for i in axes if at[i] == U and i not in kept]):
        n = p ** len(chosen)
        yield _put(at, dict.fromkeys(chosen, R)), 2 * (n - 1) * local // n
        yield from (
            (_put(at, dict(zip(chosen, to, strict=True))), (n - 1) * local // n)
            for to in itertools.permutations(free, len(chosen))
        )
    for order in set(itertools.permutations(at)):
        if order != at and Counter(order) == Counter(at):
            yield order, local


def _put(at: Places, changes: dict[int, Place]) -> Places:
    return tuple(changes.get(i, place) for i, place in enumerate(at))


def _subsets(axes: list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(axes, k) for k in range(1, len(axes) + 1))
