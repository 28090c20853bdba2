"""An option of an equation along a mesh axis: the states of its operands and results, and what it sends."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from shtypes.solver.axis_states import FRONT, INVARIANT, REDUCED, SHARDED, UNREDUCED
from shtypes.types import dtypes


class Option(NamedTuple):
    """The states of operands and results of an equation along an axis."""

    operands: tuple[int, ...]  # as of `axis_states`; REDUCED for constants that the rule casts as it needs them
    results: tuple[int, ...]
    #: Bytes that a device sends per local byte of the first result, of an op that communicates along a sharded dim.
    #: What a way sends in the backward pass, and its work, are priced when a plan takes it.
    sent: float = 0.0
    sent_backward: float = 0.0  # the same in the backward pass
    way: int | None = None  # the index of the algorithm across shards; None if the op has only one
    #: The work of a device of an op that communicates along a sharded dim, to an even share of all work.
    work: float = 1.0

    @property
    def across_shards(self) -> bool:
        """Whether the op works across shards, which the typing rule alone refuses or types otherwise."""
        return self.sent > 0 or self.way is not None

    @property
    def divides(self) -> bool:
        """Whether the work is divided among the devices of the axis."""
        return any(s >= SHARDED for s in (*self.operands, *self.results))

    @property
    def is_major(self) -> bool:
        """Whether the axis is the most major of a dim."""
        return any(s >= FRONT for s in (*self.operands, *self.results))

    def as_major(self) -> Option:
        """The option with the axis as the most major of its dims."""
        operands, results = (tuple([s + FRONT * (s >= SHARDED) for s in x]) for x in (self.operands, self.results))
        return self._replace(operands=operands, results=results)


class Operand(NamedTuple):
    """The attributes of an operand that its options depend on."""

    shape: tuple[int, ...]
    dtype: str  # the short name
    constant: bool = False  # whether it depends on no argument, so that it is cast to any state for free
    live: bool = True  # whether it has a cotangent
    place: Any = None  # the dims along which it is an iota, if any

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def other_states(self) -> list[int]:
        """Its possible states along the other axes."""
        return [s for s in states_of(self, 1) if s != INVARIANT]


class CommPerByte(NamedTuple):
    """Bytes that a device sends for an equation, per local byte of its first result."""

    forward: float
    backward: float
    work: float = 1.0  # as of `Option`


#: The price of options that no plan may take.
FORBIDDEN: Final = CommPerByte(math.inf, 0.0)


def operand(aval: Any, *, constant: bool = False) -> Operand:
    """An operand with a JAX aval."""
    return Operand(tuple(map(int, aval.shape)), dtypes.from_numpy(aval.dtype), constant)


def states_of(x: Operand, size: int) -> list[int]:
    """The possible states of an operand along an axis of ``size`` devices."""
    states = [REDUCED, INVARIANT] if dtypes.differentiable(x.dtype) and not x.constant else [REDUCED]
    states += [UNREDUCED] if dtypes.summable(x.dtype) and not x.constant else []
    return states + [SHARDED + d for d, n in enumerate(x.shape) if n and n % size == 0]
