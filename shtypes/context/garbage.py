"""Fewer garbage collections while many objects are allocated that live for long."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

#: The thresholds of `gc`: by default each 700 new objects are looked at, and all of JAX's again and again.
_THRESHOLDS: Final = (100_000, 20, 20)
_lock: Final = threading.Lock()
_outer: Final[list[tuple[int, int, int]]] = []  # the thresholds before the open scopes, for each of them


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """A scope for traces and searches, of which a sixth of the time is Python's garbage collection."""
    with _lock:
        _outer.append(_outer[0] if _outer else gc.get_threshold())
        if 0 < _outer[0][0] < _THRESHOLDS[0]:  # else the user has turned it off, or has larger ones
            gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            before = _outer.pop()
            if not _outer and gc.get_threshold() == _THRESHOLDS:
                gc.set_threshold(*before)
