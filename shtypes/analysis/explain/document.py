"""What a listing holds: what is made of it as text, page, JSON and plot is made of this."""

from __future__ import annotations

from dataclasses import dataclass

from shtypes.analysis.explain.listing import Item, Line, lines_of
from shtypes.analysis.explain.saved import Saved
from shtypes.traced.ledger import Ledger
from shtypes.types.mesh import Mesh


@dataclass(frozen=True)
class Listing:
    """The parts of an `Explanation`, which says what they are."""

    function: str
    policy: str
    mesh: Mesh | None
    gradient: bool
    arguments: tuple[Line, ...]
    results: tuple[Line, ...]
    seeds: tuple[Line, ...]
    gradients: tuple[Line, ...]
    items: tuple[Item, ...]
    ledger: Ledger
    saved: tuple[Saved, ...]
    fold: bool = True

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines in program order, those inside loops and branches among them."""
        return tuple(lines_of(self.items))

    @property
    def forward(self) -> tuple[Item, ...]:
        """The lines and blocks of the forward pass."""
        return tuple(item for item in self.items if item.direction == "forward")

    @property
    def backward(self) -> tuple[Item, ...]:
        """The lines and blocks of the backward pass, what a checkpoint computes again among them."""
        return tuple(item for item in self.items if item.direction != "forward")

    @property
    def saved_bytes(self) -> int:
        """Bytes that each device keeps for the backward pass, besides the arguments."""
        return sum(value.bytes for value in self.saved if not value.argument)
