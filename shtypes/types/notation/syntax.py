"""The syntax of types, each part with its column. Independent of any context."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

from shtypes.errors import ShardingTypeError
from shtypes.types.notation.printing import BRACED, show_dim
from shtypes.types.parts import State


class Word(NamedTuple):
    """A word and its column."""

    text: str
    at: int


class DimText(NamedTuple):
    """A dim as written."""

    head: str  # a name, `_`, `...`, `_...`, or empty for only a size
    size: int | None
    axes: tuple[Word, ...]
    at: int
    #: In signatures: ``*`` for any number of dims of one name, ``=`` for arithmetic in ``head``.
    form: str = ""
    #: Whether it is written ``_@...``: with the value's axes.
    keeps_axes: bool = False
    #: Whether it is written ``name@()``: unsharded, despite a `dim_axes` scope.
    unsharded: bool = False

    def __str__(self) -> str:
        head = f"{'*' if self.form == '*' else ''}{self.head or self.size}"
        if self.keeps_axes or self.unsharded:
            return f"{head}@..." if self.keeps_axes else f"{head}@()"
        return show_dim(head, [a.text for a in self.axes])

    @property
    def open_ended(self) -> bool:
        """Whether it stands for all the remaining dims."""
        return self.head in ("...", "_...") or self.form == "*"


def expand_ellipsis(written: Sequence[DimText], ndim: int) -> list[DimText] | None:
    """One `DimText` for each of ``ndim`` dims, with ``...`` repeated as needed; None if the number does not fit.

    ``_...`` expands to ``_``.
    """
    left = ndim - sum(not d.open_ended for d in written)
    if left < 0 or (left and not any(d.open_ended for d in written)):
        return None
    dims: list[DimText] = []
    for d in written:
        one = d._replace(head="_") if d.head == "_..." else d
        dims += [one] * (left if d.open_ended else 1)
    return dims


class Syntax(NamedTuple):
    """A type as written; an omitted part is None."""

    dtype: Word | None
    dims: tuple[DimText, ...] | None
    states: tuple[tuple[State, tuple[Word, ...]], ...]
    #: In signatures: whether unmentioned axes may be in any state.
    any_state: bool = False


_DTYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(<[^\[\]{}\s]*)?")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE: Final = re.compile(r"[0-9]+")
_REST: Final = re.compile(r"_?\.\.\.")
_NO_AXES: Final = re.compile(r"\(\s*\)")
_MARK: Final = {mark: re.compile(re.escape(mark)) for mark in ("...", *"[]{}(),:@=*")}
_ARITHMETIC: Final = re.compile(r"[^,\]@={}]+")
_OPERATION: Final = re.compile(r"//|[-+*/(]")
#: The nodes of dim arithmetic: `/` for exact division, `//` rounds down.
_NODES: Final = (
    ast.Expression, ast.BinOp, ast.Name, ast.Constant, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv,
)  # fmt: skip
#: The maximum length of a quotation in messages.
_LONGEST: Final = 100
#: The maximum number of digits of a size, and of operations in arithmetic.
_DIGITS: Final = 18
_OPERATIONS: Final = 100
_STATES: Final = {s.value: s for s in BRACED}


def error_at(text: str, at: int, what: str, why: str = "", hints: Iterable[str] = ()) -> ShardingTypeError:
    """An error that points at a column."""
    return ShardingTypeError(what, where=caret(text, at), why=why, hints=hints)


def caret(text: str, at: int) -> str:
    """The text on one line, shortened around a column, with a caret below it."""
    line = "".join(" " if c.isspace() else c for c in text)
    if len(line) > _LONGEST:
        start = max(min(at - _LONGEST // 2, len(line) - _LONGEST), 0)
        cut = "…" if start + _LONGEST < len(line) else ""
        line, at = f"{'…' if start else ''}{line[start : start + _LONGEST]}{cut}", at - start + (start > 0)
    return f"{line}\n{' ' * at}^"


def read_syntax(text: str) -> Syntax:
    """Parses a type's syntax."""
    return _Reader(text).type()


def read_signature(text: str) -> Syntax:
    """Parses the pattern of a signature, which may also have ``*batch``, ``2*h`` and ``{...}``."""
    return _SignatureReader(text).type()


class _Reader:
    """A recursive-descent parser of types."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def take(self, pattern: re.Pattern[str]) -> Word | None:
        """The next word, if it matches."""
        self.skip_space()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        word = Word(match.group(), self.at)
        self.at = match.end()
        return word

    def mark(self, mark: str) -> bool:
        return self.take(_MARK[mark]) is not None

    def skip_space(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1

    def expected(self, *options: str) -> NoReturn:
        self.skip_space()
        rest = _NAME.match(self.text, self.at) or _SIZE.match(self.text, self.at)
        found_text = rest.group() if rest else self.text[self.at : self.at + 1]
        listed = " or ".join((", ".join(options[:-1]), options[-1]) if len(options) > 1 else options)
        what = f"cannot read the type: expected {listed}, not {f'`{found_text}`' if found_text else 'the end'}"
        raise error_at(self.text, self.at, what, hints=["a type is written like `f32[8@x,4]{U:y}`"])

    def type(self) -> Syntax:
        dtype = self.take(_DTYPE)
        dims = self.dims() if self.mark("[") else None
        braces = self.mark("{")
        states = self.states() if braces else ()
        if dims is None and not braces:
            self.expected(*(() if dtype else ("a dtype",)), "`[`", "`{`")
        if self.text[self.at :].strip():
            self.expected(*(() if braces else ("`{`",)), "the end")
        return Syntax(dtype, dims, states)

    def dims(self) -> tuple[DimText, ...]:
        dims: list[DimText] = []
        while not self.mark("]"):
            dims.append(self.dim())
            if not self.mark(","):
                if not self.mark("]"):
                    d = dims[-1]
                    bare = not (d.axes or d.keeps_axes or d.unsharded or d.open_ended)
                    self.expected("`,`", "`]`", *(("`@`",) if bare else ()))
                break
        open_ended = [d for d in dims if d.open_ended]
        if len(open_ended) > 1:
            kinds = dict.fromkeys("a dim like `*batch`" if d.form else f"`{d.head}`" for d in open_ended)
            what = f"a type has {' or '.join(sorted(kinds, key=len))} at most once"
            raise error_at(self.text, open_ended[-1].at, what, "it stands for all the dims that are left")
        return tuple(dims)

    def dim(self) -> DimText:
        if rest := self.take(_REST):
            return DimText(rest.text, None, (), rest.at)
        if size := self.take(_SIZE):
            return self.sharded(DimText("", self.number(size), (), size.at))
        name = self.take(_NAME)
        if name is None:
            self.expected("a size", "a name", "`_`", "`...`", "`]`")
        size_of_name = None
        if name.text != "_" and self.mark("="):
            size_of_name = self.take(_SIZE)
            if size_of_name is None:
                self.expected(f"a size for `{name.text}`")
        return self.sharded(DimText(name.text, self.number(size_of_name) if size_of_name else None, (), name.at))

    def number(self, size: Word) -> int:
        """The value of a size."""
        if len(size.text) > _DIGITS:
            raise error_at(self.text, size.at, f"a size has at most {_DIGITS} digits, not {len(size.text)}")
        return int(size.text)

    def sharded(self, d: DimText) -> DimText:
        """The dim with the axes that follow it."""
        if not self.mark("@"):
            return d
        if self.take(_NO_AXES):
            return d._replace(unsharded=True)
        return d._replace(keeps_axes=True) if self.mark("...") else d._replace(axes=self.axes())

    def axes(self) -> tuple[Word, ...]:
        """Parses one axis, or several in parentheses."""
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
            if self.others():
                continue
            letter = self.take(_NAME)
            if letter is None:
                self.expected("a state (V, U, R, I)", "`}`")
            if letter.text not in _STATES:
                letters = ", ".join(f"{s.value} ({s.name.lower()})" for s in BRACED)
                raise error_at(
                    self.text,
                    letter.at,
                    f"there is no state `{letter.text}` to write in braces",
                    f"braces take {letters}",
                    ["an axis that shards is written at its dim: `8@x`"],
                )
            if not self.mark(":"):
                self.expected("`:`")
            states.append((_STATES[letter.text], self.axes()))
            self.mark(",")
        return tuple(states)

    def others(self) -> bool:
        """Whether ``...`` comes next, for the axes that braces do not name."""
        return False


class _SignatureReader(_Reader):
    """A parser of signatures' patterns."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.any_state = False

    def type(self) -> Syntax:
        return super().type()._replace(any_state=self.any_state)

    def others(self) -> bool:
        has_others = self.mark("...")
        self.any_state |= has_others
        if has_others:
            self.mark(",")
        return has_others

    def dim(self) -> DimText:
        start = self.at
        if star := self.take(_MARK["*"]):
            name = self.take(_NAME)
            if name is None:
                self.expected("the name of any number of dims: `*batch`")
            return DimText("..." if name.text == "_" else name.text, None, (), star.at, "" if name.text == "_" else "*")
        start_of_dim = self.take(_REST) or self.take(_SIZE) or self.take(_NAME)
        self.skip_space()
        after, self.at = self.text[self.at : self.at + 1], start
        if (start_of_dim is None and after != "(") or after in ("", *",]@="):
            return super().dim()
        arithmetic = self.take(_ARITHMETIC)
        if arithmetic is None:
            return super().dim()
        count = len(_OPERATION.findall(arithmetic.text))
        if count > _OPERATIONS:
            what = f"the arithmetic of a dim has at most {_OPERATIONS} operations, not {count}"
            raise error_at(self.text, arithmetic.at, what, hints=["name the result: a dim name stands for any size"])
        try:
            tree = ast.parse(arithmetic.text.strip(), mode="eval")
        except (SyntaxError, ValueError):
            tree = None
        if tree is None or not all(isinstance(node, _NODES) and _may_be_size(node) for node in ast.walk(tree)):
            what = f"cannot read `{arithmetic.text.strip()}` as arithmetic of dims"
            raise error_at(self.text, arithmetic.at, what, hints=["`2*h`, `h + 1`, `(a + b) // 2`"])
        return self.sharded(DimText(arithmetic.text.strip(), None, (), arithmetic.at, "="))


def _may_be_size(node: ast.AST) -> bool:
    """Whether a node is not a number, or one that may be a size."""
    return not isinstance(node, ast.Constant) or (type(node.value) is int and node.value < 10**_DIGITS)
