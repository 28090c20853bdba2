"""The listing as JSON; `docs/explain.md` says what the keys mean, and has the schema."""

from __future__ import annotations

import json
from typing import Any, Final

from shtypes.analysis.explain.document import Block, Item, Line, Listing, type_text
from shtypes.analysis.explain.source import lines_of_file, spans
from shtypes.traced.entry import entry_json
from shtypes.types import ShType

#: The version of what `Explanation.to_json` writes.
SCHEMA: Final = 1
_GIVEN: Final = ("arguments", "results", "seeds", "gradients")


def to_json(listing: Listing, indent: int | None = None) -> str:
    """The text of the JSON document."""
    return json.dumps(document(listing), indent=indent)


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
        "ledger": json.loads(listing.ledger.to_json()),
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
