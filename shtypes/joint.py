"""What operations that communicate and take several operands have in common: they say themselves what they send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from shtypes._compat import no_trace_is_running
from shtypes.array import Array
from shtypes.hitype import HiShType
from shtypes.lowering.per_op import run_on_shards
from shtypes.operation import Operation, OperationPrimitive
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


joint_p = OperationPrimitive("joint")


class Joint(Operation):
    """An operation of several operands that communicates; subclasses are frozen dataclasses.

    Attributes:
        change: The types before and after what is sent arrives.
        called: What its compiled function is called.
    """

    primitive = joint_p
    inserted: ClassVar[bool] = False
    called: ClassVar[str] = "joint"
    change: tuple[ShType, ShType]
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    @property
    def src(self) -> ShType:
        """The type before what is sent arrives."""
        return self.change[0]

    @property
    def dst(self) -> ShType:
        """The type after."""
        return self.change[1]

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

    def to_lojax(self, *operands: Any) -> list[Array]:
        """It alone, in a `jax.shard_map` of its own."""
        return run_on_shards(self.on_shards, self.called, operands, self.results)

    def applied(self, *operands: Any) -> list[Any]:
        """The primitive applied to typed values."""
        if all(type(x) is Array for x in operands) and no_trace_is_running():
            return self.to_lojax(*operands)
        return self.bind(*operands)


__all__ = ["Back", "Joint", "Sends"]
