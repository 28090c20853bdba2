"""Where the equation of a plain program comes from that is being evaluated, for messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Origin(NamedTuple):
    """Where an equation comes from.

    Attributes:
        line: The user's line, as messages name it.
        called: The function that the user called there: ``jnp.median``; empty if the user wrote the primitive itself.
    """

    line: str
    called: str


class _Thread(threading.local):
    value: Callable[[], Origin] | None = None


_thread: Final = _Thread()


def origin() -> Origin | None:
    """Where the equation comes from that is being evaluated; None outside of any."""
    return None if _thread.value is None else _thread.value()


@contextlib.contextmanager
def evaluating(where: Callable[[], Origin] | None) -> Iterator[None]:
    """Around the evaluation of an equation; None for code that has lines of its own."""
    outer = _thread.value
    _thread.value = where
    try:
        yield
    finally:
        _thread.value = outer
