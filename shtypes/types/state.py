"""`State`: how an array lies on one mesh axis, and the cotangent map. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class State(enum.Enum):
    """How an array lies on one mesh axis; the letter is the one that types print."""

    SHARDED = "S"  # equal contiguous slices of one dim; denotes their concatenation
    REDUCED = "R"  # one value everywhere, its gradient left pending
    INVARIANT = "I"  # one value everywhere, its gradient already summed
    UNREDUCED = "U"  # partial values; denotes their sum
    VARYING = "V"  # different values without a global meaning

    def __repr__(self) -> str:
        return self.name

    # Enum members are singletons: identity hashing is right, and much quicker than Enum's own.
    __hash__ = object.__hash__


#: The states that hold one value everywhere.
REPLICATED: Final = frozenset({State.REDUCED, State.INVARIANT})

#: The cotangent map, an involution: the whole autodiff law.
COTANGENT: Final[Mapping[State, State]] = {
    State.SHARDED: State.SHARDED,
    State.REDUCED: State.UNREDUCED,
    State.INVARIANT: State.INVARIANT,
    State.UNREDUCED: State.REDUCED,
    State.VARYING: State.VARYING,
}
