"""What `memory` finds: the bytes of each device, as text, JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shtypes.traced.equations import SourceLine
from shtypes.types.tables import Report, Table

#: The version of what `Memory.to_json` writes.
SCHEMA: Final = 1
#: So many values are shown in each table; JSON has all.
_SHOWN: Final = 12


class Held(NamedTuple):
    """Values that take memory: one, or several alike from one line.

    Attributes:
        what: The operation that makes them.
        type: The type of one device's part; of what a loop keeps at each step, of all steps.
        values: How many there are.
        bytes: Bytes on each device, of all of them.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass).
        place: The user's line that makes them.
    """

    what: str
    type: str
    values: int
    bytes: int
    direction: str
    place: SourceLine


@dataclass(frozen=True)
class Memory(Report):
    """What a program needs on each device, in bytes.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        arguments: Each argument.
        results: The results, and the gradients if these were asked for.
        gradients: The gradients among the results.
        donated: What of the results lies in the memory of donated arguments.
        temporaries: What the program needs besides.
        saved: What the forward pass keeps for the backward pass besides arguments, largest first.
        live: What is in use besides arguments when most is, largest first.
    """

    name: str
    mesh: str
    arguments: Mapping[str, int]
    results: int
    gradients: int
    donated: int
    temporaries: int
    saved: tuple[Held, ...]
    live: tuple[Held, ...]

    @property
    def peak(self) -> int:
        """The estimated peak: arguments, results that are not in donated arguments, and temporaries."""
        return sum(self.arguments.values()) + self.results - self.donated + self.temporaries

    def __repr__(self) -> str:
        return f"<Memory of {self.name}: {self.peak} B/device>"

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Memory of {self.name} on {self.mesh}"

    def to_json(self, indent: int | None = None) -> str:
        """The report as JSON, as described in the docs (memory)."""
        found = {
            "schema": SCHEMA,
            "function": self.name,
            "mesh": self.mesh,
            "arguments": dict(self.arguments),
            "results": self.results,
            "gradients": self.gradients,
            "donated": self.donated,
            "temporaries": self.temporaries,
            "peak": self.peak,
            "saved": [_json(held) for held in self.saved],
            "live": [_json(held) for held in self.live],
        }
        return json.dumps(found, indent=indent)

    def tables(self) -> list[Table]:
        """The bytes of each part, what is kept for the backward pass, and what is in use at the peak."""
        rows = [(f"argument {name}", n) for name, n in self.arguments.items()]
        rows += [("results", self.results - self.gradients)]
        rows += [("gradients", self.gradients)] if self.gradients else []
        rows += [("in donated arguments", -self.donated)] if self.donated else []
        rows += [("temporaries", self.temporaries), ("peak", self.peak)]
        title = f"memory of {self.name} on {self.mesh}"
        total = Table(title, ("", "B/device"), tuple((a, str(n)) for a, n in rows), frozenset({"B/device"}))
        saved = f"kept for the backward pass, besides arguments: {sum(h.bytes for h in self.saved)} B/device"
        live = f"in use at the peak, besides arguments: {sum(h.bytes for h in self.live)} B/device"
        return [total, *(_table(saved, self.saved) if self.saved else ()), *_table(live, self.live)]


def _table(title: str, held: tuple[Held, ...]) -> Iterable[Table]:
    rows = tuple(
        (str(h.place), h.direction, h.what, f"{h.values} of {h.type}" if h.values > 1 else h.type, str(h.bytes))
        for h in held[:_SHOWN]
    )
    rest = held[_SHOWN:]
    note = f"and {len(rest)} more, {sum(h.bytes for h in rest)} B/device" if rest else "" if rows else "nothing"
    headings = ("line", "direction", "made by", "each device has", "B/device")
    yield Table(title, headings, rows, frozenset({"B/device"}), note)


def _json(held: Held) -> dict[str, Any]:
    return {**held._asdict(), "place": held.place.to_json()}
