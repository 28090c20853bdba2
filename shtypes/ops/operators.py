"""The operators, methods and properties of typed values and of their tracers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shtypes.array import install
from shtypes.ops import (
    arrange,
    create,
    cumulative,
    diagonals,
    edits,
    extremes,
    lookup,
    reduce,
    reduce_nonlinear,
    reshard,
    search,
    shape,
    sorting,
)
from shtypes.ops import elementwise as ew
from shtypes.ops.dispatch import is_number, is_typed
from shtypes.ops.einsum import matmul
from shtypes.where import public


def _operator(name: str, fn: Any) -> Any:
    """A binary operator; it leaves an object of another library that knows the operator to that library."""

    def operate(self: Any, other: Any) -> Any:
        knows = hasattr(other, f"__r{name}__") and type(other).__module__ != "builtins"  # a list would repeat itself
        return NotImplemented if _foreign(other) and knows else fn(self, other)

    return operate


def _flipped(fn: Any) -> Any:
    """The same function with its operands swapped: ``__radd__`` and its kind."""
    return lambda self, other: fn(other, self)


def _comparison(fn: Any, other_types: bool) -> Any:
    """A comparison; what is no array is equal to none, as in JAX."""

    def compare(self: Any, other: Any) -> Any:
        return NotImplemented if other_types and _foreign(other) else fn(self, other)

    return compare


def _foreign(x: Any) -> bool:
    """Whether ``x`` is no operand of ours."""
    return not (is_number(x) or is_typed(x) or isinstance(x, (jax.Array, np.ndarray, np.generic)))


_BINARY = {
    "add": ew.add,
    "sub": ew.subtract,
    "mul": ew.multiply,
    "truediv": ew.divide,
    "matmul": matmul,
    "pow": ew.power,
    "mod": ew.mod,
    "floordiv": ew.floor_divide,
    "divmod": lambda x, y: (ew.floor_divide(x, y), ew.mod(x, y)),
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
_UNARY = {"neg": ew.negative, "pos": ew.positive, "abs": ew.abs, "invert": ew.bitwise_not, "round": ew.round}


def _method(name: str, fn: Any) -> Any:
    """A method that is no function of the same arguments."""
    fn.__name__ = fn.__qualname__ = name
    return public(fn)


def install_operators() -> None:
    """Gives values and tracers what arrays of `jax.numpy` have, as far as it is typed."""
    install(
        {
            **{name: _operator(name, fn) for name, fn in _BINARY.items()},
            **{f"r{name}": _flipped(fn) for name, fn in _BINARY.items()},
            **{name: _comparison(fn, name in ("eq", "ne")) for name, fn in _COMPARISONS.items()},
            **_UNARY,
        },
        {
            "sum": reduce.sum,
            "mean": reduce.mean,
            **{name: getattr(extremes, name) for name in ("all", "any", "argmax", "argmin", "max", "min", "ptp")},
            **{name: getattr(reduce_nonlinear, name) for name in ("prod", "std", "var")},
            **{name: getattr(diagonals, name) for name in ("diagonal", "trace")},
            "repeat": arrange.repeat,
            **{name: getattr(cumulative, name) for name in ("cumprod", "cumsum")},
            **{name: getattr(sorting, name) for name in ("argpartition", "argsort", "sort")},
            **{name: getattr(search, name) for name in ("nonzero", "searchsorted")},
            "choose": edits.choose,
            "compress": _method("compress", _compress),
            "take": lookup.take,
            "copy": create.copy,
            "view": _method("view", _view),
            "reshape": shape.reshape,
            "ravel": shape.ravel,
            "flatten": shape.ravel,
            "transpose": _method("transpose", _transpose),
            "swapaxes": shape.swapaxes,
            "squeeze": shape.squeeze,
            "astype": ew.astype,
            "dot": _method("dot", _dot),
            "clip": ew.clip,
            "round": ew.round,
            "conj": ew.conj,
            "conjugate": ew.conj,
            "reshard": reshard.reshard,
        },
        {
            "T": shape.transpose,
            "mT": shape.matrix_transpose,
            "real": ew.real,
            "imag": ew.imag,
            "itemsize": lambda x: int(jax.typeof(x).dtype.itemsize),
            "nbytes": lambda x: int(jax.typeof(x).size * jax.typeof(x).dtype.itemsize),
        },
    )


def _transpose(x: Any, *axes: Any) -> Any:
    """``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if not axes:
        return shape.transpose(x)
    return shape.transpose(x, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)


def _compress(x: Any, condition: Any, axis: int | None = None, **options: Any) -> Any:
    return edits.compress(condition, x, axis, **options)


def _view(x: Any, dtype: Any) -> Any:
    """``x.view(dtype)``: the bits as another dtype of as many."""
    from shtypes.ops.special import bitcast_convert_type

    return bitcast_convert_type(x, dtype)


def _dot(x: Any, y: Any, **options: Any) -> Any:
    from shtypes.ops.einsum import dot

    return dot(x, y, **options)


install_operators()
