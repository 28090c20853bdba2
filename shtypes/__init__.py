"""shtypes: a sharding-in-types array frontend for JAX."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from shtypes.errors import Fix as Fix
from shtypes.errors import ShardingTypeError as ShardingTypeError
from shtypes.notation import dims as dims
from shtypes.policy import current_policy as current_policy
from shtypes.policy import policy as policy
from shtypes.policy import set_policy as set_policy
from shtypes.types import Dim as Dim
from shtypes.types import ShType as ShType
from shtypes.types import State as State

__version__ = "0.1.0"

#: The public names that are modules.
NAMESPACES: Final = frozenset({"fft", "linalg", "tree"})


if TYPE_CHECKING:
    from shtypes.api import *  # noqa: F403  # the JAX half, loaded below when one of its names is first used

# `sh.reshard` is a function. A submodule that is loaded already does not take a function's place any more.
importlib.import_module("shtypes.reshard")
del globals()["reshard"]


def __getattr__(name: str) -> Any:
    """Loads the JAX half when one of its names is first used."""
    if name.startswith("_"):
        raise AttributeError(f"module 'shtypes' has no attribute {name!r}")
    public = {
        key: value for key, value in vars(importlib.import_module("shtypes.api")).items() if _is_public(key, value)
    }
    globals().update(public)
    if name not in public:
        raise AttributeError(f"module 'shtypes' has no attribute {name!r}")
    return public[name]


def __dir__() -> list[str]:
    api = vars(importlib.import_module("shtypes.api"))
    return sorted({*globals(), *(key for key, value in api.items() if _is_public(key, value))})


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and not (isinstance(value, ModuleType) and name not in NAMESPACES)
