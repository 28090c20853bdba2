"""Texts that differ in the names of their dims only: what is known of one is known of the others. Pure.

No rule looks at a name, but at whether two are the same. A name whose size is configured is not like another one, and
neither is arithmetic, whose result may be found by other names: such texts are like none.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final, NamedTuple

from shtypes.caches import Bounded

_AXES: Final = r"@\s*(?:\w+|\([\w\s,]+\))"
_DIM: Final = rf"\s*(?:\d+|(?!_\b)[^\W\d]\w*)\s*(?:{_AXES}\s*)?"
#: A text whose dims are sizes and names, each with the axes that shard it.
_PLAIN: Final = re.compile(rf"[^\[\]%]*\[(?:{_DIM}(?:,{_DIM})*)?\][^%]*")
_AXES_OR_NAME: Final = re.compile(rf"{_AXES}|([^\W\d]\w*)")
_WORD: Final = re.compile(r"[^\W\d]\w*")


class Numbered(NamedTuple):
    """A text with ``%s`` in place of each name, and the numbers of the names."""

    text: str
    names: tuple[int, ...]


class Forms:
    """Texts without their names, each read once."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._read: Bounded[tuple[str, tuple[str, ...]] | None] = Bounded()

    def of(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """A text with ``%s`` in place of each name, and the names; None of one that is like no other."""
        return self._read[text] if text in self._read else self._read.put(text, self._form(text))

    def _form(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        if _PLAIN.fullmatch(text) is None:
            return None
        names: list[str] = []

        def left_out(found: re.Match[str]) -> str:
            name = found[1]
            if name is None or name in self._known:
                return found[0]
            names.append(name)
            return "%s"

        start, end = text.index("["), text.index("]")
        return text[:start] + _AXES_OR_NAME.sub(left_out, text[start:end]) + text[end:], tuple(names)


class Numbering:
    """The names in some texts by number, in the order in which they come."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._numbers: dict[str, int] = {}

    def of(self, text: str, *, new: bool = True) -> Numbered | None:
        """A text with its names by number; None of one that is like no other, or has new names though none may be."""
        form = self._forms.of(text)
        if form is None or not (new or self._numbers.keys() >= set(form[1])):
            return None
        return Numbered(form[0], tuple([self._numbers.setdefault(name, len(self._numbers)) for name in form[1]]))

    def mentions(self, text: str) -> bool:
        """Whether one of the names is a word of a text."""
        return not self._numbers.keys().isdisjoint(_WORD.findall(text))

    def text(self, numbered: Numbered) -> str:
        """The text that has these names."""
        names = list(self._numbers)
        return numbered.text % tuple([names[n] for n in numbered.names])
