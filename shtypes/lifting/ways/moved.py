"""Values that are moved along a sharded dim and not materialized: tables of where their elements come from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shtypes.ops.arranged import Shard, origin_in


class Moved(NamedTuple):
    """A value that is not materialized: a table of where its elements come from.

    Attributes:
        sources: Shards, replicated values, scalars that fill, and results of windows.
        origin: For each element along the dim, which source it comes from, and its index there.
    """

    sources: tuple[Any, ...]
    origin: np.ndarray

    @property
    def size(self) -> int:
        """The size of the dim."""
        return len(self.origin)

    def is_alike(self, other: Moved) -> bool:
        """Whether the sources of another value are moved in the same way, and are no scalars."""
        pairs = list(zip(self.sources, other.sources, strict=False))
        return (
            len(pairs) == len(self.sources) == len(other.sources)
            and all(type(x) is type(y) and isinstance(x, (Shard, Results)) and x.size == y.size for x, y in pairs)
            and np.array_equal(self.origin, other.origin)
        )

    @classmethod
    def of(cls, x: Any, size: int) -> Moved:
        """A value of a size as it is."""
        return cls((x,), origin_in(0, np.arange(size)))


class Layout(NamedTuple):
    """Which elements of a dim each device has: those from its first on to that of the next."""

    first: tuple[int, ...]
    size: int

    @classmethod
    def even(cls, size: int, devices: int) -> Layout:
        """As many for each device, but for the last ones."""
        return cls(tuple(min(d * -(-size // devices), size) for d in range(devices)), size)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many elements each device has."""
        return tuple(np.diff([*self.first, self.size]).tolist())

    @property
    def is_balanced(self) -> bool:
        """Whether no device has more than twice its share."""
        return min(self.counts) >= 0 and max(self.counts) * len(self.first) <= 2 * (self.size + len(self.first))

    def places(self) -> np.ndarray:
        """The elements of all devices, as many for each; -1 where a device has fewer."""
        index = np.arange(max(self.counts))
        return np.where(index < np.array(self.counts)[:, None], np.add.outer(self.first, index), -1).reshape(-1)

    def moved(self, x: Any) -> Moved:
        """The value of the dim of which devices have these elements."""
        held = max(self.counts)
        place = np.repeat(np.arange(len(self.first)) * held - self.first, self.counts) + np.arange(self.size)
        return Moved((Shard(x, len(self.first) * held),), origin_in(0, place))


class Results(NamedTuple):
    """Results of windows along a dim that are not computed yet.

    Attributes:
        size: How many there are.
        beside: The first of each device of those whose windows lie mostly on it.
        unit: Of how many results the first have the same padding.
        compute: What devices have of them, by the first of each device, and how many it computes.
    """

    size: int
    beside: tuple[int, ...]
    unit: int
    compute: Callable[[Sequence[int], Sequence[int]], Any]

    def asked(self, places: np.ndarray, devices: np.ndarray) -> Moved:
        """All of them: each device computes from the first place on that it is asked for, if most of them are."""
        asked = (min(places[devices == d], default=self.size) for d in range(1, len(self.beside)))
        layout = Layout((0, *map(int, asked)), self.size)
        if 2 * len(places) < self.size or not layout.is_balanced:
            layout = Layout(tuple(np.clip(self.beside, 0, self.size).tolist()), self.size)
        layout = layout._replace(first=tuple(n // self.unit * self.unit for n in layout.first))
        return layout.moved(self.compute(layout.first, layout.counts))


def on_results(on: Callable[..., Sequence[Any]], of: Sequence[Results], count: int) -> list[Results]:
    """The results, so many, of a function of what windows compute, once it is asked for."""

    @functools.cache
    def computed(first: Sequence[int], counts: Sequence[int]) -> Sequence[Any]:
        return on(*[each.compute(first, counts) for each in of])

    def nth(k: int) -> Results:
        return of[0]._replace(compute=lambda first, counts: computed(first, counts)[k])

    return list(map(nth, range(count)))
