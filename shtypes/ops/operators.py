"""The operators, methods and properties of typed values and of their tracers: the rows of `OPS` that arrays have."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shtypes.context.user_line import named
from shtypes.core.array import Array, install
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import is_array, is_number
from shtypes.ops import functions
from shtypes.ops.functions import dot
from shtypes.ops.of_arrays import BINARY, COMPARISONS, METHODS, PROPERTIES, UNARY
from shtypes.ops.table import OPS


def _op(name: str) -> Any:
    return getattr(import_module(OPS[name].module), OPS[name].attr)


def _operator(name: str, fn: Any) -> Any:
    """A binary operator; NotImplemented for an object of another library that has the reflected one."""

    def operate(self: Any, other: Any) -> Any:
        knows = hasattr(other, f"__r{name}__") and type(other).__module__ != "builtins"  # a list would repeat itself
        return NotImplemented if _foreign(other) and knows else fn(self, other)

    return operate


def _flipped(fn: Any) -> Any:
    """The same function with its operands swapped: ``__radd__`` and its kind."""
    return lambda self, other: fn(other, self)


def _comparison(fn: Any, other_types: bool) -> Any:
    """A comparison; a non-array equals no array, as in JAX."""

    def compare(self: Any, other: Any) -> Any:
        return NotImplemented if other_types and _foreign(other) else fn(self, other)

    return compare


def _foreign(x: Any) -> bool:
    """Whether ``x`` is not an operand of shtypes."""
    return not (is_number(x) or is_array(x))


def _method(name: str, fn: Any) -> Any:
    """A method whose arguments differ from those of a function."""
    return public(named(fn, name, fn.__doc__))


def install_operators() -> None:
    """Gives values and tracers the operators, methods and properties of `jax.numpy`'s arrays that are typed."""
    binary = {name: _op(op) for name, op in BINARY.items()}
    install(
        {
            **{name: _operator(name, fn) for name, fn in binary.items()},
            **{f"r{name}": _flipped(fn) for name, fn in binary.items()},
            **{name: _comparison(_op(op), name in ("eq", "ne")) for name, op in COMPARISONS.items()},
            **{name: _op(op) for name, op in UNARY.items()},
        },
        {
            **{name: _op(name) for name in METHODS},
            "compress": _method("compress", _compress),
            "dot": _method("dot", _dot),
            "flatten": functions.ravel,
            "reshape": _method("reshape", _reshape),
            "transpose": _method("transpose", _transpose),
            "view": _method("view", _view),
        },
        {
            **{name: _op(op) for name, op in PROPERTIES.items()},
            "itemsize": _itemsize,
            "nbytes": _nbytes,
        },
    )


def _transpose(x: Array, *axes: Any) -> Array:
    """``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if not axes:
        return functions.transpose(x)
    return functions.transpose(x, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)


def _reshape(x: Array, *shape: Any, order: str = "C", out: Any = None) -> Array:
    """``x.reshape(2, -1)`` or ``x.reshape((2, -1))``."""
    return functions.reshape(x, shape[0] if len(shape) == 1 else shape, order, out=out)


def _compress(
    x: Array, condition: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Array:
    """``x.compress(condition)``."""
    compressed: Array = functions.compress(condition, x, axis, size=size, fill_value=fill_value)
    return compressed


def _view(x: Array, dtype: Any) -> Array:
    """``x.view(dtype)``: the bits as another dtype of as many."""
    return functions.bitcast_convert_type(x, dtype)


def _dot(x: Array, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out: Any = None) -> Array:
    """``x.dot(b)``."""
    return dot(x, b, precision=precision, preferred_element_type=preferred_element_type, out=out)


def _itemsize(x: Array) -> int:
    """The bytes of an element."""
    return int(x.dtype.itemsize)


def _nbytes(x: Array) -> int:
    """The bytes of the global value."""
    return x.size * int(x.dtype.itemsize)


install_operators()
