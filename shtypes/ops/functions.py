"""The functions of JAX of typed values: one for each row of `OPS` that names this file.

What type checkers read is `functions.pyi`, which `python generate/stubs.py` writes from the same rows.
"""

from __future__ import annotations

from shtypes.ops.row_functions import function_of
from shtypes.ops.table import OPS

globals().update({op.attr: function_of(op) for op in OPS.values() if op.module == __name__})
