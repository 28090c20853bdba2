"""Repeated layers: shown once with how often, in both directions; never where something differs; nothing lost."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import shtypes as sh
from shtypes.analysis.explain.document import Item, Line, lines_of
from shtypes.analysis.explain.explanation import Explanation
from shtypes.analysis.explain.fold_layers import Repeat, fold, fold_values, merged
from tests.analysis.explain.test_listing import PROGRAMS, explained
from tests.analysis.explain.unrolled import backwards, experts, model, scaled, stacked
from tests.golden import golden
from tests.tools.cli.running import runner

MESH = {"dp": 2, "tp": 2}


def weights(count: int, inner: Any = lambda i: 32) -> list[dict[str, Any]]:
    return [
        {"in": sh.ShType.parse(f"f32[16, {inner(i)}@tp]"), "out": sh.ShType.parse(f"f32[{inner(i)}@tp, 16]")}
        for i in range(count)
    ]


def explain(f: Any, count: int, *, grad: bool = True, fold: bool = True, inner: Any = lambda i: 32) -> Explanation:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        return sh.explain(f, weights(count, inner), sh.ShType.parse("f32[8@dp, 16]"), grad=grad, fold=fold)


def count(items: Iterable[Item | Repeat]) -> int:
    """The lines that folded items stand for."""
    return sum(
        i.times * len(list(lines_of(i.items))) if isinstance(i, Repeat) else len(list(lines_of([i]))) for i in items
    )


def repeats(found: Explanation, items: tuple[Item, ...]) -> list[Repeat]:
    types = {line.name: str(line.type) for line in (*found.arguments, *found.seeds, *found.lines)}
    return [item for item in fold(items, types) if isinstance(item, Repeat)]


def times(f: Any, count: int, inner: Any = lambda i: 32) -> tuple[list[int], list[int]]:
    """How often the repeats of a model are there, forward and backward."""
    found = explain(f, count, inner=inner)
    forward, backward = repeats(found, found.forward), repeats(found, found.backward)
    return [item.times for item in forward], [item.times for item in backward]


def test_24_layers_are_shown_once() -> None:
    found = explain(model, 24)
    text = found.text(source=False)
    golden("explain/layers.txt", text)
    whole = explain(model, 24, fold=False).text(source=False)
    assert len(whole.split("\n")) > 600
    assert len(text.split("\n")) < 80
    assert text.count("\nrepeated 24 times, ") == 2  # forward and backward
    total = next(line for line in whole.split("\n") if line.startswith("total: "))
    assert f"\n{total}\n" in text
    assert explain(model, 48).text().count("\n") == str(found).count("\n")


def test_what_all_rounds_send_is_what_the_ledger_says() -> None:
    found = explain(model, 24)
    (forward,), (backward,) = repeats(found, found.forward), repeats(found, found.backward)
    assert forward.sent.total == found.ledger.forward().total
    assert backward.sent.total == found.ledger.backward().total
    assert (forward.ends, backward.ends) == ((("x_3", "x_26"),), (("g_x_3", "g_x_26"),))


@pytest.mark.parametrize(
    ("f", "inner", "wanted"),
    [
        (model, lambda i: 64 if i == 3 else 32, [3, 8]),
        (model, lambda i: 64 if i % 2 else 32, [6]),
        (model, lambda i: 32 + 4 * i, []),
        (scaled, lambda i: 32, [3, 8]),
    ],
    ids=["one type", "every other type", "every type", "one number"],
)
def test_what_differs_is_not_folded(f: Any, inner: Any, wanted: list[int]) -> None:
    assert times(f, 12, inner) == (wanted, wanted[::-1])


def test_a_few_lines_are_not_worth_it() -> None:
    assert times(model, 2) == ([], [2])  # five lines forward, and eight backward
    assert times(model, 3) == ([3], [3])


def test_layers_in_layers_are_folded_too() -> None:
    text = explain(experts, 8, grad=False).text(source=False, totals=False)
    assert "\nrepeated 6 times, 1536 B/device in 6 collectives in all:\n" in text
    assert "\n    repeated 8 times:\n" in text
    assert text.count(" = silu ") == 1


def test_the_positions_of_stacked_weights_count_as_names() -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        layers = {"in": sh.ShType.parse("f32[12, 16, 32@tp]"), "out": sh.ShType.parse("f32[12, 32@tp, 16]")}
        found = sh.explain(stacked, layers, sh.ShType.parse("f32[8@dp, 16]"), grad=True)
    golden("explain/stacked.txt", found.text(source=False, totals=False))


def test_a_round_may_take_what_is_made_long_before() -> None:
    assert times(backwards, 12)[0] == [12]


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs_are_as_they_were(name: str) -> None:
    found = explained(name)
    assert list(fold(found.items, {})) == list(found.items)
    assert str(merged(found.ledger)).splitlines()[-1] == str(found.ledger).splitlines()[-1]


@given(st.lists(st.integers(0, 2), max_size=60), st.data())
def test_nothing_is_lost_and_what_is_folded_is_alike(marks: list[int], data: st.DataObject) -> None:
    """Items of three kinds, each taking an earlier one or what is outside: unfolding gives the kinds back, in order."""
    items = []
    for i, mark in enumerate(marks):
        back = data.draw(st.integers(1, 3))
        taken = f"v{i - back}" if i - back >= 0 else "outside"
        items.append(
            Line(f"v{i}", sh.ShType.parse("f32[]", sh.abstract_mesh({"x": 1})), op=str(mark), operands=(taken,))
        )
    folded = list(fold(items, {"outside": "f32[]"}))
    assert count(folded) == len(items)
    kinds = [
        line.op
        for i in folded
        for line in (i.items * i.times if isinstance(i, Repeat) else [i])
        if isinstance(line, Line)
    ]
    assert kinds == [str(mark) for mark in marks]


def test_values_that_are_given_are_folded_by_their_names() -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        t, other = sh.ShType.parse("f32[8@dp]"), sh.ShType.parse("f32[4@dp]")
    lines = [Line(f"w[{i}]['in']", t) for i in range(12)]
    assert [i.times for i in fold_values(lines) if isinstance(i, Repeat)] == [12]
    assert list(fold_values([Line(name, t) for name in "abcdefghijkl"])) == [Line(name, t) for name in "abcdefghijkl"]
    mixed = [Line(f"x{i}", other if i == 6 else t) for i in range(13)]
    assert [i.times for i in fold_values(mixed) if isinstance(i, Repeat)] == []


def test_the_page_shows_them_once_and_json_all_of_them() -> None:
    found, whole = explain(model, 24), explain(model, 24, fold=False)
    page, large = found.to_html(), whole.to_html()
    assert page.count('class="v ') == explain(model, 5).to_html().count('class="v ')
    assert large.count('class="v ') == len(found.lines)
    assert '<span class="many">and 21 more</span>' in page
    assert "and 21 more" not in large
    assert '<td class="n">24</td>' in page
    assert page.count("<tr><td class=quiet>repeated 24 times</td></tr>") == 1
    assert "repeated 24 times, 6144 B/device in 24 collectives in all:" in page
    assert found.to_json() == whole.to_json()
    assert len(json.loads(found.to_json())["ledger"]["entries"]) == 48


def test_a_terminal_is_shown_them_once_too() -> None:
    out = io.StringIO()
    Console(width=200, file=out).print(explain(model, 24))
    text = out.getvalue()
    assert "repeated 24 times" in text
    assert text.count("silu_x") < 10


def test_the_command_has_the_same_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(
        "import shtypes as sh\ndef f(x):\n    for _ in range(20):\n        x = sh.sin(x)\n    return x\n"
    )
    run, args = runner(capsys), ("explain", f"{tmp_path}/layers.py:f", "f32[8]", "--mesh", "dp=2")
    assert "repeated 19 times" in run(*args).out or "repeated 20 times" in run(*args).out
    assert run(*args, "--no-fold").out.count(" = sin ") == 20
