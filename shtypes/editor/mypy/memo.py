"""What is known of calls: of one that differs from another in the names of dims only, nothing is computed again."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mypy.types import Instance

from shtypes.caches import Bounded
from shtypes.context.ambient import current_ambient
from shtypes.editor.alike import Forms, Numbered, Numbering
from shtypes.editor.mypy.texts import ARRAY, is_known, text_of
from shtypes.editor.mypy.values import Value
from shtypes.editor.space import Unknown

#: The texts of results as they come: of one, or of each of several, empty for a type that has none. None if unknown.
Texts = str | tuple[str, ...] | list[str] | None
#: A number in what is written that stands for a name.
_LARGE: Final = re.compile(r"\d{13}")


class Known(NamedTuple):
    """What is known of a call.

    Attributes:
        texts: The texts of its results; None where nothing is known of them.
        moves: Whether an operand is moved or cast.
        pending: Whether an operand is a pending sum.
    """

    texts: Texts
    moves: bool = False
    pending: bool = False


class Question(NamedTuple):
    """A call without the names of its dims, and these."""

    key: Hashable
    names: Numbering


class Memo:
    """What is known of calls.

    Args:
        forms: The forms of texts.
    """

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._found: Bounded[tuple[object, Known]] = Bounded()

    def question(self, op: str, given: Mapping[str, Sequence[Value]], receiver: Value | None) -> Question | None:
        """A call that may be like another one; None of one whose arguments are not all written out."""
        names = Numbering(self._forms)
        key: list[Hashable] = [op, current_ambient().policy]
        written: list[str] = []
        try:
            for name, values in (*given.items(), ("", () if receiver is None else (receiver,))):
                key += (name, *[_described(value, names, written) for value in values])
        except Unknown:
            return None
        text = " ".join(written)
        return None if names.mentions(text) or _LARGE.search(text) else Question(tuple(key), names)

    def answer(self, question: Question) -> Known | None:
        """What is known of a call; None where it is the first of its like."""
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
    """What the type of a call depends on of an argument: the text of an array, by its names' numbers, or the value.

    Raises:
        Unknown: it is not known.
    """
    t = value.type
    if isinstance(t, Instance) and t.type.fullname == ARRAY:
        text = text_of(t)
        found = names.of(text) if text is not None and is_known(t) else None
        if text is not None and found is None:
            raise Unknown
        return found
    text = repr(value.static())
    written.append(text)
    return t.type.fullname if isinstance(t, Instance) else type(t), text


def _numbered(texts: Texts, names: Numbering) -> object:
    if isinstance(texts, str):
        numbered = names.of(texts, new=False)
        if numbered is None:
            raise Unknown
        return numbered
    if texts is None:
        return None
    found = [_numbered(t, names) for t in texts]
    return found if isinstance(texts, list) else tuple(found)


def _named(found: Any, names: Numbering) -> Any:
    if found is None:
        return None
    return names.text(found) if isinstance(found, Numbered) else type(found)([_named(f, names) for f in found])
