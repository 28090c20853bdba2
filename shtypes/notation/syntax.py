"""The syntax of a type's text, each part with its column: it depends on nothing but the text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn

from shtypes.errors import ShardingTypeError
from shtypes.notation.printing import BRACED
from shtypes.types import State


class Word(NamedTuple):
    """A word and its column."""

    text: str
    at: int


class DimText(NamedTuple):
    """A dim as it is written."""

    head: str  # a name, `_`, `...`, or empty where there is only a size
    size: int | None
    axes: tuple[Word, ...]
    at: int


class Syntax(NamedTuple):
    """A type as it is written; a part that is left out is None."""

    dtype: Word | None
    dims: tuple[DimText, ...] | None
    states: tuple[tuple[State, tuple[Word, ...]], ...]


_SPACE: Final = re.compile(r"\s*")
_DTYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(<[^\[\]{}\s]*)?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE: Final = re.compile(r"[0-9]+")
_MARK: Final = {mark: re.compile(re.escape(mark)) for mark in ("...", *"[]{}(),:@=")}
_STATES: Final = {s.value: s for s in BRACED}


def error_at(text: str, at: int, what: str, why: str = "", hints: Iterable[str] = ()) -> ShardingTypeError:
    """An error that points at a column."""
    return ShardingTypeError(what, where=caret(text, at), why=why, hints=hints)


def caret(text: str, at: int) -> str:
    """The text on one line, and a mark below a column."""
    line = "".join(" " if c.isspace() else c for c in text)
    return f"{line}\n{' ' * at}^"


def read_syntax(text: str) -> Syntax:
    """Reads a text without asking what it means."""
    return _Reader(text).type()


class _Reader:
    """Reads a text from left to right by recursive descent."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def take(self, pattern: re.Pattern[str]) -> Word | None:
        """The next word if it matches."""
        self.at = _end(_SPACE, self.text, self.at)
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        word = Word(match.group(), self.at)
        self.at = match.end()
        return word

    def mark(self, mark: str) -> bool:
        return self.take(_MARK[mark]) is not None

    def expected(self, *options: str) -> NoReturn:
        self.at = _end(_SPACE, self.text, self.at)
        rest = _NAME.match(self.text, self.at) or _SIZE.match(self.text, self.at)
        found = rest.group() if rest else self.text[self.at : self.at + 1]
        listed = " or ".join((", ".join(options[:-1]), options[-1]) if len(options) > 1 else options)
        what = f"cannot read the type: expected {listed}, not {f'`{found}`' if found else 'the end'}"
        raise error_at(self.text, self.at, what, hints=["a type is written like `f32[8@x,4]{U:y}`"])

    def type(self) -> Syntax:
        dtype = self.take(_DTYPE)
        dims = self.dims() if self.mark("[") else None
        braces = self.mark("{")
        states = self.states() if braces else ()
        if dims is None and not braces:
            self.expected(*(() if dtype else ("a dtype",)), "`[`", "`{`")
        if _end(_SPACE, self.text, self.at) < len(self.text):
            self.expected(*(() if braces else ("`{`",)), "the end")
        return Syntax(dtype, dims, states)

    def dims(self) -> tuple[DimText, ...]:
        dims: list[DimText] = []
        while not self.mark("]"):
            dims.append(self.dim())
            if not self.mark(","):
                if not self.mark("]"):
                    self.expected("`,`", "`]`", *(() if dims[-1].axes or dims[-1].head == "..." else ("`@`",)))
                break
        if sum(d.head == "..." for d in dims) > 1:
            last = [d for d in dims if d.head == "..."][-1]
            raise error_at(self.text, last.at, "a type has `...` at most once")
        return tuple(dims)

    def dim(self) -> DimText:
        if dots := self.take(_MARK["..."]):
            return DimText("...", None, (), dots.at)
        if size := self.take(_SIZE):
            return DimText("", int(size.text), self.sharding(), size.at)
        name = self.take(_NAME)
        if name is None:
            self.expected("a size", "a name", "`_`", "`...`", "`]`")
        given = None
        if name.text != "_" and self.mark("="):
            given = self.take(_SIZE)
            if given is None:
                self.expected(f"a size for `{name.text}`")
        return DimText(name.text, int(given.text) if given else None, self.sharding(), name.at)

    def sharding(self) -> tuple[Word, ...]:
        return self.axes() if self.mark("@") else ()

    def axes(self) -> tuple[Word, ...]:
        """One axis, or several in parentheses."""
        several = self.mark("(")
        axes: list[Word] = []
        while True:
            axis = self.take(_NAME)
            if axis is None:
                self.expected("a mesh axis", *(() if several else ("`(`",)))
            axes.append(axis)
            if not several or self.mark(")"):
                return tuple(axes)
            if not self.mark(","):
                self.expected("`,`", "`)`")
            if self.mark(")"):
                return tuple(axes)

    def states(self) -> tuple[tuple[State, tuple[Word, ...]], ...]:
        states: list[tuple[State, tuple[Word, ...]]] = []
        while not self.mark("}"):
            letter = self.take(_NAME)
            if letter is None:
                self.expected("a state (V, U, R, I)", "`}`")
            if letter.text not in _STATES:
                known = ", ".join(f"{s.value} ({s.name.lower()})" for s in BRACED)
                raise error_at(
                    self.text,
                    letter.at,
                    f"there is no state `{letter.text}` to write in braces",
                    f"braces take {known}",
                    ["an axis that shards is written at its dim: `8@x`"],
                )
            if not self.mark(":"):
                self.expected("`:`")
            states.append((_STATES[letter.text], self.axes()))
            self.mark(",")
        return tuple(states)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
