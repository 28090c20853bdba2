"""The assignment that costs least: exact for two mesh axes, pairs of them in turn for more; memory by a multiplier."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.errors import ShardingTypeError
from shtypes.solver import elimination
from shtypes.solver.elimination import Table, eliminate, nearly_eliminate, too_many
from shtypes.solver.progress import Progress, tell
from shtypes.solver.tables import Assignment, Costs, Domains, Factor, Measure, combined

#: How many axes vary together.
_BLOCK: Final = 2
#: On so many axes there is a bound of two of them, in tables of so many entries.
_RELAXED: Final = 3
_ENTRIES: Final = 200_000_000
#: How many corners of the front of time against memory are looked for between two points.
_CORNERS: Final = 12
#: How many more are looked for to be shown.
_BETWEEN: Final = 3
#: The price of all memory, in the time of the quickest plan, at which nothing but memory counts.
_ALL: Final = 1e6
#: What hides behind the other counts so much still: of plans that take as long, the one that sends less is taken.
_HIDDEN: Final = 1e-3


class Point(NamedTuple):
    """An assignment, and what it costs."""

    assignment: Assignment
    cost: Measure
    byte: float  # the price of a byte of memory that it is best for
    overlap: float = 0.0  # the part of the shorter of computing and communication that hides behind the other
    shares: tuple[float, float] = (1.0, 1.0)  # what a second of computing and one of communication counted for it

    @property
    def hidden(self) -> float:
        """Seconds that computing and communication take at once."""
        return self.overlap * float(min(self.cost.seconds, self.cost.comm))

    @property
    def seconds(self) -> float:
        """Of computing and communication, less those that they take at once."""
        return float(self.cost.seconds + self.cost.comm) - self.hidden

    def weighed(self, byte: float, reshard: float) -> float:
        """The seconds, with a price for each byte of memory and each reshard."""
        return self.seconds + byte * float(self.cost.memory) + reshard * float(self.cost.reshards)


class _OutOfTimeError(Exception):
    """The time of a search is over, and an assignment is known."""


def size(n: float) -> str:
    """Bytes in words."""
    for unit, width in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= width:
            return f"{n / width:,.1f} {unit}"
    return f"{n:.0f} B"


class Search:
    """The search for the best assignments: ``block`` axes vary together, more of them in turn, in an order by ``seed``.

    From ``deadline`` (of `time.monotonic`) on the best that is known is taken.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        seed: int | None = 0,
        block: int = _BLOCK,
        overlap: float = 0.0,
        deadline: float = math.inf,
    ) -> None:
        self.costs, self.overlap, self.deadline = costs, overlap, deadline
        self.settled = True  # whether nothing was left out for want of time
        self.axes = [a for a, n in enumerate(costs.sizes) if n > 1] or [0]
        self.block = min(block, len(self.axes))
        self.proved = True  # whether no table was too large for an exact minimum
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.solves = 0
        self.visited: list[Point] = []
        self._whole: tuple[Domains, list[Factor]] | None = None
        self._bound: list[tuple[float, float]] = []  # prices of bytes, and the least of seconds and these
        self._shares = (1.0, 1.0)
        self._so_far: tuple[float, Assignment] | None = None  # the best that is known of the one that is looked for

    def again(self) -> None:
        """Forgets what was found, since costs are others now."""
        self.visited, self._whole, self._bound = [], None, []

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def _check_time(self) -> None:
        if self._so_far is not None and self.late:
            raise _OutOfTimeError

    def _note(self, value: float, now: Assignment) -> None:
        if self._so_far is None or value < self._so_far[0]:
            self._so_far = value, now

    def _tell(self, settled: int = 0) -> None:
        """Tells the watcher how far the search is."""
        pairs = math.comb(len(self.axes), self.block)
        tell(Progress(self.solves, settled, pairs, min((p.seconds for p in self.visited), default=None)))

    @property
    def exact(self) -> bool:
        """Whether all axes vary together."""
        return len(self.axes) <= self.block

    # one solution

    def _minimum(self, axes: Sequence[int], fixed: Assignment, byte: float, reshard: float) -> tuple[Assignment, float]:
        self._check_time()
        whole = self.exact and len(axes) == len(self.axes)
        if whole and self._whole is not None:
            domains, factors = self._whole
        else:
            domains = {n.id: self.costs.domain(n, axes, fixed) for n in self.costs.graph.decisions}
            for n in self.costs.graph.decisions:
                if not len(domains[n.id]):
                    name = n.op.name if n.op else n.kind
                    raise ShardingTypeError(f"no type fits `{name}` with what is fixed")
            factors = list(self.costs.factors(domains))
            if whole:
                self._whole = domains, factors
        sizes, tables = {i: len(d) for i, d in domains.items()}, combined(factors, byte, reshard, self._shares)
        self.solves += 1
        self._tell()
        exact = not too_many(sizes, tables, elimination.MOST_ENTRIES)
        self.proved &= exact
        if exact:
            chosen, value = eliminate(sizes, tables, self._check_time)
        else:
            cold = all(fixed[n.id] == self.costs.first(n) for n in self.costs.graph.decisions)
            if cold and len(axes) > 1:
                fixed, _ = self._in_turn([*axes, *axes], fixed, byte, reshard)
            start = _rows(domains, fixed)
            chosen, value = nearly_eliminate(sizes, tables, elimination.QUICK_ENTRIES, start, self._check_time)
        return {i: tuple(map(int, domains[i][k])) for i, k in chosen.items()}, value

    def solve(
        self, byte: float = 0.0, reshard: float = 0.0, warm: Assignment | None = None, *, needed: bool = False
    ) -> Point:
        """The best assignment for prices of a byte of memory and of a reshard; late, the best known, unless ``needed``.

        The time of a step with overlap is the larger of two sums: of computing and the rest of communication, and of
        communication and the rest of computing. It is least for some mean of both, which is found by corners.
        """
        if self.late and self.visited and not needed:
            self.settled = False
            return min(self.visited, key=lambda p: p.weighed(byte, reshard))
        if not self.overlap:
            return self._solve(byte, reshard, warm)
        low = self._solve(byte, reshard, warm, 1 - _HIDDEN)
        if low.cost.comm <= low.cost.seconds:
            return low
        high = self._solve(byte, reshard, warm, _HIDDEN)
        found = [low, high]
        for _ in range(_CORNERS):
            if high.cost.comm >= high.cost.seconds or self.late:
                break
            (a, b), (c, d) = (self._sums(p, byte, reshard) for p in (low, high))
            if c <= a or b <= d:
                break
            mean = (b - d) / (b - d + c - a)
            point = self._solve(byte, reshard, low.assignment, mean)
            e, f = self._sums(point, byte, reshard)
            if mean * e + (1 - mean) * f >= (mean * a + (1 - mean) * b) * (1 - 1e-6):
                break
            found.append(point)
            low, high = (point, high) if point.cost.comm > point.cost.seconds else (low, point)
        return min(found, key=lambda p: p.weighed(byte, reshard))

    def _sums(self, p: Point, byte: float, reshard: float) -> tuple[float, float]:
        """Both sums of which the larger is the time, with the prices."""
        more, left = p.weighed(byte, reshard) - p.seconds, 1 - self.overlap
        return float(p.cost.seconds + left * p.cost.comm) + more, float(left * p.cost.seconds + p.cost.comm) + more

    def _solve(self, byte: float, reshard: float, warm: Assignment | None, mean: float = 1.0) -> Point:
        """The best assignment for one mean of both sums."""
        self._shares = mean + (1 - mean) * (1 - self.overlap), mean * (1 - self.overlap) + (1 - mean)
        if not self.overlap:
            self._shares = 1.0, 1.0
        try:
            best = self._solved(byte, reshard, warm)
        except _OutOfTimeError:
            assert self._so_far is not None
            best, self.settled = self._so_far[1], False
        cost = self.costs.price(best, byte / self._shares[1])
        point = Point(best, cost, byte, self.overlap, self._shares)
        self.visited.append(point)
        self._tell()
        return point

    def _solved(self, byte: float, reshard: float, warm: Assignment | None) -> Assignment:
        none = {n.id: self.costs.first(n) for n in self.costs.graph.decisions}
        self._so_far = None
        if self.exact:
            best, value = self._minimum(self.axes, warm or none, byte, reshard)
            if not reshard and self.proved:
                self._bound.append((byte, value))
        elif warm is not None:
            best, _ = self._settled(warm, byte, reshard)
        else:
            found = [
                self._settled(self._in_turn(order, none, byte, reshard)[0], byte, reshard) for order in self._orders()
            ]
            best, _ = min(found, key=lambda each: each[1])
        return best

    def _orders(self) -> Iterator[Sequence[int]]:
        yield tuple(self.axes)
        if self.seed is not None:
            yield tuple(map(int, self.rng.permutation(self.axes)))

    def _in_turn(self, order: Sequence[int], now: Assignment, byte: float, reshard: float) -> tuple[Assignment, float]:
        value = math.inf
        for i, a in enumerate(order, 1):
            now, value = self._minimum([a], now, byte, reshard)
            if i >= len(self.axes):
                self._note(value, now)
        return now, value

    def _settled(self, now: Assignment, byte: float, reshard: float) -> tuple[Assignment, float]:
        """Pairs of axes in turn until none improves."""
        pairs = list(itertools.combinations(self.axes, self.block))
        value, still = math.inf, 0
        for pair in itertools.cycle(pairs):
            now, found = self._minimum(pair, now, byte, reshard)
            value, still = (found, 0) if found < value * (1 - 1e-9) else (value, still + 1)
            self._note(found, now)
            self._tell(still)
            if still >= len(pairs):
                return now, value
        raise AssertionError

    # memory

    def within(self, memory: float) -> Point:
        """The quickest that is found with at most so many bytes on each device; an error where none is."""
        fitting = [p for p in self.visited if p.cost.memory <= memory]
        if self.late and fitting:
            self.settled = False
            return min(fitting, key=lambda p: p.seconds)
        best = self.solve()
        if best.cost.memory <= memory:
            return best
        low, high = best, self.solve(_ALL * best.seconds / best.cost.memory, needed=True)
        if high.cost.memory > memory:
            least = float(high.cost.memory)
            raise ShardingTypeError(
                f"nothing fits in {size(memory)} on each device",
                why=f"the least that was found needs {size(least)}",
                hints=["a larger mesh", "jax.checkpoint around the layers", f"memory={math.ceil(least)}"],
            )
        self._corners(low, high, memory, _CORNERS)
        return min((p for p in self.visited if p.cost.memory <= memory), key=lambda p: p.seconds)

    def bound(self, memory: float | None) -> float | None:
        """Seconds that no assignment is below; None where that is not known."""
        limit = math.inf if memory is None else memory
        if len(self.axes) == _RELAXED and not self.late:
            byte = min((p for p in self.visited if p.cost.memory <= limit), key=lambda p: p.seconds).byte
            self._bound += [(price, value) for price in {0.0, byte} if (value := self._relaxed(price)) is not None]
        bound = max((value - (byte * limit if byte else 0.0) for byte, value in self._bound), default=-math.inf)
        # A plan may be quicker than the tables say: they count what is sent for two uses, but for second forms, twice.
        bound = min([bound, *(p.seconds for p in self.visited if p.cost.memory <= limit)])
        return bound if bound > -math.inf else None

    def _relaxed(self, byte: float) -> float | None:
        """A bound of three axes: each cost has what is best for it along one of them; the best of the three bounds."""
        links = [(self.costs.sizes[a], self.costs.prices.links[a]) for a in self.axes]
        domains = {
            n.id: self.costs.domain(n, self.axes, {n.id: self.costs.first(n)}) for n in self.costs.graph.decisions
        }
        if sum(len(domains[u.node.first.id]) ** 2 for u, *_ in self.costs.uses) > _ENTRIES:
            return None
        found = []
        for out in {link: a for a, link in zip(self.axes, links, strict=True)}.values():  # of those alike one
            parts = {
                i: np.unique(np.delete(rows, out, 1), axis=0, return_inverse=True)[1] for i, rows in domains.items()
            }
            order = {i: (np.argsort(part.ravel(), kind="stable"), np.sort(part.ravel())) for i, part in parts.items()}

            def least(ids: tuple[int, ...], table: Table, order: Any = order) -> Table:
                for k, i in enumerate(ids):
                    if table.shape[k] > 1:
                        starts = np.flatnonzero(np.diff(order[i][1], prepend=-1))
                        table = np.minimum.reduceat(table.take(order[i][0], k), starts, axis=k)
                return table

            tables = combined(self.costs.factors(domains), byte, 0.0, self._shares, least)
            sizes = {i: int(part.max()) + 1 for i, part in parts.items()}
            if not too_many(sizes, tables, elimination.MOST_ENTRIES):
                found.append(eliminate(sizes, tables)[1])
        return max(found, default=None)

    def explore(self, quick: Point) -> None:
        """Looks for corners of the front below a point: the smallest, and some between."""
        if self.late:
            self.settled = False
            return
        least = self.solve(_ALL * quick.seconds / quick.cost.memory, warm=quick.assignment)
        self._corners(quick, least, math.inf, _BETWEEN)

    def _corners(self, low: Point, high: Point, memory: float, most: int) -> None:
        """Visits corners of the front beyond the line between two of its points, towards those of so much memory."""
        for _ in range(most):
            gap = float(low.cost.memory - high.cost.memory)
            if gap <= 0 or high.seconds <= low.seconds:
                return
            byte = (high.seconds - low.seconds) / gap
            point = self.solve(byte, warm=high.assignment)
            if point.weighed(byte, 0) >= low.weighed(byte, 0) * (1 - 1e-6):
                return
            low, high = (low, point) if point.cost.memory <= memory else (point, high)

    def front(self, memory: float | None) -> list[Point]:
        """The assignments that were found of which none is quicker and smaller at once, the quickest first."""
        found: list[Point] = []
        limit = math.inf if memory is None else memory
        for point in sorted(self.visited, key=lambda p: (p.seconds, p.cost.memory)):
            if point.cost.memory <= limit and (not found or point.cost.memory < found[-1].cost.memory * (1 - 1e-3)):
                found.append(point)
        return found


def _rows(domains: Domains, now: Assignment) -> dict[int, int]:
    """The rows of domains that an assignment takes; none where they lack one of them."""
    at = {i: np.flatnonzero((rows == np.array(now[i])).all(-1)) for i, rows in domains.items()}
    return {i: int(rows[0]) for i, rows in at.items()} if all(map(len, at.values())) else {}
