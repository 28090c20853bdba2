"""Bounds on the time and memory of a call, which must not end or stall the type checker's process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import FrameType
from typing import Final

#: The maximum memory of a call.
_BYTES: Final = 8 << 30


class TooLong(BaseException):
    """Raised when a call takes too long; a BaseException, so that no handler catches it."""


def _give_up(_: int, frame: FrameType | None) -> None:
    raise TooLong


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """Suppresses Python's report of a `TooLong` raised in a finalizer or weak-reference callback."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda about: None if isinstance(about.exc_value, TooLong) else before(about)
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raises `TooLong` for too much time, and `MemoryError` for too much memory, if possible."""
    with _bounded_memory():
        alone = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        if not alone or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
            yield
            return
        before = signal.signal(signal.SIGVTALRM, _give_up)
        with _without_reports():
            try:  # repeatedly, since an exception in a finalizer does not end the call
                signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
                yield
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    try:
        resource = import_module("resource")
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + _BYTES if soft < 0 else min(soft, now + _BYTES), hard))
    except (ImportError, OSError, ValueError):  # not on this platform
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
