"""The operators, methods and properties of typed values and of their tracers."""

from __future__ import annotations

from typing import Any

from shtypes.array import install
from shtypes.ops import elementwise as ew
from shtypes.ops import reduce, reshard, shape
from shtypes.ops.einsum import matmul


def _flipped(fn: Any) -> Any:
    """The same function with its operands swapped: ``__radd__`` and its kind."""
    return lambda self, other: fn(other, self)


_BINARY = {
    "add": ew.add,
    "sub": ew.subtract,
    "mul": ew.multiply,
    "truediv": ew.divide,
    "matmul": matmul,
    "pow": ew.power,
    "mod": ew.mod,
    "floordiv": ew.floor_divide,
    "and": ew.bitwise_and,
    "or": ew.bitwise_or,
    "xor": ew.bitwise_xor,
    "lshift": ew.left_shift,
    "rshift": ew.right_shift,
}
_COMPARISONS = {
    "eq": ew.equal,
    "ne": ew.not_equal,
    "lt": ew.less,
    "le": ew.less_equal,
    "gt": ew.greater,
    "ge": ew.greater_equal,
}
_UNARY = {"neg": ew.negative, "pos": ew.positive, "abs": ew.abs, "invert": ew.bitwise_not}


def _reshard_method(x: Any, target: Any = None, **states: Any) -> Any:
    return reshard.reshard(x, target, **states)


def install_operators() -> None:
    """Gives values and tracers what arrays of `jax.numpy` have, as far as it is typed."""
    install(
        {**_BINARY, **{f"r{name}": _flipped(fn) for name, fn in _BINARY.items()}, **_COMPARISONS, **_UNARY},
        {
            "sum": reduce.sum,
            "mean": reduce.mean,
            "reshape": shape.reshape,
            "ravel": shape.ravel,
            "flatten": shape.ravel,
            "transpose": _transpose_method,
            "swapaxes": shape.swapaxes,
            "squeeze": shape.squeeze,
            "astype": ew.astype,
            "dot": _dot_method,
            "clip": ew.clip,
            "round": ew.round,
            "conj": ew.conj,
            "reshard": _reshard_method,
        },
        {"T": shape.transpose, "mT": shape.matrix_transpose, "real": ew.real, "imag": ew.imag},
    )


def _transpose_method(x: Any, *axes: Any) -> Any:
    """``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if not axes:
        return shape.transpose(x)
    return shape.transpose(x, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)


def _dot_method(x: Any, y: Any, **options: Any) -> Any:
    from shtypes.ops.einsum import dot

    return dot(x, y, **options)


install_operators()
