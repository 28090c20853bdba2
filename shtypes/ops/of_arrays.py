"""Which ops arrays have as operators, methods and properties."""

from __future__ import annotations

from typing import Final

#: The operators of two operands, which have a reflected form too, and their ops.
BINARY: Final = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "matmul": "matmul", "pow": "power",
    "mod": "mod", "floordiv": "floor_divide", "divmod": "divmod", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
COMPARISONS: Final = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
UNARY: Final = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_not", "round": "round"}
#: The ops that are methods with the same arguments.
METHODS: Final = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip", "conj", "conjugate",
    "copy", "cumprod", "cumsum", "diagonal", "max", "mean", "min", "nonzero", "prod", "ptp", "ravel", "repeat",
    "reshard", "round", "searchsorted", "sort", "squeeze", "std", "sum", "swapaxes", "take", "trace", "var",
)  # fmt: skip
PROPERTIES: Final = {"T": "transpose", "mT": "matrix_transpose", "real": "real", "imag": "imag"}
