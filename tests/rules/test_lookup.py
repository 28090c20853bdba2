"""The rules of lookups by integers against the meaning oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.lookup import one_hot, segment_sum, sort, take_along
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from tests.meaning import Array, Site
from tests.rules.test_index import Cases, positions_case, problems, rows_here


def _along(operands: Sequence[Array], site: Site) -> Array:
    x, ids = operands
    rows, here = rows_here(ids, x, site.starts[0][0])
    return np.asarray(np.take_along_axis(x, rows, 0) * here)


def _segments(operands: Sequence[Array], site: Site) -> Array:
    rows, ids = operands
    out = np.zeros((4, *rows.shape[ids.ndim :]), np.int64)
    np.add.at(out, ids, rows)
    return out


def _in_order(operands: Sequence[Array], site: Site) -> Array:
    keys, x = operands
    rows, here = rows_here(np.argsort(keys, 0, kind="stable"), x, site.starts[1][0])
    return np.asarray(np.take_along_axis(x, rows, 0) * here)


def _values(types: tuple[ShType, ...]) -> Typing:
    """What goes with the keys."""
    typing = sort("sort", types, 0, 1)
    return typing._replace(results=typing.results[1:])


CASES = [
    positions_case("sort", [(4, 4), (4, 4)], "if", _in_order, _values),
    positions_case("take along", [(4, 4), (8, 4)], "fi", _along, lambda types: take_along("take_along_axis", types, 0)),
    positions_case(
        "take along, stretched", [(4, 1), (8, 2)], "fi", _along, lambda types: take_along("take_along_axis", types, 0)
    ),
    positions_case(
        "segment sum", [(8, 2), (8,)], "fi", _segments, lambda types: segment_sum("segment_sum", types, 4, ())
    ),
]


@pytest.mark.parametrize("cases", CASES, ids=lambda cases: cases[0].op.name)
def test_lookups_are_what_the_meanings_say(cases: Cases) -> None:
    assert problems(cases, (2,)) == []


MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("typing", "out"),
    [
        (lambda: one_hot("one_hot", t("i32[b=4@x]"), 8, 1, "f32", ("y",)), "f32[b=4@x,8@y]"),
        (lambda: one_hot("one_hot", t("i32[b=4]{V:x}"), 8, 0, "i32", ()), "i32[8,b=4]{V:x}"),
        (lambda: segment_sum("s", (t("f32[8,h=4]{I:y}"), t("i32[8]")), 8, ("y",)), "f32[8@y,h=4]"),
        (lambda: segment_sum("s", (t("f32[8@x,h=4]"), t("i32[8@x]")), 8, ("y",)), "f32[8@y,h=4]{U:x}"),
        (lambda: take_along("t", (t("f32[b=4@x,v=8@y]"), t("i32[4,k=2]")), 1), "f32[b=4@x,k=2]{U:y}"),
        (lambda: _values((t("i32[b=4,8@x]"), t("f32[4,v=8]"))), "f32[b=4,v=8@x]"),
        (lambda: _values((t("i32[b=4,8]"), t("f32[4@y,v=8]"))), "f32[b=4,v=8]{U:y}"),
        (lambda: _values((t("i32[4,8]"), t("f32[b=4,v=8]{U:x}"))), "f32[b=4,v=8]{U:x}"),
    ],
)  # fmt: skip
def test_results_have_the_axes_and_names_of_their_dims(typing: Callable[[], Typing], out: str) -> None:
    (result,) = typing().results
    assert (result, result.names) == (t(out), t(out).names)


def test_a_gradient_of_which_each_device_has_some_makes_the_rows_reduced() -> None:
    typing = segment_sum("segment_sum", (t("f32[8]{I:y}"), t("i32[8]")), 8, ("y",))
    assert typing.operands == (t("f32[8]{R:y}"), t("i32[8]"))


@pytest.mark.parametrize(
    ("typing", "what"),
    [
        (lambda: one_hot("one_hot", t("i32[4]{U:x}"), 8, 1, "f32", ()), "`one_hot` is nonlinear in the operand"),
        (lambda: one_hot("one_hot", t("i32[4@x]"), 8, 1, "f32", ("x",)), "`one_hot` cannot shard the classes"),
        (lambda: segment_sum("segment_sum", (t("f32[8]{U:y}"), t("i32[8]")), 8, ("y",)), "`segment_sum` cannot shard"),
        (lambda: take_along("take", (t("f32[8,4]"), t("i32[8,3]")), 0), "`take` cannot broadcast dim 1"),
        (lambda: sort("sort", (t("f32[8@x]"), t("f32[8]")), 0, 1), "`sort` acts along dim 0"),
        (lambda: sort("sort", (t("f32[8]{U:x}"), t("f32[8]")), 0, 1), "`sort` is nonlinear in"),
        (lambda: sort("sort", (t("f32[8]"), t("bool[8@x]")), 0, 1), "`sort` looks up a dim of a `bool` array"),
    ],
)  # fmt: skip
def test_what_one_device_cannot_look_up_alone_is_refused(typing: Callable[[], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        typing()
    assert info.value.what.startswith(what)


def test_what_goes_with_the_keys_is_typed_by_itself() -> None:
    """One value may be a pending sum where another is whole; both meet the keys."""
    keys, pending, whole = t("i32[8,4]"), t("f32[8,4]{U:x}"), t("f32[8,4]")
    assert sort("sort", (keys, pending, whole), 0, 1).results == (keys, pending, whole)
