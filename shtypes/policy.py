"""The policy: what an axis that is not mentioned means. It acts where text meets types and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from shtypes import ambient
from shtypes.ambient import Ambient
from shtypes.errors import ShardingTypeError
from shtypes.scope import Scope, simple
from shtypes.types import State
from shtypes.where import placed, public

#: The state of an axis that is not mentioned, under each policy.
REPLICATED_STATE: Final[dict[str, State]] = {
    "partial": State.REDUCED,  # replicate forwards, partial backwards
    "jax": State.INVARIANT,  # JAX's own: replicated both ways
}
#: The environment variable that chooses the policy a process starts with.
ENVIRONMENT: Final = "SHTYPES_POLICY"


def check_policy(name: str, source: str = "") -> str:
    """Checks a policy's name."""
    if name not in REPLICATED_STATE:
        known = " or ".join(f'"{p}"' for p in REPLICATED_STATE)
        error = ShardingTypeError(f"there is no policy {name!r}{source}; it is {known}")
        raise error if source else placed(error, "policy")
    return name


def current_ambient() -> Ambient:
    """All that is in force: what the innermost scope set, else what the process started with."""
    return ambient.scoped() or ambient.base(_from_environment)


def _from_environment() -> Ambient:
    return Ambient(check_policy(os.environ.get(ENVIRONMENT, "partial"), f" (from the environment, {ENVIRONMENT})"))


def current_policy() -> str:
    """The policy in force: ``"partial"`` unless a scope, `set_policy` or ``SHTYPES_POLICY`` says otherwise."""
    return current_ambient().policy


def replicated() -> State:
    """The state of an axis that is not mentioned."""
    return REPLICATED_STATE[current_policy()]


@public
def set_policy(name: str) -> None:
    """Sets the policy for every thread, outside any `policy` scope.

    Args:
        name: ``"partial"`` (replicate forwards, partial backwards) or ``"jax"`` (JAX's own).
    """
    ambient.set_base(ambient.base(_from_environment)._replace(policy=check_policy(name)))


@public
def policy(name: str) -> Scope:
    """A scope with another policy; nests, and holds for this thread. A context manager or a decorator.

    Functions that were traced under one policy are traced again under the other.

    Args:
        name: ``"partial"`` or ``"jax"``.
    """
    check_policy(name)
    return changed(lambda now: now._replace(policy=name))


def changed(change: Callable[[Ambient], Ambient]) -> Scope:
    """A scope in which what is in force is changed."""
    return simple(lambda: ambient.scope(change(current_ambient())))
