"""The contents of each device by a value's type: slices, copies, terms of a sum, varying values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from shtypes.resharding.device_permutation import index_along
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh

#: The start and stop of a run of indices.
Span: TypeAlias = tuple[int, int]


class Holding(NamedTuple):
    """The contents of one device."""

    place: tuple[tuple[str, int], ...]  # the device's index along each mesh axis
    spans: tuple[tuple[Span, ...], ...]  # the runs of indices of each dim
    term: int | None  # the index of its term of a pending sum, or None
    value: int | None  # the index of its varying value, or None

    @property
    def part(self) -> tuple[object, ...]:
        """A key that only copies share."""
        return self.spans, self.term, self.value

    def boxes(self) -> Iterator[tuple[Span, ...]]:
        """The boxes of the part; several if it has gaps."""
        return itertools.product(*self.spans)

    def text(self, t: ShType) -> str:
        """The part in brackets, such as ``[0:4, :]``, and the index of its term."""
        dims = (_spans_text(spans, n) for spans, n in zip(self.spans, t.shape, strict=True))
        words = [f"[{', '.join(dims)}]" if t.dims else "value"]
        words += [] if self.term is None else [f"term {self.term}"]
        words += [] if self.value is None else [f"own {self.value}"]
        return " ".join(words)

    def words(self, t: ShType) -> str:
        """The device and its part, in words."""
        at = ", ".join(f"{axis}={i}" for axis, i in self.place)
        return f"{at}: {self.text(t)}"


def _spans_text(spans: tuple[Span, ...], size: int) -> str:
    """``:``, ``0:4``, ``0:7:2`` for every other index, ``0:2+4:6`` for others with gaps; the ends of many."""
    if spans == ((0, size),):
        return ":"
    steps = {b[0] - a[0] for a, b in itertools.pairwise(spans)}
    if len(steps) == 1 and all(b - a == 1 for a, b in spans):
        return f"{spans[0][0]}:{spans[-1][1]}:{steps.pop()}"
    texts = [f"{a}:{b}" for a, b in spans]
    return "+".join(texts if len(texts) <= 4 else [*texts[:2], "…", texts[-1]])


def holding(t: ShType, place: Mapping[str, int], base: ShType | None = None) -> Holding:
    """The contents of the device with the indices ``place`` along the mesh axes.

    If ``t`` is of a reshaped view, with axes in parts and dims in digits, ``base`` is a type of the array before it:
    the indices and the result refer to that.
    """
    base = base or t
    at = place if t.mesh is base.mesh else unravel(index_along(base.mesh, base.mesh.axis_names, place), t.mesh)
    slices = []
    for d in t.dims:
        size = d.size // t.mesh.product(d.axes)
        start = index_along(t.mesh, d.axes, at) * size
        slices.append((start, start + size))
    terms, varying = t.axes(State.UNREDUCED), t.axes(State.VARYING)
    return Holding(
        tuple(place.items()),
        tuple(_spans([(t.shape[i], slices[i]) for i in digits]) for digits in digits_of_dims(t, base)),
        index_along(t.mesh, terms, at) if terms else None,
        index_along(t.mesh, varying, at) if varying else None,
    )


def digits_of_dims(t: ShType, base: ShType) -> list[range]:
    """For each dim of the array, the dims of a reshaped view that are its digits, major to minor."""
    ranges, first = [], 0
    for left, n in zip(range(base.ndim)[::-1], base.shape, strict=True):
        stop = first + 1
        while stop < t.ndim and math.prod(t.shape[first:stop]) != n:
            stop += 1
        ranges.append(range(first, stop if left else t.ndim))
        first = stop
    return ranges


def _spans(digits: Sequence[tuple[int, Span]]) -> tuple[Span, ...]:
    """The runs of indices of a dim for slices of its digits, each with the digit's size, major to minor."""
    spans, inner = [(0, 1)], 1
    for size, (start, stop) in reversed(digits):
        if spans == [(0, inner)]:
            spans = [(start * inner, stop * inner)]
        else:
            spans = [(i * inner + a, i * inner + b) for i in range(start, stop) for a, b in spans]
        inner *= size
    return tuple(spans)


def unravel(index: int, mesh: Mesh) -> dict[str, int]:
    """The mesh indices of the device at a linear index, major to minor."""
    place = {}
    for axis, size in reversed([*mesh.shape.items()]):
        index, place[axis] = divmod(index, size)
    return {axis: place[axis] for axis in mesh.axis_names}


def visible(count: int, most: int) -> list[int | None]:
    """The printed ones of ``count`` indices, with None for a gap."""
    if count <= most:
        return [*range(count)]
    return [*range(most - 2), None, count - 1]


Row = tuple[dict[str, int] | None, list[Holding | None]]


def grid(t: ShType, rows: int, columns: int, base: ShType | None = None) -> Iterator[Row]:
    """Rows of devices along the last mesh axis: the indices of each row, and the contents of its devices.

    Long rows and columns are cut, with None for a gap. ``base`` is as for `holding`.
    """
    mesh = (base or t).mesh
    *outer, last = mesh.axis_names or ("",)
    sizes = [mesh.shape[axis] for axis in outer]
    across = visible(mesh.shape.get(last, 1), columns)
    all_indices = itertools.product(*map(range, sizes))
    hidden = False
    for row in visible(mesh.product(outer), rows):
        if row is None:
            hidden = True
            yield None, [None for _ in across]
            continue
        indices = (n - 1 for n in sizes) if hidden else next(all_indices)  # after a gap comes the last row
        place = dict(zip(outer, indices, strict=True))
        yield place, [None if j is None else holding(t, place | ({last: j} if last else {}), base) for j in across]


def distinct(t: ShType) -> int:
    """The number of different parts; other devices hold copies."""
    return t.mesh.product(t.axes(State.SHARDED, State.UNREDUCED, State.VARYING))


def sentences(t: ShType) -> list[str]:
    """The effect of each mesh axis, in words."""
    texts = []
    for i, d in enumerate(t.dims):
        if d.axes:
            name = f" (`{d.name}`)" if d.name else ""
            order = f", {d.axes[0]} major" if len(d.axes) > 1 else ""
            size, verb = d.size // t.mesh.product(d.axes), "shard" if len(d.axes) > 1 else "shards"
            texts.append(f"{', '.join(d.axes)}: {verb} dim {i}{name} of size {d.size} in slices of {size}{order}")
    for state, words in _WORDS.items():
        axes = t.axes(state)
        if axes:
            texts.append(f"{', '.join(axes)}: {words}")
    return texts


_WORDS = {
    State.REDUCED: "the same copy on each device; its gradient is a pending sum",
    State.INVARIANT: "the same copy on each device; its gradient is summed at once",
    State.UNREDUCED: "each device holds one term of a pending sum",
    State.VARYING: "each device holds a value of its own",
}
