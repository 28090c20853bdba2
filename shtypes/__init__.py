"""shtypes: a sharding-in-types array frontend for JAX."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from shtypes.api import PURE as _PURE
from shtypes.api import load as _load
from shtypes.api import names as _names
from shtypes.ops.table import where_it_is as _where_it_is

__version__ = "0.1.0"


def __getattr__(name: str) -> _Any:
    """Loads the JAX half when one of its names is first used, and what is pure without it."""
    if name == "__all__":
        return __dir__()
    module = next((m for m, listed in _PURE.items() if name in listed.split()), None)
    if module is not None:
        globals()[name] = getattr(_import_module(module), name)
    elif name in _names():
        globals().update(_load())
    else:
        raise AttributeError(f"module 'shtypes' has no attribute {name!r}{_where_it_is(name)}")
    return globals()[name]


def __dir__() -> list[str]:
    return list(_names())
