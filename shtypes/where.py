"""Where the user's code is: the innermost line outside shtypes and JAX."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, ParamSpec, TypeVar

from shtypes.errors import ShardingTypeError

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Our own code, but for the demo, which is written as a user writes.
OURS: Final = tuple(_PACKAGE + name for name in sorted(os.listdir(_PACKAGE)) if name != "demo")


def user_line() -> str:
    """``file.py:12 in loss`` of the line that called into shtypes; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame):
            return _words(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def line_of(traceback: TracebackType | None) -> str:
    """The same of the line that an error came through; empty if it is not known."""
    found = ""
    while traceback is not None:
        if _is_the_users(traceback.tb_frame):
            found = _words(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _is_the_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith(OURS) and not _is_library(name)


def _words(frame: FrameType, line: int) -> str:
    function = frame.f_code.co_name
    place = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return place if function == "<module>" else f"{place} in {function}"


def _is_library(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return name.startswith("<frozen") or "jax" in parts or "functools.py" in parts or "contextlib.py" in parts


def placed(error: ShardingTypeError, call: str) -> ShardingTypeError:
    """The error with the user's line and what was called there, unless it names one already; the same object."""
    if not error.placed:
        line = user_line()
        place = f"{line}: {call}" if line else call
        error.where = f"{place}\n{error.where}" if error.where else place
        error.placed = True
    return error


def public(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of the public surface: its errors leave with the user's line."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except ShardingTypeError as error:
            raise placed(error, fn.__name__) from None

    return call
