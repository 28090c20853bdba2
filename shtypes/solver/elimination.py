"""Eliminates discrete variables from a sum of tables, one after the other, and drops values that never cost least."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.solver.bounds import Minimum, Values, narrowed
from shtypes.solver.terms import Table, Tables, Terms, add_to, as_terms, compressed, dense, rows_of, taken

#: The most entries of an intermediate table: of exact elimination, and with some variables fixed.
MOST_ENTRIES: Final = 300_000_000
QUICK_ENTRIES: Final = 4_000_000
#: The most entries of an intermediate table that is built at once.
_BLOCK: Final = 100_000
#: The time limit of an elimination: that of so many tables of the most entries.
_LARGEST: Final = 5
#: How many other values are compared with each, and the most entries of the tables that are built for it.
_RIVALS: Final = 4
_COMPARED: Final = 1_000_000
#: The most values of a variable that are compared with each other.
_MOST_VALUES: Final = 4096
#: The relative tolerance of sums of few numbers.
_EXACT: Final = 1e-13


def eliminate(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Terms | Table], tick: Callable[[], None] = lambda: None
) -> tuple[Values, float]:
    """The values of the variables that minimize the sum of the tables, and the minimum; see `minimize`.

    It needs no table of more than `MOST_ENTRIES`.
    """
    core = Core(sizes, tables)
    return core.eliminate(math.inf, tick), core.constant


def minimize_within(
    sizes: Mapping[int, int],
    tables: Tables,
    domains: Mapping[int, Sequence[int]],
    solve: Callable[[dict[int, int], Tables], Sequence[Any]],
) -> tuple[Values, float]:
    """The values and the sum that ``solve`` returns for some values of some variables."""
    some = {ids: taken(terms, [domains.get(v) for v in ids]) for ids, terms in tables.items()}
    values, total, *_ = solve({v: len(domains.get(v, range(n))) for v, n in sizes.items()}, some)
    return {v: int(domains[v][k]) if v in domains else k for v, k in values.items()}, total


class Step(NamedTuple):
    """The elimination of a variable: those with which it shares tables then, and the entries of their table."""

    variable: int
    others: tuple[int, ...]
    entries: float


class Order(NamedTuple):
    """An order in which variables are eliminated."""

    #: The cost in entries of a table: the most of an intermediate one, or a share of those of all if that is more.
    #: Infinite where one needs more than `MOST_ENTRIES`, before which the steps end.
    width: float
    by_fill: bool  # see `Scopes`
    steps: list[Step]


def _order(sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]], *, by_fill: bool) -> Order:
    scopes, steps = Scopes(sizes, tables, by_fill=by_fill), list[Step]()
    while (v := scopes.cheapest()) is not None:
        entries = scopes.entries(v)
        if entries > MOST_ENTRIES:
            return Order(math.inf, by_fill, steps)
        steps.append(Step(v, tuple(sorted(scopes.eliminate(v))), entries))
    weights = [step.entries for step in steps]
    return Order(max(max(weights, default=0.0), sum(weights) / _LARGEST), by_fill, steps)


class Scopes:
    """The variables with which each shares tables, while variables are eliminated.

    First is the one that needs the smallest table; ``by_fill``, the one that adds the fewest pairs which share one.
    """

    def __init__(self, sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]], *, by_fill: bool = False) -> None:
        self.sizes, self._by_fill = dict(sizes), by_fill
        self.near: dict[int, set[int]] = {v: {v} for v in sizes}
        for ids in tables:
            for v in ids:
                self.near[v].update(ids)
        #: By variable, what its elimination costs: pairs, entries of a table, and the variable.
        self._costs: dict[int, tuple[int, float, int]] = {}
        self._queue: list[tuple[int, float, int]] = []  # the same, and what has changed since
        self._weigh(sizes)

    def _weigh(self, variables: Iterable[int]) -> None:
        for v in variables:
            pairs = sum(len(self.near[v] - self.near[u]) for u in self.near[v]) if self._by_fill else 0
            cost = pairs, float(math.prod([self.sizes[u] for u in self.near[v]])), v
            if self._costs.get(v) != cost:
                self._costs[v] = cost
                heapq.heappush(self._queue, cost)

    def entries(self, v: int) -> float:
        """How many entries the table has that the elimination of a variable needs."""
        return self._costs[v][1]

    def cheapest(self) -> int | None:
        """The variable that is first; None if none is left."""
        while self._queue and self._costs.get(self._queue[0][2]) != self._queue[0]:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def eliminate(self, v: int) -> set[int]:
        """Eliminates a variable; returns those of its table, which share one then."""
        del self._costs[v]
        others = self.near.pop(v) - {v}
        for u in others:
            self.near[u] = (self.near[u] | others) - {v}
        self._weigh(others.union(*(self.near[u] for u in others)) if self._by_fill else others)
        return others

    def fix(self, v: int) -> None:
        """Gives a variable one value."""
        self.sizes[v] = 1
        self._weigh(self.near[v])


def minimize_over(
    some: list[tuple[tuple[int, ...], Table]], v: int, ids: tuple[int, ...], sizes: Mapping[int, int]
) -> Table:
    """The minimum over one variable of a sum of tables (the message), built in parts that a processor's cache holds."""
    shape = [sizes[u] for u in ids]
    entries = sizes[v] * math.prod(shape)
    least: Table = np.empty(shape)
    if entries <= _BLOCK or max(shape, default=1) == 1:
        least[...] = _sum(some, (v, *ids), sizes).min(0)
        return least
    dim = next(i for i, n in enumerate(shape) if n > 1)
    u, step = ids[dim], max(1, _BLOCK * shape[dim] // entries)
    for k in range(0, shape[dim], step):
        part = slice(k, k + step)
        inside = [(of, table[_at(of, u, part)] if u in of else table) for of, table in some]
        least[_at(ids, u, part)] = minimize_over(inside, v, ids, {**sizes, u: min(step, shape[dim] - k)})
    return least


def _at(ids: tuple[int, ...], v: int, part: slice) -> tuple[slice, ...]:
    """The index of a part of one variable's values."""
    return tuple(part if u == v else slice(None) for u in ids)


def _sum(some: list[tuple[tuple[int, ...], Table]], over: tuple[int, ...], sizes: Mapping[int, int]) -> Table:
    """The sum of tables, broadcast to the given variables; adds small tables first."""
    total = np.zeros([1] * len(over))
    for ids, table in sorted(some, key=lambda one: one[1].size):
        order = [ids.index(u) for u in over if u in ids]
        total = total + np.transpose(table, order).reshape([sizes[u] if u in ids else 1 for u in over])
    return np.broadcast_to(total, [sizes[u] for u in over])


class Core:
    """The variables that are left of a problem, with the values that are left of each."""

    def __init__(self, sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Terms | Table]) -> None:
        self.rows: dict[int, Any] = {v: np.arange(n) for v, n in sizes.items()}
        self.tables = dict(as_terms(tables))
        #: The variables that are not, with their values and tables then, and the values of the tables' variables.
        self._eliminated: list[tuple[int, Any, list[tuple[tuple[int, ...], Table, list[Any]]]]] = []
        #: The variables whose tables have changed since dominated values were dropped.
        self._changed = dict.fromkeys(self.rows)
        self._orders: dict[bool, Order] = {}  # until a variable or a value is dropped
        self.drop({})

    @property
    def sizes(self) -> dict[int, int]:
        """The number of values of each variable."""
        return {v: len(rows) for v, rows in self.rows.items()}

    @property
    def constant(self) -> float:
        """The sum of the tables of no variables: the minimum of the sum of all tables if no variable is left."""
        return float(dense(self.tables.get((), [np.zeros(())])))

    def order(self, enough: float) -> Order:
        """The order by the smallest tables if it costs ``enough`` or less; else the cheaper one of both."""
        first = self._order(by_fill=False)
        return first if first.width <= enough else min(first, self._order(by_fill=True))

    def _order(self, *, by_fill: bool) -> Order:
        if by_fill not in self._orders:
            self._orders[by_fill] = _order(self.sizes, self.tables, by_fill=by_fill)
        return self._orders[by_fill]

    def eliminate(self, entries: float, tick: Callable[[], None]) -> Values:
        """Eliminates the variables that need tables of few entries, the smallest first; with infinity, all in `order`.

        Returns the values of all variables if none is left.
        """
        order = self.order(QUICK_ENTRIES) if math.isinf(entries) else self._order(by_fill=False)
        sizes, at = self.sizes, self._tables_of()
        for v, ids, needed in order.steps:
            if needed > entries:
                break
            tick()
            parts = [(scope, dense(self.tables.pop(scope))) for scope in at.pop(v)]
            before = [(scope, t, [self.rows[u] for u in scope]) for scope, t in parts]
            add_to(self.tables, ids, [minimize_over(parts, v, ids, sizes)])
            self._eliminated.append((v, self.rows.pop(v), before))
            self._changed.update(dict.fromkeys(ids))
            for u in ids:
                at[u] = {scope: None for scope in (*at[u], ids) if v not in scope}
        self._orders.clear()
        return {} if self.rows else self.restored({})

    def _tables_of(self) -> dict[int, dict[tuple[int, ...], None]]:
        """By variable: the tables that it is in."""
        at: dict[int, dict[tuple[int, ...], None]] = {v: {} for v in self.rows}
        for ids in self.tables:
            for v in ids:
                at[v][ids] = None
        return at

    def drop_dominated(self, tick: Callable[[], None]) -> None:
        """Drops values that cost more than another one, whatever values the other variables have."""
        at = self._tables_of()
        waiting = {v: None for v in self.rows if v in self._changed}
        while waiting:
            tick()
            v = next(iter(waiting))
            del waiting[v]
            keep = _undominated([rows_of(self.tables[ids], ids.index(v)) for ids in at[v]], len(self.rows[v]))
            if keep.all():
                continue
            self.rows[v] = self.rows[v][keep]
            self._orders.clear()
            for ids in at[v]:
                self.tables[ids] = compressed(self.tables[ids], keep, ids.index(v))
                waiting.update(dict.fromkeys(ids))
        self._changed.clear()
        self.drop({})

    def drop(self, keep: Mapping[int, Any]) -> None:
        """Drops values. A variable with one value is none."""
        self.rows = {v: rows[keep[v]] if v in keep else rows for v, rows in self.rows.items()}
        single = {v for v, rows in self.rows.items() if len(rows) == 1}
        if keep or single:
            self._orders.clear()
        tables, self.tables = self.tables, {}
        for ids, terms in tables.items():
            if not (keep.keys() | single).isdisjoint(ids):
                self._changed.update(dict.fromkeys(ids))
            for i, v in enumerate(ids):
                terms = compressed(terms, keep[v], i) if v in keep else terms
            gone = tuple(i for i, v in enumerate(ids) if v in single)
            add_to(self.tables, tuple(v for v in ids if v not in single), [term.squeeze(gone) for term in terms])
        for v in single:
            self._eliminated.append((v, self.rows.pop(v), []))

    def narrow(self, incumbent: Minimum, patience: int) -> Minimum:
        """Drops values that cost more than the incumbent; returns the next one. See `narrowed`."""
        best, keep = narrowed(self.sizes, self.tables, incumbent, patience)
        if best.total < incumbent.total:
            best = best._replace(values=self.restored(best.values))
        self.drop(keep)
        return best

    def located(self, values: Mapping[int, int]) -> Values:
        """Where values are among those that are left, if they are."""
        at = {v: np.flatnonzero(rows == values.get(v, -1)) for v, rows in self.rows.items()}
        return {v: int(rows[0]) for v, rows in at.items() if len(rows)}

    def restored(self, chosen: Mapping[int, int]) -> Values:
        """The values of all variables from those of the variables that are left."""
        values = {v: int(self.rows[v][k]) for v, k in chosen.items()}
        for v, rows, parts in reversed(self._eliminated):
            total = np.zeros(len(rows))
            for ids, table, of in parts:
                at = (
                    slice(None) if u == v else int(np.searchsorted(r, values[u])) for u, r in zip(ids, of, strict=True)
                )
                total = total + table[tuple(at)]
            values[v] = int(rows[int(total.argmin())])
        return values


def _undominated(tables: list[Table], n: int) -> Any:
    """Which of a variable's ``n`` values, which are rows of tables, are not found to cost more than another."""
    if n == 1 or not tables:
        return np.arange(n) == 0
    keep = np.ones(n, bool)
    if n > _MOST_VALUES:
        return keep
    more = np.zeros((n, n))  # what one value costs more than another where the tables are least for the other
    for table in tables:
        at_least = table[:, table.argmin(1)]
        more += at_least - at_least.diagonal()
    np.fill_diagonal(more, np.inf)
    rounded = _EXACT * sum(float(np.abs(table).max()) for table in tables)
    step = 1 + _COMPARED // max(table.shape[1] for table in tables)
    for rivals in np.argsort(more, 0)[:_RIVALS]:
        values = np.flatnonzero(keep & (more[rivals, np.arange(n)] < -rounded))
        for k in range(0, len(values), step):
            part = values[k : k + step]
            most = np.zeros(len(part))
            for table in tables:
                most += (table[rivals[part]] - table[part]).max(1)
            keep[part[most < -rounded]] = False
    return keep
