"""The settings that scopes set, in one hashable record.

JAX keys its trace caches on a user context (`jax_context`) that follows this one, so that no cached trace is reused
under another policy, sizes or communication scopes. Whatever affects typing belongs in `Settings`.
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
#: The environment variable of a process's initial policy.
ENVIRONMENT: Final = "SHTYPES_POLICY"

#: Dim names and sizes, sorted by name.
Sizes = tuple[tuple[str, int], ...]
#: Dim names and their mesh axes, sorted by name.
DimAxes = tuple[tuple[str, tuple[str, ...]], ...]


class Settings(NamedTuple):
    """All settings of scopes."""

    policy: str
    dims: Sizes = ()
    dim_axes: DimAxes = ()
    scopes: tuple[object, ...] = ()  # the rules of communication scopes, outermost first; hashable
    checks: bool = False  # whether to compare results across devices
    #: The mesh axes that shard the dims of enclosing `vmap`s: along them, devices are at different steps.
    mapped: tuple[str, ...] = ()
    #: The axes of an enclosing `shard_map`'s mesh: name, size, and whether it maps over the axis.
    local: tuple[tuple[str, int, bool], ...] = ()
    written: tuple[str, ...] = ()  # the mesh axes along which no cast may be inserted
    region: str = "auto"  # the default lowering of programs
    only_types: bool = False  # whether values are created without data
    merges: bool = True  # whether compiled programs merge adjacent reshards
    #: Whether tracing is speculative: no scope forbids anything, so that none affects the choice.
    speculative: bool = False
    #: The id of the settings at the start of the plain program being traced, to which its equations' settings are
    #: relative.
    start: int = 0
    model: object = None  # the hashable cost model for planning reshards; None to minimize bytes
    rows: int = 0  # how many rows of primitives were registered


Enter = Callable[[Settings], contextlib.AbstractContextManager[object]]


class _Entered:
    """An entered scope, and the JAX context that follows it; None until JAX is imported."""

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
    """The initial settings of the process, created on first use from the environment."""

    def __get__(self, thread: object, owner: type[_Thread]) -> Settings:
        name = os.environ.get(ENVIRONMENT, POLICIES[0])
        base = Settings(check_policy(name, f" (from the environment, {ENVIRONMENT})"))
        owner.value = base
        return base


class _Thread(threading.local):
    """The open scopes of this thread, outermost first, and the settings of the innermost."""

    value: Settings = _Base()  # type: ignore[assignment]

    def __init__(self) -> None:
        self.entered: list[_Entered] = []

    def follow(self) -> None:
        """Makes the settings of the innermost scope current."""
        if self.entered:
            self.value = self.entered[-1].value
        else:
            self.__dict__.pop("value", None)


#: `current.value` holds the settings of this thread.
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
    """The settings outside every scope; read from the environment on first use."""
    return _Thread.value


def current_settings() -> Settings:
    """The settings of the innermost scope, or else those of the process."""
    return current.value


def set_base(value: Settings) -> None:
    """Sets the settings outside every scope."""
    _Thread.value = value
    if _set_jax_base is not None:
        _set_jax_base(value)


def count_rows() -> None:
    """Counts one more row, in the open scopes of this thread too: programs that were typed before are typed again."""
    entered, rows = current.entered, outermost().rows + 1
    set_base(outermost()._replace(rows=rows))
    for each in reversed(entered):
        each.leave()
    for each in entered:
        each.value, each.jax = each.value._replace(rows=rows), None
        each.follow()
    current.follow()


@contextlib.contextmanager
def scope(value: Settings) -> Iterator[None]:
    """Context manager that sets the settings for this thread and for JAX's traces in it."""
    entered, entry = current.entered, _Entered(value)
    entered.append(entry)
    current.follow()
    try:
        yield
    finally:
        in_order = bool(entered) and entered[-1] is entry
        while entry in entered:  # closes scopes still open inside it too, so that JAX's context stays in step
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
    """Connects JAX's context to the settings."""
    global _enter_jax, _set_jax_base
    _enter_jax, _set_jax_base = enter, set_jax_base
    set_jax_base(outermost())
    for each in current.entered:  # JAX was imported inside of scopes
        each.follow()
