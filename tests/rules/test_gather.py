"""The rules of gather and scatter by dimension numbers against the meaning oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.gather import Numbers, gather, scatter
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from tests.meaning import Array, Site
from tests.rules.test_index import Cases, positions_case, problems, rows_here

ROWS = Numbers((1,), (0,), (0,))  # whole rows, at positions with one component
BATCH = Numbers((), (1,), (1,), (0,), (0,))  # an element of each row
PAIRS = Numbers((1,), (), (0,))  # two rows in a run; here always from the first one on


def _rows(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    rows, here = rows_here(ids[:, 0], x, site.starts[0][0])
    return np.asarray(x[rows] * here[:, None])


def _elements(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    columns, here = rows_here(ids[:, 0], x.T, site.starts[0][1])
    return np.asarray(x[np.arange(len(x)), columns[: len(x)]] * here[: len(x)]) if len(ids) == len(x) else x[:, :0]


def _add_rows(operands: Sequence[Array], site: Site) -> Array:
    x, ids, updates = operands
    rows, here = rows_here(ids[:, 0], x, site.starts[0][0])
    out = x.copy()
    np.add.at(out, rows, updates * here[:, None])
    return out


def _add_elements(operands: Sequence[Array], site: Site) -> Array:
    x, ids, updates = operands
    columns, here = rows_here(ids[:, 0], x.T, site.starts[0][1])
    out = x.copy()
    np.add.at(out, (np.arange(len(x)), columns), updates * here)
    return out


CASES = [
    positions_case("rows", [(4, 2), (8, 1)], "fi", _rows, lambda types: gather("gather", types, ROWS, (1, 2))),
    positions_case("elements", [(2, 4), (2, 1)], "fi", _elements, lambda types: gather("gather", types, BATCH, (1, 1))),
    positions_case(
        "add rows", [(4, 2), (8, 1), (8, 2)], "fif", _add_rows,
        lambda types: scatter("scatter_add", "add", types, ROWS, (1, 2)),
    ),
    positions_case(
        "add elements", [(2, 4), (2, 1), (2,)], "fif", _add_elements,
        lambda types: scatter("scatter_add", "add", types, BATCH, (1, 1)),
    ),
]  # fmt: skip


@pytest.mark.parametrize("cases", CASES, ids=lambda cases: cases[0].op.name)
def test_windows_are_what_the_meanings_say(cases: Cases) -> None:
    assert problems(cases, (2,)) == []


MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("typing", "out"),
    [
        (lambda: gather("g", (t("f32[8@x,h=4]"), t("i32[n=8@y,1]")), ROWS, (1, 4)), "f32[n=8@y,h=4]{U:x}"),
        (lambda: gather("g", (t("f32[8,h=4@x]{I:y}"), t("i32[8,1]")), ROWS, (1, 4)), "f32[8,h=4@x]{I:y}"),
        (lambda: gather("g", (t("f32[b=8@x,4@y]"), t("i32[8,1]")), BATCH, (1, 1)), "f32[b=8@x]{U:y}"),
        (lambda: scatter("s", "add", (t("f32[8,h=4]"), t("i32[8@x,1]"), t("f32[8@x,4]")), ROWS, (1, 4)),
         "f32[8,h=4]{U:x}"),
        (lambda: scatter("s", "set", (t("f32[8@x,4]"), t("i32[2,1]"), t("f32[2,4]")), ROWS, (1, 4)), "f32[8@x,4]"),
        (lambda: scatter("s", "max", (t("f32[8@x,4]"), t("i32[8@x,1]"), t("f32[8]")), BATCH, (1, 1)), "f32[8@x,4]"),
    ],
)  # fmt: skip
def test_results_have_the_axes_and_names_of_their_dims(typing: Callable[[], Typing], out: str) -> None:
    (result,) = typing().results
    assert (result, result.names) == (t(out), t(out).names)


@pytest.mark.parametrize(
    ("typing", "what"),
    [
        (lambda: gather("g", (t("f32[8@x,4]"), t("i32[8,1]")), PAIRS, (2, 4)), "`g` acts along dim 0"),
        (lambda: gather("g", (t("f32[8,4]"), t("i32[8,2@x]")), PAIRS, (1, 4)), "`g` acts along dim 1"),
        (lambda: gather("g", (t("f32[8,4@x]"), t("i32[8,1]")), ROWS, (1, 2)), "`g` acts along dim 1"),
        (lambda: gather("g", (t("f32[8@x,4]"), t("i32[8@x,1]")), ROWS, (1, 4)), "`g` meets two different dims"),
        (lambda: gather("g", (t("bool[8@x,4]"), t("i32[8,1]")), ROWS, (1, 4)), "`g` looks up a dim of a `bool` array"),
        (lambda: scatter("s", "set", (t("f32[8,4]"), t("i32[8@x,1]"), t("f32[8,4]")), ROWS, (1, 4)),
         "`s` has positions that are sharded"),
    ],
)  # fmt: skip
def test_what_one_device_cannot_find_alone_is_refused(typing: Callable[[], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        typing()
    assert info.value.what.startswith(what)
