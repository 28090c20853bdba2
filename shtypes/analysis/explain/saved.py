"""What the forward pass keeps for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from shtypes.analysis.explain.values import BodyRun, Occurrence, Value
from shtypes.traced.equations import SourceLine
from shtypes.types import ShType


class Saved(NamedTuple):
    """A value that the backward pass needs again.

    Attributes:
        name: Its name; of what a loop saves at each step, ``saved_x``.
        type: Its type.
        bytes: Bytes on each device.
        argument: Whether it is an argument, which is there anyhow.
        place: The user's line that makes it.
    """

    name: str
    type: Any
    bytes: int
    argument: bool
    place: SourceLine


def saved_by(scope: BodyRun) -> tuple[Saved, ...]:
    """What the forward equations of a program leave for its backward equations, in program order.

    Of loops that take gradients themselves, such as one over microbatches, what a step of the largest one leaves. What
    a checkpoint computes again is not among them, and what the compiler saves by fusing is not known here.
    """
    inside = [saved_by(body) for r in scope.records if r.found.direction == "forward" for body in r.bodies]
    return (*_saved(scope), *max(inside, key=lambda saved: sum(v.bytes for v in saved if not v.argument), default=()))


def _saved(scope: BodyRun) -> Iterator[Saved]:
    own: list[tuple[Value, Occurrence | None]] = [(v, None) for v in scope.given]
    made = [(v, r) for r in scope.records if r.found.direction == "forward" for v in r.outs]
    for value, record in [*own, *made]:
        later = any(
            use.found.direction != "forward" and scope.records[use.position : use.position + 1] == [use]
            for use in value.uses
        )
        if not value.gradient and (later if value.kept is None else value.kept):
            place = record.found.place if record is not None else SourceLine()
            yield Saved(value.name, value.type, bytes_of(value.type), record is None, place)


def bytes_of(t: Any) -> int:
    """Bytes of each device's part of a value."""
    if isinstance(t, ShType):
        return int(t.local_bytes)
    sharding = getattr(t, "sharding", None)
    shape = t.shape if sharding is None else sharding.shard_shape(t.shape)
    return int(math.prod(shape) * t.dtype.itemsize)
