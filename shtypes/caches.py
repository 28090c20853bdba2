"""Bounded caches, for processes that run for long."""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V")

#: The maximum number of results of a cached function: far more than one program needs.
CACHE_SIZE: Final = 4096
#: The maximum number of compiled functions in a cache; each holds an executable.
COMPILED: Final = 1024
#: The maximum number of programs of one jitted function, for other shapes and types.
PROGRAMS: Final = 512


class Bounded(dict[Hashable, V]):
    """A mapping of at most ``most`` entries, which drops the oldest when full."""

    __slots__ = ("_most",)

    def __init__(self, most: int = CACHE_SIZE) -> None:
        self._most = most

    def put(self, key: Hashable, value: V) -> V:
        """Adds an entry, and returns it."""
        while len(self) >= self._most:
            try:
                del self[next(iter(self))]
            except (KeyError, StopIteration, RuntimeError):  # another thread removed it
                break
        self[key] = value
        return value

    def get_or_create(self, key: Hashable, make: Callable[[], V]) -> V:
        """The entry, created if it is missing, and always if the key has no hash."""
        try:
            hash(key)
        except TypeError:
            return make()
        value = self.get(key)
        return self.put(key, make()) if value is None else value


class NotesOn(Generic[V]):
    """Notes on objects, by identity, for the lifetime of the object."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, x: Any) -> V | None:
        """The note on an object, or None."""
        note = self._notes.get(id(x))
        return None if note is None else note[1]

    def put(self, x: Any, note: V) -> V:
        """Adds a note on an object, and returns it."""
        key = id(x)
        self._notes[key] = weakref.ref(x, lambda _: self._notes.pop(key, None)), note
        return note


class Static:
    """A static argument. Numbers are equal only if their types and signs are: 1 is not 1.0, and 0.0 is not -0.0.

    Slices compare by their parts; other values without a hash, such as arrays, only by identity.
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
    """The key of a value within its class."""
    if type(value) is tuple:
        return tuple(map(Static, value))
    if type(value) is slice:
        return tuple(map(Static, (value.start, value.stop, value.step)))
    return value
