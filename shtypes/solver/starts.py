"""Finds where a search over several mesh axes starts: from where each axis is decided after the other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shtypes.solver.bounds import Values, total_of
from shtypes.solver.elimination import QUICK_ENTRIES, minimize_within
from shtypes.solver.minimize import minimize
from shtypes.solver.rows import Domains
from shtypes.solver.terms import Tables

#: The entries of the tables of all axes to those with which one axis is decided.
_ALONE: Final = 10
#: The least gain for which the next axis is decided after an axis.
_GAIN: Final = 1e-3


def by_axis(
    tables: Tables, domains: Domains, start: Values, axes: Sequence[int], tick: Callable[[], None] = lambda: None
) -> Values:
    """The best rows of each domain where axis after axis is decided, in each order of them, from a start, if any."""
    start = start or dict.fromkeys(domains, 0)
    first = best = start, total_of(tables, start)
    for order in itertools.permutations(axes):
        found = first
        for axis in order:
            found = _along(tables, domains, found[0], axis, tick)
            if found[1] > first[1] * (1 - _GAIN):  # another order starts with the next
                break
        best = min(best, found, key=lambda each: each[1])
    return best[0]


def _along(
    tables: Tables, domains: Domains, start: Values, axis: int, tick: Callable[[], None]
) -> tuple[Values, float]:
    """A small sum of tables over the rows that differ from those of a start along one axis only."""
    others = {i: np.delete(rows, axis, 1) for i, rows in domains.items()}
    some: dict[int, Any] = {i: np.flatnonzero((rows == rows[start[i]]).all(1)) for i, rows in others.items()}
    at = {i: int(np.flatnonzero(rows == start[i])[0]) for i, rows in some.items()}
    solve = functools.partial(minimize, start=at, tick=tick, quick=QUICK_ENTRIES // _ALONE, afresh=True)
    return minimize_within({i: len(rows) for i, rows in domains.items()}, tables, some, solve)
