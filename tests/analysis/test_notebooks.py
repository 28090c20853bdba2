"""Every report as a notebook shows it: a table, by one helper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shtypes as sh

MESH = sh.abstract_mesh({"dp": 2})
GOLDEN = Path(__file__).parents[1] / "golden" / "notebooks"


def total(x: Any) -> Any:
    return sh.all_reduce(sh.sum(x * 2.0))


def reports() -> dict[str, Any]:
    with sh.use_mesh(MESH):
        return {
            "type": sh.ShType.parse("f32[batch=8@dp, 4]"),
            "check": sh.check(total, "f32[8@dp]"),
            "ledger": sh.ledger(total, sh.abstract_array("f32[8@dp]")),
            "memory": sh.memory(total, "f32[8@dp]"),
            "compare": sh.compare(total, "f32[8@dp]"),
            "explain": sh.explain(total, "f32[8@dp]"),
            "explain_reshard": sh.explain_reshard("f32[8@dp]", "[_]", mesh=MESH),
        }


@pytest.mark.parametrize("name", ["type", "check", "ledger", "memory", "compare", "explain", "explain_reshard"])
def test_a_report_shows_as_a_table(name: str) -> None:
    shown: str = reports()[name]._repr_html_()
    # The pictures and the page have tests of their own.
    for start, end in (("<svg", "</svg>"), ("<details", "</details>")):
        if start in shown:
            shown = shown[: shown.index(start)] + shown[shown.index(end) + len(end) :]
    assert shown.count("<table>") >= 1
    assert shown == (GOLDEN / f"{name}.html").read_text()


def test_text_of_a_report_is_text() -> None:
    """What a name says is never markup."""

    def f(**named: Any) -> Any:
        return named["<b>"]

    options: dict[str, Any] = {"<b>": "f32[8@dp]"}
    shown = sh.check(f, mesh=MESH, **options)._repr_html_()
    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown
