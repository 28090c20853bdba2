"""What is in force around the code (the policy; later the scopes) as a part of every JAX trace-cache key."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import jax

from shtypes.policy import connect_jax

#: Holds the policy; JAX traces a function again when it changes.
CONTEXT: Final[Any] = jax.make_user_context(default_value=None)


def _enter(name: str) -> contextlib.AbstractContextManager[object]:
    scope: contextlib.AbstractContextManager[object] = CONTEXT(name)
    return scope


connect_jax(_enter, CONTEXT.set_global)
