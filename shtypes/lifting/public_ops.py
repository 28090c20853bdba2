"""The public functions of arrays, by name, for rows of programs that are made of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from shtypes.ops.table import OPS


@functools.cache
def op(name: str) -> Callable[..., Any]:
    """The public function of arrays of this name."""
    found = OPS[name]
    made: Callable[..., Any] = getattr(importlib.import_module(found.module), found.attr)
    return made
