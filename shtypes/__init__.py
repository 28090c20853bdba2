"""shtypes: a sharding-in-types array frontend for JAX."""

from __future__ import annotations

from typing import Any

from shtypes.errors import Fix as Fix
from shtypes.errors import ShardingTypeError as ShardingTypeError
from shtypes.policy import current_policy as current_policy
from shtypes.policy import policy as policy
from shtypes.policy import set_policy as set_policy
from shtypes.types import Dim as Dim
from shtypes.types import ShType as ShType
from shtypes.types import State as State

__version__ = "0.1.0"


# A submodule of the same name must not stand where the function is: once imported, it no longer sets the attribute.
import shtypes.reshard

del reshard  # noqa: F821  # bound by the line above


def __getattr__(name: str) -> Any:
    """Loads the JAX half when one of its names is first used."""
    import importlib
    import types

    if name.startswith("_"):
        raise AttributeError(f"module 'shtypes' has no attribute {name!r}")
    api = vars(importlib.import_module("shtypes.api"))
    globals().update(
        {key: value for key, value in api.items() if key[0] != "_" and not isinstance(value, types.ModuleType)}
    )
    if name not in globals():
        raise AttributeError(f"module 'shtypes' has no attribute {name!r}")
    return globals()[name]
