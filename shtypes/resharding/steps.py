"""Plans: steps from one sharding type to another, each a collective or a local move, with their bytes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shtypes.resharding.device_permutation import Pieces, index_along, pieces_of
from shtypes.resharding.moves import ROUNDS, Kind, in_words, ring_bytes
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh


@dataclass(frozen=True)
class Step:
    """One collective or one local move."""

    kind: Kind
    #: Its mesh axes; for a collective, major to minor in the order of the devices' indices.
    axes: tuple[str, ...]
    src: ShType
    dst: ShType

    @property
    def live(self) -> tuple[str, ...]:
        """The axes of more than one device, which are those in the compiled program."""
        return live(self.src.mesh, self.axes)

    @functools.cached_property
    def group(self) -> int:
        """The number of devices that exchange data."""
        return self.src.mesh.product(self.axes)

    @functools.cached_property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each dim, the (minor-most) axes of more than one device that stop sharding it."""
        return difference(self.src, self.dst)

    @functools.cached_property
    def gained(self) -> tuple[tuple[str, ...], ...]:
        """For each dim, the (minor-most) axes of more than one device that start sharding it."""
        return difference(self.dst, self.src)

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes that each device sends (ring model; direct sends for all-to-all)."""
        if self.kind is Kind.PERMUTE:
            parts = 1 if self.pieces is None else len(self.pieces.rounds)
            return self.dst.local_bytes * self.launches // parts
        return ring_bytes(ROUNDS.get(self.kind, 0), self.group, max(self.src.local_bytes, self.dst.local_bytes))

    @property
    def launches(self) -> int:
        """The number of collectives in the compiled program; zero over axes of one device, or without elements."""
        if not self.src.size:
            return 0
        if self.kind is Kind.PERMUTE:
            return sum(bool(r.pairs) for r in self.pieces.rounds) if self.pieces else int(self._moves)
        return int(self.kind.communicates and self.group > 1)

    @property
    def _moves(self) -> bool:
        """For a permute, whether any device needs another shard than it has, without examining each."""
        before, after = (live(t.mesh, t.axes(State.UNREDUCED)) for t in (self.src, self.dst))
        return any(self.lost) or any(self.gained) or before != after

    @functools.cached_property
    def exchange(self) -> tuple[tuple[int, int], ...]:
        """For a permute of full shards, (source, destination) pairs of indices over `live`.

        Empty if each device keeps its shard, and for a permute of `pieces`.
        """
        if self.pieces is not None:
            return ()
        pairs = _permutation(self.src, self.dst, self.live)
        return pairs if any(a != b for a, b in pairs) else ()

    @functools.cached_property
    def pieces(self) -> Pieces | None:
        """The rounds of a permute that joins shards from pieces; None if it moves full shards."""
        if self.kind is not Kind.PERMUTE or self.src.local_shape == self.dst.local_shape:
            return None
        return pieces_of(self.src, self.dst, self.live)

    def __str__(self) -> str:
        return in_words(self.kind.value, self.axes)


@dataclass(frozen=True)
class Plan:
    """The steps from ``src`` to ``dst``; none if they are equal."""

    src: ShType
    dst: ShType
    steps: tuple[Step, ...]  # each starts from the type of the one before

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes that each device sends in total."""
        return sum(s.bytes for s in self.steps)

    @functools.cached_property
    def launches(self) -> int:
        """The number of collectives in the compiled program."""
        return sum(s.launches for s in self.steps)

    @functools.cached_property
    def peak_bytes(self) -> int:
        """The bytes per device of the largest type of the plan, ends included."""
        return max(t.local_bytes for t in (self.src, *(s.dst for s in self.steps)))

    @functools.cached_property
    def plain(self) -> bool:
        """Whether no type is of a reshaped array: no dim is cut into digits, no axis into parts."""
        return all(t.mesh is self.src.mesh and t.shape == self.src.shape for s in self.steps for t in (s.src, s.dst))

    @property
    def communicates(self) -> bool:
        """Whether any step communicates; by states, so that axes of size 1 count."""
        return any(s.kind.communicates for s in self.steps)

    @property
    def words(self) -> str:
        """The communicating steps in words, or empty."""
        return ", ".join(str(s) for s in self.steps if s.kind.communicates)

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps)) or "nothing"


def _permutation(src: ShType, dst: ShType, axes: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """(source, destination) pairs of devices; a device that already holds what it needs keeps it."""
    sizes = [src.mesh.shape[a] for a in axes]
    holders: dict[tuple[int, ...], list[int]] = {}
    receivers: dict[tuple[int, ...], list[int]] = {}
    for index, place in enumerate(itertools.product(*map(range, sizes))):
        at = dict(zip(axes, place, strict=True))
        holders.setdefault(_part(src, at), []).append(index)
        receivers.setdefault(_part(dst, at), []).append(index)
    pairs = []
    for part, targets in receivers.items():
        staying = set(holders[part]) & set(targets)
        givers = [i for i in holders[part] if i not in staying]
        pairs += [(i, i) for i in staying]
        pairs += zip(givers, [i for i in targets if i not in staying], strict=True)
    return tuple(sorted(pairs))


def _part(t: ShType, at: Mapping[str, int]) -> tuple[int, ...]:
    """The part of the value on a device: its slice of each dim, and its term of the pending sum."""
    return (*(index_along(t.mesh, d.axes, at) for d in t.dims), index_along(t.mesh, t.axes(State.UNREDUCED), at))


def difference(t: ShType, other: ShType) -> tuple[tuple[str, ...], ...]:
    """For each dim of ``t``, its live axes after the common prefix with ``other``."""
    dims = zip(t.dims, other.dims, strict=True)
    return tuple(
        [() if a.axes == b.axes else after_common(live(t.mesh, a.axes), live(t.mesh, b.axes)) for a, b in dims]
    )


def after_common(axes: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The axes after the common prefix of two dims."""
    return axes[common_prefix(axes, other) :]


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """The length of the common prefix of two dims' axes."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def live(mesh: Mesh, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes of more than one device."""
    return tuple(a for a in axes if mesh.shape[a] > 1)
