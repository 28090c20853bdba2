"""The settings in force around the code: one hashable record of all that scopes set. Pure.

JAX keys its trace caches on a user context (`jax_context`) that follows this one, so that no cached trace answers for
another policy, other sizes, other scopes of communication. Whatever decides what is accepted belongs in `Settings`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError

#: The policies, the default first.
POLICIES: Final = ("partial", "jax")
#: The environment variable that chooses the policy a process starts with.
ENVIRONMENT: Final = "SHTYPES_POLICY"

#: Dim names and their sizes, sorted by name: hashable.
Sizes = tuple[tuple[str, int], ...]
#: Dim names and the mesh axes that shard them, sorted by name: hashable.
DimAxes = tuple[tuple[str, tuple[str, ...]], ...]


class Settings(NamedTuple):
    """Everything that scopes can set."""

    policy: str  # the name of the policy
    dims: Sizes = ()  # the sizes of the dim names in scope
    dim_axes: DimAxes = ()  # the mesh axes of the dim names in scope
    scopes: tuple[object, ...] = ()  # what the scopes of communication say, outermost first; hashable
    checks: bool = False  # whether results are compared across devices
    #: The mesh axes that shard the dims that are mapped over: along them each device is at other steps.
    mapped: tuple[str, ...] = ()
    #: The axes of the mesh that `shard_map` maps over some of, their sizes, and whether it maps over them.
    local: tuple[tuple[str, int, bool], ...] = ()
    written: tuple[str, ...] = ()  # the mesh axes along which every cast must be written
    region: str = "auto"  # how programs are lowered where they do not say
    only_types: bool = False  # whether values are created without data
    merges: bool = True  # whether compiled programs merge reshards in a row
    #: Whether a function is only tried: no scope refuses anything, so that none decides what is chosen.
    tried: bool = False
    #: The settings under which the plain program that is traced here began, by a number: what its equations note is
    #: relative to them.
    start: int = 0
    model: object = None  # the cost model by which reshards are planned; None for what sends least. Hashable


Enter = Callable[[Settings], contextlib.AbstractContextManager[object]]


class _Entered:
    """One scope that was entered, and JAX's context that follows it; None until JAX is loaded."""

    __slots__ = ("jax", "value")

    def __init__(self, value: Settings) -> None:
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


class _Base:
    """The settings that the process starts with, created on first use: the environment names its policy."""

    def __get__(self, thread: object, owner: type[_Thread]) -> Settings:
        name = os.environ.get(ENVIRONMENT, POLICIES[0])
        base = Settings(check_policy(name, f" (from the environment, {ENVIRONMENT})"))
        owner.value = base
        return base


class _Thread(threading.local):
    """What is in force in this thread.

    Attributes:
        entered: The scopes that it is in, outermost first.
        value: What the innermost scope set; outside every scope that of the class, which all threads share.
    """

    value: Settings = _Base()  # type: ignore[assignment]

    def __init__(self) -> None:
        self.entered: list[_Entered] = []

    def follow(self) -> None:
        """Makes the settings of the innermost scope current."""
        if self.entered:
            self.value = self.entered[-1].value
        else:
            self.__dict__.pop("value", None)


#: `current.value` is the settings in force in this thread.
current: Final = _Thread()
_enter_jax: Enter | None = None
_set_jax_base: Callable[[Settings], None] | None = None


def check_policy(name: str, source: str = "") -> str:
    """Checks a policy's name."""
    if name not in POLICIES:
        names = " or ".join(f'"{p}"' for p in POLICIES)
        error = ShardingTypeError(f"there is no policy {name!r}{source}; it is {names}")
        raise error if source else placed(error, "policy")
    return name


def outermost() -> Settings:
    """What holds outside every scope, in every thread; read from the environment on first use."""
    return _Thread.value


def current_settings() -> Settings:
    """The settings in force: those of the innermost scope, else those that the process started with."""
    return current.value


def set_base(value: Settings) -> None:
    """Sets what holds outside every scope."""
    _Thread.value = value
    if _set_jax_base is not None:
        _set_jax_base(value)


@contextlib.contextmanager
def scope(value: Settings) -> Iterator[None]:
    """A scope in which ``value`` is in force, for this thread and for what JAX traces in it."""
    entered, entry = current.entered, _Entered(value)
    entered.append(entry)
    current.follow()
    try:
        yield
    finally:
        in_order = bool(entered) and entered[-1] is entry
        while entry in entered:  # what is still open inside is closed with it, so that JAX's context stays in step
            left = entered.pop()
            current.follow()
            left.leave()
        if not in_order:
            raise ShardingTypeError(
                "scopes were left in another order than they were entered",
                why="a scope holds for its thread: while it is open, other tasks and generators that run are in it too",
                hints=[
                    "no `await` or `yield` in the body of a scope",
                    "the scope as a decorator, which knows both",
                ],
            )


def connect_jax(enter: Enter, set_jax_base: Callable[[Settings], None]) -> None:
    """Lets JAX follow."""
    global _enter_jax, _set_jax_base
    _enter_jax, _set_jax_base = enter, set_jax_base
    set_jax_base(outermost())
    for each in current.entered:  # JAX was loaded inside of scopes
        each.follow()
