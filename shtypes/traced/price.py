"""What all of a call communicates, forward and backward, as the price of a fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shtypes.core.operation import Comm, Operation, applied_by
from shtypes.resharding.moves import in_words
from shtypes.traced.entry import Entry
from shtypes.traced.equations import equations
from shtypes.traced.gradient import with_gradient, zero_cotangent
from shtypes.traced.ledger import ledger
from shtypes.types import ShType

#: Bytes that a program sends forward and backward.
Sent = tuple[int, int]


def priced(f: Callable[..., Any], types: Sequence[ShType]) -> tuple[str, str, int, int]:
    """What a function communicates as it is written: forward and backward, in words and in bytes per device."""
    both = ledger(with_gradient(f, zero_cotangent), *types)
    forward, backward = both.forward(), both.backward()
    return _words(forward), _words(backward), sum(e.bytes for e in forward), sum(e.bytes for e in backward)


def _words(entries: Sequence[Entry]) -> str:
    found = [in_words(e.kind, e.axes) + (f" in {e.dtype}" if e.narrow else "") for e in entries]
    counted = dict.fromkeys(sorted(found))
    return " and ".join(w if found.count(w) == 1 else f"{found.count(w)} times {w}" for w in counted)


def sent_by_program(jaxpr: Any) -> Sent:
    """What a traced program sends, and will send when it is differentiated."""
    forward = backward = 0
    for found in equations(jaxpr):
        operation = applied_by(found.eqn)
        if isinstance(operation, Operation):
            times = found.times or 1
            if found.direction != "forward":
                backward += times * _bytes(operation.forward_comm())
                continue
            forward += times * _bytes(operation.forward_comm())
            backward += 0 if found.depth else times * _bytes(operation.backward_comm())
    return forward, backward


def _bytes(comms: Iterable[Comm]) -> int:
    return sum(c.bytes for c in comms)
