"""Templates of texts that differ in dim names only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shtypes.editor.text_evaluator import NameNumbers, Templates
from shtypes.signatures.matching import pattern

NAMES = st.sampled_from(("a", "b", "seq", "dp", "f32", "U", "heads"))
DIMS = st.one_of(NAMES, st.integers(0, 99).map(str))
AXES = st.sampled_from(("", "@dp", "@(dp,tp)", " @ ( dp, tp )"))


@st.composite
def texts(draw: st.DrawFn) -> str:
    dims = [f"{draw(DIMS)}{draw(AXES) if i == 0 else ''}" for i in range(draw(st.integers(0, 4)))]
    states = draw(st.sampled_from(("", "{U:x}", "{V:(x,y), U:z}")))
    return f"{draw(st.sampled_from(('f32', 'key<fry>')))}[{draw(st.sampled_from((',', ', '))).join(dims)}]{states}"


def renamed(text: str, others: dict[str, str]) -> str:
    """A text with its names exchanged, as its own reader finds them."""
    dims = reversed([d for d in pattern(text).dims or () if d.head])
    for d in dims:
        text = text[: d.at] + others.get(d.head, d.head) + text[d.at + len(d.head) :]
    return text


@given(texts(), st.permutations(("a", "b", "seq", "dp", "f32", "U")))
def test_texts_are_alike_exactly_where_other_names_make_them_one(text: str, names: list[str]) -> None:
    others = dict(zip(("a", "b", "seq", "dp", "f32", "U"), names, strict=True))
    templates = Templates({"heads"})
    one, two = NameNumbers(templates), NameNumbers(templates)
    first, second = one.of(text), two.of(renamed(text, others))
    assert first is not None
    assert first == second
    assert (one.text(first), two.text(first)) == (text, renamed(text, others))


def test_two_names_are_not_like_one_twice() -> None:
    templates = Templates(())
    assert NameNumbers(templates).of("f32[a, b]") == NameNumbers(templates).of("f32[c, d]")
    assert NameNumbers(templates).of("f32[a, b]") != NameNumbers(templates).of("f32[a, a]")
    assert NameNumbers(templates).of("f32[a@dp]") != NameNumbers(templates).of("f32[a@tp]")
    assert NameNumbers(Templates({"a"})).of("f32[a]") != NameNumbers(Templates({"a"})).of("f32[b]")


@pytest.mark.parametrize(
    "text",
    ["", "f32", "f32[", "f32[_]", "f32[*a]", "f32[...]", "f32[2*a]", "f32[a=8]", "f32[a@...]", "f32[a%s]", "f32[a,]"],
)
def test_what_says_more_than_names_is_like_no_other(text: str) -> None:
    assert NameNumbers(Templates(())).of(text) is None


def test_a_result_has_no_name_that_its_operands_have_not() -> None:
    names = NameNumbers(Templates(()))
    assert names.of("f32[a, b]") is not None
    assert names.of("f32[b, a]", new=False) is not None
    assert names.of("f32[a, c]", new=False) is None
    assert names.mentions("[a, 8]")
    assert not names.mentions("[ab, 8]")
