"""What a listing consists of; text, page, JSON and plot are made of this."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shtypes.analysis.explain.source import lines_of_file, spans
from shtypes.context.settings import DimAxes
from shtypes.traced.entry import Entry, entry_json
from shtypes.traced.equations import SourceLine
from shtypes.traced.ledger import Ledger
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_axes import current_dim_axes
from shtypes.types.policy import current_policy

_NOWHERE = SourceLine()


@dataclass(frozen=True)
class Line:
    """One value of a listing.

    Attributes:
        name: Its name: what the source assigns it to, ``g_x`` for the cotangent of ``x``, or made from the operation.
        type: Its type; of a plain array, JAX's.
        op: How it is made, as the jaxpr prints it; empty for what is given.
        operands: The names of what it is made from.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        place: The user's line that makes it, or that causes it.
        cause: For a backward line, the forward line that causes it; None where none does alone.
        times: How often it runs, or None where a while loop decides.
        cast: Whether a typing rule inserted it.
        collectives: What it communicates.
        not_covered: Why its communication is not known; empty where it is.
        span: The last line of the user's expression.
        merged: Whether it does nothing by itself: it is a reshard that was merged with others, which say so.
    """

    name: str
    type: Any
    op: str = ""
    operands: tuple[str, ...] = ()
    direction: str = "forward"
    place: SourceLine = _NOWHERE
    cause: Line | None = field(default=None, repr=False)
    times: int | None = 1
    cast: bool = False
    collectives: tuple[Entry, ...] = ()
    not_covered: str = ""
    span: int = 0
    merged: bool = False

    def __str__(self) -> str:
        made = f" = {' '.join((self.op, *self.operands))}" if self.op else ""
        return f"{self.name}: {type_text(self.type)}{made}"


@dataclass(frozen=True)
class Block:
    """A loop, a conditional, or one of its bodies.

    Attributes:
        title: What it is: ``"scan, 12 steps"``, ``"branch 0 of 2"``.
        results: What it makes; empty for a body.
        given: What the body is given that is its own.
        items: What is inside.
        direction: As in `Line`.
        place: The user's line.
        cause: As in `Line`.
    """

    title: str
    results: tuple[Line, ...]
    given: tuple[Line, ...]
    items: tuple[Item, ...]
    direction: str
    place: SourceLine
    cause: Line | None = field(default=None, repr=False)


Item = Line | Block


def type_text(t: Any) -> str:
    """The text of a type, typed or JAX's own, under the policy in force."""
    if not isinstance(t, ShType):
        return str(t.str_short(short_dtypes=True))
    return _shown(t.exact, t, current_policy(), current_dim_axes())


@functools.lru_cache(maxsize=4096)
def _shown(exact: Any, t: Any, policy: str, dim_axes: DimAxes) -> str:
    return str(t)


def lines_of(items: Iterable[Item]) -> Iterator[Line]:
    """All lines, those inside blocks among them, in program order."""
    for item in items:
        if isinstance(item, Line):
            yield item
        else:
            yield from item.given
            yield from lines_of(item.items)
            yield from item.results


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


#: The version of what `Explanation.to_json` writes.
SCHEMA: Final = 1
_GIVEN: Final = ("arguments", "results", "seeds", "gradients")


def document(listing: Listing) -> dict[str, Any]:
    """What the JSON document holds."""
    return {
        "schema": SCHEMA,
        "function": listing.function,
        "policy": listing.policy,
        "mesh": None if listing.mesh is None else [{"axis": a, "size": n} for a, n in listing.mesh.shape.items()],
        "gradient": listing.gradient,
        **{part: [_typed(line.name, line.type) for line in getattr(listing, part)] for part in _GIVEN},
        "items": [_item(item) for item in listing.items],
        "ledger": listing.ledger.to_dict(),
        "saved": {
            "bytes": listing.saved_bytes,
            "values": [
                {**_typed(v.name, v.type), "bytes": v.bytes, "argument": v.argument, **v.place.to_json()}
                for v in listing.saved
            ],
        },
        "source": [
            {"file": s.file, "function": s.name, "start": s.start, "lines": lines_of_file(s.file, s.start, s.end)}
            for s in spans(line.place for line in listing.lines)
        ],
    }


def _typed(name: str, t: Any) -> dict[str, Any]:
    return {"name": name, "type": type_text(t), "canonical": t.canonical() if isinstance(t, ShType) else None}


def _item(item: Item) -> dict[str, Any]:
    cause = item.cause
    common = {
        "direction": item.direction,
        **item.place.to_json(),
        "cause": None if cause is None else {"name": cause.name, **cause.place.to_json()},
    }
    return _block(item, common) if isinstance(item, Block) else _line(item, common)


def _line(line: Line, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "item": "line",
        **_typed(line.name, line.type),
        "op": line.op,
        "operands": list(line.operands),
        **common,
        "end_line": line.span,
        "times": line.times,
        "cast": line.cast,
        **({"merged": True} if line.merged else {}),
        "collectives": [entry_json(entry) for entry in line.collectives],
        "not_covered": line.not_covered or None,
    }


def _block(block: Block, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "item": "block",
        "title": block.title,
        **common,
        "given": [_item(line) for line in block.given],
        "items": [_item(item) for item in block.items],
        "results": [_item(line) for line in block.results],
    }
