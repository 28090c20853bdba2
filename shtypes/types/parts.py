"""The parts of a type: `State`, for a mesh axis, with the cotangent map, and `Dim`, for an array dim."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh


class State(enum.Enum):
    """How an array is distributed along one mesh axis; the values are the printed letters."""

    SHARDED = "S"  # equal contiguous slices of one dim; denotes their concatenation
    REDUCED = "R"  # one value everywhere, whose gradient stays a pending sum
    INVARIANT = "I"  # one value everywhere, whose gradient is summed
    UNREDUCED = "U"  # partial values; denotes their sum
    VARYING = "V"  # different values without a global meaning

    def __repr__(self) -> str:
        return self.name

    # Enum members are singletons, so identity hashing is correct, and faster
    __hash__ = object.__hash__


#: The states with one value everywhere.
REPLICATED: Final = frozenset({State.REDUCED, State.INVARIANT})

#: The cotangent map, an involution: the law of gradients.
COTANGENT: Final[Mapping[State, State]] = {
    State.SHARDED: State.SHARDED,
    State.REDUCED: State.UNREDUCED,
    State.INVARIANT: State.INVARIANT,
    State.UNREDUCED: State.REDUCED,
    State.VARYING: State.VARYING,
}


class Dim(NamedTuple):
    """An array dim: its global size, the mesh axes that shard it, major to minor, and a name only for printing."""

    size: int
    axes: tuple[str, ...] = ()
    name: str | None = None


def check_divides(mesh: Mesh, dim: Dim, index: int) -> None:
    """Checks that the axes of a dim divide its size."""
    n = mesh.product(dim.axes)
    if dim.size % n == 0:
        return
    below, above = dim.size // n * n, -(-dim.size // n) * n
    axes = " and ".join(f"`{a}` (size {mesh.shape[a]})" for a in dim.axes)
    label = f"dim {index}" + (f" (`{dim.name}`)" if dim.name else "")
    sizes = f"{below} or {above}" if below else str(above)
    raise ShardingTypeError(
        f"{label} of size {dim.size} cannot be sharded in {n} equal parts",
        why=f"it is sharded over {axes}" + (f", {n} devices together" if len(dim.axes) > 1 else ""),
        hints=[f"use a size that {n} divides, such as {sizes}", f"shard {label} over fewer axes"],
    )


class TypeParts(Protocol):
    """The interface of `ShType` for parsing and printing."""

    mesh: Mesh
    dtype_name: str
    dims: tuple[Dim, ...]
    shape: tuple[int, ...]
    differentiable: bool

    def state(self, axis: str) -> State:
        """The state of an axis."""

    def axes(self, *states: State) -> tuple[str, ...]:
        """The axes in any of these states."""
