"""The JSON document, held to the schema that the docs have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.explain.test_listing import PROGRAMS, explained

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "explain.schema.json").read_text(encoding="utf-8"))
KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
}


def faults(value: Any, schema: dict[str, Any], at: str = "$", *, root: dict[str, Any] = SCHEMA) -> Iterator[str]:
    """What is wrong with a document, by the words of JSON Schema that ours uses; unknown words are an error."""
    known = {"$schema", "$defs", "title", "type", "required", "additionalProperties", "properties", "items"}
    assert set(schema) <= known | {"$ref", "const", "enum", "oneOf"}, schema
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], at, root=root)
    if "oneOf" in schema:
        tried = [list(faults(value, option, at, root=root)) for option in schema["oneOf"]]
        if sum(not found for found in tried) != 1:
            yield min(tried, key=len)[0]
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r} instead of {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}"
    kinds = schema.get("type", [])
    allowed = [kinds] if isinstance(kinds, str) else kinds
    if allowed and type(value) not in [KINDS[kind] for kind in allowed]:
        yield f"{at} is a {type(value).__name__}"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        yield from (f"{at} has no {key}" for key in schema.get("required", ()) if key not in value)
        if not schema.get("additionalProperties", True):
            yield from (f"{at} has {key}" for key in value if key not in properties)
        for key, inner in properties.items():
            if key in value:
                yield from faults(value[key], inner, f"{at}.{key}", root=root)
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from faults(item, schema["items"], f"{at}[{i}]", root=root)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_document_is_as_the_schema_says(name: str) -> None:
    found = explained(name)
    document = json.loads(found.to_json())
    assert list(faults(document, SCHEMA)) == []
    assert document["ledger"] == json.loads(found.ledger.to_json())
    assert [line["name"] for line in lines(document["items"])] == [line.name for line in found.lines]


def test_a_wrong_document_is_noticed() -> None:
    document = json.loads(explained("custom").to_json())
    document["items"][0]["times"] = "once"
    del document["policy"]
    assert sorted(faults(document, SCHEMA)) == ["$ has no policy", "$.items[0].times is a str"]


def test_the_source_of_each_line_is_there() -> None:
    document = json.loads(explained("custom").to_json())
    shown = {
        (part["file"], part["start"] + i): text for part in document["source"] for i, text in enumerate(part["lines"])
    }
    for line in lines(document["items"]):
        assert shown[line["file"], line["line"]].strip(), line
    assert {Path(part["file"]).name for part in document["source"]} == {"programs.py", "neighbour.py"}


def lines(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        if item["item"] == "line":
            yield item
        else:
            yield from item["given"]
            yield from lines(item["items"])
            yield from item["results"]
