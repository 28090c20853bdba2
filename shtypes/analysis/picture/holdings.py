"""What each device holds of a value, by its type: slices, copies, terms of a sum, values of its own. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shtypes.types import ShType, State


class Holding(NamedTuple):
    """What one device holds."""

    place: tuple[tuple[str, int], ...]  # the device's index along each mesh axis
    slices: tuple[tuple[int, int], ...]  # start and stop in each dim
    term: int | None  # which term of the pending sum it is; None where none is pending
    own: int | None  # which of the varying values it is; None where none vary

    @property
    def part(self) -> tuple[object, ...]:
        """What tells apart what devices hold; copies are equal."""
        return self.slices, self.term, self.own

    def text(self, t: ShType) -> str:
        """The part in brackets, such as ``[0:4, :]``, and which term it is."""
        dims = (":" if (a, b) == (0, n) else f"{a}:{b}" for (a, b), n in zip(self.slices, t.shape, strict=True))
        words = [f"[{', '.join(dims)}]" if t.dims else "value"]
        words += [] if self.term is None else [f"term {self.term}"]
        words += [] if self.own is None else [f"own {self.own}"]
        return " ".join(words)

    def words(self, t: ShType) -> str:
        """The device and what it holds, in words."""
        at = ", ".join(f"{axis}={i}" for axis, i in self.place)
        return f"{at}: {self.text(t)}"


def holding(t: ShType, place: Mapping[str, int]) -> Holding:
    """What the device at a place, its index along each mesh axis, holds."""
    slices = []
    for d in t.dims:
        size = d.size // t.mesh.product(d.axes)
        start = _index(t, d.axes, place) * size
        slices.append((start, start + size))
    terms, own = t.axes(State.UNREDUCED), t.axes(State.VARYING)
    return Holding(
        tuple(place.items()),
        tuple(slices),
        _index(t, terms, place) if terms else None,
        _index(t, own, place) if own else None,
    )


def _index(t: ShType, axes: tuple[str, ...], place: Mapping[str, int]) -> int:
    """The index of a device along several axes, major to minor."""
    index = 0
    for axis in axes:
        index = index * t.mesh.shape[axis] + place[axis]
    return index


def visible(count: int, most: int) -> list[int | None]:
    """Which of some indices are shown; None stands for those that are not."""
    if count <= most:
        return [*range(count)]
    return [*range(most - 2), None, count - 1]


Row = tuple[dict[str, int] | None, list[Holding | None]]


def grid(t: ShType, rows: int, columns: int) -> Iterator[Row]:
    """What the devices hold, in rows along the last mesh axis: the place of each row, and what its devices hold.

    Of more rows or columns than are asked for, some are left out; None stands for them.
    """
    *outer, last = t.mesh.axis_names or ("",)
    sizes = [t.mesh.shape[axis] for axis in outer]
    across = visible(t.mesh.shape.get(last, 1), columns)
    every = itertools.product(*map(range, sizes))
    hidden = False
    for wanted in visible(t.mesh.product(outer), rows):
        if wanted is None:
            hidden = True
            yield None, [None for _ in across]
            continue
        indices = (n - 1 for n in sizes) if hidden else next(every)  # what is hidden comes before the last row
        place = dict(zip(outer, indices, strict=True))
        yield place, [None if j is None else holding(t, place | ({last: j} if last else {})) for j in across]


def distinct(t: ShType) -> int:
    """How many different parts there are; each other device holds a copy of one."""
    return t.mesh.product(t.axes(State.SHARDED, State.UNREDUCED, State.VARYING))


def sentences(t: ShType) -> list[str]:
    """What each mesh axis does, in words."""
    found = []
    for i, d in enumerate(t.dims):
        if d.axes:
            name = f" (`{d.name}`)" if d.name else ""
            order = f", {d.axes[0]} major" if len(d.axes) > 1 else ""
            size, verb = d.size // t.mesh.product(d.axes), "shard" if len(d.axes) > 1 else "shards"
            found.append(f"{', '.join(d.axes)}: {verb} dim {i}{name} of size {d.size} in slices of {size}{order}")
    for state, words in _WORDS.items():
        axes = t.axes(state)
        if axes:
            found.append(f"{', '.join(axes)}: {words}")
    return found


_WORDS = {
    State.REDUCED: "the same copy on each device; its gradient is a pending sum",
    State.INVARIANT: "the same copy on each device; its gradient is summed at once",
    State.UNREDUCED: "each device holds one term of a pending sum",
    State.VARYING: "each device holds a value of its own",
}
