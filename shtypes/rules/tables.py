"""The tables of the typing rules. A missing row is a type error.

An op with several operands is typed on each mesh axis in two steps: the operands' states *join* to the state of the
result, by a table of pairs that is folded over the operands; then each operand is *cast* to what the result needs, by a
table of (state, need). An op with one operand needs one table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from shtypes.types import State

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


class Role(enum.Enum):
    """The role for the op of a dim that the axis shards, which the state alone does not determine."""

    ALONG = "S along"  # sharded on a dim that the op acts along (sums over, reverses, sorts, ...)
    LACKS = "S, lacks it"  # the result is sharded on a label that this operand does not have

    def __repr__(self) -> str:
        return self.name

    __hash__ = object.__hash__


Need = State | Role


def _symmetric(half: dict[tuple[State, State], State]) -> dict[tuple[State, State], State]:
    return half | {(rhs, lhs): result for (lhs, rhs), result in half.items()}


#: The joined state of two factors. The sharded ones are sharded on the same label: two labels never join.
MULTILINEAR: Final[Mapping[tuple[State, State], State]] = _symmetric(
    {
        (REDUCED, REDUCED): REDUCED,
        (INVARIANT, INVARIANT): INVARIANT,
        (REDUCED, INVARIANT): REDUCED,  # could be INVARIANT, free both ways; so a REDUCED weight keeps its type
        (SHARDED, SHARDED): SHARDED,  # slices of one label meet
        (SHARDED, REDUCED): SHARDED,
        (SHARDED, INVARIANT): SHARDED,
        (UNREDUCED, REDUCED): UNREDUCED,  # a product distributes over the sum of one factor
        (UNREDUCED, INVARIANT): UNREDUCED,
        (VARYING, VARYING): VARYING,
        (VARYING, REDUCED): VARYING,
        (VARYING, INVARIANT): VARYING,
    }
)
# Not (UNREDUCED, UNREDUCED): (a + b)(c + d) is not ac + bd.
# Not (UNREDUCED, SHARDED): a term would meet only the slice of its device. (SHARDED -> UNREDUCED is free, but holds
# n times the memory and makes the later reduction n times larger: it is offered, never taken.)
# Not (VARYING, SHARDED) or (VARYING, UNREDUCED): no device holds the value that its member of the family must meet.

#: The joined state of two terms: as of two factors, and two pending sums meet.
ADDITIVE: Final[Mapping[tuple[State, State], State]] = {
    **MULTILINEAR,
    (UNREDUCED, UNREDUCED): UNREDUCED,  # a sum of pending sums is a pending sum
}
# Not (UNREDUCED, SHARDED): UNREDUCED is sound, and left out for its memory, as above.

#: The cast of a factor: (its state, the need of the result) -> state.
FACTOR: Final[Mapping[tuple[State, Need], State]] = {
    (REDUCED, REDUCED): REDUCED,
    (INVARIANT, REDUCED): REDUCED,
    (INVARIANT, INVARIANT): INVARIANT,
    (SHARDED, SHARDED): SHARDED,
    (REDUCED, SHARDED): SHARDED,
    (INVARIANT, SHARDED): SHARDED,
    (REDUCED, Role.LACKS): REDUCED,  # all of it meets each slice; each device has one term of its gradient
    (INVARIANT, Role.LACKS): REDUCED,
    (UNREDUCED, UNREDUCED): UNREDUCED,
    (REDUCED, UNREDUCED): REDUCED,  # all of it multiplies each term
    (INVARIANT, UNREDUCED): REDUCED,
    (VARYING, VARYING): VARYING,
    (REDUCED, VARYING): VARYING,
    (INVARIANT, VARYING): VARYING,
}

#: The cast of a term: the same, but beside a pending sum a replicated term is masked.
TERM: Final[Mapping[tuple[State, Need], State]] = {
    **FACTOR,
    (REDUCED, UNREDUCED): UNREDUCED,  # added on each device, it would count n times
    (INVARIANT, UNREDUCED): UNREDUCED,
}

#: Linear in its one operand, and acting on each element in place or on unsharded dims.
LINEAR_UNARY: Final[Mapping[Need, State]] = {
    SHARDED: SHARDED,
    REDUCED: REDUCED,
    INVARIANT: INVARIANT,
    UNREDUCED: UNREDUCED,  # f(a + b) = f(a) + f(b)
    VARYING: VARYING,
}
# Not ALONG: an element would be needed on another device.

#: Nonlinear in its one operand; also checked for each operand of a nonlinear op before they join.
NONLINEAR: Final[Mapping[Need, State]] = {
    SHARDED: SHARDED,
    REDUCED: REDUCED,
    INVARIANT: INVARIANT,
    VARYING: VARYING,
}
# Not UNREDUCED: f(a + b) is not f(a) + f(b). Not ALONG: as for linear ops.

#: A sum over dims (a reduction, or the contracted labels of an einsum).
SUM: Final[Mapping[Need, State]] = {
    Role.ALONG: UNREDUCED,  # each device sums its slice: a pending sum
    SHARDED: SHARDED,
    REDUCED: REDUCED,
    INVARIANT: INVARIANT,
    UNREDUCED: UNREDUCED,
    VARYING: VARYING,
}
