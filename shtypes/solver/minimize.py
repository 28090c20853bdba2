"""Minimizes a sum of tables over discrete variables exactly where it can, and bounds the minimum from below.

Variables that need small tables are eliminated first, and values are dropped that cost more than another one whatever
the other variables have. Where the rest needs large tables, the values are dropped that by a lower bound cost more than
a known assignment does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.solver import elimination
from shtypes.solver.elimination import Table, eliminate, local_search, minimize_over, width

#: By `QUICK_ENTRIES`: the sizes of tables between which dominated values are dropped again.
_STAGES: Final = (1 / 40, 1 / 4, 1)
_LAST_STAGE: Final = 5  # the same where the rest would take a second
#: How many other values are compared with each, and the most entries of the tables that are built for it.
_RIVALS: Final = 4
_COMPARED: Final = 1_000_000
#: The least part of the values that are dropped before a lower bound of larger tables is needed, larger by a factor.
_LEAST_PART: Final = 0.1
_LARGER: Final = 10
#: The most sweeps over the tables for a lower bound, and the relative gain in so many of them below which it is final.
_SWEEPS: Final = 100
_VISITS: Final = 200_000_000  # of entries, in all sweeps
_LEAST_GAIN: Final = 1e-3
_PATIENCE: Final = 10
#: The relative tolerance of bounds.
_ROUNDED: Final = 1e-9
#: The same of sums of few numbers.
_EXACT: Final = 1e-13

Tables = Mapping[tuple[int, ...], Table]
Values = dict[int, int]


class Minimum(NamedTuple):
    """The values of the variables, the sum of the tables there, and a lower bound on all sums."""

    values: Values
    total: float
    bound: float

    @property
    def exact(self) -> bool:
        """Whether no values have a smaller sum."""
        return self.bound >= self.total - _ROUNDED * abs(self.total)


def minimize(
    sizes: Mapping[int, int],
    tables: Tables,
    start: Callable[[], Values] = dict,
    tick: Callable[[], None] = lambda: None,
    *,
    quick: bool = False,
) -> Minimum:
    """The minimum of the sum of the tables.

    Args:
        sizes: The number of values of each variable.
        tables: By their variables, in ascending order.
        start: Returns values to start from, if the problem is wide; or no values.
        tick: Called often; may raise to stop.
        quick: Whether to give up what needs seconds.
    """
    most = elimination.MOST_ENTRIES
    core = Core(sizes, tables)
    for stage in _STAGES:
        core.eliminate(int(elimination.QUICK_ENTRIES * stage), tick)
    core.drop_dominated(tick)
    if not quick and width(core.sizes, core.tables) > most // _LARGER:
        core.eliminate(elimination.QUICK_ENTRIES * _LAST_STAGE, tick)
    values: Values | None = None
    bound, entries = -math.inf, elimination.QUICK_ENTRIES
    while True:
        core.drop_dominated(tick)
        if width(core.sizes, core.tables) <= (most // _LARGER if quick else most):
            chosen, total = eliminate(core.sizes, core.tables, tick)
            return Minimum(core.restored(chosen), total, total)
        at = core.located(start() if values is None else values)
        chosen, total = local_search(core.sizes, core.tables, elimination.QUICK_ENTRIES, at, tick)
        values = core.restored(chosen)
        if quick:
            return Minimum(values, total, bound)
        least, bounds = lower_bound(core.sizes, core.tables, total)
        bound, before = min(max(bound, least), total), sum(core.sizes.values())
        tick()
        core.drop({v: each <= max(total, each.min()) * (1 + _ROUNDED) for v, each in bounds.items()})
        if sum(core.sizes.values()) > (1 - _LEAST_PART) * before:
            if entries * _LARGER > most:
                return Minimum(values, total, bound)
            entries *= _LARGER
        core.eliminate(entries, tick)


class Core:
    """The variables that are left of a problem, with the values that are left of each."""

    def __init__(self, sizes: Mapping[int, int], tables: Tables) -> None:
        self.rows: dict[int, Any] = {v: np.arange(n) for v, n in sizes.items()}
        self.tables = dict(tables)
        #: The variables that are not, with their values and tables then, and the values of the tables' variables.
        self._eliminated: list[tuple[int, list[tuple[tuple[int, ...], Table, list[Any]]]]] = []
        #: The variables whose tables have changed since dominated values were dropped.
        self._changed = dict.fromkeys(self.rows)
        self.drop({})

    @property
    def sizes(self) -> dict[int, int]:
        """The number of values of each variable."""
        return {v: len(rows) for v, rows in self.rows.items()}

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
            parts = [(scope, self.tables.pop(scope)) for scope in list(self.tables) if v in scope]
            self._eliminated.append((v, [(scope, t, [self.rows[u] for u in scope]) for scope, t in parts]))
            self._add(ids, minimize_over(parts, v, ids, self.sizes))
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
            keep = _undominated([np.moveaxis(self.tables[ids], ids.index(v), 0) for ids in at[v]], len(self.rows[v]))
            if keep.all():
                continue
            self.rows[v] = self.rows[v][keep]
            for ids in at[v]:
                self.tables[ids] = np.compress(keep, self.tables[ids], ids.index(v))
                waiting.update(dict.fromkeys(ids))
        self._changed.clear()
        self.drop({})

    def drop(self, keep: Mapping[int, Any]) -> None:
        """Drops values. A variable with one value is none."""
        self.rows = {v: rows[keep[v]] if v in keep else rows for v, rows in self.rows.items()}
        single = {v for v, rows in self.rows.items() if len(rows) == 1}
        tables, self.tables = self.tables, {}
        for ids, table in tables.items():
            if not (keep.keys() | single).isdisjoint(ids):
                self._changed.update(dict.fromkeys(ids))
            for i, v in enumerate(ids):
                table = table if v not in keep else np.compress(keep[v], table, i)
            left = tuple(v for v in ids if v not in single)
            self._add(left, table.reshape([len(self.rows[v]) for v in left]))
        for v in single:
            self._eliminated.append((v, [((v,), np.zeros(1), [self.rows.pop(v)])]))

    def _add(self, ids: tuple[int, ...], table: Table) -> None:
        self.tables[ids] = self.tables[ids] + table if ids in self.tables else table

    def located(self, values: Mapping[int, int]) -> Values:
        """The values of the variables that are left, among those left; none if one was dropped."""
        at = {v: np.flatnonzero(rows == values.get(v, -1)) for v, rows in self.rows.items()}
        return {v: int(rows[0]) for v, rows in at.items()} if all(map(len, at.values())) else {}

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
    """Which of a variable's ``n`` values are not found to cost more than another; it is dim 0 of its tables."""
    if n == 1 or not tables:
        return np.arange(n) == 0
    rows, keep = [table.reshape(n, -1) for table in tables], np.ones(n, bool)
    more = np.zeros((n, n))  # what one value costs more than another where the tables are least for the other
    for table in rows:
        at_least = table[:, table.argmin(1)]
        more += at_least - at_least.diagonal()
    np.fill_diagonal(more, np.inf)
    rounded = _EXACT * sum(float(np.abs(table).max()) for table in rows)
    step = 1 + _COMPARED // max(table.shape[1] for table in rows)
    for rivals in np.argsort(more, 0)[:_RIVALS]:
        values = np.flatnonzero(keep & (more[rivals, np.arange(n)] < -rounded))
        for k in range(0, len(values), step):
            part = values[k : k + step]
            most = np.zeros(len(part))
            for table in rows:
                most += (table[rivals[part]] - table[part]).max(1)
            keep[part[most < -rounded]] = False
    return keep


def lower_bound(sizes: Mapping[int, int], tables: Tables, upper: float = math.inf) -> tuple[float, dict[int, Table]]:
    """A lower bound on the sum of the tables, and one for each value of each variable.

    By min-sum diffusion: costs are moved between tables that share a variable, forwards and backwards, which leaves
    their sum as it is, until the sum of the minima grows no more or is ``upper``, the sum of an assignment.
    """
    rest = float(sum(table.sum() for ids, table in tables.items() if not ids))
    unary = {v: np.zeros(n) for v, n in sizes.items()}
    wide = {ids: table.copy() for ids, table in tables.items() if len(ids) > 1}
    for ids, table in tables.items():
        if len(ids) == 1:
            unary[ids[0]] = unary[ids[0]] + table
    order = sorted(sizes)
    at = {v: [ids for ids in wide if v in ids] for v in order}
    history: list[float] = []
    visits = sum(table.size * table.ndim for table in wide.values())
    for sweep in range(min(_SWEEPS, 1 + _VISITS // max(visits, 1))):
        for v in order:
            for ids in at[v]:
                least = _least(wide[ids], ids.index(v))
                wide[ids] -= _along(least, ids, v)
                unary[v] += least
            onwards = [ids for ids in at[v] if (ids[-1] > v if sweep % 2 == 0 else ids[0] < v)]
            share = unary[v] / max(len(onwards), len(at[v]) - len(onwards), 1)
            for ids in onwards:
                wide[ids] += _along(share, ids, v)
                unary[v] = unary[v] - share
        order.reverse()
        history.append(rest + float(sum(t.min() for t in (*unary.values(), *wide.values()))))
        if history[-1] >= upper * (1 - _ROUNDED):
            break
        if len(history) > _PATIENCE and history[-1] <= history[-1 - _PATIENCE] * (1 + _LEAST_GAIN):
            break
    bounds = {}
    for v in order:
        above = unary[v] - unary[v].min()
        for ids in at[v]:
            least = _least(wide[ids], ids.index(v))
            above = above + least - least.min()
        bounds[v] = history[-1] + above
    return history[-1], bounds


def _least(table: Table, i: int) -> Table:
    """The minimum over all variables of a table but one."""
    least: Table = table.min(tuple(j for j in range(table.ndim) if j != i))
    return least


def _along(x: Table, ids: tuple[int, ...], v: int) -> Table:
    """Costs of one variable, to broadcast with a table."""
    return x.reshape([-1 if u == v else 1 for u in ids])
