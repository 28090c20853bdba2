"""The moves between states of one mesh axis, as data: what each does, what it sends, and what its transpose sends."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from shtypes.errors import quoted
from shtypes.types import State

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


class Kind(enum.Enum):
    """What a step of a plan does on the devices; the value is how reports write it."""

    RELABEL = "relabel"  # nothing: reduced and invariant hold the same value
    MASK = "mask"  # keep the value on index 0, zero elsewhere
    SLICE = "slice"  # take the own slice
    PLACE = "place"  # put the own slice in zeros
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "permute"  # shards, or pieces of them, change places
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"

    @property
    def communicates(self) -> bool:
        """Whether it moves anything between devices."""
        return self in _COMMUNICATING

    __hash__ = object.__hash__


def in_words(kind: str, axes: Iterable[str]) -> str:
    """A step in words, such as ``all-gather over `tp```."""
    return f"{kind} over {quoted(axes)}"


_COMMUNICATING: Final = frozenset(
    {Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.PERMUTE, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE}
)


class Grade(enum.IntEnum):
    """How free a move is; the larger, the dearer."""

    FREE = 0  # silent in both directions, and so to any order of derivative
    FREE_FORWARD = 1  # silent now, communicates in the backward pass
    COMMUNICATING = 2


class Move(NamedTuple):
    """One row: over an axis of size n it sends ``rounds * (n - 1) / n * B`` bytes per device.

    B is the bytes per device of the larger of the two local arrays.
    """

    kind: Kind
    grade: Grade
    rounds: int = 0

    def bytes(self, n: int, local_bytes: int) -> int:
        """Bytes that each device sends, in the ring model (direct sends for all-to-all), rounded up."""
        return ring_bytes(self.rounds, n, local_bytes)


def ring_bytes(rounds: int, n: int, local_bytes: int) -> int:
    """``rounds * (n - 1) / n * local_bytes``, rounded up."""
    return -(-rounds * (n - 1) * local_bytes // n)


FREE, FREE_FORWARD, COMMUNICATING = Grade

#: Every move that keeps the denoted value. An absent pair is not possible, or is no move at all (equal states; sharded
#: to sharded is another dim).
MOVES: Final[Mapping[tuple[State, State], Move]] = {
    (REDUCED, INVARIANT): Move(Kind.RELABEL, FREE),
    (INVARIANT, REDUCED): Move(Kind.RELABEL, FREE_FORWARD),  # transpose: unreduced to invariant, an all-reduce
    (REDUCED, UNREDUCED): Move(Kind.MASK, FREE),
    (INVARIANT, UNREDUCED): Move(Kind.MASK, FREE),
    (REDUCED, SHARDED): Move(Kind.SLICE, FREE),
    (INVARIANT, SHARDED): Move(Kind.SLICE, FREE_FORWARD),  # transpose: sharded to invariant, an all-gather
    (SHARDED, UNREDUCED): Move(Kind.PLACE, FREE),
    (SHARDED, REDUCED): Move(Kind.ALL_GATHER, COMMUNICATING, 1),
    (SHARDED, INVARIANT): Move(Kind.ALL_GATHER, COMMUNICATING, 1),
    (SHARDED, SHARDED): Move(Kind.ALL_TO_ALL, COMMUNICATING, 1),
    (UNREDUCED, REDUCED): Move(Kind.ALL_REDUCE, COMMUNICATING, 2),
    (UNREDUCED, INVARIANT): Move(Kind.ALL_REDUCE, COMMUNICATING, 2),
    (UNREDUCED, SHARDED): Move(Kind.REDUCE_SCATTER, COMMUNICATING, 1),
}

#: What turns a value with a global meaning into a family, or back, and changes what is denoted. Not unreduced to
#: varying: how a pending sum is split is not a function of its value.
REINTERPRETATIONS: Final[Mapping[tuple[State, State], Grade]] = {
    (SHARDED, VARYING): FREE,
    (VARYING, SHARDED): FREE,
    (REDUCED, VARYING): FREE,
    (VARYING, UNREDUCED): FREE,  # "these are partial sums"
    (INVARIANT, VARYING): FREE_FORWARD,  # transpose: a psum
}
