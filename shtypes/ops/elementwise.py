"""The elementwise functions of JAX: one for each row of `OPS` that has operands. None of them communicates.

What type checkers read is `elementwise.pyi`, which `python generate/stubs.py` writes from the same rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from shtypes.core.array import Array
from shtypes.ops.pointwise import broadcasting, linear, nonlinear
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS


def _op_of(op: Op) -> Callable[..., Array]:
    """The typed form of the function of JAX that a row names."""
    module, _, name = op.jax.rpartition(".")
    native: Callable[..., Any] = getattr(importlib.import_module(module), name)
    signature = op.signature
    if op.linear:
        return linear(op.name, native, signature)
    native = broadcasting(native) if op.arity > 1 and module == "jax.lax" else native
    return nonlinear(op.name, native, signature, op.arity)


globals().update({name: _op_of(op) for name, op in OPS.items() if op.operands})
