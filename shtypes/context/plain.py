"""Whether a plain program is being traced here for `lift`: then its ops are noted, and evaluated afterwards. Pure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final


class _Thread(threading.local):
    depth = 0


thread: Final = _Thread()


def is_tracing_plain() -> bool:
    """Whether a plain program is being traced here for `lift`."""
    return thread.depth > 0


@contextlib.contextmanager
def tracing(depth: int | None = None) -> Iterator[None]:
    """Around the trace of a plain program; with ``0`` around code in one that is typed itself."""
    outer = thread.depth
    thread.depth = outer + 1 if depth is None else depth
    try:
        yield
    finally:
        thread.depth = outer
