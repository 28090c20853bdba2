"""Minimizes a sum of tables over discrete variables exactly where it can, and bounds the minimum from below.

Variables that need small tables are eliminated first, and values are dropped that cost more than another one whatever
the other variables have. Where the rest needs large tables, the values are dropped that by a lower bound cost more than
the incumbent does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from shtypes.solver import elimination
from shtypes.solver.bounds import LEAST_PART, ROUNDED, Minimum, Values, narrowed, total_of
from shtypes.solver.elimination import eliminate, local_search, minimize_over, width
from shtypes.solver.terms import Table, Terms, add_to, as_terms, compressed, dense, rows_of

#: By `QUICK_ENTRIES`: the sizes of tables between which dominated values are dropped again.
_STAGES: Final = (1 / 40, 1 / 4, 1)
#: How many other values are compared with each, and the most entries of the tables that are built for it.
_RIVALS: Final = 4
_COMPARED: Final = 1_000_000
_LAST_STAGE: Final = 5  # the same where the rest would take a second
#: The most entries to those of what takes no seconds.
_LARGER: Final = 10
#: The patience with bounds of all tables at first, and of those that are left.
_SOON: Final = 2
_LATE: Final = 10
#: See `minimize`.
_GUESS: Final = 4.0
#: The most values, of all, that are left by a guess which may be too low, so that all is done again.
_WORTH: Final = 1 / 2
#: The relative tolerance of sums of few numbers.
_EXACT: Final = 1e-13


def minimize(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Terms | Table],
    start: Values | None = None,
    tick: Callable[[], None] = lambda: None,
    offer: Callable[[Values, float], None] = lambda values, total: None,
    *,
    quick: bool = False,
    guess: float = _GUESS,
    gap: float = 0.0,
) -> Minimum:
    """The minimum of the sum of the tables.

    Args:
        sizes: The number of values of each variable.
        tables: By their variables, in ascending order.
        start: Values to start from, if the problem is wide; or none.
        tick: Called often; may raise to stop.
        offer: Called with values, and the sum there, before what takes seconds.
        quick: Whether to give up what needs seconds.
        guess: The minimum is first looked for below so many times the first bound, if the problem is wide.
        gap: What a sum may be above the minimum, if it takes seconds to know the minimum.
    """
    most, entries = elimination.MOST_ENTRIES, elimination.QUICK_ENTRIES
    core, upper = Core(sizes, tables), math.inf
    incumbent = Minimum(start, total_of(tables, start), -math.inf) if start else Minimum({}, math.inf, -math.inf)

    def is_wide() -> bool:
        return width(core.sizes, core.tables) > most // _LARGER

    first, *more = _STAGES if quick else (*_STAGES, _LAST_STAGE)
    last = quick
    core.eliminate(int(entries * first), tick)
    if is_wide() and not quick:  # by then bounds are tighter
        incumbent, upper = core.narrow(incumbent, _SOON, guess, only_dropped=True)
    for stage in more:
        core.drop_dominated(tick)
        if is_wide():  # else tables that are made one by one might be wider
            core.eliminate(int(entries * stage), tick)
    while True:
        core.drop_dominated(tick)
        exact = width(core.sizes, core.tables) <= (most // _LARGER if quick else most)
        if exact:
            chosen, total = eliminate(core.sizes, core.dense(), tick)
        else:
            at = core.located(incumbent.values)
            chosen, total = local_search(core.sizes, core.dense(), elimination.QUICK_ENTRIES, at, tick)
        values = core.restored(chosen)
        if upper < min(total, incumbent.total) - ROUNDED * abs(total):  # the guess was too low
            return minimize(sizes, tables, values, tick, offer, guess=math.inf, gap=gap)
        if exact:
            return Minimum(values, total, total)
        incumbent = Minimum(values, total, incumbent.bound) if total < incumbent.total else incumbent
        if last or incumbent.total <= incumbent.bound + gap:
            return incumbent
        offer(incumbent.values, incumbent.total)
        before = sum(core.sizes.values())
        incumbent, upper = core.narrow(incumbent, _LATE)
        tick()
        last = sum(core.sizes.values()) > (1 - LEAST_PART) * before
        core.eliminate(entries * _LARGER if last else entries, tick)


class Core:
    """The variables that are left of a problem, with the values that are left of each."""

    def __init__(self, sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Terms | Table]) -> None:
        self.rows: dict[int, Any] = {v: np.arange(n) for v, n in sizes.items()}
        self.tables = dict(as_terms(tables))
        #: The variables that are not, with their values and tables then, and the values of the tables' variables.
        self._eliminated: list[tuple[int, list[tuple[tuple[int, ...], Table, list[Any]]]]] = []
        #: The variables whose tables have changed since dominated values were dropped.
        self._changed = dict.fromkeys(self.rows)
        self.drop({})

    @property
    def sizes(self) -> dict[int, int]:
        """The number of values of each variable."""
        return {v: len(rows) for v, rows in self.rows.items()}

    def dense(self) -> dict[tuple[int, ...], Table]:
        """The tables as arrays."""
        return {ids: dense(terms) for ids, terms in self.tables.items()}

    def eliminate(self, entries: int, tick: Callable[[], None]) -> None:
        """Eliminates the variables that need tables of few entries without dominated values, the smallest first."""
        self.drop_dominated(tick)
        near: dict[int, set[int]] = {v: {v} for v in self.rows}
        for ids in self.tables:
            for v in ids:
                near[v].update(ids)
        weights = {v: math.prod(len(self.rows[u]) for u in scope) for v, scope in near.items()}
        while weights and weights[v := min(weights, key=lambda u: (weights[u], u))] <= entries:
            del weights[v]
            others = near.pop(v) - {v}
            ids = tuple(sorted(others))
            parts = [(scope, dense(self.tables.pop(scope))) for scope in list(self.tables) if v in scope]
            self._eliminated.append((v, [(scope, t, [self.rows[u] for u in scope]) for scope, t in parts]))
            add_to(self.tables, ids, [minimize_over(parts, v, ids, self.sizes)])
            del self.rows[v]
            self._changed.update(dict.fromkeys(ids))
            for u in others:
                near[u] = (near[u] | others) - {v}
                weights[u] = math.prod(len(self.rows[w]) for w in near[u])

    def drop_dominated(self, tick: Callable[[], None]) -> None:
        """Drops values that cost more than another one, whatever values the other variables have."""
        at: dict[int, list[tuple[int, ...]]] = {v: [ids for ids in self.tables if v in ids] for v in self.rows}
        waiting = {v: None for v in self.rows if v in self._changed}
        while waiting:
            tick()
            v = next(iter(waiting))
            del waiting[v]
            keep = _undominated([rows_of(self.tables[ids], ids.index(v)) for ids in at[v]], len(self.rows[v]))
            if keep.all():
                continue
            self.rows[v] = self.rows[v][keep]
            for ids in at[v]:
                self.tables[ids] = compressed(self.tables[ids], keep, ids.index(v))
                waiting.update(dict.fromkeys(ids))
        self._changed.clear()
        self.drop({})

    def drop(self, keep: Mapping[int, Any]) -> None:
        """Drops values. A variable with one value is none."""
        self.rows = {v: rows[keep[v]] if v in keep else rows for v, rows in self.rows.items()}
        single = {v for v, rows in self.rows.items() if len(rows) == 1}
        tables, self.tables = self.tables, {}
        for ids, terms in tables.items():
            if not (keep.keys() | single).isdisjoint(ids):
                self._changed.update(dict.fromkeys(ids))
            for i, v in enumerate(ids):
                terms = compressed(terms, keep[v], i) if v in keep else terms
            gone = tuple(i for i, v in enumerate(ids) if v in single)
            add_to(self.tables, tuple(v for v in ids if v not in single), [term.squeeze(gone) for term in terms])
        for v in single:
            self._eliminated.append((v, [((v,), np.zeros(1), [self.rows.pop(v)])]))

    def narrow(
        self, incumbent: Minimum, patience: int, guess: float = math.inf, *, only_dropped: bool = False
    ) -> tuple[Minimum, float]:
        """Drops values that cost more than the incumbent; returns the next one, and above what values are dropped.

        See `narrowed`.
        """
        best, upper, keep = narrowed(self.sizes, self.tables, incumbent, patience, guess, only_dropped=only_dropped)
        few = sum(map(np.sum, keep.values())) > _WORTH * sum(map(len, keep.values()))
        if upper < best.total and (few or upper <= best.bound):  # the guess is too low, or of no use
            best, upper, keep = narrowed(self.sizes, self.tables, incumbent, patience, only_dropped=only_dropped)
        best = best if best.total == incumbent.total else best._replace(values=self.restored(best.values))
        self.drop(keep)
        return best, upper

    def located(self, values: Mapping[int, int]) -> Values:
        """Where values are among those that are left, if they are."""
        at = {v: np.flatnonzero(rows == values.get(v, -1)) for v, rows in self.rows.items()}
        return {v: int(rows[0]) for v, rows in at.items() if len(rows)}

    def restored(self, chosen: Mapping[int, int]) -> Values:
        """The values of all variables from those of the variables that are left."""
        values = {v: int(self.rows[v][k]) for v, k in chosen.items()}
        for v, parts in reversed(self._eliminated):
            total, rows = np.zeros(()), parts[0][2][parts[0][0].index(v)]
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
