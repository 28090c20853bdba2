"""A cache of the types of calls, up to renaming of dims."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mypy.types import Instance

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.editor.mypy.texts import ARRAY, is_known, text_of
from shtypes.editor.mypy.values import Value
from shtypes.editor.runtime import Fields, Function
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
        return cached._replace(texts=_named(numbered, question.names))

    def keep(self, question: Question, answer: CachedAnswer) -> None:
        """Caches the answer for a call, unless its results have dim names that its operands lack."""
        try:
            self._cache.put(question.key, (_numbered(answer.texts, question.names), answer))
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


def _numbered(texts: Texts, names: NameNumbers) -> object:
    if isinstance(texts, str):
        numbered = names.of(texts, new=False)
        if numbered is None:
            raise Undetermined
        return numbered
    if isinstance(texts, Function):
        return Function(_numbered(texts.result, names))
    if isinstance(texts, Fields):  # a class has its own names
        raise Undetermined
    if texts is None or isinstance(texts, bool):
        return texts
    items = [_numbered(t, names) for t in texts]
    return items if isinstance(texts, list) else tuple(items)


def _named(texts: Any, names: NameNumbers) -> Any:
    if isinstance(texts, Function):
        return Function(_named(texts.result, names))
    if not isinstance(texts, (tuple, list)):
        return texts
    return names.text(texts) if isinstance(texts, NumberedTemplate) else type(texts)([_named(f, names) for f in texts])
