"""What ops inserted in a run of a scope that lets them: it serves the ops that follow in the run. Pure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from shtypes.caches import NotesOn


class InsertedForms:
    """One run of a scope that lets ops insert reshards: what is inserted for one op serves the next, and no other run.

    Attributes:
        of: Of a value outside of traces, what it was brought into.
    """

    def __init__(self) -> None:
        self.of: NotesOn[dict[Any, Any]] = NotesOn()


class _Thread(threading.local):
    """The outermost run of such a scope that this thread has open."""

    run: InsertedForms | None = None


_thread: Final = _Thread()


@contextlib.contextmanager
def inserting(run: InsertedForms | None) -> Iterator[None]:
    """A part of a run; inside of another one it is a part of that. None opens none."""
    outer = _thread.run
    _thread.run = outer or run
    try:
        yield
    finally:
        _thread.run = outer


def inserted_in_run() -> InsertedForms | None:
    """The run that is open here."""
    return _thread.run
