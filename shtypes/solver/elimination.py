"""The exact minimum of a sum of tables over discrete variables, one variable after another (bucket elimination)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]

#: The most entries of a table that is looked at on the way; and where some variables are decided first.
MOST_ENTRIES: Final = 300_000_000
QUICK_ENTRIES: Final = 4_000_000
#: Larger tables are not made as a whole.
_BLOCK: Final = 100_000
#: So many of the largest tables take as long as may be.
_MANY: Final = 5


def eliminate(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], tick: Callable[[], None] = lambda: None
) -> tuple[dict[int, int], float]:
    """The values of the variables at which the sum of all tables is least, and that sum.

    Of two orders the one with lesser tables is taken: what has the least table goes first, or what brings the fewest
    together that were not. Tables are by their variables, in ascending order. ``tick`` may raise, between two.
    """
    if 1 in sizes.values():  # what has one value decides nothing, and an array has so many dims at most
        free = {v: n for v, n in sizes.items() if n > 1}
        less: dict[tuple[int, ...], Table] = {}
        for ids, table in tables.items():
            own = tuple(v for v in ids if v in free)
            less[own] = less.get(own, np.zeros(())) + table.reshape([sizes[v] for v in own])
        rest = float(less.pop((), np.zeros(())))
        chosen, value = eliminate(free, less, tick)
        return {v: chosen.get(v, 0) for v in sizes}, value + rest
    _, order = min((_order(sizes, tables, by_fill=each) for each in (False, True)), key=lambda found: found[0])
    live = dict(enumerate(tables.items()))
    at: dict[int, set[int]] = {v: set() for v in sizes}
    for k, (ids, _) in live.items():
        for v in ids:
            at[v].add(k)
    trail: list[tuple[int, list[tuple[tuple[int, ...], Table]]]] = []
    total = 0.0
    for k, v in enumerate(order, len(live)):
        tick()
        ids = tuple(sorted(set().union(*(live[k][0] for k in at[v])) - {v}))
        parts = [live.pop(k) for k in sorted(at[v])]
        least = _least(parts, v, ids, sizes)
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


def _order(sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]], *, by_fill: bool) -> tuple[float, list[int]]:
    """An order in which variables may go, and the most entries of a table on the way, or a part of those of all."""
    near: dict[int, set[int]] = {v: set() for v in sizes}
    for ids in tables:
        for v in ids:
            near[v].update(ids)
    for v, others in near.items():
        others.discard(v)

    def cost(v: int) -> tuple[float, float, int]:
        weight = float(sizes[v] * math.prod(sizes[u] for u in near[v]))
        fill = sum(b not in near[a] for a, b in itertools.combinations(near[v], 2)) if by_fill else 0
        return fill, weight, v

    costs = {v: cost(v) for v in near}
    most, total, order = 0.0, 0.0, list[int]()
    while near:
        v = min(near, key=costs.__getitem__)
        most, total = max(most, costs[v][1]), total + costs[v][1]
        order.append(v)
        others = near.pop(v)
        for u in others:
            near[u] |= others
            near[u] -= {u, v}
        touched = others.union(*(near[u] for u in others)) if by_fill else others
        costs.update((u, cost(u)) for u in touched)
    return max(most, total / _MANY), order


def _least(some: list[tuple[tuple[int, ...], Table]], v: int, ids: tuple[int, ...], sizes: Mapping[int, int]) -> Table:
    """The least sum of tables over the values of a variable: of a large table value after value."""
    least: Table = np.full([sizes[u] for u in ids], np.inf)
    if sizes[v] * math.prod(sizes[u] for u in ids) <= _BLOCK:
        least[...] = _sum(some, (v, *ids), sizes).min(0)
        return least
    for k in range(sizes[v]):
        at_k = [
            (tuple(u for u in of if u != v), np.take(table, [k], of.index(v)).squeeze(of.index(v)))
            for of, table in some
        ]
        np.minimum(least, _sum(at_k, ids, sizes), out=least)
    return least


def _sum(some: list[tuple[tuple[int, ...], Table]], over: tuple[int, ...], sizes: Mapping[int, int]) -> Table:
    """The sum of tables, over all of these variables; small ones are added to one another first."""
    total = np.zeros([1] * len(over))
    for ids, table in sorted(some, key=lambda one: one[1].size):
        order = [ids.index(u) for u in over if u in ids]
        total = total + np.transpose(table, order).reshape([sizes[u] if u in ids else 1 for u in over])
    return np.broadcast_to(total, [sizes[u] for u in over])


def nearly_eliminate(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Table],
    entries: int,
    start: Mapping[int, int],
    tick: Callable[[], None] = lambda: None,
) -> tuple[dict[int, int], float]:
    """As `eliminate`, with small tables: from ``start`` on some variables stay, others each time, while it improves."""
    best = dict(start) or {v: int(x.argmin()) for v, x in _regrets(tables).items()}
    value, still = math.inf, 0
    first: set[int] = set()
    while still < 2:
        first = too_many(sizes, tables, entries, first)
        some = {
            ids: table[tuple(slice(best[v], best[v] + 1) if v in first else slice(None) for v in ids)]
            for ids, table in tables.items()
        }
        chosen, found = eliminate({v: 1 if v in first else n for v, n in sizes.items()}, some, tick)
        still = 0 if found < value - 1e-9 * abs(found) else still + 1
        best, value = {v: best[v] if v in first else k for v, k in chosen.items()}, min(value, found)
    return best, value


def too_many(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], entries: int, before: Container[int] = ()
) -> set[int]:
    """The variables to decide first, so that no table on the way has more entries; those of ``before`` last."""
    if any(_order(sizes, tables, by_fill=each)[0] <= entries for each in (False, True)):
        return set()
    now, first, regrets = dict(sizes), set[int](), {v: float(x.max()) for v, x in _regrets(tables).items()}
    near: dict[int, set[int]] = {v: {v} for v in sizes}
    for ids in tables:
        for v in ids:
            near[v].update(ids)
    weights = {v: math.prod(now[u] for u in scope) for v, scope in near.items()}
    while weights:
        v = min(weights, key=lambda u: (weights[u], u))
        while weights[v] > entries:
            least = min((u for u in near[v] if now[u] > 1), key=lambda u: (u in before, regrets[u], u))
            first.add(least)
            for u in near[least]:
                weights[u] //= now[least]
            now[least] = 1
        del weights[v]
        scope = near.pop(v)
        for u in scope - {v}:
            near[u] = (near[u] | scope) - {v}
            weights[u] = math.prod(now[w] for w in near[u])
    return first


def _regrets(tables: Mapping[tuple[int, ...], Table]) -> dict[int, Table]:
    """For each value of each variable, how much more than their least its tables come to at least."""
    found: dict[int, Any] = {}
    for ids, table in tables.items():
        for i, v in enumerate(ids):
            least = table.min(tuple(j for j in range(len(ids)) if j != i))
            found[v] = found.get(v, 0.0) + least - least.min()
    return found
