"""shtypes: a sharding-in-types array frontend for JAX."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from shtypes.errors import Fix as Fix
from shtypes.errors import ShardingTypeError as ShardingTypeError
from shtypes.policy import current_policy as current_policy
from shtypes.policy import policy as policy
from shtypes.policy import set_policy as set_policy
from shtypes.types import Dim as Dim
from shtypes.types import ShType as ShType
from shtypes.types import State as State

__version__ = "0.1.0"

#: The public names that are modules.
NAMESPACES: Final = frozenset({"debug", "fft", "init", "lax", "linalg", "nn", "random", "tree"})


if TYPE_CHECKING:
    from shtypes.api import *  # noqa: F403  # the JAX half, loaded below when one of its names is first used
    from shtypes.notation import dims as dims


class _Package(ModuleType):
    """Keeps the places of public functions that have the name of a submodule, which Python gives to the submodule."""

    _functions = frozenset({"array", "jit", "reshard", "where"})

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in self._functions and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
globals().pop("where", None)  # what is above loads the submodule already


#: The public names that need no JAX.
_PURE: Final = (
    "Dim",
    "Fix",
    "ShType",
    "ShardingTypeError",
    "State",
    "current_policy",
    "dims",
    "policy",
    "set_policy",
)


def __getattr__(name: str) -> Any:
    """Loads the JAX half when one of its names is first used, and the text half likewise."""
    if name == "__all__":
        return __dir__()
    if name == "dims":
        return importlib.import_module("shtypes.notation").dims
    public = {} if name.startswith("_") else _api()
    globals().update(public)
    if name not in public:
        from shtypes.absent import explanation

        raise AttributeError(f"module 'shtypes' has no attribute {name!r}{explanation(name)}")
    return public[name]


def __dir__() -> list[str]:
    return sorted({*_PURE, *_api()})


def _api() -> dict[str, Any]:
    """The public names of the JAX half."""
    names = vars(importlib.import_module("shtypes.api"))
    return {k: v for k, v in names.items() if k[0] != "_" and (k in NAMESPACES or not isinstance(v, ModuleType))}
