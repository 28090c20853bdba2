"""Tables over discrete variables, each the least of terms over some of its variables.

A use takes its value from the source or from its shared copy: the least of two terms, each over two of three variables,
has a tenth of the entries of their table.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]
#: Arrays that broadcast to one shape: the table is the least of them.
Terms = Sequence[Table]
Tables = Mapping[tuple[int, ...], Terms]

#: The most dims of what is one array always, since its terms have no fewer entries.
_FLAT: Final = 2


def dense(terms: Terms) -> Table:
    """The table as one array."""
    return functools.reduce(np.minimum, terms)


def as_terms(tables: Mapping[tuple[int, ...], Terms | Table]) -> Tables:
    """Tables of terms, also from arrays."""
    return {ids: [table] if isinstance(table, np.ndarray) else table for ids, table in tables.items()}


def add_to(tables: dict[tuple[int, ...], Terms], ids: tuple[int, ...], terms: Terms) -> None:
    """Adds a table to those of a sum."""
    if ids in tables:
        terms = [np.asarray(dense(terms) + dense(tables[ids]))]
    tables[ids] = terms if len(ids) > _FLAT else [dense(terms)]


def compressed(terms: Terms, keep: Any, dim: int) -> Terms:
    """The table with some values of a variable."""
    return [term if term.shape[dim] == 1 < len(keep) else np.compress(keep, term, dim) for term in terms]


def taken(terms: Terms, domains: Sequence[Sequence[int] | None]) -> Terms:
    """The table at some values of each variable; at all where they are None."""
    for i, domain in enumerate(domains):
        if domain is not None:
            terms = [term if term.shape[i] == 1 else term.take(domain, i) for term in terms]
    return terms


def rows_of(terms: Terms, dim: int) -> Table:
    """An array with a row for each value of a variable.

    One row is above another by at least as much as the table may be, whatever the other variables have.
    """
    n = max(term.shape[dim] for term in terms)
    own = [term for term in terms if term.shape[dim] == n]
    if len(own) < len(terms):  # what is the same for all values matters where it is least and where it is most
        others = dense([term for term in terms if term.shape[dim] < n])
        free = tuple(i for i in range(others.ndim) if i != dim and all(term.shape[i] == 1 for term in own))
        ends = others.min(free, keepdims=True), others.max(free, keepdims=True)
        own = [np.minimum(term, end) for term in own for end in ends]
    rows = [term.swapaxes(dim, 0).reshape(n, -1) for term in own]
    return rows[0] if len(rows) == 1 else np.concatenate(rows, 1)


class Movable:
    """A table to which costs of single variables are added."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.ndim = [*terms], terms[0].ndim
        self.added = [np.zeros(max(term.shape[i] for term in terms)) for i in range(self.ndim)]  # of each variable

    @property
    def size(self) -> int:
        """How many entries it has."""
        return sum(term.size for term in self.terms)

    def add(self, dim: int, costs: Table) -> None:
        """Adds costs of a variable."""
        self.added[dim] = self.added[dim] + costs

    def compress(self, keep: Any, dim: int) -> None:
        """Drops values of a variable."""
        self.terms, self.added[dim] = [*compressed(self.terms, keep, dim)], self.added[dim][keep]

    def least(self, dim: int, chosen: Sequence[int | None] = ()) -> Table:
        """The least for each value of a variable, where others have what is ``chosen``."""
        fixed = {i: k for i, k in enumerate(chosen) if k is not None}
        least = [self._least_of(term, dim, fixed) for term in self.terms]
        return functools.reduce(np.minimum, least) + self.added[dim]  # type: ignore[no-any-return]

    def _least_of(self, term: Table, dim: int, fixed: Mapping[int, int]) -> Any:
        rest = 0.0
        for i, added in enumerate(self.added):
            if i == dim:
                continue
            if i in fixed:
                term, rest = term.take([fixed[i] * (term.shape[i] > 1)], i), rest + float(added[fixed[i]])
            elif term.shape[i] == 1:
                rest += float(added.min())
            else:
                term = term + added.reshape([-1 if i == j else 1 for j in range(self.ndim)])
        return term.min(tuple(i for i in range(self.ndim) if i != dim)) + rest
