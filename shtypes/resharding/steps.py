"""What a plan is: steps from one sharding type to another, each one collective or one local move, with their bytes."""

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
    #: The mesh axes it happens over; for a collective, major to minor in the order of the devices' indices.
    axes: tuple[str, ...]
    src: ShType  # the type before
    dst: ShType  # the type after

    @property
    def live(self) -> tuple[str, ...]:
        """The axes that have more than one device: those that the compiled program names."""
        return live(self.src.mesh, self.axes)

    @functools.cached_property
    def group(self) -> int:
        """The number of devices that exchange data."""
        return self.src.mesh.product(self.axes)

    @functools.cached_property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each dim, the axes of more than one device that stop sharding it (its minor-most ones)."""
        return difference(self.src, self.dst)

    @functools.cached_property
    def gained(self) -> tuple[tuple[str, ...], ...]:
        """For each dim, the axes of more than one device that start to shard it (its minor-most ones)."""
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
        """How many collectives the compiled program has for it; none over axes of one device, or of no elements."""
        if not self.src.size:
            return 0
        if self.kind is Kind.PERMUTE:
            return sum(bool(r.pairs) for r in self.pieces.rounds) if self.pieces else int(self._moves)
        return int(self.kind.communicates and self.group > 1)

    @property
    def _moves(self) -> bool:
        """For a permute, whether any device needs another shard than it has, without a look at each of them."""
        before, after = (live(t.mesh, t.axes(State.UNREDUCED)) for t in (self.src, self.dst))
        return any(self.lost) or any(self.gained) or before != after

    @functools.cached_property
    def exchange(self) -> tuple[tuple[int, int], ...]:
        """For a permute, (source, destination) pairs of indices over `live`; empty if each device keeps its shard.

        Empty, too, where pieces of shards move, which `pieces` tells.
        """
        if self.pieces is not None:
            return ()
        pairs = _permutation(self.src, self.dst, self.live)
        return pairs if any(a != b for a, b in pairs) else ()

    @functools.cached_property
    def pieces(self) -> Pieces | None:
        """The rounds of a permute that joins shards from pieces of others; None where it moves full shards."""
        if self.kind is not Kind.PERMUTE or self.src.local_shape == self.dst.local_shape:
            return None
        return pieces_of(self.src, self.dst, self.live)

    def __str__(self) -> str:
        return in_words(self.kind.value, self.axes)


@dataclass(frozen=True)
class Plan:
    """The steps from ``src`` to ``dst``; none if they are equal."""

    src: ShType  # the type it starts from
    dst: ShType  # the type it ends in
    steps: tuple[Step, ...]  # what happens, in order; each step starts where the one before ended

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes that each device sends in all."""
        return sum(s.bytes for s in self.steps)

    @functools.cached_property
    def launches(self) -> int:
        """The number of collectives in the compiled program."""
        return sum(s.launches for s in self.steps)

    @functools.cached_property
    def peak_bytes(self) -> int:
        """The bytes per device of the largest type on the way, ends included."""
        return max(t.local_bytes for t in (self.src, *(s.dst for s in self.steps)))

    @functools.cached_property
    def plain(self) -> bool:
        """Whether each type on the way is one of the array as it is: no dim in digits, no axis in parts."""
        return all(t.mesh is self.src.mesh and t.shape == self.src.shape for s in self.steps for t in (s.src, s.dst))

    @property
    def communicates(self) -> bool:
        """Whether any step is a communicating one; by states, so that the size of an axis does not matter."""
        return any(s.kind.communicates for s in self.steps)

    @property
    def words(self) -> str:
        """The communicating steps in words; empty if there are none."""
        return ", ".join(str(s) for s in self.steps if s.kind.communicates)

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps)) or "nothing"


def _permutation(src: ShType, dst: ShType, axes: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Which device's shard goes where; a device that already holds what it needs keeps it."""
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
    """Which part of the value a device holds: its slice of each dim, and its term of the pending sum."""
    return (*(index_along(t.mesh, d.axes, at) for d in t.dims), index_along(t.mesh, t.axes(State.UNREDUCED), at))


def difference(t: ShType, other: ShType) -> tuple[tuple[str, ...], ...]:
    """For each dim of ``t``, its live axes after those that ``other`` has too."""
    return tuple(
        after_common(live(t.mesh, a.axes), live(t.mesh, b.axes)) for a, b in zip(t.dims, other.dims, strict=True)
    )


def after_common(axes: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The axes that follow those that two dims have in common."""
    return axes[common_prefix(axes, other) :]


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many axes two dims have in common, from the major one."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def live(mesh: Mesh, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes that have more than one device."""
    return tuple(a for a in axes if mesh.shape[a] > 1)
