"""What operations that communicate and take several operands have in common: they say themselves what they send."""

from __future__ import annotations

from typing import Any, ClassVar

from shtypes.core.array import Array
from shtypes.core.hitype import HiShType
from shtypes.core.operation import Operation, OperationPrimitive
from shtypes.lowering.per_op import run_on_shards
from shtypes.types import ShType

joint_p = OperationPrimitive("joint")


class Joint(Operation):
    """An operation of several operands that communicates; subclasses are frozen dataclasses."""

    primitive = joint_p
    called: ClassVar[str] = "joint"  # what its compiled function is called
    change: tuple[ShType, ShType]  # the types before and after what is sent arrives
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

    def on_shards(self, *shards: Any) -> list[Any]:
        """What one device does."""
        raise NotImplementedError

    def to_lojax(self, *operands: Any) -> list[Array]:
        """It alone, in a `jax.shard_map` of its own."""
        return run_on_shards(self.on_shards, self.called, operands, self.results)
