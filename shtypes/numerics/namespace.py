"""What a namespace of the public surface has: the functions of its rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from shtypes.ops.table import OPS


def functions_of(space: str) -> dict[str, Callable[..., Any]]:
    """The functions of a namespace, by name."""
    rows = [op for op in OPS.values() if op.space == space]
    return {op.name.rpartition(".")[2]: getattr(importlib.import_module(op.module), op.attr) for op in rows}
