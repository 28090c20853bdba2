"""Ledger entries: a collective of a traced program, with its line, direction and bytes, read off an equation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shtypes.core.operation import Comm, Operation, applied_by
from shtypes.traced.equations import Branch, Equation, SourceLine
from shtypes.types import ShType


class Entry(NamedTuple):
    """One collective of the program.

    Attributes:
        kind: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"all-to-all"`` or ``"permute"``.
        bytes: Bytes that each device sends in each run (ring model; all-to-all direct).
        launches: Collectives in the compiled program: 1; 0 over axes of size 1, without elements, or if each device
            keeps its shard; for an overlapped einsum, the number of permutes in its ring.
        times: The number of runs, or None in a while loop.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        place: The user's line; of a backward one, the line that causes it.
        src: The type before its reshard.
        dst: The type after it.
        inserted: Whether a typing rule inserted the reshard; else the user wrote it.
        branches: The enclosing branches of conditionals, outermost first.
        merged: The lines of the reshards that were merged into it.
        across: The op along a sharded dim that it is a part of, or empty.
    """

    kind: str
    axes: tuple[str, ...]
    dtype: str
    bytes: int
    launches: int
    times: int | None
    direction: str
    place: SourceLine
    src: ShType
    dst: ShType
    inserted: bool
    branches: tuple[Branch, ...] = ()
    merged: tuple[SourceLine, ...] = ()
    across: str = ""

    @property
    def group(self) -> int:
        """The number of devices that exchange data."""
        return self.src.mesh.product(self.axes)

    @property
    def runs(self) -> int:
        """The number of runs; 1 in a while loop."""
        return 1 if self.times is None else self.times

    @property
    def collective(self) -> str:
        """The kind and the axes."""
        return f"{self.kind} over {', '.join(self.axes)}"

    @property
    def narrow(self) -> bool:
        """Whether it sends another dtype than the value's."""
        return self.dtype != self.src.dtype_name

    def __str__(self) -> str:
        return f"{self.collective} in {self.dtype}" if self.narrow else self.collective


class NotCovered(NamedTuple):
    """An equation whose communication is unknown to the ledger.

    Attributes:
        what: JAX's name of the operation.
        times: The number of runs, or None in a while loop.
    """

    what: str
    why: str
    times: int | None
    direction: str
    place: SourceLine

    def __str__(self) -> str:
        at = f"{self.place}: " if self.place.file else ""
        return f"{at}{self.what} ({self.direction}): {self.why}"


# from equations


def entries_of(equation: Equation) -> Iterator[Entry]:
    """The collectives of an equation, if it is one of our operations."""
    p = applied_by(equation.eqn)
    if isinstance(p, Operation):
        for comm in p.forward_comm():
            yield _entry(equation, comm, p)


def entries_of_transpose(equation: Equation) -> Iterator[Entry]:
    """The collectives of an equation's transpose, if its operand has a gradient."""
    p = applied_by(equation.eqn)
    if isinstance(p, Operation) and (comms := p.backward_comm()) and equation.is_transposed():
        for comm in comms:
            yield _entry(equation._replace(direction="backward"), comm, p)


def _entry(equation: Equation, comm: Comm, operation: Operation) -> Entry:
    return Entry(
        kind=comm.kind.value,
        axes=comm.axes,
        dtype=comm.dtype,
        bytes=comm.bytes,
        launches=comm.launches,
        times=equation.times,
        direction=equation.direction,
        place=equation.place,
        src=comm.src,
        dst=comm.dst,
        inserted=operation.inserted,
        across=getattr(getattr(operation, "op", None), "across", ""),
        branches=equation.branches,
        merged=operation.merged,
    )


# text and JSON

HEADINGS = ("line", "direction", "collective", "dtype", "B/device", "times", "types", "by")
NUMBERS = ("B/device", "times")
#: The maximum number of lines of a merged collective in a report.
_MOST_LINES = 3


def row(entry: Entry) -> tuple[str, ...]:
    """An entry as a table row under `HEADINGS`."""
    times = "?" if entry.times is None else str(entry.times)
    branches = "".join(f", branch {b.index} of {b.count}" for b in entry.branches)
    return (
        str(entry.place),
        entry.direction + branches,
        entry.collective if entry.launches else f"{entry.collective} (one device)",
        entry.dtype,
        str(entry.bytes),
        times,
        f"{entry.src} -> {entry.dst}",
        _by(entry) + (f", {merged_lines}" if (merged_lines := merged_words(entry)) else ""),
    )


def _by(entry: Entry) -> str:
    """The origin of a collective."""
    return f"{entry.across} across shards" if entry.across else "inserted" if entry.inserted else "written"


def merged_words(entry: Entry) -> str:
    """The merged reshards of an entry: ``merged from 2: model.py:12, model.py:18``, or empty."""
    lines = list(dict.fromkeys(str(place) for place in entry.merged if place.file))
    text = ", ".join([*lines[:_MOST_LINES], *(["…"] * (len(lines) > _MOST_LINES))])
    return f"merged from {len(entry.merged)}{': ' * bool(text)}{text}" if entry.merged else ""


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry for the JSON of reports; types in canonical notation."""
    plain = ("kind", "axes", "dtype", "bytes", "launches", "times", "direction")
    return {
        **{name: getattr(entry, name) for name in plain},
        **entry.place.to_json(),
        "before": entry.src.canonical(),
        "after": entry.dst.canonical(),
        "inserted": entry.inserted,
        "branches": [{"choice": b.choice, "index": b.index, "count": b.count} for b in entry.branches],
        **({"across": entry.across} if entry.across else {}),
        **({"merged": [place.to_json() for place in entry.merged]} if entry.merged else {}),
    }
