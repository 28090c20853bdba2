"""Minimizes a sum of tables over discrete variables exactly where it can, and bounds the minimum from below.

Variables that need small tables are eliminated first, and values are dropped that cost more than another one whatever
the other variables have. Where the rest needs large tables, the values are dropped that by a lower bound cost more than
the incumbent does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from shtypes.solver import elimination
from shtypes.solver.bounds import LEAST_PART, ROUNDED, Minimum, Values, total_of
from shtypes.solver.elimination import Core, Scopes, eliminate, order_of
from shtypes.solver.terms import Table, Terms

#: By `QUICK_ENTRIES`: the sizes of tables between which dominated values are dropped again.
_STAGES: Final = (1 / 40, 1 / 4, 1)
_LAST_STAGE: Final = 5  # the same where the rest would take a second
#: The most entries to those of what takes no seconds.
_LARGER: Final = 10
#: The patience with bounds of all tables at first, and of those that are left.
_SOON: Final = 2
_LATE: Final = 10
#: See `minimize`.
_GUESS: Final = 4.0


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
        return core.order(most // _LARGER).width > most // _LARGER

    first, *more = _STAGES if quick else (*_STAGES, _LAST_STAGE)
    last = quick
    core.drop_dominated(tick)
    core.eliminate(int(entries * first), tick)
    if is_wide() and not quick:  # by then bounds are tighter
        incumbent, upper = core.narrow(incumbent, _SOON, guess, only_dropped=True)
    for stage in more:
        core.drop_dominated(tick)
        if is_wide():  # else tables that are made one by one might be wider
            core.eliminate(int(entries * stage), tick)
    while True:
        core.drop_dominated(tick)
        wide = most // _LARGER if quick else most
        exact = core.order(wide).width <= wide
        if exact:
            values, total = core.eliminate(math.inf, tick), core.constant
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
        core.drop_dominated(tick)
        core.eliminate(entries * _LARGER if last else entries, tick)


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
            ids: table[(*(slice(best[v], best[v] + 1) if v in fixed else slice(None) for v in ids), ...)]
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
    if order_of(sizes, tables, entries).width <= entries:
        return set()
    fixed, regrets = set[int](), {v: float(x.max()) for v, x in _regrets(tables).items()}
    scopes = Scopes(sizes, tables)
    while (v := scopes.cheapest()) is not None:
        while scopes.entries(v) > entries:
            some = (u for u in scopes.near[v] if scopes.sizes[u] > 1)
            least = min(some, key=lambda u: (u in before, regrets[u], u))
            fixed.add(least)
            scopes.fix(least)
        scopes.eliminate(v)
    return fixed


def _regrets(tables: Mapping[tuple[int, ...], Table]) -> dict[int, Table]:
    """For each value of each variable, a lower bound on what it costs beyond the minimum of its tables."""
    regrets: dict[int, Any] = {}
    for ids, table in tables.items():
        for i, v in enumerate(ids):
            least = table.min(tuple(j for j in range(len(ids)) if j != i))
            regrets[v] = regrets.get(v, 0.0) + least - least.min()
    return regrets
