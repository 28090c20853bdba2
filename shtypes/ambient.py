"""What is in force around the code: one hashable record of all that scopes set. Pure.

JAX keys its trace caches on a user context (`jax_context`) that follows this one, so that no cached trace answers for
another policy, other sizes, other scopes of communication. Whatever decides what is accepted belongs in `Ambient`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shtypes.errors import ShardingTypeError

#: Dim names and their sizes, sorted by name: hashable.
Sizes = tuple[tuple[str, int], ...]


class Ambient(NamedTuple):
    """All that scopes can set.

    Attributes:
        policy: The name of the policy.
        dims: The sizes of the dim names in scope.
        scopes: What the scopes of communication say, outermost first; hashable.
        checks: Whether results are compared across devices.
        mapped: The mesh axes that shard the dims that are mapped over: along them each device is at steps of its own.
        written: The mesh axes along which every cast must be written.
        region: How programs are lowered where they do not say.
        only_types: Whether values are made without data.
        plan: What ops that do not type insert, where a function was looked through for that; None where it was not.
        shared: Whether ops take a value in the form that another op had it brought into.
        tried: Whether a function is only tried: no scope refuses anything, so that none decides what is chosen.
    """

    policy: str
    dims: Sizes = ()
    scopes: tuple[object, ...] = ()
    checks: bool = False
    mapped: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    region: str = "auto"
    only_types: bool = False
    plan: tuple[object, ...] | None = None
    shared: bool = False
    tried: bool = False


Enter = Callable[[Ambient], contextlib.AbstractContextManager[object]]


class _Entered:
    """One scope that was entered, and JAX's context that follows it; None until JAX is loaded."""

    __slots__ = ("jax", "value")

    def __init__(self, value: Ambient) -> None:
        self.value = value
        self.jax: contextlib.AbstractContextManager[object] | None = None
        self.follow()

    def follow(self) -> None:
        if self.jax is None and _enter_jax is not None:
            self.jax = _enter_jax(self.value)
            self.jax.__enter__()

    def leave(self) -> None:
        if self.jax is not None:
            self.jax.__exit__(None, None, None)


class _Thread(threading.local):
    """The scopes that this thread is in, outermost first."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []


_base: Ambient | None = None
_thread = _Thread()
_enter_jax: Enter | None = None
_set_jax_base: Callable[[Ambient], None] | None = None


def base(make: Callable[[], Ambient]) -> Ambient:
    """What holds outside every scope, in every thread; made on first use."""
    global _base
    if _base is None:
        _base = make()
    return _base


def set_base(value: Ambient) -> None:
    """Sets what holds outside every scope."""
    global _base
    _base = value
    if _set_jax_base is not None:
        _set_jax_base(value)


def scoped() -> Ambient | None:
    """What the innermost scope of this thread set, if there is one."""
    entered = _thread.entered
    return entered[-1].value if entered else None


@contextlib.contextmanager
def scope(value: Ambient) -> Iterator[None]:
    """A scope in which ``value`` is in force, for this thread and for what JAX traces in it.

    Raises:
        ShardingTypeError: (when left) a scope that was entered later is open, or this one was closed with another.
    """
    entered, own = _thread.entered, _Entered(value)
    entered.append(own)
    try:
        yield
    finally:
        in_order = bool(entered) and entered[-1] is own
        while own in entered:  # what is still open inside is closed with it, so that JAX's context stays in step
            entered.pop().leave()
        if not in_order:
            raise ShardingTypeError(
                "scopes were left in another order than they were entered",
                why="a scope holds for its thread: while it is open, other tasks and generators that run are in it too",
                hints=[
                    "no `await` or `yield` in the body of a scope",
                    "the scope as a decorator, which knows both",
                ],
            )


def connect_jax(enter: Enter, set_jax_base: Callable[[Ambient], None], current: Ambient) -> None:
    """Lets JAX follow; ``current`` is in force here."""
    global _enter_jax, _set_jax_base
    _enter_jax, _set_jax_base = enter, set_jax_base
    set_jax_base(current if _base is None else _base)
    for each in _thread.entered:  # JAX was loaded inside of scopes
        each.follow()
