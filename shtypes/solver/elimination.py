"""The exact minimum of a sum of tables over discrete variables, one variable after another (bucket elimination)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]

#: The most entries of a table that is made on the way; and those that take no longer than to leave values out first.
MOST_ENTRIES: Final = 60_000_000
QUICK_ENTRIES: Final = 2_000_000


class TooWideError(MemoryError):
    """A program in which too much depends on too much at once for an exact minimum."""


def eliminate(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], entries: int | None = None
) -> tuple[dict[int, int], float]:
    """The values of the variables at which the sum of all tables is least, and that sum.

    A tree of tables is exact at the cost of its largest. Of two orders the one with lesser tables is taken: what has
    the least table goes first, or what brings the fewest together that were not.

    Args:
        sizes: How many values each variable has.
        tables: By the variables that it is over, in ascending order, a table with a dim for each.
        entries: The most entries of a table on the way, by default `MOST_ENTRIES`.

    Raises:
        TooWideError: a table on the way has more.
    """
    entries = MOST_ENTRIES if entries is None else entries
    if 1 in sizes.values():  # what has one value decides nothing, and an array has so many dims at most
        free = {v: n for v, n in sizes.items() if n > 1}
        less: dict[tuple[int, ...], Table] = {}
        for ids, table in tables.items():
            own = tuple(v for v in ids if v in free)
            less[own] = less.get(own, np.zeros(())) + table.reshape([sizes[v] for v in own])
        rest = float(less.pop((), np.zeros(())))
        chosen, least = eliminate(free, less, entries)
        return {v: chosen.get(v, 0) for v in sizes}, least + rest
    most, order = min((_order(sizes, tables, by_fill=each) for each in (False, True)), key=lambda found: found[0])
    if most > entries:
        raise TooWideError(f"a table of more than {entries:.0e} entries")
    live = dict(enumerate(tables.items()))
    at: dict[int, set[int]] = {v: set() for v in sizes}
    for k, (ids, _) in live.items():
        for v in ids:
            at[v].add(k)
    trail: list[tuple[int, list[tuple[tuple[int, ...], Table]]]] = []
    total = 0.0
    for k, v in enumerate(order, len(live)):
        ids = tuple(sorted(set().union(*(live[k][0] for k in at[v])) - {v}))
        parts = [live.pop(k) for k in sorted(at[v])]
        least = _sum(parts, (v, *ids), sizes).min(0)
        trail.append((v, parts))
        if not ids:
            total += float(least)
            continue
        live[k] = ids, least
        for u in ids:
            at[u] = (at[u] - at[v]) | {k}
    chosen: dict[int, int] = {}
    for v, parts in reversed(trail):
        at_chosen = np.zeros(sizes[v])
        for ids, table in parts:
            at_chosen = at_chosen + table[tuple(slice(None) if u == v else chosen[u] for u in ids)]
        chosen[v] = int(at_chosen.argmin())
    return chosen, total


def _order(sizes: Mapping[int, int], tables: Iterable[tuple[int, ...]], *, by_fill: bool) -> tuple[float, list[int]]:
    """An order in which variables may go, and the most entries of a table on the way."""
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
    most, order = 0.0, []
    while near:
        v = min(near, key=costs.__getitem__)
        most = max(most, costs[v][1])
        order.append(v)
        others = near.pop(v)
        for u in others:
            near[u] |= others
            near[u] -= {u, v}
        touched = others.union(*(near[u] for u in others)) if by_fill else others
        costs.update((u, cost(u)) for u in touched)
    return most, order


def _sum(some: list[tuple[tuple[int, ...], Table]], over: tuple[int, ...], sizes: Mapping[int, int]) -> Table:
    """The sum of tables, over all of these variables; small ones are added to one another first."""
    total = np.zeros([1] * len(over))
    for ids, table in sorted(some, key=lambda one: one[1].size):
        order = [ids.index(u) for u in over if u in ids]
        total = total + np.transpose(table, order).reshape([sizes[u] if u in ids else 1 for u in over])
    return np.broadcast_to(total, [sizes[u] for u in over])


def values_within(
    sizes: Mapping[int, int], tables: Mapping[tuple[int, ...], Table], most: float
) -> tuple[dict[int, Any], dict[tuple[int, ...], Table]]:
    """The values of each variable at which the sum may be at most ``most``, and the tables of these."""
    left, kept = {v: np.arange(n) for v, n in sizes.items()}, dict(tables)
    while True:
        least, more = 0.0, {v: np.zeros(len(values)) for v, values in left.items()}
        for ids, table in kept.items():
            smallest = table.min()
            least += smallest
            for i, v in enumerate(ids):
                more[v] += table.min(tuple(j for j in range(len(ids)) if j != i)) - smallest
        fits = {v: least + each <= most for v, each in more.items()}
        if all(ok.all() for ok in fits.values()):
            return left, kept
        left = {v: values[fits[v]] for v, values in left.items()}
        kept = {ids: table[np.ix_(*(fits[v] for v in ids))] for ids, table in kept.items()}
