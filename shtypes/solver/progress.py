"""How far a search is, for whoever watches. Nothing here loads JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, NamedTuple


class Progress(NamedTuple):
    """How far a search is."""

    minima: int  # how many were found
    settled: int  # the pairs of axes that no longer improve the one that is looked for
    pairs: int
    best: float | None  # seconds of the quickest assignment so far


_watcher: Final[ContextVar[Callable[[Progress], None] | None]] = ContextVar("watcher", default=None)


@contextlib.contextmanager
def watching(told: Callable[[Progress], None]) -> Iterator[None]:
    """Tells a function of each minimum that a search finds in it."""
    token = _watcher.set(told)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(progress: Progress) -> None:
    """Tells the watcher, if there is one."""
    if (told := _watcher.get()) is not None:
        told(progress)
