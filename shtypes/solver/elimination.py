"""The exact minimum of a sum of tables over discrete variables, one variable after another (bucket elimination)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
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

    The variable whose neighbours have the least table goes first. A tree of tables is exact at the cost of its largest.

    Args:
        sizes: How many values each variable has.
        tables: By the variables that it is over, in ascending order, a table with a dim for each.
        entries: The most entries of a table on the way, by default `MOST_ENTRIES`.

    Raises:
        TooWideError: a table on the way has more.
    """
    entries = MOST_ENTRIES if entries is None else entries
    live = dict(enumerate(tables.items()))
    at: dict[int, set[int]] = {v: set() for v in sizes}
    for k, (ids, _) in live.items():
        for v in ids:
            at[v].add(k)
    numbers = itertools.count(len(live))
    trail: list[tuple[int, list[tuple[tuple[int, ...], Table]]]] = []
    total = 0.0

    def scope(v: int) -> set[int]:
        return set().union(*(live[k][0] for k in at[v]), {v})

    weights = {v: math.prod(sizes[u] for u in scope(v)) for v in sizes}
    while weights:
        v = min(weights, key=lambda u: (weights[u], u))
        if weights.pop(v) > entries:
            raise TooWideError(f"a table of more than {entries:.0e} entries")
        ids = tuple(sorted(scope(v) - {v}))
        parts = [live.pop(k) for k in sorted(at[v])]
        least = _sum(parts, (v, *ids), sizes).min(0)
        for u in ids:
            at[u] -= at[v]
        trail.append((v, parts))
        if not ids:
            total += float(least)
            continue
        k = next(numbers)
        live[k] = ids, least
        for u in ids:
            at[u].add(k)
        for u in ids:
            weights[u] = math.prod(sizes[w] for w in scope(u))
    chosen: dict[int, int] = {}
    for v, parts in reversed(trail):
        at_chosen = np.zeros(sizes[v])
        for ids, table in parts:
            at_chosen = at_chosen + table[tuple(slice(None) if u == v else chosen[u] for u in ids)]
        chosen[v] = int(at_chosen.argmin())
    return chosen, total


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
