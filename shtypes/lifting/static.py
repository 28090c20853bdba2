"""What is no array among the arguments of a program or a call: a part of what its trace is known by."""

from __future__ import annotations

import numbers
from typing import Any


class Static:
    """A value that is no array. Numbers are equal only if they are the same: 1 is not 1.0, and 0.0 is not -0.0."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, numbers.Number):
            return repr(self.value) == repr(other.value)
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        try:
            return hash((type(self.value), self.value))
        except TypeError:
            return id(self.value)
