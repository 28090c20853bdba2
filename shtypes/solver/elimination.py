"""Minimizes a sum of tables over discrete variables, by bucket elimination and local search."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import numpy as np

from shtypes.solver.terms import Table

#: The most entries of an intermediate table: of exact elimination, and with some variables fixed.
MOST_ENTRIES: Final = 300_000_000
QUICK_ENTRIES: Final = 4_000_000
#: The most entries of an intermediate table that is built at once.
_BLOCK: Final = 100_000
#: The time limit of an elimination: that of so many tables of the most entries.
_LARGEST: Final = 5


def eliminate(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], tick: Callable[[], None] = lambda: None
) -> tuple[dict[int, int], float]:
    """The values of the variables that minimize the sum of the tables, and the minimum.

    Args:
        sizes: The number of values of each variable.
        tables: By their variables, in ascending order.
        tick: Called before each variable; may raise to stop.
    """
    if 1 in sizes.values():  # NumPy limits the number of dims
        free = {v: n for v, n in sizes.items() if n > 1}
        less: dict[tuple[int, ...], Table] = {}
        for ids, table in tables.items():
            left = tuple(v for v in ids if v in free)
            less[left] = less.get(left, np.zeros(())) + table.reshape([sizes[v] for v in left])
        rest = float(less.pop((), np.zeros(())))
        chosen, value = eliminate(free, less, tick)
        return {v: chosen.get(v, 0) for v in sizes}, value + rest
    _, order = _order(sizes, tables)
    live = dict(enumerate(tables.items()))
    at: dict[int, set[int]] = {v: set() for v in sizes}
    for k, (ids, _) in live.items():
        for v in ids:
            at[v].add(k)
    trail: list[tuple[int, list[tuple[tuple[int, ...], Table]]]] = []
    total = float(sum(table for ids, table in tables.items() if not ids))
    for k, v in enumerate(order, len(live)):
        tick()
        ids = tuple(sorted(set().union(*(live[k][0] for k in at[v])) - {v}))
        parts = [live.pop(k) for k in sorted(at[v])]
        least = minimize_over(parts, v, ids, sizes)
        trail.append((v, parts))
        if not ids:
            total += float(least)
            continue
        live[k] = ids, least
        for u in ids:
            at[u] = (at[u] - at[v]) | {k}
    chosen = {}
    for v, parts in reversed(trail):
        at_chosen = np.zeros(sizes[v])
        for ids, table in parts:
            at_chosen = at_chosen + table[tuple(slice(None) if u == v else chosen[u] for u in ids)]
        chosen[v] = int(at_chosen.argmin())
    return chosen, total


def width(sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]]) -> float:
    """The cost of the elimination, in entries of a table."""
    return _order(sizes, tables)[0]


def _order(sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]]) -> tuple[float, list[int]]:
    """The cost and elimination order of the min-weight heuristic.

    The cost is the most entries of an intermediate table, or a share of the entries of all if that is more.
    """
    near: dict[int, set[int]] = {v: {v} for v in sizes}
    for ids in tables:
        for v in ids:
            near[v].update(ids)

    def cost(v: int) -> tuple[float, int]:
        return float(math.prod([sizes[u] for u in near[v]])), v

    costs, order = {v: cost(v) for v in near}, list[tuple[float, int]]()
    while near:
        v = min(near, key=costs.__getitem__)
        order.append(costs[v])
        scope = near.pop(v)
        for u in scope - {v}:
            near[u] = (near[u] | scope) - {v}
            costs[u] = cost(u)
    weights = [weight for weight, _ in order]
    return max(max(weights, default=0.0), sum(weights) / _LARGEST), [v for _, v in order]


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


def local_search(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Table],
    entries: int,
    start: Mapping[int, int],
    tick: Callable[[], None] = lambda: None,
) -> tuple[dict[int, int], float]:
    """Like `eliminate`, approximately, by large-neighborhood search from ``start``, which may lack variables.

    Each step fixes some variables so that tables stay below ``entries``, and minimizes over the others exactly. It
    stops when two steps in turn improve nothing.
    """
    best = {v: int(x.argmin()) for v, x in _regrets(tables).items()} | dict(start)
    value, still = math.inf, 0
    fixed: set[int] = set()
    while still < 2:
        fixed = to_fix(sizes, tables, entries, fixed)
        some = {
            ids: table[tuple(slice(best[v], best[v] + 1) if v in fixed else slice(None) for v in ids)]
            for ids, table in tables.items()
        }
        chosen, total = eliminate({v: 1 if v in fixed else n for v, n in sizes.items()}, some, tick)
        still = 0 if total < value - 1e-9 * abs(total) else still + 1
        best, value = {v: best[v] if v in fixed else k for v, k in chosen.items()}, min(value, total)
    return best, value


def to_fix(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], entries: int, before: Container[int] = ()
) -> set[int]:
    """The variables to fix so that no intermediate table has more than ``entries``; avoids those fixed ``before``."""
    if width(sizes, tables) <= entries:
        return set()
    now, fixed, regrets = dict(sizes), set[int](), {v: float(x.max()) for v, x in _regrets(tables).items()}
    near: dict[int, set[int]] = {v: {v} for v in sizes}
    for ids in tables:
        for v in ids:
            near[v].update(ids)
    weights = {v: math.prod(now[u] for u in scope) for v, scope in near.items()}
    while weights:
        v = min(weights, key=lambda u: (weights[u], u))
        while weights[v] > entries:
            least = min((u for u in near[v] if now[u] > 1), key=lambda u: (u in before, regrets[u], u))
            fixed.add(least)
            for u in near[least]:
                weights[u] //= now[least]
            now[least] = 1
        del weights[v]
        scope = near.pop(v)
        for u in scope - {v}:
            near[u] = (near[u] | scope) - {v}
            weights[u] = math.prod(now[w] for w in near[u])
    return fixed


def _regrets(tables: Mapping[tuple[int, ...], Table]) -> dict[int, Table]:
    """For each value of each variable, a lower bound on what it costs beyond the minimum of its tables."""
    regrets: dict[int, Any] = {}
    for ids, table in tables.items():
        for i, v in enumerate(ids):
            least = table.min(tuple(j for j in range(len(ids)) if j != i))
            regrets[v] = regrets.get(v, 0.0) + least - least.min()
    return regrets
