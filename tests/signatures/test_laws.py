"""Laws of signatures: a printed type allows itself and nothing else, a fix fits, and no text breaks the reader."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import Bindings, named, pattern, structure
from shtypes.types import ShType, State
from shtypes.types.notation.printing import canonical, show
from shtypes.types.policy import REPLICATED_STATE
from tests import strategies

POLICIES = tuple(REPLICATED_STATE)


def fits(text: str, t: ShType, replicated: State) -> bool:
    found = structure(pattern(text), t, replicated)
    bindings = Bindings()
    return not [*found.reasons, *bindings.add(found.claims, "`x`"), *bindings.resolve(found)]


@given(strategies.types(), st.sampled_from(POLICIES))
def test_a_printed_type_allows_itself(t: ShType, policy: str) -> None:
    assert fits(show(t, policy), t, REPLICATED_STATE[policy])
    assert fits(canonical(t), t, REPLICATED_STATE[policy])
    assert fits(f"{t.dtype_name}[...]{{...}}", t, REPLICATED_STATE[policy])


@given(st.data(), st.sampled_from(POLICIES))
def test_a_printed_type_allows_no_other(data: st.DataObject, policy: str) -> None:
    t = data.draw(strategies.types())
    other = data.draw(strategies.types(mesh=st.just(t.mesh)))
    assert fits(show(t, policy), other, REPLICATED_STATE[policy]) == (t == other)


@given(st.data(), st.sampled_from(POLICIES))
def test_what_a_text_asks_for_fits_it_and_keeps_shape_and_dtype(data: st.DataObject, policy: str) -> None:
    t = data.draw(strategies.types())
    other = data.draw(strategies.types(mesh=st.just(t.mesh)))
    text = (
        show(t, policy).replace(t.dtype_name, "", 1) if data.draw(st.booleans()) else f"[...]{_braces(show(t, policy))}"
    )
    found = structure(pattern(text), other, REPLICATED_STATE[policy])
    if found.goal is not None:
        assert not structure(pattern(text), found.goal, REPLICATED_STATE[policy]).reasons
        assert (found.goal.shape, found.goal.dtype_name) == (other.shape, other.dtype_name)


def _braces(text: str) -> str:
    return text[text.index("{") :] if "{" in text else "{}"


@given(strategies.types(), st.sampled_from(POLICIES))
def test_names_of_a_text_never_change_a_type(t: ShType, policy: str) -> None:
    letters = (f"{name}{show_axes}" for name, show_axes in zip("abcd", _axes(t), strict=False))
    text = f"[{', '.join(letters)}]{{...}}"
    assert named(pattern(text), t) == t
    assert [n for n in named(pattern(text), t).names if n] == list("abcd"[: t.ndim])


def _axes(t: ShType) -> list[str]:
    return [f"@({','.join(d.axes)})" if d.axes else "" for d in t.dims]


@given(strategies.garbled())
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(ShardingTypeError):
        pattern(text)


OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b}


@pytest.mark.parametrize(("a", "b", "op"), list(itertools.product((4, 12), (2, 3), OPERATORS)))
def test_arithmetic_is_that_of_python(a: int, b: int, op: str) -> None:
    from shtypes.types.mesh import Mesh

    size = OPERATORS[op](a, b)
    for wrong in (0, 1):
        t = ShType.parse(f"f32[{a},{b},{size + wrong},{(size + wrong) * 2}]", Mesh({"x": 2}))
        assert fits(f"f32[a, b, a {op} b, (a {op} b) * 2]", t, State.REDUCED) == (not wrong)
