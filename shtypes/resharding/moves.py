"""The table of moves between states of a mesh axis: what each does and sends, forward and transposed."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from shtypes.errors import quoted
from shtypes.types import State

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


class Kind(enum.Enum):
    """The operation of a plan's step; the value is its name in reports."""

    RELABEL = "relabel"  # no-op: reduced and invariant hold the same value
    MASK = "mask"  # keeps the value on index 0, zeros elsewhere
    SLICE = "slice"  # takes the device's slice
    PLACE = "place"  # pads the device's slice with zeros
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "permute"  # exchanges shards, or pieces of them
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"

    @property
    def communicates(self) -> bool:
        """Whether it sends anything between devices."""
        return self is Kind.PERMUTE or self in ROUNDS

    __hash__ = object.__hash__


def in_words(kind: str, axes: Iterable[str]) -> str:
    """A step in words, such as ``all-gather over `tp```."""
    return f"{kind} over {quoted(axes)}"


def all_in_words(each: Iterable[str], times: int = 1) -> str:
    """What several steps do, in words, each kind over the same axes once with its count."""
    counted: Counter[str] = Counter()
    for part in itertools.chain.from_iterable(words.split(" and ") for words in each if words):
        n, _, words = part.rpartition(" times ")
        counted[words] += int(n or 1) * times
    return " and ".join(w if n == 1 else f"{n} times {w}" for w, n in counted.items())


#: How often the larger of the two local arrays goes around the ring; a permute sends its shards once.
ROUNDS: Final = {Kind.ALL_REDUCE: 2, Kind.ALL_GATHER: 1, Kind.REDUCE_SCATTER: 1, Kind.ALL_TO_ALL: 1}


class Grade(enum.IntEnum):
    """The cost class of a move, in increasing order."""

    FREE = 0  # silent in both directions, and in all derivatives
    FREE_FORWARD = 1  # silent forward, communicates in the backward pass
    COMMUNICATING = 2


class Move(NamedTuple):
    """One row of the table of moves."""

    kind: Kind
    grade: Grade

    @property
    def rounds(self) -> int:
        """Over an axis of size n it sends ``rounds * (n - 1) / n`` of the larger local array."""
        return ROUNDS.get(self.kind, 0)

    def bytes(self, n: int, local_bytes: int) -> int:
        """Bytes that each device sends, in the ring model (direct sends for all-to-all), rounded up."""
        return ring_bytes(self.rounds, n, local_bytes)


def ring_bytes(rounds: int, n: int, local_bytes: int) -> int:
    """``rounds * (n - 1) / n * local_bytes``, rounded up."""
    return -(-rounds * (n - 1) * local_bytes // n)


FREE, FREE_FORWARD, COMMUNICATING = Grade

#: Every move that keeps the denoted value. An absent pair is impossible, or no move (equal states; sharded to sharded
#: changes the dim).
MOVES: Final[Mapping[tuple[State, State], Move]] = {
    (REDUCED, INVARIANT): Move(Kind.RELABEL, FREE),
    (INVARIANT, REDUCED): Move(Kind.RELABEL, FREE_FORWARD),  # transpose: unreduced to invariant, an all-reduce
    (REDUCED, UNREDUCED): Move(Kind.MASK, FREE),
    (INVARIANT, UNREDUCED): Move(Kind.MASK, FREE),
    (REDUCED, SHARDED): Move(Kind.SLICE, FREE),
    (INVARIANT, SHARDED): Move(Kind.SLICE, FREE_FORWARD),  # transpose: sharded to invariant, an all-gather
    (SHARDED, UNREDUCED): Move(Kind.PLACE, FREE),
    (SHARDED, REDUCED): Move(Kind.ALL_GATHER, COMMUNICATING),
    (SHARDED, INVARIANT): Move(Kind.ALL_GATHER, COMMUNICATING),
    (SHARDED, SHARDED): Move(Kind.ALL_TO_ALL, COMMUNICATING),
    (UNREDUCED, REDUCED): Move(Kind.ALL_REDUCE, COMMUNICATING),
    (UNREDUCED, INVARIANT): Move(Kind.ALL_REDUCE, COMMUNICATING),
    (UNREDUCED, SHARDED): Move(Kind.REDUCE_SCATTER, COMMUNICATING),
}

#: Reinterpretations, which change the denoted value: a global value as a family of local ones, or back. Not unreduced
#: to varying: the terms of a pending sum are not determined by its value.
REINTERPRETATIONS: Final[Mapping[tuple[State, State], Grade]] = {
    (SHARDED, VARYING): FREE,
    (VARYING, SHARDED): FREE,
    (REDUCED, VARYING): FREE,
    (VARYING, UNREDUCED): FREE,  # "these are partial sums"
    (INVARIANT, VARYING): FREE_FORWARD,  # transpose: a psum
}
