"""Whether a plain program is being traced, and the source of the equation being evaluated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple


class EqnSource(NamedTuple):
    """The origin of an equation."""

    line: str  # the user's line, as in messages, or empty
    library: str  # the installed library's function that the line called: ``optax.apply_updates``, or empty
    #: the JAX function that the user or the library called: ``jnp.median``; empty for the primitive itself
    called: str


class _Thread(threading.local):
    eqn: Callable[[], EqnSource | None] | None = None  # returns the source of the equation being evaluated
    depth = 0  # the number of nested traces of plain programs; 0 also in typed code inside one
    typed: Any = None  # JAX's trace of a function of typed values that is being traced as a plain one


plain_trace: Final = _Thread()


def eqn_source() -> EqnSource | None:
    """The source of the equation being evaluated; None outside of any, and where the running line is the source."""
    return None if plain_trace.eqn is None else plain_trace.eqn()


def current_eqn() -> Callable[[], EqnSource | None] | None:
    """The function that returns the source of the equation being evaluated; None outside of any."""
    return plain_trace.eqn


class set_current_eqn:  # noqa: N801  # used like a function
    """Context manager that sets the source of the equation being evaluated; None for code outside of any program."""

    __slots__ = ("_outer", "_where")

    def __init__(self, where: Callable[[], EqnSource | None] | None) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._outer = plain_trace.eqn
        plain_trace.eqn = self._where

    def __exit__(self, *error: object) -> None:
        plain_trace.eqn = self._outer


def is_tracing_plain() -> bool:
    """Whether `lift` is tracing a plain program."""
    return plain_trace.depth > 0


def tracing_typed(trace: Any) -> contextlib.AbstractContextManager[None]:
    """Context manager around the plain trace of a function: JAX's trace of one that takes typed values, or None."""
    return set_plain_trace(plain_trace.depth, typed=trace)


class TakesGradients(BaseException):  # no error, and not for the user's code to catch
    """Ends the plain trace of a function of typed values that takes gradients itself."""


def end_typed_trace(trace: Any) -> None:
    """Ends the plain trace of a function of typed values, if that is JAX's current trace: here it takes gradients."""
    if trace is not None and plain_trace.typed is trace:
        raise TakesGradients


@contextlib.contextmanager
def set_plain_trace(depth: int | None = None, *, typed: Any = None) -> Iterator[None]:
    """Context manager around the trace of a plain program, or with depth ``0`` around typed code in one."""
    outer = plain_trace.depth, plain_trace.typed
    plain_trace.depth, plain_trace.typed = outer[0] + 1 if depth is None else depth, typed
    try:
        yield
    finally:
        plain_trace.depth, plain_trace.typed = outer
