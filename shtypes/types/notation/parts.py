"""What texts are written of and read against: the parts of a type, by which its class is known here. Pure."""

from __future__ import annotations

from typing import Protocol

from shtypes.types.dim import Dim
from shtypes.types.mesh import Mesh
from shtypes.types.state import State


class TypeParts(Protocol):
    """The parts of an `ShType`; that class reads and prints itself by what is here."""

    mesh: Mesh
    dtype_name: str
    dims: tuple[Dim, ...]
    shape: tuple[int, ...]
    differentiable: bool

    def state(self, axis: str) -> State:
        """The state of an axis."""

    def axes(self, *states: State) -> tuple[str, ...]:
        """The axes that are in one of some states."""
