"""Guards of the type checker's process: no error of a hook ends it, and no call takes too much time or memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType
from typing import Any, Final, TypeVar

C = TypeVar("C")
T = TypeVar("T")

#: Whether errors of the plugin propagate, for its tests.
STRICT: Final = bool(os.environ.get("SHTYPES_STRICT_PLUGIN"))
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


def guarding() -> contextlib.suppress:
    """Context manager that suppresses errors, as if the hook had not run."""
    return contextlib.suppress(*(() if STRICT else (Exception,)))


def _guarded(default: str) -> Callable[[Callable[[C], T]], Callable[[C], T]]:
    """Decorates a hook to return mypy's default, an attribute of the hook's context, if it fails."""

    def guard(hook: Callable[[C], T]) -> Callable[[C], T]:
        def guarded(context: C) -> T:
            with guarding():
                return hook(context)
            fallback: Any = getattr(context, default)
            return fallback  # type: ignore[no-any-return]

        return guarded

    return guard


#: Hooks for the type of a result, for that of an attribute, and for a signature.
result: Final = _guarded("default_return_type")
attribute: Final = _guarded("default_attr_type")
signature: Final = _guarded("default_signature")
