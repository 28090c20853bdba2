"""Types as strings up to renaming of dims, so that calls that differ only in dim names share a cached answer.

Rules only compare dim names for equality: ``f32[a,b@x]`` has the template ``f32[%s,%s@x]``. A name of configured size
stays in the template. Arithmetic of dims has no template, since its result may depend on other names.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final, NamedTuple

from shtypes.caches import Bounded

_AXES: Final = r"@\s*(?:\w+|\([\w\s,]+\))"
_DIM: Final = rf"\s*(?:\d+|(?!_\b)[^\W\d]\w*)\s*(?:{_AXES}\s*)?"
#: Matches a type whose dims are sizes and names, with axes.
_PLAIN: Final = re.compile(rf"[^\[\]%]*\[(?:{_DIM}(?:,{_DIM})*)?\][^%]*")
_AXES_OR_NAME: Final = re.compile(rf"{_AXES}|([^\W\d]\w*)")
_WORD: Final = re.compile(r"[^\W\d]\w*")


class NumberedTemplate(NamedTuple):
    """A template, with the index in a `NameNumbers` of the name for each ``%s``."""

    text: str
    names: tuple[int, ...]


class Templates:
    """The cached templates of texts."""

    def __init__(self, configured: Container[str]) -> None:
        self._configured = configured
        self._read: Bounded[tuple[str, tuple[str, ...]] | None] = Bounded()

    def of(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """The template of a type, and its dim names in order, or None."""
        return self._read[text] if text in self._read else self._read.put(text, self._template(text))

    def _template(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        if _PLAIN.fullmatch(text) is None:
            return None
        names: list[str] = []

        def placeholder(match: re.Match[str]) -> str:
            name = match[1]
            if name is None or name in self._configured:
                return match[0]
            names.append(name)
            return "%s"

        start, end = text.index("["), text.index("]")
        return text[:start] + _AXES_OR_NAME.sub(placeholder, text[start:end]) + text[end:], tuple(names)


class NameNumbers:
    """Numbers the dim names of the texts of one call, in order of first appearance."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._numbers: dict[str, int] = {}

    def of(self, text: str, *, new: bool = True) -> NumberedTemplate | None:
        """The template of a type with its names numbered; None if it has none, or a name that ``new=False`` forbids."""
        pair = self._templates.of(text)
        if pair is None or not (new or self._numbers.keys() >= set(pair[1])):
            return None
        template, names = pair
        return NumberedTemplate(template, tuple([self._numbers.setdefault(n, len(self._numbers)) for n in names]))

    def mentions(self, text: str) -> bool:
        """Whether one of the numbered names is a word of a text."""
        return not self._numbers.keys().isdisjoint(_WORD.findall(text))

    def text(self, numbered: NumberedTemplate) -> str:
        """The string of a numbered template, with these names."""
        names = list(self._numbers)
        return numbered.text % tuple([names[n] for n in numbered.names])
