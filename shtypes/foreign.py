"""What functions of jax.numpy, jax.lax and numpy are told that are given a typed value."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp

from shtypes.errors import ShardingTypeError
from shtypes.types import ShType
from shtypes.where import frames_of_call, placed, user_line

#: What numpy does for its arrays' operators, and the method of the operand on the right that takes them over.
_REFLECTED: Final = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
    "equal": "__eq__",
    "not_equal": "__ne__",
}


def refuse_native(x: Any, called: str = "") -> NoReturn:
    """Explains what to do when a typed value meets a function of `jax.numpy`, `jax.lax` or numpy.

    Args:
        x: The value, or its type.
        called: The function, or what it is in words; by default the one that the user called, if it can be told.
    """
    t = x if isinstance(x, ShType) else jax.typeof(x)
    name = called or _called()
    said = f"`{name}`" if name and " " not in name else name or "a function of jax.numpy, jax.lax or numpy"
    hints = ["use the function of the same name in shtypes", "x.to_jax() gives a jax.Array"]
    if name.endswith(" numpy"):
        hints.append("outside of traced code, np.asarray(x) reads the value")
    elif " " in name:
        hints = ["write the typed one first: x * a, not a * x", "sh.from_jax(a) gives the plain one a type"]
    error = ShardingTypeError(
        f"a typed value, {t}, was given to {said}", why="it does not know the value's type", hints=hints
    )
    if name and " " not in name:
        raise placed(error, f"{name}({t})")
    error.where, error.placed = user_line(), True
    raise error


def _called() -> str:
    """The function of JAX that the user called; empty if it cannot be told."""
    for frame in frames_of_call():
        name = frame.f_code.co_name
        for module in (jnp, jax.lax, jax.nn, jnp.linalg, jax.scipy.special, jax.random):
            if name[0] != "_" and callable(getattr(module, name, None)):
                return f"{module.__name__}.{name}"
    return ""


def as_jax_array(x: Any) -> Any:
    """``__jax_array__``, which JAX asks of what it does not know: no function takes a typed value for an array.

    An operator of a plain array is told that the value is none either, and then leaves the operation to ours.
    """
    asking: FrameType | None = sys._getframe(1)
    for frame in (asking, asking and asking.f_back):  # of a tracer by way of a lambda
        if frame is not None and frame.f_code.co_name.startswith("_operator_"):
            if type(frame.f_locals.get("self")) is not type(x):
                return x
            refuse_native(x, "an operator of a traced plain array")  # Python asks no operand of the same class
    refuse_native(x)


def as_numpy_ufunc(x: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """``__array_ufunc__``: an operator of a numpy array or number is ours to apply; no other function of numpy is."""
    reflected = _REFLECTED.get(ufunc.__name__)
    if reflected is not None and method == "__call__" and not options and inputs[-1] is x is not inputs[0]:
        return getattr(x, reflected)(inputs[0])
    refuse_native(x, f"numpy.{ufunc.__name__}")


__all__ = ["as_jax_array", "as_numpy_ufunc", "refuse_native"]
