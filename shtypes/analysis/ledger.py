"""The ledger: every collective of a traced program, with its line, direction and bytes.

It is read off the traced typed program, never off what an op claims, and needs no devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

from shtypes.analysis.equations import Place, typed_equations
from shtypes.primitives import Reshard
from shtypes.reshard import plan
from shtypes.types import ShType


class Entry(NamedTuple):
    """One collective of the program.

    Attributes:
        kind: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"all-to-all"`` or ``"permute"``.
        axes: The mesh axes that it runs over.
        dtype: What it sends.
        bytes: Bytes that each device sends, each time (ring model; all-to-all direct).
        times: How often it runs, or None where a while loop decides.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        place: The user's line.
        src: The type before the reshard that it belongs to.
        dst: The type after it.
        inserted: Whether a typing rule inserted the reshard; else the user wrote it.
    """

    kind: str
    axes: tuple[str, ...]
    dtype: str
    bytes: int
    times: int | None
    direction: str
    place: Place
    src: ShType
    dst: ShType
    inserted: bool


class Ledger(tuple[Entry, ...]):
    """The entries, in program order."""

    __slots__ = ()

    def select(self, keep: Callable[[Entry], bool]) -> Ledger:
        """The entries for which ``keep`` holds."""
        return Ledger(entry for entry in self if keep(entry))

    def forward(self) -> Ledger:
        """The collectives of the forward pass."""
        return self.select(lambda entry: entry.direction == "forward")

    def backward(self) -> Ledger:
        """The collectives of the backward pass, those that checkpoint runs again among them."""
        return self.select(lambda entry: entry.direction != "forward")

    @property
    def bytes(self) -> int:
        """Bytes that each device sends; a collective in a while loop of unknown length counts once."""
        return sum(entry.bytes * (1 if entry.times is None else entry.times) for entry in self)


def ledger_of(jaxpr: Any) -> Ledger:
    """The ledger of a traced program.

    Args:
        jaxpr: What `jax.make_jaxpr` returned, or ``.trace(...).jaxpr``.
    """
    return Ledger(_entries(jaxpr))


def ledger(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """The collectives that a function runs for arguments of these types; nothing runs.

    Args:
        f: A function of typed values.
        *args: Its arguments; `shtypes.abstract_array` makes ones that need no devices.
        **kwargs: More of them.
    """
    return ledger_of(jax.make_jaxpr(f)(*args, **kwargs))


def _entries(jaxpr: Any) -> Iterable[Entry]:
    for found in typed_equations(jaxpr):
        primitive = found.eqn.primitive
        if not isinstance(primitive, Reshard):
            continue
        src, dst = primitive.src, primitive.dst
        for step in plan(src, dst).steps:
            if step.kind.communicates and step.live:
                yield Entry(
                    step.kind.value,
                    step.live,
                    src.dtype_name,
                    step.bytes,
                    found.times,
                    found.direction,
                    found.place,
                    src,
                    dst,
                    primitive.inserted,
                )
