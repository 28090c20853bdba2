"""Minimizes a sum of tables over discrete variables exactly where it can, and bounds the minimum from below.

Variables that need small tables are eliminated first, and values are dropped that cost more than another one whatever
the other variables have. Where the rest needs large tables, the values are dropped that by a lower bound cost more than
the incumbent does.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from shtypes.solver import elimination
from shtypes.solver.bounds import LEAST_PART, Minimum, Values, total_of
from shtypes.solver.elimination import Core, Scopes, eliminate, minimize_within
from shtypes.solver.terms import Table, Tables, Terms, as_terms

#: By `QUICK_ENTRIES`: the most entries of tables that are made before others are dropped or compared.
_FIRST: Final = 1 / 40
#: The most entries to those of what takes no seconds.
_LARGER: Final = 10
#: The patience with bounds.
_PATIENCE: Final = 10
#: By the incumbent, how far below it a bound may be for more sweeps to prove it.
_PROVABLE: Final = 1 / 2
#: How many steps of a local search in turn improve nothing.
_STILL: Final = 2


def minimize(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Terms | Table],
    start: Values | None = None,
    tick: Callable[[], None] = lambda: None,
    offer: Callable[[Values, float], None] = lambda values, total: None,
    *,
    begin: Callable[[Tables, dict[int, Any], Values], Values] | None = None,
    quick: int | None = None,
    proves: bool = True,
    afresh: bool = False,
) -> Minimum:
    """The minimum of the sum of the tables.

    Args:
        sizes: The number of values of each variable.
        tables: By their variables, in ascending order.
        start: Values to start from, if the problem is wide; or none.
        tick: Called often; may raise to stop.
        offer: Called with values, and the sum there, before what takes seconds.
        begin: Returns other values to start from, if the problem is wide; of tables that are left of it, with the
            values of each variable in these, and from values of these, if any.
        quick: The most entries of a table, to give up what needs larger ones; or none.
        proves: Whether to bound the minimum from below where it takes seconds to know it.
        afresh: Whether to start from nothing too, if the problem is wide.
    """
    entries = quick or elimination.QUICK_ENTRIES
    large = entries * _LARGER
    most = large if quick else elimination.MOST_ENTRIES
    core = Core(sizes, tables)
    incumbent = Minimum(start, total_of(tables, start), -math.inf) if start else Minimum({}, math.inf, -math.inf)
    core.eliminate(entries if quick else int(entries * _FIRST), tick)
    if begin and core.order(large).width > large:  # before values are dropped through which better ones are found
        values = begin(core.tables, core.rows, core.located(incumbent.values))
        if (total := total_of(core.tables, values)) < incumbent.total:
            incumbent = Minimum(core.restored(values), total, -math.inf)
    if core.order(entries).width > entries:
        core.drop_dominated(tick)
    last = quick is not None or not proves
    while True:
        if core.order(most).width <= most:
            values, total = core.eliminate(math.inf, tick), core.constant
            return Minimum(values, total, total)
        starts = [core.located(incumbent.values), *[{}] * afresh]
        found = [local_search(core.sizes, core.tables, entries, each, tick) for each in starts]
        chosen, total = min(found, key=operator.itemgetter(1))
        if total < incumbent.total:
            incumbent = Minimum(core.restored(chosen), total, incumbent.bound)
        if last:
            return incumbent
        offer(incumbent.values, incumbent.total)
        before = sum(core.sizes.values())
        incumbent = core.narrow(incumbent, _PATIENCE)
        tick()
        if incumbent.exact or incumbent.total - incumbent.bound > _PROVABLE * abs(incumbent.total):
            return incumbent
        last = sum(core.sizes.values()) > (1 - LEAST_PART) * before
        core.drop_dominated(tick)
        core.eliminate(entries, tick)
        core.drop_dominated(tick)


def local_search(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Terms | Table],
    entries: int,
    start: Mapping[int, int],
    tick: Callable[[], None] = lambda: None,
) -> tuple[Values, float]:
    """Like `eliminate`, approximately, by large-neighborhood search from ``start``, which may lack variables.

    Each step fixes some variables so that tables stay below ``entries``, and minimizes over the others exactly. It
    stops when some steps in turn improve nothing.
    """
    terms = as_terms(tables)
    regrets = _regrets(terms)
    best = {v: int(x.argmin()) for v, x in regrets.items()} | dict(start)
    value, still = total_of(terms, best), 0
    costs = {v: (0, float(x.max())) for v, x in regrets.items()}  # how often it was fixed, and what that may cost
    while still < _STILL:
        fixed = to_fix(sizes, terms, entries, costs)
        costs.update((v, (costs[v][0] + 1, costs[v][1])) for v in fixed)
        best, total = minimize_within(
            sizes, terms, {v: [best[v]] for v in fixed}, functools.partial(eliminate, tick=tick)
        )
        value, still = min(value, total), 0 if total < value - 1e-9 * abs(total) else still + 1
    return best, value


def to_fix(sizes: Mapping[int, int], tables: Tables, entries: int, costs: Mapping[int, Any]) -> set[int]:
    """The variables to fix so that no intermediate table has more than ``entries``, those of the least costs first."""
    fixed, scopes = set[int](), Scopes(sizes, tables)
    while (v := scopes.cheapest()) is not None:
        while scopes.entries(v) > entries:
            least = min((u for u in scopes.near[v] if scopes.sizes[u] > 1), key=lambda u: (costs[u], u))
            fixed.add(least)
            scopes.fix(least)
        scopes.eliminate(v)
    return fixed


def _regrets(tables: Tables) -> dict[int, Table]:
    """For each value of each variable, a lower bound on what it costs beyond the minimum of its tables."""
    regrets: dict[int, Any] = {}
    for ids, terms in tables.items():
        for i, v in enumerate(ids):
            others = tuple(j for j in range(len(ids)) if j != i)
            least = functools.reduce(np.minimum, [term.min(others) for term in terms])
            regrets[v] = regrets.get(v, 0.0) + least - least.min()
    return regrets
