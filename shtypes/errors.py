"""`ShardingTypeError` and the layout of its messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

#: The environment variable that keeps what is left out of tracebacks.
TRACEBACK: Final = "SHTYPES_TRACEBACK"


def short(text: str, most: int = 100) -> str:
    """Shortens a text of more than ``most`` characters to its beginning and its end."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _readable(line: str) -> str:
    """Shortens the quotations and words of a long line."""
    if len(line) <= 400:
        return line
    return short(_QUOTED.sub(lambda match: short(match.group()), line), 1000)


#: A quotation between backticks, or a word.
_QUOTED: Final = re.compile(r"(?<=`)[^`]*(?=`)|[^\s`]+")


def quoted(axes: Iterable[str]) -> str:
    """The names of mesh axes in backticks, separated by commas."""
    return ", ".join(f"`{a}`" for a in axes)


def how_many(count: int, noun: str) -> str:
    """``1 dim``, ``2 dims``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Fix(NamedTuple):
    """A change with which the program types, with its price.

    Attributes:
        code: The code to write.
        forward: Its collectives in the forward pass, in words, or empty.
        backward: Its collectives in the backward pass, in words, or empty.
        bytes_forward: The bytes that each device sends forward.
        bytes_backward: The bytes that each device sends backward.
        note: Its cost in memory or work, if it sends nothing, or empty.
        later: The collectives of later ops, in words, or empty: those that finish a pending result, or of the backward
            pass where an invariant result meets replicated values.
        bytes_later: The bytes that each device sends in them.
    """

    code: str
    forward: str = ""
    backward: str = ""
    bytes_forward: int = 0
    bytes_backward: int = 0
    note: str = ""
    later: str = ""
    bytes_later: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of fixes: all bytes that they may lead to, then those that they send themselves."""
        return self.bytes + self.bytes_later, self.bytes

    @property
    def bytes(self) -> int:
        """The bytes that each device sends in both passes."""
        return self.bytes_forward + self.bytes_backward

    def __str__(self) -> str:
        later = f"; later: {self.later}, {self.bytes_later} B/device" if self.later else ""
        if self.note and not (self.forward or self.backward):
            return f"{self.code}   [free, but {self.note}{later}]"
        sides = (("forward", self.forward, self.bytes_forward), ("backward", self.backward, self.bytes_backward))
        price = "; ".join(f"{side}: {what}, {size} B/device" if what else f"{side}: none" for side, what, size in sides)
        return f"{self.code}   [{price}{later}]"


#: The operand of a function, or of a product, in a fix or a hint.
_OPERAND: Final = re.compile(r"(?<=[a-z]\()[^\s,()]+(?=[,)])|^[^\s,()]+(?= \* )")


def without_repeats(code: str) -> str:
    """Code of a fix with equal parts once: an operand that is given twice is resharded once."""
    return "; ".join(dict.fromkeys(code.split("; ")))


class ShardingTypeError(TypeError):
    """The error for a program, a type or a type's text that does not type.

    Prints what, where, why, fixes and hints; empty parts are left out.

    Attributes:
        what: A line that stands alone.
        where: The user's line and the operands' types.
        why: The reason, in terms of the data on the devices.
        fixes: Changes with which the program types, cheapest first; computed when they are read.
        hints: Advice that was neither typed nor priced.
        axes: The mesh axes at fault.
        placed: Whether ``where`` has the user's line.
        operands: The operand types whose reshards ``fixes`` are, in order; None if they are of other values.
        inner: Whether an op raised it that another op called.
        out_fixes: Returns the fixes that pass ``out=`` to the op, if it has that parameter.
        subjects: The types of the operands that ``fixes`` name, in order, or None.
        same: In a lifted program, for each of these operands the index of the first that is the same value: (0, 0) for
            ``x * x``, so that a fix reshards both.
        names: The names of these operands in ``fixes``, if they are not `x`, `lhs` and `rhs`, or ``operand_0``.
        expressions: Returns the user's expressions for these names, with which the fixes are printed, or None.
        of_plain: Whether a typed value was passed to a function of plain arrays.
        scope: The rule of the scope that forbids the communication, or None.
        result: The path of the result of branches whose types differ, or empty.
    """

    of_plain = False
    scope: object = None
    result = ""

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
        self.what = " ".join(what.split("\n"))  # a quoted value may have several lines
        self.where = where
        self.why = why
        self._fixes = tuple(fixes)
        self._deferred: list[Callable[[], None]] = []
        self._hints = tuple(hints)
        self.axes = tuple(axes)
        self.placed = where != "" and re.match(r"\S+\.py:\d+", where) is not None
        self.operands: tuple[object, ...] | None = None
        self.inner = False
        self.out_fixes: Callable[[], list[Fix]] | None = None
        self.subjects: tuple[object, ...] | None = None
        self.names: tuple[str, ...] = ()
        self.same: tuple[int, ...] = ()
        self.expressions: Callable[[ShardingTypeError], Mapping[str, str]] | None = None
        TypeError.__init__(self, self.what)  # not `super`: another base of `also` may take other arguments

    def with_traceback(self, tb: TracebackType | None, /) -> Self:
        """Sets the traceback; ``None``, for frames of rules and retries, does nothing with ``SHTYPES_TRACEBACK=1``."""
        return self if tb is None and os.environ.get(TRACEBACK) else super().with_traceback(tb)

    def __str__(self) -> str:
        parts = [("where", self.where), ("why", self.why)]
        fixes, hints = self._printed()
        parts += [("fix", str(fix)) for fix in fixes]
        parts += [("try", hint) for hint in hints]
        lines = [_readable(self.what)]
        for label, text in parts:
            if text:
                first, *rest = map(_readable, text.split("\n"))
                lines.append(f"  {label + ':':<7}{first}")
                lines += [f"{'':9}{line}" for line in rest]
        return "\n".join(lines)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Changes with which the program types, cheapest first."""
        self._complete()
        return self._fixes

    @fixes.setter
    def fixes(self, fixes: tuple[Fix, ...]) -> None:
        self._deferred, self._fixes = [], fixes

    def _printed(self) -> tuple[tuple[Fix, ...], tuple[str, ...]]:
        """The fixes and hints with the user's expressions for the operands; those that read the same once."""
        fixes, hints = self.fixes, self.hints
        texts = self.expressions(self) if self.expressions is not None and (fixes or hints) else {}

        def expression(name: re.Match[str]) -> str:
            text = texts.get(name[0], name[0])
            return f"({text})" if " " in text and not name.start() else text

        def named(code: str) -> str:
            return without_repeats(_OPERAND.sub(expression, code))

        return tuple(dict.fromkeys(fix._replace(code=named(fix.code)) for fix in fixes)), tuple(map(named, hints))

    @property
    def hints(self) -> tuple[str, ...]:
        """Advice that was neither typed nor priced."""
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
        """Whether it has fixes, or may compute some when they are read."""
        return bool(self._deferred or self._fixes)

    def defer(self, complete: Callable[[], None]) -> None:
        """Runs ``complete`` when fixes or hints are read; earlier ones run if it reads them, or does not set fixes."""
        self._deferred.append(complete)

    def __reduce__(self) -> Any:
        """Pickles it with its fixes computed."""
        fixes, hints = self._printed()
        computed: dict[str, Any] = {
            "_fixes": fixes,
            "_hints": hints,
            "_deferred": [],
            "out_fixes": None,
            "expressions": None,
        }
        state = self.__dict__ | computed
        classes = (cls for cls in type(self).__mro__ if getattr(sys.modules[cls.__module__], cls.__name__, 0) is cls)
        return next(classes), (self.what,), state


_subclasses: Final[dict[type[Exception], type[ShardingTypeError]]] = {}


def also(base: type[Exception]) -> type[ShardingTypeError]:
    """A subclass of `ShardingTypeError` and of ``base``, for code that catches ``base``."""
    if issubclass(ShardingTypeError, base):
        return ShardingTypeError
    if base not in _subclasses:
        body = {"__module__": __name__, "name": ""}  # without an `AttributeError.name` Python suggests no other name
        _subclasses[base] = type(ShardingTypeError.__name__, (ShardingTypeError, base), body)
    return _subclasses[base]


class NoMeshError(ShardingTypeError):
    """The error for an op that needs a mesh where none is set; plain arrays may then be handled on one device."""
