"""The states of the plan search, and the collectives between them with their costs.

A dim's index is a number in mixed radix, with a *digit*, major first, for each mesh axis (or prime part of one) that
can shard it, and a rest. An *axis* here is such a part, by number. A state has the place of each axis: a digit,
replicated, parked on a digit that neither type uses, or a pending sum. An ordinary type has no holes between the digits
that are on axes; an intermediate one may, where a collective needs a local transpose before or after it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from shtypes.resharding.moves import Kind

#: The places of an axis that is on no digit in use.
REPLICATED, PARKED, PENDING = -1, -2, -3
_NOWHERE: Final = (REPLICATED, PENDING)

#: The place of each axis: the number of a digit, or one of the above.
Places: TypeAlias = tuple[int, ...]


class Problem(NamedTuple):
    """A search problem, without irrelevant names and sizes."""

    sizes: tuple[int, ...]  # of the axes, at least 2
    digits: tuple[int, ...]  # the sizes of the digits that source or destination use
    #: For dims that source and destination cut differently: the digits of each cut, which exclude those of the other.
    either: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    spare: tuple[tuple[int, int], ...]  # the number of unused digits by size
    src: Places
    dst: Places
    #: The link of each axis, if time is minimized, in units in which the fastest link sends one amount in `PACE` and
    #: the array is `SearchSpace.total` amounts: the time per amount, the latency of a message, and the launch of a
    #: collective.
    pace: tuple[tuple[int, int, int], ...] = ()


#: The time of one amount on the fastest link.
PACE: Final = 64

#: The maximum number of axes of which all subsets move together; of more, all or one.
MANY: Final = 5
#: Bytes, collectives, local memory traffic and steps in one number, in this order.
BYTES, LAUNCH, TOUCH, STEP = 1 << 36, 1 << 28, 1 << 8, 1
#: How often a step reads or writes the larger of its shards: an all-to-all cuts, sends and joins.
_PASSES: Final = {Kind.ALL_TO_ALL: 3, Kind.REDUCE_SCATTER: 2, Kind.ALL_REDUCE: 2}


class SearchSpace:
    """States and moves. Costs are integers, in units of 1 / `total` of the array."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sizes, self.dst = problem.sizes, problem.dst
        self.axes = range(len(problem.sizes))
        self.spare = dict(problem.spare)
        self.devices = math.prod(problem.sizes)
        self.total = self.devices**2
        self.owner = {place: a for a, place in enumerate(problem.dst) if place >= 0}
        self.pace = problem.pace
        self.fastest = min((n for n, *_ in problem.pace), default=1)
        self.stays_pending = frozenset(a for a in self.axes if problem.dst[a] == PENDING)
        self.group = self.product(self.stays_pending)
        self.local_dst = self.local(problem.dst)
        self.largest = max(self.local(problem.src), self.local_dst)
        self.excluded: dict[int, tuple[int, ...]] = {}
        for one, other in problem.either:
            self.excluded |= dict.fromkeys(one, other) | dict.fromkeys(other, one)

    def product(self, axes: Iterable[int]) -> int:
        """The number of devices along some axes."""
        return math.prod([self.sizes[a] for a in axes])

    def local(self, at: Places) -> int:
        """The size of a device's shard."""
        n = self.total
        for size, place in zip(self.sizes, at, strict=True):
            if place not in _NOWHERE:
                n //= size
        return n

    def touched(self, kind: Kind, at: Places, after: Places) -> int:
        """The cost of reading and writing shards; a slice reads only what it keeps."""
        larger = self.local(after) if kind is Kind.SLICE else max(self.local(at), self.local(after))
        return _PASSES.get(kind, 1) * 1024 * larger // self.largest * TOUCH

    def least(self, at: Places) -> int:
        """A lower bound of the cost of any path from here."""
        wrong = (a for a in self.axes if at[a] != self.dst[a] and at[a] != REPLICATED and a not in self.stays_pending)
        return self.bound(at) * self.fastest * BYTES + (LAUNCH if any(True for _ in wrong) else 0)

    def bound(self, at: Places) -> int:
        """A lower bound of the bytes of any path from here.

        Devices that differ only in the axes pending at the end are a group: one of them must hold each element.
        """
        terms = self.product(a for a in self.axes if at[a] == PENDING and a not in self.stays_pending)
        if terms > 1:
            return self._bound_of_sums(at, terms)
        overlap = self.local_dst  # the part of its final shard that the device with the least of it holds already
        for axis, place in enumerate(at):
            if place in _NOWHERE or axis in self.stays_pending or place in self.excluded:
                continue
            owner = self.owner.get(place)
            if owner is None:
                overlap //= self.sizes[axis]
            elif owner != axis:
                overlap = 0
                break
        return (self.local_dst - overlap) // self.group

    def _bound_of_sums(self, at: Places, terms: int) -> int:
        """A lower bound: ``terms`` devices hold a term of each element, and all its holders at the end need the sum.

        Each holder gets one message after which it has all terms. The first device with all of them needed a message
        from a device of each other term, and only the last of these can have completed a holder. So an element takes
        ``holders + terms - 2`` messages, and one more where no holder has a term; as an average over devices. Where an
        axis is on one digit now and on another at the end, the elements whose two digits agree have terms where they
        are needed.
        """
        holders = self.devices // self.group * self.local_dst // self.total
        parts, joined = 1, dict[int, int]()

        def root(digit: int) -> int:
            while digit in joined:
                digit = joined[digit]
            return digit

        for axis, place in enumerate(at):
            end = self.dst[axis]
            if axis in self.stays_pending or place in _NOWHERE:
                continue
            if end == REPLICATED or place in self.excluded or end in self.excluded:
                continue
            start, after = root(place if place >= 0 else PENDING - 1 - axis), root(end)
            if start != after:
                joined[start] = after
                parts *= self.sizes[axis]
        messages = (holders - 1 + terms) * parts - 1
        return max(self.total * messages // (self.devices * parts), self.local_dst // self.group)

    def moves(self, at: Places) -> Iterator[tuple[Kind, Places, int]]:
        """The moves out of a state, with their costs: each axis goes to its final place, or out of the way."""
        occupied = {place for place in at if place >= 0}
        closed = {x for place in occupied for x in self.excluded.get(place, ())}
        free = [d for d in range(len(self.problem.digits)) if d not in occupied and d not in closed]
        parked: dict[int, int] = {}
        for axis, place in enumerate(at):
            if place == PARKED:
                parked[self.sizes[axis]] = parked.get(self.sizes[axis], 0) + 1
        room = {size: count - parked.get(size, 0) for size, count in self.spare.items()}
        yield from self._slices(at, free, room)
        yield from self._silent(at)
        yield from self._losses(at, free, room)
        yield from self._reductions(at, free, room)
        for after in dict.fromkeys(self._permuted(at)):
            if after != at:
                yield Kind.PERMUTE, after, self._cost([a for a in self.axes if at[a] != after[a]], self.local(at), 1)

    def _cost(self, axes: Sequence[int], amount: int, rounds: int) -> int:
        """The cost of a collective over some axes in which each device sends ``amount`` in ``rounds`` messages."""
        if self.pace:
            links = [self.pace[a] for a in axes]
            slowest, latency, launch = (max(figures) for figures in zip(*links, strict=True))
            amount = amount * slowest + rounds * latency + launch
        return amount * BYTES + LAUNCH + STEP

    def _slices(self, at: Places, free: list[int], room: dict[int, int]) -> Iterator[tuple[Kind, Places, int]]:
        for axis in [a for a in self.axes if at[a] == REPLICATED and self.dst[a] in free]:
            yield Kind.SLICE, _put(at, [(axis, self.dst[axis])]), STEP
        filled = self._filled(at, free)
        if filled != at:
            yield Kind.SLICE, filled, STEP + 1
        summing = any(at[a] == PENDING and a not in self.stays_pending for a in self.axes)
        idle: set[object] = set()  # axes that stay replicated, one of each kind
        for axis in self.axes:
            size, end = self.sizes[axis], self.dst[axis]
            if at[axis] != REPLICATED or end in free:
                continue
            if end == REPLICATED:
                kind = (size, self.pace[axis] if self.pace else 0)
                if summing and room.get(size, 0) > 0 and kind not in idle:
                    idle.add(kind)
                    yield Kind.SLICE, _put(at, [(axis, PARKED)]), STEP + 1
                continue
            for place in self._elsewhere(axis, free, room):
                yield Kind.SLICE, _put(at, [(axis, place)]), STEP + 1

    def _filled(self, at: Places, free: list[int]) -> Places:
        """Slices copies over all digits that the destination uses, so that a permute may finish the plan."""
        idle = [a for a in self.axes if at[a] == REPLICATED and self.dst[a] not in _NOWHERE]
        left = [d for d in free if d in self.owner]
        changes = [(a, self.dst[a]) for a in idle if self.dst[a] in left]
        left = [d for d in left if self.owner[d] not in idle]
        for axis in idle:
            if self.dst[axis] not in free:
                digit = next((d for d in left if self.problem.digits[d] == self.sizes[axis]), None)
                if digit is not None:
                    left.remove(digit)
                    changes.append((axis, digit))
        after = _put(at, changes)
        return at if any(x in after for _, d in changes for x in self.excluded.get(d, ())) else after

    def _silent(self, at: Places) -> Iterator[tuple[Kind, Places, int]]:
        masked = [a for a in self.stays_pending if at[a] == REPLICATED]
        if masked:
            yield Kind.MASK, _put(at, [(a, PENDING) for a in masked]), STEP
        for axis in self.stays_pending:
            if at[axis] >= 0 or at[axis] == PARKED:
                yield Kind.PLACE, _put(at, [(axis, PENDING)]), STEP

    def _losses(self, at: Places, free: list[int], room: dict[int, int]) -> Iterator[tuple[Kind, Places, int]]:
        """All-gathers and all-to-alls: axes leave their digits, to be replicated or for other digits."""
        local = self.local(at)
        wrong = [a for a in self.axes if at[a] != self.dst[a] and (at[a] >= 0 or at[a] == PARKED)]
        for axes in _subsets([a for a in wrong if a not in self.stays_pending]):
            n = self.product(axes)
            yield Kind.ALL_GATHER, _put(at, [(a, REPLICATED) for a in axes]), self._cost(axes, (n - 1) * local, n - 1)
        ready = [a for a in wrong if self.dst[a] in free]
        for axes in _subsets(ready):
            after = _put(at, [(a, self.dst[a]) for a in axes])
            if len(axes) == 1 or not any(x in after for a in axes for x in self.excluded.get(self.dst[a], ())):
                yield Kind.ALL_TO_ALL, after, self._exchange(axes, local)
        blocked = [a for a in wrong if self.dst[a] not in free]
        away: list[tuple[tuple[int, ...], list[int]]]
        away = [((axis,), [place]) for axis in blocked for place in self._elsewhere(axis, free, room)]
        for axes in itertools.combinations(blocked, 2):
            away += [(axes, places) for park in (True, False) if (places := self._apart(axes, free, room, park))]
        for axes, places in away:
            if any(at[a] == place for a, place in zip(axes, places, strict=True)):
                continue
            for others in ([], [a for a in ready if self.dst[a] not in places]):
                after = _put(at, [*zip(axes, places, strict=True), *[(a, self.dst[a]) for a in others]])
                if not any(x in after for a in (*axes, *others) for x in self.excluded.get(after[a], ())):
                    yield Kind.ALL_TO_ALL, after, self._exchange((*axes, *others), local) + 1

    def _exchange(self, axes: Sequence[int], local: int) -> int:
        """The cost of an all-to-all, or a reduce-scatter."""
        n = self.product(axes)
        return self._cost(axes, (n - 1) * local // n, n - 1)

    def _reductions(self, at: Places, free: list[int], room: dict[int, int]) -> Iterator[tuple[Kind, Places, int]]:
        local = self.local(at)
        for axes in _subsets([a for a in self.axes if at[a] == PENDING and a not in self.stays_pending]):
            n = self.product(axes)
            twice = self._cost(axes, 2 * ((n - 1) * local // n), 2 * (n - 1))
            yield Kind.ALL_REDUCE, _put(at, [(a, REPLICATED) for a in axes]), twice
            for park in (True, False):
                places = self._apart(axes, free, room, park)
                if places is not None:
                    yield Kind.REDUCE_SCATTER, _put(at, zip(axes, places, strict=True)), self._exchange(axes, local)

    def _elsewhere(self, axis: int, free: list[int], room: dict[int, int]) -> Iterator[int]:
        """Places of an axis other than its final one."""
        size = self.sizes[axis]
        for place in free:
            if self.problem.digits[place] == size and place != self.dst[axis]:
                yield place
        if room.get(size, 0) > 0:
            yield PARKED

    def _apart(self, axes: tuple[int, ...], free: list[int], room: dict[int, int], park: bool) -> list[int] | None:
        """A digit for each of some axes, its final one if free; None if there are not enough."""
        final = [self.dst[a] if self.dst[a] in free else None for a in axes]
        left = [d for d in free if d not in final]
        room = dict(room)
        places: list[int] = []
        for axis, place in zip(axes, final, strict=True):
            size = self.sizes[axis]
            if place is None:
                place = next((d for d in left if self.problem.digits[d] == size), None)
                if room.get(size, 0) > 0 and (park or place is None):
                    room[size] -= 1
                    place = PARKED
                elif place is not None:
                    left.remove(place)
                else:
                    return None
            places.append(place)
        return None if any(x in places for d in places for x in self.excluded.get(d, ())) else places

    def _permuted(self, at: Places) -> Iterator[Places]:
        """Exchanges of shards that move as many axes as possible to their final digits; may use copies and terms."""
        for drawn in ((REPLICATED, PENDING), (REPLICATED,), (PENDING,), ()):
            if all(place in at for place in drawn):
                pool = [a for a in self.axes if at[a] >= 0 or at[a] == PARKED or at[a] in drawn]
                for slots in self._slots([(self.sizes[a], at[a]) for a in pool]):
                    new = self._dealt(at, pool, slots)
                    if new is not None:
                        yield new

    def _slots(self, slots: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """The slots for axes; also those of the other cut of a dim, if all of one cut are taken."""
        yield slots
        for one, other in self.problem.either:
            taken = {place for _, place in slots}
            if taken.issuperset(one):
                digits = self.problem.digits
                yield [s for s in slots if s[1] not in one] + [(digits[d], d) for d in other]

    def _dealt(self, at: Places, pool: list[int], slots: list[tuple[int, int]]) -> Places | None:
        """Assigns each axis a slot of its size: its final digit, its final place, its present one, or any."""
        slots, new = list(slots), dict[int, int]()
        final = tuple(x if x >= 0 else None for x in self.dst)
        preferences: list[tuple[int | None, ...] | None] = [final, self.dst, at, None]
        for wants in preferences:
            for axis in pool:
                if axis not in new:
                    slot = next(
                        (s for s in slots if s[0] == self.sizes[axis] and (wants is None or wants[axis] == s[1])), None
                    )
                    if slot is not None:
                        slots.remove(slot)
                        new[axis] = slot[1]
        return _put(at, new.items()) if len(new) == len(pool) and not slots else None


def _put(at: Places, changes: Iterable[tuple[int, int]]) -> Places:
    new = list(at)
    for axis, place in changes:
        new[axis] = place
    return tuple(new)


def _subsets(axes: list[int]) -> Iterator[tuple[int, ...]]:
    """All subsets of axes; of many, all or one."""
    if len(axes) > MANY:
        yield tuple(axes)
        yield from ((a,) for a in axes)
        return
    for k in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, k)
