"""`ShardingTypeError` and the one shape that every message has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple


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


#: What a message shows of the user's: between backticks, or a word.
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
    """

    code: str
    forward: str = ""
    backward: str = ""
    bytes_forward: int = 0
    bytes_backward: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that each device sends in both directions."""
        return self.bytes_forward + self.bytes_backward

    def __str__(self) -> str:
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
        fixes: Changes that type, cheapest first.
        hints: Advice that could not be typed again or priced.
        axes: The mesh axes at fault, for advice.
        placed: Whether ``where`` names the user's line.
        operands: The types of the operands that ``fixes`` speak of, in their order; None where they speak of others.
        inner: Whether it left an op that another op called.
        subjects: The types of the operands that ``fixes`` name, in their order, once that is known.
        of_plain: Whether it says that a function of plain arrays was given a typed value.
    """

    of_plain = False

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
        self.fixes = tuple(fixes)
        self.hints = tuple(hints)
        self.axes = tuple(axes)
        self.placed = re.match(r"\S+\.py:\d+", where) is not None
        self.operands: tuple[object, ...] | None = None
        self.inner = False
        self.subjects: tuple[object, ...] | None = None
        super().__init__(self.what)

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

    def located(self, where: str, fixes: Iterable[Fix] = ()) -> ShardingTypeError:
        """This error with its place, and its fixes if it has none; the same object."""
        self.where = self.where or where
        self.fixes = self.fixes or tuple(fixes)
        return self


class NoMeshError(ShardingTypeError):
    """No mesh is set: values without types are those of one device."""
