"""The policy: what an axis that is not mentioned means. It acts where text meets types and nowhere else."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from shtypes.errors import ShardingTypeError
from shtypes.types import State

#: The state of an axis that is not mentioned, under each policy.
REPLICATED_STATE: Final[dict[str, State]] = {
    "partial": State.REDUCED,  # replicate forwards, partial backwards
    "jax": State.INVARIANT,  # JAX's own: replicated both ways
}
#: The environment variable that chooses the policy a process starts with.
ENVIRONMENT: Final = "SHTYPES_POLICY"

_global: str | None = None
_overrides = threading.local()
# JAX keys its trace caches on a user context that the JAX half keeps equal to the policy in force: entering a scope
# and setting the global value each go through one of these, once JAX is loaded.
_enter_jax: Callable[[str], contextlib.AbstractContextManager[object]] | None = None
_set_jax_global: Callable[[str], None] | None = None


def check_policy(name: str, source: str = "") -> str:
    """Checks a policy's name."""
    if name not in REPLICATED_STATE:
        known = " or ".join(f'"{p}"' for p in REPLICATED_STATE)
        raise ShardingTypeError(f"there is no policy {name!r}{source}; it is {known}")
    return name


def current_policy() -> str:
    """The policy in force: ``"partial"`` unless a scope, `set_policy` or ``SHTYPES_POLICY`` says otherwise."""
    global _global
    stack = getattr(_overrides, "stack", None)
    if stack:
        return str(stack[-1])
    if _global is None:
        _global = check_policy(os.environ.get(ENVIRONMENT, "partial"), f" (from the environment, {ENVIRONMENT})")
    return _global


def replicated() -> State:
    """The state of an axis that is not mentioned."""
    return REPLICATED_STATE[current_policy()]


def set_policy(name: str) -> None:
    """Sets the policy for every thread, outside any `policy` scope.

    Args:
        name: ``"partial"`` (replicate forwards, partial backwards) or ``"jax"`` (JAX's own).
    """
    global _global
    _global = check_policy(name)
    if _set_jax_global is not None:
        _set_jax_global(name)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """A scope with another policy; nests, and holds for this thread.

    Functions that were traced under one policy are traced again under the other.

    Args:
        name: ``"partial"`` or ``"jax"``.
    """
    check_policy(name)
    current_policy()  # so that a wrong environment variable is reported here and not on the way out
    if not hasattr(_overrides, "stack"):
        _overrides.stack = []
    _overrides.stack.append(name)
    try:
        with contextlib.nullcontext() if _enter_jax is None else _enter_jax(name):
            yield
    finally:
        _overrides.stack.pop()
        # JAX may have been loaded inside the scope, with the scope's policy as its global value.
        if _set_jax_global is not None and not _overrides.stack:
            _set_jax_global(current_policy())


def connect_jax(
    enter: Callable[[str], contextlib.AbstractContextManager[object]], set_global: Callable[[str], None]
) -> None:
    """Lets the JAX half follow the policy."""
    global _enter_jax, _set_jax_global
    _enter_jax, _set_jax_global = enter, set_global
    set_global(current_policy())
