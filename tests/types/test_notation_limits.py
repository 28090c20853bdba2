"""Texts without end: what is wrong with them is said in a few lines, and nothing of Python's own limits shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

import shtypes as sh
from shtypes.errors import ShardingTypeError, short
from shtypes.signatures.matching import pattern
from shtypes.types.mesh import Mesh
from shtypes.types.notation.syntax import caret
from shtypes.types.target import parse

MESH = Mesh({"dp": 2})
EIGHTS = "8," * 50_000
READERS: dict[str, Callable[[str], Any]] = {"type": lambda text: parse(text, MESH), "signature": pattern}


@pytest.mark.one_in(13)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"f32[{EIGHTS}8", "cannot read the type: expected `,`, `]` or `@`, not the end"),
        (f"f32[{'8' * 100_000}]", "a size has at most 18 digits, not 100000"),
        (f"f32[n={'8' * 5000}]", "a size has at most 18 digits, not 5000"),
        (f"f32[8]{{{'n' * 100_000}}}", "there is no state `nnn"),
        (f"{'f' * 100_000}[8]", "there is no dtype `fff"),
        (f"f32[{'8@dp,' * 20_000}]", "mesh axis `dp` is written twice"),
    ],
    ids=["open", "digits", "digits of a name", "state", "dtype", "twice"],
)
def test_a_long_text_is_shown_around_what_is_wrong(text: str, what: str, read: Callable[[str], Any]) -> None:
    with pytest.raises(ShardingTypeError) as error:
        read(text)
    message = str(error.value)
    assert message.startswith(what)
    assert len(message) < 700
    line, mark = message.split("\n")[1:3]
    assert line[len(mark) - 1 :].strip("…") or "not the end" in what


def test_a_caret_stays_below_its_column() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(1000))
    for at in (0, 20, 49, 50, 51, 500, 949, 950, 999, 1000):
        line, mark = caret(text, at).split("\n")
        assert line[len(mark) - 1 :][:1] == text[at : at + 1]
        assert len(line) <= 102
    assert caret("f32[8", 5) == "f32[8\n     ^"


FACTORS = "*".join(["h"] * 3000)


@pytest.mark.parametrize("dim", [FACTORS, "h*" + "(" * 3000 + "h" + ")" * 3000, "h*" + "-" * 3000 + "h"])
def test_the_arithmetic_of_a_signature_has_an_end(dim: str) -> None:
    def f(x: Any) -> None: ...

    f.__annotations__["x"] = Annotated[sh.Array, f"f32[{dim}]"]
    with pytest.raises(ShardingTypeError, match="the arithmetic of a dim has at most 100 operations, not ") as error:
        sh.typed(f)
    assert len(str(error.value)) < 500


def test_numbers_in_arithmetic_are_sizes_too() -> None:
    assert pattern("f32[" + "+".join(["h"] * 101) + "]").dims
    with pytest.raises(ShardingTypeError, match="as arithmetic of dims"):
        pattern(f"f32[h*{'9' * 19}]")
    with pytest.raises(ShardingTypeError, match="as arithmetic of dims"):
        pattern(f"f32[h*{'9' * 5000}]")


def test_a_message_is_bounded_whatever_it_shows() -> None:
    name = "n" * 100_000
    error = ShardingTypeError(f"`{name}` is {name}", where=f"f.py:1 in f: g({'8, ' * 50_000})", hints=[f"`{name}`"])
    assert len(str(error)) < 2500
    assert error.what == f"`{name}` is {name}"  # for programs, all of it
    usual = f"`{'a' * 300}` is as it is"
    assert str(ShardingTypeError(usual)) == usual


def test_a_short_text_is_as_it_is() -> None:
    assert short("a" * 100) == "a" * 100
    assert short("a" * 101) == f"{'a' * 74}…{'a' * 25}"
