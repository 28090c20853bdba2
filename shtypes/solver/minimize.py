"""Minimizes a sum of tables over discrete variables exactly where it can, and bounds the minimum from below.

Where bucket elimination alone would need large tables, variables that need small ones are eliminated first. Of the
others, the values are dropped that by a lower bound cost more than a known assignment does, which makes tables smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.solver import elimination
from shtypes.solver.elimination import Table, eliminate, local_search, minimize_over, width

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
        return self.bound >= self.total * (1 - _ROUNDED)


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
    if width(sizes, tables) <= (most // _LARGER if quick else most):
        values, total = eliminate(sizes, tables, tick)
        return Minimum(values, total, total)
    if quick:
        return Minimum(*local_search(sizes, tables, elimination.QUICK_ENTRIES, start(), tick), -math.inf)
    core, values = _Core(sizes, tables), start()
    bound, entries = -math.inf, elimination.QUICK_ENTRIES // _LARGER
    while True:
        core.eliminate(entries)
        last = entries * _LARGER > most
        limit = most if last else max(entries, elimination.QUICK_ENTRIES)
        if width(core.sizes, core.tables) <= limit:
            chosen, total = eliminate(core.sizes, core.tables, tick)
            return Minimum(core.restored(chosen), total, total)
        chosen, total = local_search(core.sizes, core.tables, elimination.QUICK_ENTRIES, core.located(values), tick)
        values = core.restored(chosen)
        least, bounds = lower_bound(core.sizes, core.tables, total)
        bound, before = min(max(bound, least), total), sum(core.sizes.values())
        tick()
        core.drop({v: each <= max(total, each.min()) * (1 + _ROUNDED) for v, each in bounds.items()})
        if sum(core.sizes.values()) > (1 - _LEAST_PART) * before:
            if last:
                return Minimum(values, total, bound)
            entries *= _LARGER


class _Core:
    """The variables that are left of a problem, with the values that are left of each."""

    def __init__(self, sizes: Mapping[int, int], tables: Tables) -> None:
        self.rows: dict[int, Any] = {v: np.arange(n) for v, n in sizes.items()}
        self.tables = dict(tables)
        #: The variables that are not, with their values and tables then, and the values of the tables' variables.
        self._eliminated: list[tuple[int, list[tuple[tuple[int, ...], Table, list[Any]]]]] = []
        self.drop({})

    @property
    def sizes(self) -> dict[int, int]:
        """The number of values of each variable."""
        return {v: len(rows) for v, rows in self.rows.items()}

    def eliminate(self, entries: int) -> None:
        """Eliminates the variables that need tables of no more than so many entries, the smallest first."""
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
            for u in others:
                near[u] = (near[u] | others) - {v}
                weights[u] = math.prod(len(self.rows[w]) for w in near[u])

    def drop(self, keep: Mapping[int, Any]) -> None:
        """Drops values. A variable with one value is none."""
        self.rows = {v: rows[keep[v]] if v in keep else rows for v, rows in self.rows.items()}
        single = {v for v, rows in self.rows.items() if len(rows) == 1}
        tables, self.tables = self.tables, {}
        for ids, table in tables.items():
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
