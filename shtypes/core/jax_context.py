"""The user context that makes what is in force a part of every JAX trace-cache key."""

from __future__ import annotations

from typing import Any, Final

import jax
from jax.extend import source_info_util

from shtypes.context.frames import OURS
from shtypes.context.settings import connect_jax

#: Holds the `Settings` in force.
CONTEXT: Final[Any] = jax.make_user_context(default_value=None)


connect_jax(CONTEXT, CONTEXT.set_global)

# JAX's equations and compiled programs name the user's lines, not ours.
for _path in OURS:
    source_info_util.register_exclusion(_path)
