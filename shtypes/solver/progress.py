"""Reports the progress of a search to a callback. Nothing here loads JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, NamedTuple


class Progress(NamedTuple):
    """The progress of a search."""

    minima: int  # computed so far
    settled: int  # pairs of axes that no longer improve the current solution
    pairs: int
    best: float | None  # seconds of the quickest assignment so far


_watcher: Final[ContextVar[Callable[[Progress], None] | None]] = ContextVar("watcher", default=None)


@contextlib.contextmanager
def watching(callback: Callable[[Progress], None]) -> Iterator[None]:
    """Calls a function after each minimum of the searches inside."""
    token = _watcher.set(callback)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(progress: Progress) -> None:
    """Calls the function of `watching`, if any."""
    if (callback := _watcher.get()) is not None:
        callback(progress)
