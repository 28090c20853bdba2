"""The user context that makes what is in force a part of every JAX trace-cache key."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import jax

from shtypes.ambient import Ambient, connect_jax
from shtypes.policy import current_ambient

#: Holds the `Ambient` in force.
CONTEXT: Final[Any] = jax.make_user_context(default_value=None)


def _enter(value: Ambient) -> contextlib.AbstractContextManager[object]:
    scope: contextlib.AbstractContextManager[object] = CONTEXT(value)
    return scope


connect_jax(_enter, CONTEXT.set_global, current_ambient())
