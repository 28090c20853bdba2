"""What is no array among the arguments of a program or a call: a part of what its trace is known by."""

from __future__ import annotations

import numbers
from typing import Any


class Static:
    """A value that is no array. Numbers are equal only if they are the same: 1 is not 1.0, and 0.0 is not -0.0.

    A slice is known by its parts. What else has no hash, an array for example, is equal to itself only.
    """

    __slots__ = ("_hash", "_known", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._known = _parts(value)
        try:
            self._hash: int | None = hash((type(value), self._known))
        except TypeError:
            self._hash = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, numbers.Number):
            return repr(self.value) == repr(other.value)
        return self.value is other.value or (self._hash is not None and bool(self._known == other._known))

    def __hash__(self) -> int:
        return id(self.value) if self._hash is None else self._hash


def _parts(value: Any) -> Any:
    """What tells a value apart from others of its class."""
    if type(value) is tuple:
        return tuple(map(Static, value))
    if type(value) is slice:
        return tuple(map(Static, (value.start, value.stop, value.step)))
    return value
