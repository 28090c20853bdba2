"""Bounds a sum of tables over discrete variables from below, and drops the values that cost more than the incumbent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.solver.terms import Movable, Table, Tables, as_terms, dense

#: The most sweeps over the tables, and the most entries that are visited in all of them.
_SWEEPS: Final = 100
_VISITS: Final = 1_000_000_000
#: The part of the values below which it is no progress to drop them.
LEAST_PART: Final = 0.1
#: By the incumbent, the least bound of the first sweeps that may be of use.
_NEAR: Final = 0.15
#: The relative tolerance of bounds.
ROUNDED: Final = 1e-9

Values = dict[int, int]


class Minimum(NamedTuple):
    """The values of the variables, the sum of the tables there, and a lower bound on all sums."""

    values: Values
    total: float
    bound: float

    @property
    def exact(self) -> bool:
        """Whether no values have a smaller sum."""
        return self.bound >= self.total - ROUNDED * abs(self.total)


def total_of(tables: Mapping[tuple[int, ...], Any], values: Mapping[int, int]) -> float:
    """The sum of the tables at one value of each variable."""
    return sum(
        min(float(term[tuple(values[v] * (n > 1) for v, n in zip(ids, term.shape, strict=True))]) for term in terms)
        for ids, terms in as_terms(tables).items()
    )


def narrowed(
    sizes: Mapping[int, int],
    tables: Mapping[tuple[int, ...], Any],
    incumbent: Minimum,
    patience: int,
) -> tuple[Minimum, dict[int, Any]]:
    """Bounds a sum of tables from below, and drops values of which all sums are above the incumbent.

    By min-sum diffusion: costs are moved between tables that share a variable, forwards and backwards, which leaves
    their sum as it is. At each variable, which then has the costs of all tables around, values are dropped for which
    the bound is too high, and that is taken which costs least with the variables before: the next incumbent, if its
    sum is less.

    Args:
        sizes: The number of values of each variable.
        tables: By their variables, in ascending order.
        incumbent: The least sum so far. It is returned where no smaller sum is met.
        patience: The number of sweeps without progress after which it is final: a tenth of the values dropped, or so
            much of a gain of the bound that it may reach the incumbent.

    Returns:
        The next incumbent with its bound, and masks of the values with which a sum may be no more.
    """
    state, visits = _Diffusion(sizes, as_terms(tables)), 0
    history = [(-math.inf, state.count)]
    for sweep in range(1, 1 + _SWEEPS):
        values = state.sweep(incumbent.total)
        if (total := total_of(tables, values)) < incumbent.total:
            incumbent = incumbent._replace(values=values, total=total)
        upper = incumbent.total
        history.append((state.bound, state.count))
        visits += state.entries
        if state.bound >= upper - ROUNDED * abs(upper) or visits > _VISITS:
            break
        if state.bound < _NEAR * upper:
            break
        if sweep > patience:
            bound, left = history[sweep - patience]
            gain = (state.bound - bound) * (_SWEEPS - sweep) / patience
            if state.bound + gain <= upper and state.count > (1 - LEAST_PART) * left:
                break
    remaining = {v: np.isin(np.arange(n), state.rows[v]) for v, n in sizes.items()}
    return incumbent._replace(bound=max(incumbent.bound, min(state.bound, incumbent.total))), remaining


class _Diffusion:
    """Tables between which costs are moved, without the values that were dropped."""

    def __init__(self, sizes: Mapping[int, int], tables: Tables) -> None:
        self.rows: dict[int, Any] = {v: np.arange(n) for v, n in sizes.items()}
        self._alone: dict[int, Table] = {v: np.zeros(n) for v, n in sizes.items()}
        self._wide = {ids: Movable(terms) for ids, terms in tables.items() if len(ids) > 1}
        for ids, terms in tables.items():
            if len(ids) == 1:
                self._alone[ids[0]] = self._alone[ids[0]] + dense(terms)
        self._order = _order(sizes, self._wide)
        self._rank = {v: i for i, v in enumerate(self._order)}
        self._swept = False
        self._at = {v: [ids for ids in self._wide if v in ids] for v in sizes}
        self._least: dict[Any, float] = {ids: float(table.least(0).min()) for ids, table in self._wide.items()}
        self._least.update((v, float(table.min())) for v, table in self._alone.items())
        #: All sums are at least that.
        self.bound = sum(self._least.values()) + sum(float(dense(t).sum()) for ids, t in tables.items() if not ids)

    @property
    def entries(self) -> int:
        """How many entries a sweep visits."""
        return sum(table.size * table.ndim for table in self._wide.values())

    @property
    def count(self) -> int:
        """How many values are left of all variables."""
        return sum(map(len, self.rows.values()))

    def sweep(self, upper: float) -> Values:
        """Moves all costs onwards, and drops values of sums above ``upper``; returns the best values on the way."""
        chosen: Values = {}
        for v in self._order:
            self._gather(v)
            self._drop(v, upper)
            chosen[v] = self._best(v, chosen)
            self._spread(v)
        self._order.reverse()
        self._swept = True
        self._rank = {v: -i for v, i in self._rank.items()}
        return {v: int(self.rows[v][k]) for v, k in chosen.items()}

    def _gather(self, v: int) -> None:
        """Moves the costs of tables around a variable to it.

        Not of those with later variables only: the sweep before ended there with `v`, and left nothing to move.
        """
        for ids in self._at[v]:
            if self._swept and all(self._rank[u] >= self._rank[v] for u in ids):
                continue
            least = self._wide[ids].least(ids.index(v))
            self._wide[ids].add(ids.index(v), -least)
            self._alone[v] = self._alone[v] + least
            self._note(ids, 0.0)
        self._note(v, float(self._alone[v].min()))

    def _note(self, key: Any, least: float) -> None:
        self.bound += least - self._least[key]
        self._least[key] = least

    def _drop(self, v: int, upper: float) -> None:
        """Drops the values of a variable with which all sums are above ``upper``."""
        keep = self._alone[v] - self._least[v] + self.bound <= upper + ROUNDED * abs(upper)
        if not keep.all() and keep.any():
            self.rows[v], self._alone[v] = self.rows[v][keep], self._alone[v][keep]
            for ids in self._at[v]:
                self._wide[ids].compress(keep, ids.index(v))

    def _best(self, v: int, chosen: Values) -> int:
        """The value of a variable that costs least with those that are chosen."""
        total = self._alone[v]
        for ids in self._at[v]:
            total = total + self._wide[ids].least(ids.index(v), [*map(chosen.get, ids)])
        return int(total.argmin())

    def _spread(self, v: int) -> None:
        """Moves the costs of a variable to the tables that it shares with later ones."""
        onwards = [ids for ids in self._at[v] if max(self._rank[u] for u in ids) > self._rank[v]]
        share = self._alone[v] / max(len(onwards), len(self._at[v]) - len(onwards), 1)
        for ids in onwards:
            self._wide[ids].add(ids.index(v), share)
            self._note(ids, float(share.min()))  # all that it cost at the variable's values is gathered
            self._alone[v] = self._alone[v] - share
        self._note(v, float(self._alone[v].min()))


def _order(variables: Iterable[int], tables: Iterable[tuple[int, ...]]) -> list[int]:
    """The variables in their order, but those between others of later ones only, or of earlier ones, beside the first.

    So arguments come before what first takes them, and shared copies behind what they copy.
    """
    near: dict[int, set[int]] = {v: set() for v in variables}
    for ids in tables:
        for v in ids:
            near[v].update(u for u in ids if u != v)

    def place(v: int) -> tuple[int, int]:
        first, last = min(near[v], default=v), max(near[v], default=v)
        return (first, -1) if first > v else (first, 1) if last < v else (v, 0)

    return sorted(near, key=place)
