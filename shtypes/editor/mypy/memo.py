"""A cache of the types of calls, up to renaming of dims."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from mypy.types import Instance

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.editor.mypy.texts import ARRAY, is_known, text_of
from shtypes.editor.mypy.values import Value
from shtypes.editor.runtime import Fields, Function, map_answer
from shtypes.editor.text_evaluator import NameNumbers, NumberedTemplate, TextEvaluator, Undetermined

#: The types of a pytree of results as strings: empty for an unknown array, None for None, False for other leaves.
Texts = str | tuple["Texts", ...] | list["Texts"] | Fields | Function | bool | None
#: A number in a string that may stand for a name.
_LARGE: Final = re.compile(r"\d{6}")


class CachedAnswer(NamedTuple):
    """The cached answer for a call: the types of its results as strings, or None if unknown."""

    texts: Texts


class Question(NamedTuple):
    """The cache key of a call, its dim names numbered, and their numbers."""

    key: Hashable
    names: NameNumbers


class Memo:
    """A cache of the types of calls."""

    def __init__(self, evaluator: TextEvaluator) -> None:
        self._templates = evaluator.templates
        self._cache: Bounded[tuple[object, CachedAnswer]] = Bounded()

    def question(self, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Question | None:
        """The key of a call; None if an argument is unknown, or a dim name is also in a static string."""
        names = NameNumbers(self._templates)
        written: list[str] = []
        try:
            described = [_described(value, names, written) for value in args]
            by_name = [(key, _described(value, names, written)) for key, value in kwargs.items()]
        except Undetermined:
            return None
        text = " ".join(written)
        if names.mentions(text) or _LARGE.search(text):
            return None
        return Question((name, current_settings().policy, *described, None, *by_name), names)

    def answer(self, question: Question) -> CachedAnswer | None:
        """The cached answer for a call, or None."""
        entry = self._cache.get(question.key)
        if entry is None:
            return None
        numbered, cached = entry
        named = map_answer(lambda x: question.names.text(x) if isinstance(x, NumberedTemplate) else x, numbered)
        return cached._replace(texts=named)

    def keep(self, question: Question, answer: CachedAnswer) -> None:
        """Caches the answer for a call, unless its results have dim names that its operands lack."""
        try:
            numbered = map_answer(lambda text: _numbered(text, question.names), answer.texts)
            self._cache.put(question.key, (numbered, answer))
        except Undetermined:
            return


def _described(value: Value, names: NameNumbers, written: list[str]) -> Hashable:
    """The cache key of an argument: an array's type with its names numbered, or the value."""
    t = value.type
    if isinstance(t, Instance) and t.type.fullname == ARRAY:
        text = text_of(t)
        numbered = names.of(text) if text is not None and is_known(t) else None
        if text is not None and numbered is None:
            raise Undetermined
        return numbered
    kind = t.type.fullname if isinstance(t, Instance) else type(t)
    try:
        text = repr(value.literal())
    except Undetermined:
        if value.is_number:
            return kind, None
        return kind, *[_described(item, names, written) for item in value.items()]
    written.append(text)
    return kind, text


def _numbered(text: object, names: NameNumbers) -> object:
    """The numbered template of a leaf of an answer."""
    if not isinstance(text, (str, Fields)):
        return text
    numbered = names.of(text, new=False) if isinstance(text, str) else None  # the names of a class are separate
    if numbered is None:
        raise Undetermined
    return numbered
