"""What is known of calls: of one that differs from another in the names of dims only, nothing is computed again."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mypy.types import Instance

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.editor.alike import Numbered, Numbering
from shtypes.editor.mypy.texts import ARRAY, is_known, text_of
from shtypes.editor.mypy.values import Value
from shtypes.editor.runtime import Fields
from shtypes.editor.space import Space, Unknown

#: The texts of a tree of results: empty for an array whose type has none, None for None, False for what else there is.
Texts = str | tuple["Texts", ...] | list["Texts"] | Fields | bool | None
#: A number in what is written that may stand for a name.
_LARGE: Final = re.compile(r"\d{6}")


class Known(NamedTuple):
    """The cached answer for a call: the texts of its results, None where the answer is unknown."""

    texts: Texts


class Question(NamedTuple):
    """A call without the names of its dims, and these."""

    key: Hashable
    names: Numbering


class Memo:
    """A cache of the types of calls."""

    def __init__(self, space: Space) -> None:
        self._forms = space.forms
        self._found: Bounded[tuple[object, Known]] = Bounded()

    def question(self, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Question | None:
        """A call that may be like another one; None of one whose arguments are not all known."""
        names = Numbering(self._forms)
        written: list[str] = []
        try:
            described = [_described(value, names, written) for value in args]
            by_name = [(key, _described(value, names, written)) for key, value in kwargs.items()]
        except Unknown:
            return None
        text = " ".join(written)
        if names.mentions(text) or _LARGE.search(text):
            return None
        return Question((name, current_settings().policy, *described, None, *by_name), names)

    def answer(self, question: Question) -> Known | None:
        """The cached answer for a call; None if there is none."""
        found = self._found.get(question.key)
        if found is None:
            return None
        numbered, known = found
        return known._replace(texts=_named(numbered, question.names))

    def keep(self, question: Question, known: Known) -> None:
        """Keeps what was found of a call, unless its results have names that its operands have not."""
        try:
            self._found.put(question.key, (_numbered(known.texts, question.names), known))
        except Unknown:
            return


def _described(value: Value, names: Numbering, written: list[str]) -> Hashable:
    """The cache key of an argument: an array's text with its names numbered, or the value."""
    t = value.type
    if isinstance(t, Instance) and t.type.fullname == ARRAY:
        text = text_of(t)
        found = names.of(text) if text is not None and is_known(t) else None
        if text is not None and found is None:
            raise Unknown
        return found
    kind = t.type.fullname if isinstance(t, Instance) else type(t)
    try:
        text = repr(value.static())
    except Unknown:
        if value.is_number:
            return kind, None
        return kind, *[_described(item, names, written) for item in value.items()]
    written.append(text)
    return kind, text


def _numbered(texts: Texts, names: Numbering) -> object:
    if isinstance(texts, str):
        numbered = names.of(texts, new=False)
        if numbered is None:
            raise Unknown
        return numbered
    if isinstance(texts, Fields):  # of classes whose fields have names of their own
        raise Unknown
    if texts is None or isinstance(texts, bool):
        return texts
    found = [_numbered(t, names) for t in texts]
    return found if isinstance(texts, list) else tuple(found)


def _named(found: Any, names: Numbering) -> Any:
    if not isinstance(found, (tuple, list)):
        return found
    return names.text(found) if isinstance(found, Numbered) else type(found)([_named(f, names) for f in found])
