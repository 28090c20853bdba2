"""What is in force around the code: the policy, the sizes of dim names, the scopes of communication. Pure.

JAX keys its trace caches on a user context (`jax_context`) that follows this one, so that no cached trace answers for
another policy or for other sizes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: Dim names and their sizes, sorted by name: hashable.
Sizes = tuple[tuple[str, int], ...]


class Ambient(NamedTuple):
    """All that scopes can set.

    Attributes:
        policy: The name of the policy.
        dims: The sizes of the dim names in scope.
        scopes: What the scopes of communication say, outermost first; hashable.
        checks: Whether results are compared across devices.
    """

    policy: str
    dims: Sizes = ()
    scopes: tuple[object, ...] = ()
    checks: bool = False


Enter = Callable[[Ambient], contextlib.AbstractContextManager[object]]

_base: Ambient | None = None
_thread = threading.local()
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
    found: Ambient | None = getattr(_thread, "value", None)
    return found


@contextlib.contextmanager
def scope(value: Ambient) -> Iterator[None]:
    """A scope in which ``value`` is in force, for this thread and for what JAX traces in it."""
    outer = scoped()
    loaded = _enter_jax is not None
    _thread.value = value
    try:
        with contextlib.nullcontext() if _enter_jax is None else _enter_jax(value):
            yield
    finally:
        _thread.value = outer
        # JAX was loaded inside the scope, with the scope's value for its base: give it the right one.
        if not loaded and _set_jax_base is not None and _base is not None:
            _set_jax_base(outer or _base)


def connect_jax(enter: Enter, set_jax_base: Callable[[Ambient], None], current: Ambient) -> None:
    """Lets JAX follow."""
    global _enter_jax, _set_jax_base
    _enter_jax, _set_jax_base = enter, set_jax_base
    set_jax_base(current)
