"""Dtypes of results, as JAX promotes them; what is not listed is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from shtypes.editor.call import Number
from shtypes.editor.space import Unknown
from shtypes.types import ShType
from shtypes.types.dtypes import bits, differentiable, is_key

#: The dtype that a number has by itself, by its kind, with 32 bits as JAX has by default.
OF_NUMBER: Final = {"bool": "bool", "int": "i32", "float": "f32", "complex": "c64"}

_PLAIN_FLOATS: Final = ("bf16", "f16", "f32", "f64")
_COMPLEX: Final = {"f64": "c128", "c128": "c128"}


def _kind(dtype: str) -> str:
    if is_key(dtype) or dtype == "float0":
        raise Unknown
    return "bool" if dtype == "bool" else "float" if dtype in _PLAIN_FLOATS else dtype[0]


def promoted(a: str, b: str) -> str:
    """The dtype that two dtypes promote to."""
    if a == b:
        return a
    kinds = {_kind(a): a, _kind(b): b}
    if "c" in kinds:
        return "c128" if "c128" in (_COMPLEX.get(a), _COMPLEX.get(b)) else "c64"
    if "float" in kinds:
        if len(kinds) == 2:
            return kinds["float"]
        return "f32" if {a, b} == {"bf16", "f16"} else max(a, b, key=bits)
    if "bool" in kinds:
        return b if a == "bool" else a
    if "f" in kinds or min(bits(a), bits(b)) < 8:
        raise Unknown
    if len(kinds) == 1:
        return max(a, b, key=bits)
    wide = max(bits(kinds["i"]), 2 * bits(kinds["u"]))
    if wide > 32:  # depends on whether JAX has 64 bits
        raise Unknown
    return f"i{wide}"


def _with_number(dtype: str, number: str) -> str:
    """The dtype of an array and a number, which is weakly typed."""
    kind = _kind(dtype)
    if number == "bool":
        return dtype
    if number == "int":
        return "i32" if kind == "bool" else dtype
    if number == "float":
        return dtype if kind in ("float", "f", "c") else "f32"
    return dtype if kind == "c" else _COMPLEX.get(dtype, "c64")


def together(values: Iterable[ShType | Number]) -> str:
    """The dtype that arrays and numbers promote to."""
    dtype, numbers = "", []
    for value in values:
        if isinstance(value, Number):
            numbers.append(value.kind)
        else:
            dtype = promoted(dtype, value.dtype_name) if dtype else value.dtype_name
    if not dtype:
        raise Unknown
    for number in numbers:
        dtype = _with_number(dtype, number)
    return dtype


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Elementwise functions by the dtype of their result. Of the others, that of floats and of what becomes one is known.
_BOOL: Final = _names(
    "equal greater greater_equal iscomplex isclose isfinite isinf isnan isneginf isposinf isreal less less_equal "
    "logical_and logical_not logical_or logical_xor not_equal signbit"
)
_KEPT: Final = _names(
    "abs bitwise_and bitwise_not bitwise_or bitwise_xor ceil clip conj floor fmax fmin imag maximum minimum nan_to_num "
    "real trunc"
)
_KEPT_BUT_BOOL: Final = _names(
    "clz fmod floor_divide gcd hard_tanh integer_pow lcm left_shift mod population_count power relu rem remainder "
    "right_shift round shift_right_arithmetic shift_right_logical sign square"
)
_REAL: Final = _names("abs angle imag real")
_NEEDS_FLOAT: Final = _names(
    "igamma_grad_a ldexp log_ndtr log1mexp log_sigmoid ndtr ndtri polygamma random_gamma_grad reduce_precision rsqrt "
    "sigmoid silu spence swish"
)
_F32: Final = _names("log_ndtr ndtr ndtri spence")
_REAL_PART: Final = {"c64": "f32", "c128": "f64"}


def of_elementwise(name: str, values: Sequence[ShType | Number]) -> str:
    """The dtype of the result of an elementwise function."""
    if name in ("polygamma", "expn") and any(isinstance(v, Number) for v in values):
        raise Unknown  # it must be a whole number
    dtype = together(values)
    if name in _BOOL:
        return "bool"
    if dtype[0] == "c" and name in _REAL:
        return _REAL_PART[dtype]
    if differentiable(dtype):
        if name in _F32 and dtype != "f32":
            raise Unknown
        if (name == "ldexp" and not _by_an_integer(values)) or (dtype[0] == "f" and dtype not in _PLAIN_FLOATS):
            raise Unknown
        return dtype
    if name in _KEPT or (name in _KEPT_BUT_BOOL and dtype != "bool"):
        return dtype
    if name == "bitwise_count":
        return "u8"
    if name in _KEPT_BUT_BOOL or name in _NEEDS_FLOAT:
        raise Unknown
    return "f32"


def _by_an_integer(values: Sequence[ShType | Number]) -> bool:
    """Whether the second operand is an integer."""
    return isinstance(values[0], ShType) and isinstance(values[1], Number) and values[1].kind == "int"


def of_sum(dtype: str) -> str:
    """The dtype that values are summed and multiplied in: small integers in those of 32 bits."""
    if dtype == "bool" or (dtype[0] == "i" and bits(dtype) < 32):
        return "i32"
    return "u32" if dtype[0] == "u" and bits(dtype) < 32 else dtype


def of_mean(dtype: str) -> str:
    """The dtype of a mean and of a division."""
    return dtype if differentiable(dtype) else "f32"
