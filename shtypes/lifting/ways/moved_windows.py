"""Windows of values that are moved along a sharded dim: of joins, of pads by reflection; and moves of their results.

Neither is materialized at a size that the devices do not divide: each device gets what its windows reach from where
the elements come from, and computes the results that it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from shtypes.errors import ShardingTypeError
from shtypes.lifting.ways.windows import (
    CONV,
    POOLS,
    SCATTER,
    Border,
    border_along,
    border_of_sharded_window,
    bordered,
    fill_of,
    unbordered,
    unit_of,
    windows_along,
)
from shtypes.ops.arranged import Shard, origin_in
from shtypes.ops.shards import (
    Axes,
    as_unreduced,
    bound,
    type_of,
)


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


class _Place(NamedTuple):
    """The dims along which windows move: of the operand, of the result and of the kernel."""

    operand: int
    result: int
    kernel: int | None = None


def _places(eqn: Any) -> list[_Place]:
    if eqn.primitive.name == CONV:
        numbers = eqn.params["dimension_numbers"]
        specs = (spec[2:] for spec in (numbers.lhs_spec, numbers.out_spec, numbers.rhs_spec))
        return [_Place(*dims) for dims in zip(*specs, strict=True)]
    return [_Place(d, d) for d in range(eqn.outvars[0].aval.ndim)] if eqn.primitive.name in POOLS else []


def window_dims(eqn: Any) -> frozenset[int]:
    """The dims along which windows move, and their results or their kernel lie, too."""
    return frozenset(d for d, *others in _places(eqn) if d in others)


def result_dims(eqn: Any) -> frozenset[int]:
    """The dims along which windows move, and their results lie, too."""
    return frozenset(d for d, result, _ in _places(eqn) if d == result)


def windows_of_moved(
    eqn: Any, operands: Sequence[Any], dim: int, axes: Axes, device: Any, block: Callable[[Moved], Any]
) -> Any:
    """What windows along a dim compute: their results, or of a kernel that is moved a pending sum.

    Args:
        eqn: The equation.
        operands: Moved values, and other kernels.
        dim: The dim.
        axes: The axes that shard it.
        device: The index of the device along the axes.
        block: Materializes a moved value, with zeros beyond its end.
    """
    return _Windows(eqn, dim, axes, device).of(operands, block)


class _Windows:
    """Windows of an equation along a dim. Arguments as of `windows_of_moved`."""

    def __init__(self, eqn: Any, dim: int, axes: Axes, device: Any) -> None:
        self.eqn, self.dim, self.axes, self.device = eqn, dim, axes, device
        self.name, self.n = eqn.primitive.name, type_of(device).mesh.product(axes)

    def of(self, operands: Sequence[Any], block: Callable[[Moved], Any]) -> Any:
        """What they compute."""
        convolves, scatters = self.name == CONV, self.name == SCATTER
        x, *others = operands if convolves else (operands[-1], *operands[:-1])
        sums = convolves and isinstance(others[0], Moved)
        if self.dim not in (window_dims if sums else result_dims)(self.eqn):
            raise ShardingTypeError(f"`{self.name}` has its results along another dim than {self.dim}")
        self._i = [d for d, *_ in _places(self.eqn)].index(self.dim)
        self._w, size = windows_along(self.eqn)[self._i], self.eqn.outvars[0].aval.shape
        if sums:
            return self._summed(x, block(others[0]), size[_places(self.eqn)[self._i].result])
        compute: Callable[[Sequence[int], Sequence[int]], Any]
        if scatters:
            compute = functools.partial(self._scattered, x, block(others[0]), others[0].size)
        else:
            compute = functools.partial(self._gathered, x, others)
        beside = self._beside(others[0].size if scatters else x.size, scatters=scatters)
        return Results(size[self.dim], beside, unit_of(self._w), functools.cache(compute))

    def _beside(self, size: int, *, scatters: bool) -> tuple[int, ...]:
        """The first result of each device whose windows lie mostly on it, or which lies mostly in its windows."""
        w, devices = self._w, range(1, self.n)
        offset = w.padding[0] - Fraction((w.size - 1) * w.window_dilation, 2)
        starts = [Fraction(d * size, self.n) for d in devices]
        if scatters:
            return (0, *(round(start * w.stride - offset) for start in starts))
        return (0, *(round((start * w.base_dilation + offset) / w.stride) for start in starts))

    def _border(self, first: Sequence[int], counts: Sequence[int]) -> Border:
        border = border_along(self._w, first, counts)
        if border is None:
            raise ShardingTypeError(f"the padding of `{self.name}` is another one on each device")
        return border

    def _bordered(self, x: Moved, border: Border, fill: Any = 0) -> Any:
        return bordered(x.sources, x.origin, self.device, self.dim, self.axes, border, fill)

    def _bound(self, border: Border, *xs: Any) -> Any:
        padding = [tuple(map(int, pads)) for pads in self.eqn.params["padding"]]
        padding[self._i] = border.padding
        return bound(self.eqn, padding=tuple(padding))(*xs)

    def _summed(self, x: Moved, kernel: Any, results: int) -> Any:
        border = border_of_sharded_window(self._w, type_of(kernel).shape[self.dim], results, self.n)
        if border is None:
            raise ShardingTypeError(f"the padding of `{self.name}` is another one on each device")
        return as_unreduced(self._bound(border, self._bordered(x, border), kernel), self.axes)

    def _gathered(self, x: Moved, others: Sequence[Any], first: Sequence[int], counts: Sequence[int]) -> Any:
        border = self._border(first, counts)
        y = self._bordered(x, border, fill_of(self.eqn))
        if self.name == CONV:
            return self._bound(border, y, *others)
        return self._bound(border, *(self._bordered(z, border) for z in others), y)

    def _scattered(self, x: Moved, source: Any, size: int, first: Sequence[int], counts: Sequence[int]) -> Any:
        layout = Layout.even(size, self.n)
        border = self._border(layout.first, layout.counts)
        y = self._bound(border, source, self._bordered(x, border, fill_of(self.eqn)))
        return unbordered(y, self.dim, self.axes, border, first, max(counts))
