"""The policy: the state of unmentioned axes. It matters only where types are parsed and printed."""

from __future__ import annotations

from typing import Final

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import check_policy, current_settings, outermost, set_base
from shtypes.context.user_line import public
from shtypes.types.parts import State

#: The state of an unmentioned axis, by policy.
REPLICATED_STATE: Final[dict[str, State]] = {
    "partial": State.REDUCED,  # replicate forwards, partial backwards
    "jax": State.INVARIANT,  # JAX's: replicated both ways
}


def current_policy() -> str:
    """The current policy: ``"partial"`` unless a scope, `set_policy` or ``SHTYPES_POLICY`` sets another."""
    return current_settings().policy


def replicated() -> State:
    """The state of an unmentioned axis."""
    return REPLICATED_STATE[current_policy()]


@public
def set_policy(name: str) -> None:
    """Sets the policy for every thread, outside any `policy` scope.

    Args:
        name: ``"partial"`` (replicate forwards, partial backwards) or ``"jax"`` (JAX's own).
    """
    set_base(outermost()._replace(policy=check_policy(name)))


@public
def policy(name: str) -> Scope:
    """A scope with another policy; nests, and applies to this thread. A context manager or a decorator.

    Functions traced under one policy are retraced under the other.

    Args:
        name: ``"partial"`` or ``"jax"``.
    """
    check_policy(name)
    return changed(lambda s: s._replace(policy=name))
