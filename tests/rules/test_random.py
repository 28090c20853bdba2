"""The rules of samples."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.rules import Typing
from shtypes.rules.random import categorical, sample
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

MESH = Mesh({"x": 2, "y": 4})


def t(text: str) -> ShType:
    return ShType.parse(text, MESH)


@pytest.mark.parametrize(
    ("key", "wanted", "sampled"),
    [
        ("key<fry>[]", "f32[batch=8@x,4]", "f32[batch=8@x,4]"),
        ("key<fry>[]", "f32[8]{I:x,R:y}", "f32[8]{I:x,R:y}"),
        ("key<fry>[]", "f32[8@x]{U:y}", "f32[8@x]"),  # masked afterwards
        ("key<fry>[]", "f32[8@x]{V:y}", "f32[8@x]{V:y}"),
        ("key<fry>[]{V:y}", "f32[8@x]{V:y}", "f32[8@x]{V:y}"),
    ],
)
def test_a_sample_has_the_type_that_it_is_asked_for(key: str, wanted: str, sampled: str) -> None:
    (result,) = sample("normal", t(key), t(wanted)).results
    assert (result, result.names) == (t(sampled), t(sampled).names)


@pytest.mark.parametrize(
    ("key", "logits", "classes"),
    [
        ("key<fry>[]", "f32[b=8@x,v=4]{I:y}", "i32[b=8@x]"),
        ("key<fry>[]", "f32[b=8]{V:x}", "i32[]{V:x}"),
        ("key<fry>[]{V:y}", "f32[b=8@x,v=4]", "i32[b=8@x]{V:y}"),
    ],
)
def test_classes_lie_as_the_rows_of_their_logits(key: str, logits: str, classes: str) -> None:
    (result,) = categorical("categorical", t(key), t(logits), t(logits).ndim - 1).results
    assert (result, result.names) == (t(classes), t(classes).names)


@pytest.mark.parametrize(
    ("typing", "what"),
    [
        (lambda: sample("normal", t("u32[2]"), t("f32[8]")), "`normal` needs a key"),
        (lambda: sample("normal", t("key<fry>[3]"), t("f32[8]")), "`normal` needs one key"),
        (lambda: sample("normal", t("key<fry>[]{V:x}"), t("f32[8@x]")), "`normal` with a key that varies on"),
        (
            lambda: sample("normal", t("key<fry>[]"), ShType.parse("f32[8]", Mesh({"x": 2}))),
            "`normal` cannot combine different meshes",
        ),
        (lambda: categorical("c", t("key<fry>[]"), t("f32[8@x]"), 0), "`c` acts along dim 0"),
        (lambda: categorical("c", t("key<fry>[]"), t("f32[8]{U:x}"), 0), "`c` is nonlinear in rhs"),
        (lambda: categorical("c", t("key<fry>[]{V:x}"), t("f32[4@x,8]"), 1), "`c` cannot combine varying with sharded"),
    ],
)
def test_samples_that_no_device_can_make_are_refused(typing: Callable[[], Typing], what: str) -> None:
    with pytest.raises(ShardingTypeError) as info:
        typing()
    assert info.value.what.startswith(what)
