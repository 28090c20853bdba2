"""The plain program that is traced or evaluated here: whether one is, and the source of the equation at hand. Pure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class EqnSource(NamedTuple):
    """Where an equation comes from."""

    line: str  # the user's line, as messages name it; empty where the program has none
    library: str  # the function of an installed library that was called there: ``optax.apply_updates``; empty for none
    #: the function of JAX that the user or the library called: ``jnp.median``; empty if the primitive itself
    called: str


class _Thread(threading.local):
    eqn: Callable[[], EqnSource | None] | None = None  # tells the source of the equation being evaluated
    depth = 0  # how many plain programs are being traced, one inside the other; 0 also in typed code in one
    typed = False  # whether what runs is a function of typed values, traced as a plain one


plain_trace: Final = _Thread()


def eqn_source() -> EqnSource | None:
    """The source of the equation being evaluated; None outside of any, and where the running line is it."""
    return None if plain_trace.eqn is None else plain_trace.eqn()


def current_eqn() -> Callable[[], EqnSource | None] | None:
    """The function that gives the source of the equation being evaluated; None outside of any."""
    return plain_trace.eqn


class set_current_eqn:  # noqa: N801  # it is used as a function is
    """A context in which an equation is evaluated; None for code outside of any program."""

    __slots__ = ("_outer", "_where")

    def __init__(self, where: Callable[[], EqnSource | None] | None) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._outer = plain_trace.eqn
        plain_trace.eqn = self._where

    def __exit__(self, *error: object) -> None:
        plain_trace.eqn = self._outer


def is_tracing_plain() -> bool:
    """Whether a plain program is being traced here for `lift`."""
    return plain_trace.depth > 0


@contextlib.contextmanager
def of_typed_values(typed: bool) -> Iterator[None]:
    """A scope around a function that is traced as a plain one: whether it is one of typed values."""
    with set_plain_trace(plain_trace.depth, typed=typed):
        yield


@contextlib.contextmanager
def set_plain_trace(depth: int | None = None, *, typed: bool = False) -> Iterator[None]:
    """A scope around the trace of a plain program; with ``0``, around typed code in one."""
    outer = plain_trace.depth, plain_trace.typed
    plain_trace.depth, plain_trace.typed = outer[0] + 1 if depth is None else depth, typed
    try:
        yield
    finally:
        plain_trace.depth, plain_trace.typed = outer
