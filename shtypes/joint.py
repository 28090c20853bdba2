"""What primitives that communicate and take several operands have in common: they say themselves what they send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shtypes._compat import HiPrimitive, no_trace_is_running
from shtypes.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.hitype import HiShType
from shtypes.lowering.per_op import run_on_shards
from shtypes.reshard.moves import Kind
from shtypes.types import ShType


class Sends(Protocol):
    """A step, as the ledger lists it."""

    @property
    def kind(self) -> Kind:
        """What it does on the devices."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it goes along."""

    @property
    def bytes(self) -> int:
        """Bytes that each device sends."""

    @property
    def launches(self) -> int:
        """How many collectives the compiled program has for it."""


class Back(NamedTuple):
    """A step of the backward pass, and the types before and after it."""

    step: Sends
    src: ShType
    dst: ShType


class Joint(HiPrimitive):
    """A primitive of several operands that communicates.

    Attributes:
        src: The type before what is sent arrives.
        dst: The type after.
        operands: The types of its operands.
        results: The types of its results.
        called: What its compiled function is called.
    """

    multiple_results = True
    inserted = False
    called = "joint"

    def __init__(
        self,
        name: str,
        change: tuple[ShType, ShType],
        operands: tuple[HiShType, ...],
        results: tuple[HiShType, ...],
    ) -> None:
        super().__init__(name)
        self.operands, self.results = operands, results
        self.src, self.dst = change

    @property
    def forth(self) -> Sends:
        """What it sends."""
        raise NotImplementedError

    def back(self) -> Sequence[Back]:
        """What it sends when it is transposed in all operands that have a gradient."""
        raise NotImplementedError

    def on_shards(self, *shards: Any) -> list[Any]:
        """What one device does."""
        raise NotImplementedError

    def abstract_eval(self, *given: Any) -> tuple[list[HiShType], set[Any]]:
        """The results' types; the operands' are known."""
        if given != self.operands:
            raise ShardingTypeError(f"`{self.name}` was given {given} instead of {self.operands}; please report this")
        return list(self.results), set()

    def to_lojax(self, *operands: Any) -> list[Array]:
        """It alone, in a `jax.shard_map` of its own."""
        return run_on_shards(self.on_shards, self.called, operands, self.results)

    def applied(self, *operands: Any) -> list[Any]:
        """The primitive applied to typed values."""
        if all(type(x) is Array for x in operands) and no_trace_is_running():
            return self.to_lojax(*operands)
        return list(self.bind(*operands))


__all__ = ["Back", "Joint", "Sends"]
