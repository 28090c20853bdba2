"""Minimizes the cost of an assignment: for up to three mesh axes all at once, by pairs of axes for more.

Memory limits are by Lagrangian relaxation: a price of a byte of memory.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.context.scope import attribute_set
from shtypes.errors import ShardingTypeError
from shtypes.solver.bounds import ROUNDED, Values, total_of
from shtypes.solver.elimination import QUICK_ENTRIES
from shtypes.solver.factors import Measure, combined, with_varied_memory
from shtypes.solver.minimize import minimize
from shtypes.solver.progress import Progress, report
from shtypes.solver.rows import Assignment, Domains
from shtypes.solver.starts import by_axis
from shtypes.solver.tables import Costs
from shtypes.solver.terms import Tables

#: The number of axes that vary together.
EXACT_AXES: Final = 2
#: The number of axes of which all vary together at last, from where pairs of them end.
_JOINT: Final = 3
#: The most corners of the time-memory front to search between two points.
_CORNERS: Final = 12
#: The number of further corners to show.
_SHOWN_CORNERS: Final = 3
#: The number of points between two corners that are searched for.
_VARIED: Final = 8
#: The price of all memory, in multiples of the quickest plan's time, at which only memory counts.
_ONLY_MEMORY: Final = 1e6
#: The weight of hidden computing or communication, as a tie-breaker.
_HIDDEN: Final = 1e-3


class Point(NamedTuple):
    """An assignment, with its cost."""

    assignment: Assignment
    cost: Measure
    byte: float  # the price of a byte of memory for which it is optimal
    overlap: float = 0.0  # the part of the shorter of computing and communication that hides behind the longer
    weights: tuple[float, float] = (1.0, 1.0)  # of computing and communication in its objective

    @property
    def hidden(self) -> float:
        """Seconds in which computing and communication overlap."""
        return self.overlap * float(min(self.cost.seconds, self.cost.comm))

    @property
    def seconds(self) -> float:
        """Seconds of computing and communication, less their overlap."""
        return float(self.cost.seconds + self.cost.comm) - self.hidden

    def weighted(self, byte: float, reshard: float) -> float:
        """The objective: seconds, with a price for each byte of memory and each reshard."""
        return self.seconds + byte * float(self.cost.memory) + reshard * float(self.cost.reshards)


class _OutOfTimeError(Exception):
    """The deadline passed, and there is an incumbent."""


def size(n: float, *, up: bool = False) -> str:
    """Formats bytes with a unit, rounded, or rounded ``up``."""
    for unit, width in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= width:
            return f"{math.ceil(10 * n / width) / 10 if up else n / width:,.1f} {unit}"
    return f"{n:.0f} B"


class Search:
    """Searches for optimal assignments.

    Args:
        costs: The costs of decisions.
        seed: Of a second order of the axes to start with; None for none, and for no last search over three axes.
        block: The number of axes that vary together; on more axes, blocks take turns.
        overlap: The part of the shorter of computing and communication that hides behind the longer.
        gap: What the objective may be above its minimum, for which no bound is found if that takes seconds.
        deadline: The time (of `time.monotonic`) from which on the incumbent is returned.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        seed: int | None = 0,
        block: int = EXACT_AXES,
        overlap: float = 0.0,
        gap: float = 0.0,
        deadline: float = math.inf,
    ) -> None:
        self.costs, self.overlap, self.gap, self.deadline = costs, overlap, gap, deadline
        self.solves, self.settled = 0, True  # whether the deadline cut nothing short
        self.axes = [a for a, n in enumerate(costs.sizes) if n > 1] or [0]
        self.block = min(block, len(self.axes))
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.visited: list[Point] = []
        self._bounds: list[tuple[float, float]] = []  # prices of a byte, with the minimum of the objective
        self._minima: dict[tuple[float | None, ...], tuple[Assignment, float]] = {}  # by axes, prices and fixed options
        self._weights = (1.0, 1.0)
        self._incumbent: tuple[float, Assignment] | None = None
        self._quick = False  # whether a point need not be the best
        self._varied: int | None = None  # the seed of other prices for the memory of each factor

    def reset(self) -> None:
        """Forgets all results, after a change of the costs."""
        self.visited, self._bounds, self._minima = [], [], {}

    @property
    def timed_out(self) -> bool:
        """Whether the deadline passed."""
        return time.monotonic() > self.deadline

    def _check_time(self) -> None:
        if self._incumbent is not None and self.timed_out:
            raise _OutOfTimeError

    def _offer(self, value: float, assignment: Assignment) -> None:
        """Makes an assignment the incumbent if it is better."""
        if self._incumbent is None or value < self._incumbent[0]:
            self._incumbent = value, assignment

    def _report(self, settled: int = 0) -> None:
        best = min((p.seconds for p in self.visited), default=None)
        report(Progress(self.solves, settled, math.comb(len(self.axes), self.block), best))

    @property
    def exact(self) -> bool:
        """Whether all axes vary together, so that minima are exact."""
        return len(self.axes) <= self.block

    # one solution

    def _minimum(self, axes: Sequence[int], fixed: Assignment, byte: float, reshard: float) -> tuple[Assignment, float]:
        self._check_time()
        options = (fixed[n.id][a] for n in self.costs.graph.decisions for a in self.axes if a not in axes)
        key = *axes, byte, reshard, *self._weights, self._varied, *options
        if key in self._minima:
            return self._minima[key]
        best, value, exact = self._new_minimum(axes, fixed, byte, reshard)
        if exact:  # others depend on where they start
            self._minima[key] = best, value
        return best, value

    def _new_minimum(
        self, axes: Sequence[int], fixed: Assignment, byte: float, reshard: float
    ) -> tuple[Assignment, float, bool]:
        """The minimum, and whether it is exact."""
        cached = len(axes) == len(self.axes)
        nodes, best, minimum = self.costs.graph.decisions, fixed, None
        while True:
            domains = {n.id: self.costs.domain(n, axes, fixed) for n in nodes}
            for n in nodes:
                if not len(domains[n.id]):
                    name = n.op.name if n.op else n.kind
                    raise ShardingTypeError(f"no type fits `{name}` with what is fixed")
            sizes, factors = {i: len(d) for i, d in domains.items()}, self.costs.factors(domains)
            priced = factors if self._varied is None else with_varied_memory(factors, self._varied)
            tables = combined(priced, byte, reshard, self._weights)
            self.solves += 1
            self._report()

            def rows_of(values: dict[int, int], domains: Domains = domains) -> Assignment:
                return {i: tuple(map(int, domains[i][k])) for i, k in values.items()}

            def offer(values: dict[int, int], total: float, rows_of: Any = rows_of) -> None:
                self._offer(total, rows_of(values))

            start, quick = _rows(domains, best), QUICK_ENTRIES if self._quick or not cached else None
            if minimum and start and total_of(tables, start) <= minimum.total * (1 + ROUNDED) + self.gap:
                break  # what is priced costs no less than it was believed to, and this no more

            def begin(tables: Tables, rows: Domains, start: Values, domains: Domains = domains) -> Values:
                left = {i: domains[i][places] for i, places in rows.items()}
                return by_axis(tables, left, start, axes, self._check_time)

            solve = functools.partial(minimize, sizes, tables, start, self._check_time, offer)
            minimum = solve(quick=quick) if quick else solve(begin=begin, proves=not self.gap)
            best = rows_of(minimum.values)
            if not self.costs.price_across(best, domains):
                break
        if cached and not reshard and self._varied is None:
            self._bounds.append((byte, minimum.bound))
        return best, minimum.total, minimum.exact

    def simpler(self, point: Point, reshard: float) -> Point:
        """A point that costs no more than another with a price for each reshard; quick, and not always the best."""
        with attribute_set(self, "_quick", True):
            return self.solve(point.byte, reshard, warm=point.assignment)

    def solve(
        self, byte: float = 0.0, reshard: float = 0.0, warm: Assignment | None = None, *, needed: bool = False
    ) -> Point:
        """The optimal assignment for prices of a byte of memory and of a reshard.

        After the deadline it is the best visited point, unless ``needed``. With overlap, the time of a step is the
        larger of two weighted sums of computing and communication: the Lagrangian relaxation minimizes their mean.
        """
        if self.timed_out and self.visited and not needed:
            self.settled = False
            return min(self.visited, key=lambda p: p.weighted(byte, reshard))
        if not self.overlap:
            return self._solve(byte, reshard, warm)
        low = self._solve(byte, reshard, warm, 1 - _HIDDEN)
        if low.cost.comm <= low.cost.seconds:
            return low
        high = self._solve(byte, reshard, warm, _HIDDEN)
        points = [low, high]
        for _ in range(_CORNERS):
            if high.cost.comm >= high.cost.seconds or self.timed_out:
                break
            (a, b), (c, d) = (self._sums(p, byte, reshard) for p in (low, high))
            if c <= a or b <= d:
                break
            mean = (b - d) / (b - d + c - a)
            point = self._solve(byte, reshard, low.assignment, mean)
            e, f = self._sums(point, byte, reshard)
            if mean * e + (1 - mean) * f >= (mean * a + (1 - mean) * b) * (1 - 1e-6):
                break
            points.append(point)
            low, high = (point, high) if point.cost.comm > point.cost.seconds else (low, point)
        return min(points, key=lambda p: p.weighted(byte, reshard))

    def _sums(self, p: Point, byte: float, reshard: float) -> tuple[float, float]:
        """The two sums of which the larger is the time of a step, with the prices."""
        more, left = p.weighted(byte, reshard) - p.seconds, 1 - self.overlap
        return float(p.cost.seconds + left * p.cost.comm) + more, float(left * p.cost.seconds + p.cost.comm) + more

    def _solve(self, byte: float, reshard: float, warm: Assignment | None, mean: float = 1.0) -> Point:
        """The optimal assignment for one mean of the two sums."""
        self._weights = mean + (1 - mean) * (1 - self.overlap), mean * (1 - self.overlap) + (1 - mean)
        if not self.overlap:
            self._weights = 1.0, 1.0
        try:
            best = self._optimum(byte, reshard, warm)
        except _OutOfTimeError:
            assert self._incumbent is not None
            best, self.settled = self._incumbent[1], False
            self.costs.price_across(best, {i: np.array([row]) for i, row in best.items()})
        cost = self.costs.price(best, byte / self._weights[1])
        point = Point(best, cost, byte, self.overlap, self._weights)
        self.visited.append(point)
        self._report()
        return point

    def _optimum(self, byte: float, reshard: float, warm: Assignment | None) -> Assignment:
        start = warm or {n.id: self.costs.first_options(n) for n in self.costs.graph.decisions}
        self._incumbent = None
        if self.exact:
            return self._minimum(self.axes, start, byte, reshard)[0]
        orders: list[Sequence[int]] = [self.axes]
        if self.seed is not None and warm is None:
            orders.append([*map(int, self.rng.permutation(self.axes))])
        found = [self._block_by_block(order, start, byte, reshard) for order in orders]
        best = min(found, key=lambda each: each[1])[0]
        if len(self.axes) == _JOINT and self.seed is not None and not self._quick:
            best = self._minimum(self.axes, best, byte, reshard)[0]
        return best

    def _block_by_block(
        self, order: Sequence[int], start: Assignment, byte: float, reshard: float
    ) -> tuple[Assignment, float]:
        """Minimizes over one block of axes at a time, in order, until none improves (block coordinate descent)."""
        pairs = list(itertools.combinations(order, self.block))
        best, value, settled = start, math.inf, 0
        for pair in itertools.cycle(pairs):
            best, minimum = self._minimum(pair, best, byte, reshard)
            value, settled = (minimum, 0) if minimum < value * (1 - 1e-9) else (value, settled + 1)
            self._offer(minimum, best)
            self._report(settled)
            if settled >= len(pairs):
                return best, value
        raise AssertionError

    # memory

    def within(self, memory: float) -> Point:
        """The quickest point with at most ``memory`` bytes on each device; raises if there is none."""
        fitting = [p for p in self.visited if p.cost.memory <= memory]
        if self.timed_out and fitting:
            self.settled = False
            return min(fitting, key=lambda p: p.seconds)
        best = self.solve()
        if best.cost.memory <= memory:
            return best
        low, high = best, self.solve(_ONLY_MEMORY * best.seconds / best.cost.memory, needed=True)
        if high.cost.memory > memory:
            raise ShardingTypeError(
                f"nothing fits in {size(memory)}", why=f"the least that was found needs {size(high.cost.memory)}"
            )
        self._corners(low, high, memory, _CORNERS)
        return min((p for p in self.visited if p.cost.memory <= memory), key=lambda p: p.seconds)

    def bound(self, memory: float | None) -> float | None:
        """A lower bound on the seconds of all assignments; None if there is none."""
        limit = math.inf if memory is None else memory
        bound = max((value - (byte * limit if byte else 0.0) for byte, value in self._bounds), default=-math.inf)
        # A plan may be quicker than the tables say, which count a reshard once for each use.
        bound = min([bound, *(p.seconds for p in self.visited if p.cost.memory <= limit)])
        return bound if bound > -math.inf else None

    def explore(self, quick: Point) -> None:
        """Visits the corner of the front with the least memory, and some between it and a point."""
        if self.timed_out:
            self.settled = False
            return
        if not quick.cost.memory:  # of a program of empty arrays, nothing can be less
            return
        with attribute_set(self, "_quick", True):
            least = self.solve(_ONLY_MEMORY * quick.seconds / quick.cost.memory, warm=quick.assignment)
            self._corners(quick, least, math.inf, _SHOWN_CORNERS)

    def vary(self, point: Point) -> None:
        """Visits points near one, by other prices of the memory of some decisions: not all are corners of the front."""
        quicker = [p for p in self.visited if p.seconds < point.seconds and p.cost.memory > point.cost.memory]
        if not quicker:
            return
        last = max(quicker, key=lambda p: p.seconds)
        byte = (point.seconds - last.seconds) / float(last.cost.memory - point.cost.memory)
        for seed in range(_VARIED):
            with attribute_set(self, "_quick", True), attribute_set(self, "_varied", seed):
                self.solve(byte, warm=point.assignment)

    def _corners(self, low: Point, high: Point, memory: float, most: int) -> None:
        """Visits corners of the front between two of its points, towards the memory limit."""
        for _ in range(most):
            gap = float(low.cost.memory - high.cost.memory)
            if gap <= 0 or high.seconds <= low.seconds:
                return
            byte = (high.seconds - low.seconds) / gap
            point = self.solve(byte, warm=high.assignment)
            if point.weighted(byte, 0) >= low.weighted(byte, 0) * (1 - 1e-6):
                return
            low, high = (low, point) if point.cost.memory <= memory else (point, high)

    def front(self, memory: float | None) -> list[Point]:
        """The Pareto-optimal visited points of time and memory, the quickest first."""
        points: list[Point] = []
        limit = math.inf if memory is None else memory
        for point in sorted(self.visited, key=lambda p: (p.seconds, p.cost.memory)):
            if point.cost.memory <= limit and (not points or point.cost.memory < points[-1].cost.memory * (1 - 1e-3)):
                points.append(point)
        return points


def _rows(domains: Domains, assignment: Assignment) -> dict[int, int]:
    """The row of each domain that an assignment chooses; empty if a domain lacks it."""
    at = {i: np.flatnonzero((rows == np.array(assignment[i])).all(-1)) for i, rows in domains.items()}
    return {i: int(rows[0]) for i, rows in at.items()} if all(map(len, at.values())) else {}
