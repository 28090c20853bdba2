"""Caches that a process which runs for long cannot fill. Pure."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V")

#: How many results a function remembers: far more than one program needs, whatever it is.
MOST: Final = 4096
#: How many compiled functions are kept; each holds an executable.
COMPILED: Final = 1024
#: How many programs one jitted function keeps, for other shapes and types.
PROGRAMS: Final = 512


class Bounded(dict[Hashable, V]):
    """A mapping that forgets what was put in first once it is full.

    Args:
        most: How many entries it holds.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int = MOST) -> None:
        self._most = most

    def put(self, key: Hashable, value: V) -> V:
        """Keeps an entry, and gives it back."""
        while len(self) >= self._most:
            try:
                del self[next(iter(self))]
            except (KeyError, StopIteration, RuntimeError):  # another thread made room
                break
        self[key] = value
        return value

    def made(self, key: Hashable, make: Callable[[], V]) -> V:
        """The entry, made if it is missing; made each time under a key that has no hash."""
        try:
            hash(key)
        except TypeError:
            return make()
        found = self.get(key)
        return self.put(key, make()) if found is None else found


class NotesOn(Generic[V]):
    """What is noted of objects, each itself and not what equals it, as long as they live."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, x: Any) -> V | None:
        """The note on an object; None where there is none."""
        known = self._notes.get(id(x))
        return None if known is None else known[1]

    def put(self, x: Any, note: V) -> V:
        """Notes something on an object, and gives it back."""
        key = id(x)
        self._notes[key] = weakref.ref(x, lambda _: self._notes.pop(key, None)), note
        return note
