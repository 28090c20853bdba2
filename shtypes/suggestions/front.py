"""The front of time against memory: the plans that a search found, typed and made to fit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

from shtypes.analysis.svg import Mark, front
from shtypes.context.user_line import public
from shtypes.errors import ShardingTypeError
from shtypes.solver.program import Function
from shtypes.solver.search import Point, Search, size
from shtypes.solver.use_costs import EXCLUDED
from shtypes.suggestions.fixed_types import by_path, costs_of
from shtypes.suggestions.plan import Plan, Problem, ms, slower
from shtypes.suggestions.saved_plan import SCHEMA
from shtypes.types.tables import Report, Table, Text, notebook, page

#: The relative tolerance within which the plan with the fewest reshards is preferred.
_EQUAL: Final = 0.005
#: How far the quickest plan may be above the lower bound before more are searched for.
_GAP: Final = 0.01
#: What a plan of the front needs at most, of the memory of the one before it.
_LESS: Final = 0.97
#: The number of plans with the least predicted memory of which one may fit.
_MOST_SMALLEST: Final = 3
#: The most times that a memory limit is tightened by the error of the predicted memory.
_MOST_TIGHTENED: Final = 6
#: The most corrections of costs by the communication of typed plans.
_MOST_CORRECTIONS: Final = 12
#: Plans may fit if their predicted memory is at most this multiple of the limit.
_LIKELY: Final = 1.5


class Suggestions(Sequence[Plan], Report):
    """The plans of the time-memory front, the quickest first; each needs less memory than those before it.

    Attributes:
        problem: The function, with its costs and fixed types.
        limit: The memory of a device in bytes; None for no limit.
        solves: The number of minima that the search computed.
        settled: Whether the search finished before its time limit.
    """

    def __init__(self, plans: Sequence[Plan], search: Search, limit: float | None) -> None:
        self.plans, self.limit = tuple(plans), limit
        self.problem, self.solves, self.settled = plans[0].problem, search.solves, search.settled
        self._overlap = search.overlap

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | Sequence[Plan]:
        return self.plans[index]

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def title(self) -> str:
        """The heading of the page."""
        links = ", ".join(
            f"{a}={n} ({self.problem.model.link(a).bandwidth / 1e9:g} GB/s)" for a, n in self.problem.mesh.shape.items()
        )
        limit = "" if self.limit is None else f", {size(self.limit)}"
        return f"suggestion 1 of {len(self)} for {self.problem.name} on {links}{limit}"

    @public
    def why_not(self, fixed: Mapping[str, Any]) -> Plan:
        """The best plan in which some arguments have other types, to compare by `Plan.diff`.

        Args:
            fixed: Types by path, as for `suggest`.

        Raises:
            ShardingTypeError: no argument has such a path, or the types do not fit.
        """
        old = self.problem
        arguments, at = by_path(old.program, fixed)
        types = old.fixed._replace(arguments={**old.fixed.arguments, **arguments}, at={**old.fixed.at, **at})
        graph = old.costs.graph
        costs = costs_of(old.program, graph.mesh, graph.grad, types, old.costs.prices, old.device, old.state)
        costs.fused = old.costs.fused
        problem, search = old._replace(fixed=types, costs=costs), Search(costs, overlap=self._overlap)
        for _ in range(_MOST_CORRECTIONS):
            plan = Plan(problem, _readable(search, self.limit))
            if not plan.correct_costs():
                break
            search.reset()
        plan.bound = search.bound(self.limit)
        return plan

    def parts(self) -> list[Table | Text]:
        """The quickest plan, and the costs of the others."""
        first = self.plans[0]
        more = "" if self.settled else "\nunsettled: the time limit was reached, and there may be quicker plans"
        return [Text(f"{self.title}\n{first.head}{more}".replace("\n", "\n  ")), *self.tables()]

    def tables(self) -> list[Table]:
        """The decisions of the quickest plan, and the front."""
        first = self.plans[0]
        rows = [(ms(p.seconds), slower(p.seconds, first.seconds), size(p.quick_memory)) for p in self.plans]
        headings = ("ms", "", first.memory_heading)
        edit = 'edit: sh.suggest(..., fixed={"path": "[_, _@dp]"})'
        note = f"{edit}   use: sh.apply(f, plan)   patch: shtypes suggest --patch"
        return [*first.tables(), Table("time against memory", headings, tuple(rows), frozenset(headings), note)]

    def pictures(self) -> list[str]:
        """A plot of the predicted time-memory front."""
        marks = [
            Mark(m, p.seconds, f"{i}: {p.seconds * 1e3:,.4g} ms, {size(m)}", i == 1)
            for i, p in enumerate(self.plans, 1)
            for m in [float(p.quick_memory)]
        ]
        line = None if self.limit is None else (self.limit, f"bound {size(self.limit)}")
        return [front("time against memory", marks, (f"{self.plans[0].memory_heading} on each device", "step"), line)]

    def to_html(self) -> str:
        """A page with a plot of the front, the quickest plan, and the decisions of the others."""
        others: list[Table | Text] = []
        for i, plan in enumerate(self.plans[1:], 2):
            what = f"{plan.predicted}, {plan.memory_heading} {size(plan.quick_memory)}"
            others += [Text(f"suggestion {i} of {len(self)}: {what}"), *plan.tables()]
        return page(self.title, [notebook(*self.pictures(), *self.parts(), *others)])

    def to_dict(self) -> dict[str, Any]:
        """The decisions of each plan, for JSON."""
        return {"schema": SCHEMA, "plans": [plan.to_dict() for plan in self.plans]}


def joint_front(search: Callable[[Function], Suggestions], programs: Sequence[Function]) -> Suggestions:
    """The front of the plans of programs that differ in their checkpoints."""
    some, refused = list[Suggestions](), list[ShardingTypeError]()
    for program in programs:
        try:
            some.append(search(program))
        except ShardingTypeError as error:  # no plan fits, say
            refused.append(error)
    if not some:
        raise refused[-1]
    if len(programs) == 1:
        return some[0]
    bounds = [None if refused else each[0].bound for each in some]
    plans = _smaller(sorted((plan for each in some for plan in each), key=lambda p: p.seconds))
    for plan in plans:
        plan.bound = None if None in bounds else min(filter(None, bounds))
    first = next(each for each in some if plans[0] in each)
    first.plans, first.solves = tuple(plans), sum(each.solves for each in some)
    first.settled = all(each.settled for each in some)
    return first


def front_of(problem: Problem, search: Search, limit: float | None) -> Suggestions:
    """The front of plans that type and fit."""
    for corrections in range(_MOST_CORRECTIONS):
        if corrections:
            search.reset()
        try:
            point = _fitting(problem, search, limit)
        except ShardingTypeError:
            if search.settled:
                raise
            search.deadline, deadline = math.inf, search.deadline  # a plan that fits may take longer
            point = _fitting(problem, search, limit)
            search.deadline = deadline
        search.explore(point)
        plans = _front(problem, search, point, limit)
        corrected = [plan.correct_costs() for plan in plans]
        if not any(corrected) or (search.timed_out and any(plan.fits(limit) for plan in plans)):
            break
    plans = [plan.repriced() for plan in plans] if any(corrected) else plans  # they may have the same ops
    others = sorted((p for p in search.visited if p.cost.memory <= (limit or math.inf)), key=lambda p: p.seconds)
    fitting = (p.as_typed() for p in (Plan(problem, point) for point in others) if p.fits(limit))
    typed = [p for p in plans if p.seconds < EXCLUDED and p.fits(limit)] or [*itertools.islice(fitting, 1)]
    if typed:
        return Suggestions(_smaller(typed), search, limit)
    refusal = plans[0].refusal
    raise (
        _does_not_fit(problem, search, limit or 0)
        if refusal is None
        else ShardingTypeError("no plan that was found types", why=str(refusal))
    )


def _smaller(plans: Sequence[Plan]) -> list[Plan]:
    """The plans that need less memory than all before them."""
    smaller: list[Plan] = []
    for plan in plans:
        if not smaller or plan.quick_memory < _LESS * smaller[-1].quick_memory:
            smaller.append(plan)
    return smaller


def _fitting(problem: Problem, search: Search, limit: float | None) -> Point:
    """The quickest point that fits by `sh.memory`."""
    bound = limit
    for _ in range(_MOST_TIGHTENED):
        try:
            point = _readable(search, bound)
        except ShardingTypeError:
            if limit is None:
                raise
            break
        plan = Plan(problem, point)
        if limit is None or plan.refusal is not None or plan.fits(limit):
            return point
        bound = min(bound or limit, float(point.cost.memory)) - (plan.memory - limit)
        if bound <= 0:
            break
    assert limit is not None
    search.explore(search.solve())  # of these some may need less than predicted
    plan_that_fits = _quickest(problem, search, limit)
    if plan_that_fits is None:
        raise _does_not_fit(problem, search, limit)
    return plan_that_fits.point


def _does_not_fit(problem: Problem, search: Search, limit: float) -> ShardingTypeError:
    plans = itertools.chain(_candidates(problem, search, limit), _smallest(problem, search.visited))
    least = min((p.memory for p in plans if p.refusal is None), default=None)
    fits = [] if least is None else [f'memory="{size(least, up=True)}"'.replace(",", "")]
    return ShardingTypeError(
        f"nothing fits in {size(limit)} on each device",
        why="" if least is None else f"the least that was found needs {size(least)}",
        hints=["a larger mesh", "jax.checkpoint around the layers", *fits],
    )


def _smallest(problem: Problem, points: Iterable[Point]) -> Iterator[Plan]:
    """The plans of the few points with the least predicted memory."""
    smallest = sorted(_distinct(points), key=lambda p: p.cost.memory)
    return (Plan(problem, p) for p in smallest[:_MOST_SMALLEST])


def _distinct(points: Iterable[Point]) -> Iterable[Point]:
    """The points that differ in their costs."""
    return {p.cost: p for p in points}.values()


def _candidates(problem: Problem, search: Search, limit: float, seconds: float = math.inf) -> Iterator[Plan]:
    """The plans of the few visited points that are quickest and that are smallest, of those that may fit."""
    near = (p for p in search.visited if p.seconds < seconds and p.cost.memory <= _LIKELY * limit)
    quick = sorted(_distinct(near), key=lambda p: p.seconds)
    fits = [p for p in quick[_MOST_TIGHTENED:] if p.cost.memory <= limit]
    yield from (Plan(problem, p) for p in quick[:_MOST_TIGHTENED] + fits[:1])
    yield from _smallest(problem, quick[_MOST_TIGHTENED:])


def _quickest(problem: Problem, search: Search, limit: float, seconds: float = math.inf) -> Plan | None:
    """The first of the candidates that fits by `sh.memory`."""
    return next((p for p in _candidates(problem, search, limit, seconds) if p.fits(limit)), None)


def _front(problem: Problem, search: Search, point: Point, limit: float | None) -> list[Plan]:
    """The plans of the front, from the quickest that fits by `sh.memory`."""
    first = Plan(problem, point)
    if limit is not None and not search.timed_out:
        if point.seconds > (1 + _GAP) * (search.bound(limit) or 0.0):
            search.vary(point)
        first = _quickest(problem, search, limit, point.seconds * (1 - 1e-6)) or first
        limit = max(limit, float(first.point.cost.memory))  # the predicted memory may exceed it
    first.bound = search.bound(limit)
    smaller = (p for p in search.front(limit) if p.cost.memory < _LESS * first.point.cost.memory)
    return [first, *(Plan(problem, p, first.bound) for p in smaller if p.seconds >= (1 - _EQUAL) * first.seconds)]


def _readable(search: Search, bound: float | None) -> Point:
    """The quickest point, or one within the tolerance that has fewer reshards."""
    point = search.solve() if bound is None else search.within(bound)
    simple = search.simpler(point, _EQUAL * point.seconds / 100)
    fits = bound is None or simple.cost.memory <= bound
    return simple if fits and simple.seconds <= (1 + _EQUAL) * point.seconds else point
