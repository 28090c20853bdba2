"""`ShardingTypeError` and the one shape that every message has."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple


def short(text: str, most: int = 100) -> str:
    """The text, or its beginning and its end where it is longer than messages show."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _readable(line: str) -> str:
    """A line of a message, in which no name, type or text that it shows fills a page."""
    if len(line) <= 400:
        return line
    return short(_SHOWN.sub(lambda shown: short(shown.group()), line), 1000)


#: The user's text in a message: between backticks, or a word.
_SHOWN: Final = re.compile(r"(?<=`)[^`]*(?=`)|[^\s`]+")


def quoted(axes: Iterable[str]) -> str:
    """Names of mesh axes as messages list them."""
    return ", ".join(f"`{a}`" for a in axes)


def how_many(count: int, noun: str) -> str:
    """``1 dim``, ``2 dims``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Fix(NamedTuple):
    """A change that makes the program type: it has been typed again, and priced.

    Attributes:
        code: What to write.
        forward: What it communicates forward, in words; empty for nothing.
        backward: What it communicates backward, in words; empty for nothing.
        bytes_forward: Bytes that each device sends forward.
        bytes_backward: Bytes that each device sends backward.
        note: What it costs though it sends nothing: memory, or work; empty for nothing.
    """

    code: str
    forward: str = ""
    backward: str = ""
    bytes_forward: int = 0
    bytes_backward: int = 0
    note: str = ""

    @property
    def bytes(self) -> int:
        """Bytes that each device sends in both directions."""
        return self.bytes_forward + self.bytes_backward

    def __str__(self) -> str:
        if self.note and not (self.forward or self.backward):
            return f"{self.code}   [free, but {self.note}]"
        sides = (("forward", self.forward, self.bytes_forward), ("backward", self.backward, self.bytes_backward))
        price = "; ".join(f"{side}: {what}, {size} B/device" if what else f"{side}: none" for side, what, size in sides)
        return f"{self.code}   [{price}]"


class ShardingTypeError(TypeError):
    """A program, a type or a piece of text that the sharding types refuse.

    Prints as what, where, why and fixes; only the parts that are known are printed.

    Attributes:
        what: One line that stands alone.
        where: The user's line and the operands' types.
        why: The reason, in terms of what is on the devices.
        fixes: Changes that type, cheapest first; they are looked for when they are read.
        hints: Advice that could not be typed again or priced.
        axes: The mesh axes at fault, for advice.
        placed: Whether ``where`` names the user's line.
        operands: The types of the operands that ``fixes`` speak of, in their order; None where they speak of others.
        inner: Whether it left an op that another op called.
        asking: What finds the fixes that ask the op for a type of its result, if it takes one.
        subjects: The types of the operands that ``fixes`` name, in their order, once that is known.
        same: For each of them the first that is the same value, of an equation of a lifted program.
        names: What ``fixes`` call these operands, where that is not `x`, `lhs` and `rhs`, or ``operand_0``.
        of_plain: Whether it says that a function of plain arrays was given a typed value.
        scope: The rule of the scope that refuses to communicate; None if none does.
    """

    of_plain = False
    scope: object = None

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        why: str = "",
        fixes: Iterable[Fix] = (),
        hints: Iterable[str] = (),
        axes: Iterable[str] = (),
    ) -> None:
        self.what = " ".join(what.split("\n"))  # the value that it shows may have lines
        self.where = where
        self.why = why
        self._fixes = tuple(fixes)
        self._deferred: list[Callable[[], None]] = []
        self._hints = tuple(hints)
        self.axes = tuple(axes)
        self.placed = re.match(r"\S+\.py:\d+", where) is not None
        self.operands: tuple[object, ...] | None = None
        self.inner = False
        self.asking: Callable[[], list[Fix]] | None = None
        self.subjects: tuple[object, ...] | None = None
        self.names: tuple[str, ...] = ()
        self.same: tuple[int, ...] = ()
        TypeError.__init__(self, self.what)  # of another kind too, its constructor may take other arguments

    def __str__(self) -> str:
        parts = [("where", self.where), ("why", self.why)]
        parts += [("fix", str(fix)) for fix in self.fixes]
        parts += [("try", hint) for hint in self.hints]
        lines = [_readable(self.what)]
        for label, text in parts:
            if text:  # a part of several lines keeps its columns, below its first line
                first, *rest = map(_readable, text.split("\n"))
                lines.append(f"  {label + ':':<7}{first}")
                lines += [f"{'':9}{line}" for line in rest]
        return "\n".join(lines)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Changes that type, cheapest first."""
        self._complete()
        return self._fixes

    @fixes.setter
    def fixes(self, fixes: tuple[Fix, ...]) -> None:
        self._deferred, self._fixes = [], fixes

    @property
    def hints(self) -> tuple[str, ...]:
        """Advice that could not be typed again or priced."""
        self._complete()
        return self._hints

    @hints.setter
    def hints(self, hints: tuple[str, ...]) -> None:
        self._hints = hints

    def _complete(self) -> None:
        while self._deferred:
            self._deferred.pop()()

    @property
    def may_have_fixes(self) -> bool:
        """Whether it has fixes, or some are looked for when they are read."""
        return bool(self._deferred or self._fixes)

    def defer(self, complete: Callable[[], None]) -> None:
        """Runs ``complete`` when the fixes are read, in place of an earlier one, unless it reads the fixes itself."""
        self._deferred.append(complete)

    def __reduce__(self) -> Any:
        """Pickles it complete."""
        state = {**self.__dict__, "_fixes": self.fixes, "_deferred": [], "asking": None}
        kinds = (kind for kind in type(self).__mro__ if getattr(sys.modules[kind.__module__], kind.__name__, 0) is kind)
        return next(kinds), (self.what,), state


_kinds: Final[dict[type[Exception], type[ShardingTypeError]]] = {}


def also(kind: type[Exception]) -> type[ShardingTypeError]:
    """`ShardingTypeError` as a class of another kind too, which code that catches that kind goes on catching."""
    if issubclass(ShardingTypeError, kind):
        return ShardingTypeError
    if kind not in _kinds:
        body = {"__module__": __name__, "name": ""}  # of an `AttributeError`, to which Python adds what could be meant
        _kinds[kind] = type(ShardingTypeError.__name__, (ShardingTypeError, kind), body)
    return _kinds[kind]


class NoMeshError(ShardingTypeError):
    """No mesh is set: values without types are those of one device."""
