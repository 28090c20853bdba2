"""The terms of the objective: costs in several units, as tables over decision variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.solver.terms import Table, Tables, Terms, add_to, dense

#: The standard deviation of the logarithm of random multiples.
_SPREAD: Final = 0.7


class Measure(NamedTuple):
    """A cost in several units, each a number or a table over decision variables."""

    seconds: Any  # of computing
    comm: Any  # seconds of communication
    memory: Any  # bytes on each device
    sent: Any  # bytes that each device sends
    reshards: Any  # in the program text

    def weighted(self, byte: float, reshard: float, weights: tuple[float, float] = (1.0, 1.0)) -> Any:
        """The objective: weighted seconds, with prices for a byte of memory and a reshard."""
        return weights[0] * self.seconds + weights[1] * self.comm + byte * self.memory + reshard * self.reshards

    def __add__(self, other: Any) -> Measure:
        return Measure(*(a + b for a, b in zip(self, other, strict=True)))

    def map(self, f: Callable[[Table], Table]) -> Measure:
        """The cost with a function applied to its tables."""
        return Measure(*(f(x) if isinstance(x, np.ndarray) else x for x in self))

    @property
    def scalars(self) -> Measure:
        """The first entries of the tables."""
        return Measure(*(float(np.ravel(x)[0]) for x in self))

    def times(self, n: float, *, reshards: float | None = None) -> Measure:
        """The cost of ``n`` runs; ``reshards`` overrides the factor of these."""
        count = n if reshards is None else reshards
        if n == count == 1:
            return self
        return Measure(self.seconds * n, self.comm * n, self.memory * n, self.sent * n, self.reshards * count)


FREE: Final = Measure(0.0, 0.0, 0.0, 0.0, 0.0)


class Factor(NamedTuple):
    """A term of the objective: the minimum of alternatives, as tables over some decision variables."""

    ids: tuple[int, ...]
    alternatives: list[Measure]


def with_varied_memory(factors: Iterable[Factor], seed: int) -> Iterator[Factor]:
    """Yields factors with random multiples of their memory."""
    rng = np.random.default_rng(seed)
    for factor in factors:
        times = float(np.exp(_SPREAD * rng.normal()))
        yield Factor(factor.ids, [cost._replace(memory=cost.memory * times) for cost in factor.alternatives])


def combined(
    factors: Iterable[Factor],
    byte: float,
    reshard: float,
    weights: tuple[float, float] = (1.0, 1.0),
) -> Tables:
    """Sums factors into tables of the objective, keyed by their decision variables in ascending order."""
    tables: dict[tuple[int, ...], Terms] = {}
    for factor in factors:
        terms: Terms = [cost.weighted(byte, reshard, weights) for cost in factor.alternatives]
        ids = tuple(sorted(set(factor.ids)))
        if len(ids) < len(factor.ids):  # a variable tied to itself takes the diagonal
            terms = [dense(terms)]
        letters = "".join(chr(97 + ids.index(i)) for i in factor.ids)
        add_to(tables, ids, [np.einsum(f"{letters}->{''.join(sorted(set(letters)))}", term) for term in terms])
    return tables
