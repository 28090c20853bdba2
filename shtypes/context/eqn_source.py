"""The source of the equation of a plain program that is being evaluated, for messages. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple


class EqnSource(NamedTuple):
    """Where an equation comes from."""

    line: str  # the user's line, as messages name it; empty where the program has none
    library: str  # the function of an installed library that was called there: ``optax.apply_updates``; empty for none
    #: the function of JAX that the user or the library called: ``jnp.median``; empty if the primitive itself
    called: str


class _Thread(threading.local):
    value: Callable[[], EqnSource | None] | None = None


_thread: Final = _Thread()


def eqn_source() -> EqnSource | None:
    """The source of the equation being evaluated; None outside of any, and where the running line is it."""
    return None if _thread.value is None else _thread.value()


def current_eqn() -> Callable[[], EqnSource | None] | None:
    """What tells the source of the equation being evaluated; None outside of any."""
    return _thread.value


class set_current_eqn:  # noqa: N801  # it is used as a function is
    """A context in which the equation that `where` tells of is evaluated; None for code that has lines of its own."""

    __slots__ = ("_outer", "_where")

    def __init__(self, where: Callable[[], EqnSource | None] | None) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._outer = _thread.value
        _thread.value = self._where

    def __exit__(self, *error: object) -> None:
        _thread.value = self._outer
