"""Cases of primitives that act on each element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from tests.lifting.row_cases.case import DTYPES, Case, case, primitive

#: Unary functions of floats: what they are defined on, and whether each device computes them to the last bit alike.
_UNARY: Final = {
    "abs": ("!", "bits"), "ceil": ("!", "bits"), "floor": ("!", "bits"), "neg": ("!", "bits"), "sign": ("!", "bits"),
    "square": ("!", "bits"), "sqrt": ("!", "bits"), "is_finite": ("!", "bits"), "round": ("!", "bits"),
    "acos": ("s", "ulps"), "acosh": ("+", "ulps"), "asin": ("s", "ulps"), "asinh": ("!", "ulps"),
    "atan": ("!", "ulps"), "atanh": ("s", "ulps"), "bessel_i0e": ("", "ulps"), "bessel_i1e": ("", "ulps"),
    "cbrt": ("!", "ulps"), "cos": ("", "ulps"), "cosh": ("", "ulps"), "digamma": ("+", "ulps"), "erf": ("!", "ulps"),
    "erf_inv": ("s", "ulps"), "erfc": ("!", "ulps"), "exp": ("!", "ulps"), "exp2": ("!", "ulps"),
    "expm1": ("!", "ulps"), "lgamma": ("+", "ulps"), "log": ("!", "ulps"), "log1p": ("!", "ulps"),
    "log2": ("!", "ulps"), "logistic": ("!", "ulps"), "rsqrt": ("!", "ulps"), "sin": ("", "ulps"),
    "sinh": ("", "ulps"), "tan": ("", "ulps"), "tanh": ("!", "ulps"), "one_minus_square": ("!", "bits"),
}  # fmt: skip
_COMPLEX: Final = [
    *("acos", "asin", "atan", "cos", "cosh", "exp", "expm1", "log", "log1p", "logistic", "neg", "rsqrt", "sign"),
    *("sin", "sinh", "sqrt", "square", "tan", "tanh", "abs", "acosh", "asinh", "atanh", "exp2"),
]
_BINARY: Final = {
    "add": ("!", "bits"), "sub": ("!", "bits"), "mul": ("!", "bits"), "div": ("!", "bits"), "max": ("!", "bits"),
    "min": ("!", "bits"), "rem": ("!", "bits"), "nextafter": ("!", "bits"), "atan2": ("!", "ulps"),
    "pow": ("+", "ulps"),
}  # fmt: skip
_COMPARED: Final = ["eq", "ne", "lt", "le", "gt", "ge"]
_INTEGERS: Final = [
    *("add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", "shift_left", "shift_right_arithmetic"),
    "shift_right_logical",
]


def _fn(name: str) -> Any:
    """The function of `jax.lax` that binds a primitive; None where the running JAX has none."""
    other = {"max": lax.max, "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor,
             "not": lax.bitwise_not, "log2": getattr(lax, "log2", None)}  # fmt: skip
    return other.get(name) or getattr(lax, name, None) or getattr(getattr(lax, f"{name}_p", None), "bind", None)


def _unary() -> Iterator[Case]:
    for name, (kind, close) in _UNARY.items():
        f = _fn(name)
        yield case(name, "f32", f, f"f32[8,4]{kind}", close=close)
        yield case(name, "a scalar", f, f"f32[]{kind}", close=close, orders=1)
        yield case(name, "no elements", f, f"f32[8,0]{kind}", close=close, orders=1)
        for dtype in ("f16", "bf16", "f64"):
            yield case(name, dtype, f, f"{dtype}[8,4]{kind}", close=close, orders=int(dtype == "f64"))
        if name in _COMPLEX:
            yield case(name, "c64", f, "c64[8,4]s", close="ulps", orders=1)
    for name in ("abs", "neg", "sign", "square", "not", "population_count", "clz"):
        for dtype in ("i8", "u8", "i32", "u32") if name not in ("abs",) else ("i8", "i32"):
            yield case(name, dtype, _fn(name), f"{dtype}[8,4]!")
    yield case("not", "bool", lax.bitwise_not, "bool[8,4]")
    for name in (
        *("exp", "log", "tanh", "sqrt", "rsqrt", "logistic", "cbrt", "expm1", "log1p", "sin", "cos", "tan", "exp2"),
    ):
        f = functools.partial(_fn(name), accuracy=lax.AccuracyMode.DEFAULT)
        yield case(name, "accuracy", f, "f32[8,4]+", close="ulps", orders=1)
    for y in (-3, -1, 0, 1, 2, 5):
        yield case("integer_pow", f"y={y}", functools.partial(lax.integer_pow, y=y), "f32[8,4]!", close="ulps")
    yield case("integer_pow", "i8", functools.partial(lax.integer_pow, y=3), "i8[8,4]!")
    yield case("integer_pow", "y=1, i8", functools.partial(lax.integer_pow_p.bind, y=1), "i8[8,4]!")
    yield case("integer_pow", "y=1, bound", functools.partial(lax.integer_pow_p.bind, y=1), "f32[8,4]!")
    for how in (lax.RoundingMethod.AWAY_FROM_ZERO, lax.RoundingMethod.TO_NEAREST_EVEN):
        halves = np.asarray([[0.5, 1.5, -0.5, -1.5], [2.5, -2.5, 1e30, np.nan]] * 4, np.float32)
        yield case("round", how.name, functools.partial(lax.round, rounding_method=how), halves)
    for bits in ((5, 10), (8, 7), (5, 2), (2, 3)):
        f = functools.partial(lax.reduce_precision, exponent_bits=bits[0], mantissa_bits=bits[1])
        yield case("reduce_precision", str(bits), f, "f32[8,4]!", rounds=True)
    if hasattr(lax, "polynomial_p"):
        f = lambda a: lax.polynomial_p.bind(a, 1.0, -2.0, 3.0)
        yield case("polynomial", "numbers", f, "f32[8,4]", close="ulps")


def _binary() -> Iterator[Case]:
    for name, (kind, close) in _BINARY.items():
        f = _fn(name)
        yield case(name, "f32", f, f"f32[8,4]{kind}", f"f32[8,4]{kind}", close=close)
        yield case(name, "beside a scalar", f, f"f32[8,4]{kind}", f"f32[]{kind}", close=close)
        yield case(name, "a scalar beside", f, f"f32[]{kind}", f"f32[8,4]{kind}", close=close)
        yield case(name, "a stretched dim", f, f"f32[8,1]{kind}", f"f32[8,4]{kind}", close=close)
        yield case(name, "no elements", f, f"f32[8,0]{kind}", f"f32[8,0]{kind}", close=close, orders=1)
        for number in (2.0, -0.0, 0.0, 1.0, np.inf, np.nan, -1.5):
            yield case(
                name, f"beside {number}", _beside(f, number, after=True), f"f32[8,4]{kind}", close=close, orders=1
            )
            yield case(
                name, f"{number} beside", _beside(f, number, after=False), f"f32[8,4]{kind}", close=close, orders=1
            )
        for dtype in ("f16", "bf16", "f64"):
            yield case(
                name, dtype, f, f"{dtype}[8,4]{kind}", f"{dtype}[8,4]{kind}", close=close, orders=int(dtype == "f64")
            )
            for number in (3.0, 0.1, -0.0):
                g = _beside(f, number, after=True)
                yield case(name, f"{dtype} beside {number}", g, f"{dtype}[8,4]{kind}", close=close, orders=0)
    for name in ("add", "sub", "mul", "max", "min"):
        yield case(name, "f8", _fn(name), "f8[8,4]!", "f8[8,4]!", orders=0)
        yield case(name, "f8 beside 3", _beside(_fn(name), 3.0, after=True), "f8[8,4]!", orders=0)
    for name in ("add", "sub", "mul", "div"):
        yield case(name, "c64", _fn(name), "c64[8,4]", "c64[8,4]", close="ulps")
        yield case(name, "c64 beside 1j", _beside(_fn(name), 1j, after=True), "c64[8,4]", close="ulps", orders=1)
        yield case(name, "c64 beside -0", _beside(_fn(name), complex(-0.0, 0.0), after=True), "c64[8,4]!", orders=0,
                   close="ulps")  # fmt: skip
    for name in _INTEGERS:
        for dtype in ("i8", "u8", "i32", "u32"):
            other = f"{dtype}[8,4]<7" if name.startswith("shift") else f"{dtype}[8,4]!"
            yield case(name, dtype, _fn(name), f"{dtype}[8,4]!", other)
            small = 3 if name.startswith("shift") else 100
            yield case(name, f"{dtype} beside {small}", _beside(_fn(name), small, after=True), f"{dtype}[8,4]!")
            yield case(name, f"{small} beside {dtype}", _beside(_fn(name), small, after=False), other)
    for name in ("and", "or", "xor", "eq", "ne", "max", "min"):
        yield case(name, "bool", _fn(name), "bool[8,4]", "bool[8,4]")
        yield case(name, "bool beside true", _beside(_fn(name), True, after=True), "bool[8,4]")
    for name in _COMPARED:
        for dtype in ("f32", "bf16", "i8", "u32"):
            yield case(name, dtype, _fn(name), f"{dtype}[8,4]!", f"{dtype}[8,4]!")
            yield case(name, f"{dtype} beside 1", _beside(_fn(name), 1, after=True), f"{dtype}[8,4]!")
        yield case(name, "-0.0", _beside(_fn(name), -0.0, after=False), "f32[8,4]!")
    for name in ("eq_to", "le_to", "lt_to"):
        bind = primitive(name)
        if bind is not None:
            yield case(name, "f32", bind.bind, "f32[8,4]!", "f32[8,4]!")
    yield case("pow", "integers", lax.pow, "f32[8,4]", "i32[8,4]~3", close="ulps", live=(0,))
    yield case("pow", "2.5 beside integers", lambda n: lax.pow(np.float32(2.5), n), "i32[8,4]~3", close="ulps")
    yield case("pow", "beside an integer", lambda a: lax.pow(a, np.int32(3)), "f32[8,4]", close="ulps")
    yield case("pow", "bf16 and integers", lax.pow, "bf16[8,4]", "i32[8,4]~3", close="ulps", orders=0)
    yield case(
        "pow", "zeros", lax.pow, np.zeros((8, 4), np.float32), np.zeros((8, 4), np.float32), close="ulps", orders=1
    )
    yield case("add_any", "f32", ad.add_jaxvals_p.bind, "f32[8,4]!", "f32[8,4]!")
    yield case("add_any", "a number", lambda a: ad.add_jaxvals_p.bind(a, np.full((8, 4), 2, np.float32)), "f32[8,4]!")


def _beside(f: Callable[..., Any], number: Any, *, after: bool) -> Callable[..., Any]:
    """A function of one operand and a number of its dtype that is known."""

    def fn(a: Any) -> Any:
        known = np.asarray(number).astype(a.dtype)[()]
        return f(a, known) if after else f(known, a)

    return fn


def _several() -> Iterator[Case]:
    yield case("clamp", "arrays", lax.clamp, "f32[8,4]", "f32[8,4]!", "f32[8,4]")
    yield case("clamp", "numbers", lambda a: lax.clamp(np.float32(-0.5), a, np.float32(0.5)), "f32[8,4]!")
    yield case("clamp", "scalars", lax.clamp, "f32[]", "f32[8,4]!", "f32[]")
    yield case("clamp", "nan", lambda a: lax.clamp(np.float32(np.nan), a, np.float32(0.5)), "f32[8,4]!", orders=1)
    yield case(
        "clamp", "bf16", lambda a: lax.clamp(DTYPES["bf16"](-0.1), a, DTYPES["bf16"](0.3)), "bf16[8,4]!", orders=0
    )
    yield case("clamp", "u8", lambda a: lax.clamp(np.uint8(3), a, np.uint8(200)), "u8[8,4]!")
    for name in ("igamma", "igammac", "zeta", "polygamma", "igamma_grad_a"):
        f = functools.partial(_special, name)
        yield case(name, "f32", f, "f32[8,4]+", "f32[8,4]+", close="ulps", orders=1)
        yield case(name, "beside a number", _beside(f, 1.5, after=True), "f32[8,4]+", close="ulps", orders=1)
        yield case(name, "a number beside", _beside(f, 2.0, after=False), "f32[8,4]+", close="ulps", orders=1)
    yield case("regularized_incomplete_beta", "f32", lax.betainc, "f32[8,4]+", "f32[8,4]+", "f32[8,4]u", close="ulps",
               live=(2,), orders=1)  # fmt: skip
    for dtype in ("f32", "bf16", "i8", "bool", "c64"):
        yield case("select_n", dtype, lax.select_n, "bool[8,4]", f"{dtype}[8,4]!" if dtype != "bool" else "bool[8,4]",
                   f"{dtype}[8,4]!" if dtype != "bool" else "bool[8,4]")  # fmt: skip
    yield case("select_n", "three cases", lax.select_n, "i32[8,4]<3", *["f32[8,4]!"] * 3)
    yield case("select_n", "four cases, out of range", lax.select_n, "i32[8,4]~9", *["f32[8,4]!"] * 4)
    yield case("select_n", "one case", lax.select_n, "bool[8,4]", "f32[8,4]!")
    yield case("select_n", "one of three numbers", lax.select_n, "i32[]<3", *["f32[8,4]!"] * 3)
    yield case("select_n", "a scalar predicate", lax.select_n, "bool[]", "f32[8,4]!", "f32[8,4]!")
    yield case("select_n", "scalars", lax.select_n, "bool[]", "f32[]", "f32[]")
    yield case("select_n", "beside zeros", lambda c, a: lax.select_n(c, np.full((8, 4), -0.0, np.float32), a), "bool[8,4]",
               "f32[8,4]!")  # fmt: skip
    yield case("complex", "f32", lax.complex, "f32[8,4]!", "f32[8,4]!")
    yield case("complex", "beside a number", lambda a: lax.complex(a, np.full((8, 4), -0.0, np.float32)), "f32[8,4]!")
    yield case("complex", "f64", lax.complex, "f64[8,4]!", "f64[8,4]!", orders=1)
    for name in ("real", "imag", "conj"):
        yield case(name, "c64", _fn(name), "c64[8,4]!")
    yield case(
        "conj", "a real operand", lambda a: lax.conj_p.bind(a, input_dtype=np.dtype("float32")), "f32[8,4]!", orders=1
    )


def _special(name: str, x: Any, y: Any) -> Any:
    return getattr(lax, name)(x, y)


_CAST: Final = {
    "f32": "f16 bf16 f8 f8_e5m2 i8 u8 i32 u32 bool c64", "f16": "f32 bf16 i32 f8", "bf16": "f32 f16 i8", "i32": "f32 f16 i8 u8 u32 bool bf16",
    "u8": "i8 f32 i32", "i8": "u8 f32 u32", "bool": "f32 i32 u8 bf16", "c64": "c64", "u32": "f32 i32 f16", "f8": "f32 bf16",
    "f64": "f32 f16 i64 i32 c128", "i64": "f64 f32 i32 u8", "c128": "c64",
}  # fmt: skip


def _casts() -> Iterator[Case]:
    for src, names in _CAST.items():
        for dst in names.split():
            dtype = np.dtype(DTYPES[dst])
            wide = dst in ("f64", "i64", "c128")
            special = "!" if src != "bool" and (dtype.kind not in "iu" or np.dtype(DTYPES[src]).kind in "iu") else ""
            f = functools.partial(lax.convert_element_type, new_dtype=dtype)
            found = case("convert_element_type", f"{src} to {dst}", f, f"{src}[8,4]{special}", orders=1)
            yield found._replace(x64=found.x64 or wide)
    yield case("convert_element_type", "weak", lambda a: lax.convert_element_type_p.bind(
        a, new_dtype=np.dtype("float32"), weak_type=True, sharding=None), "bf16[8,4]!", orders=1)  # fmt: skip
    for src, dst in (
        *(("f32", "i32"), ("i32", "f32"), ("u8", "i8"), ("f32", "u8"), ("f32", "u16"), ("bf16", "u16")),
        ("f64", "i64"),
    ):
        f = functools.partial(lax.bitcast_convert_type, new_dtype=np.dtype(DTYPES[dst]))
        yield case("bitcast_convert_type", f"{src} to {dst}", f, f"{src}[8,4]!")
    yield case(
        "bitcast_convert_type",
        "u8 to i32",
        functools.partial(lax.bitcast_convert_type, new_dtype=np.dtype("int32")),
        "u8[8,4]!",
    )


def _same() -> Iterator[Case]:
    yield case("copy", "f32", functools.partial(jnp.array, copy=True), "f32[8,4]!")
    yield case("copy", "bool", functools.partial(jnp.array, copy=True), "bool[8,4]")
    yield case("stop_gradient", "f32", lambda a: lax.stop_gradient(a), "f32[8,4]!", live=())
    yield case("stop_gradient", "beside itself", lambda a: lax.mul(lax.stop_gradient(a), a), "f32[8,4]")
    yield case("optimization_barrier", "one", lax.optimization_barrier, "f32[8,4]!")
    yield case("optimization_barrier", "several", lambda a, b, c: lax.optimization_barrier((a, b, c)), "f32[8,4]!",
               "i8[4]!", "bf16[]!")  # fmt: skip
    yield case("optimization_barrier", "beside a constant", lambda a: lax.optimization_barrier((a, np.ones(3, np.float32)))[0],
               "f32[8,4]!")  # fmt: skip
    tie = primitive("tie")
    if tie is not None:
        yield case("tie", "f32", lambda a, b: tie.bind(a, b), "f32[8,4]!", "f32[4]!")
    yield case("reduce_precision", "bf16", lambda a: lax.reduce_precision(a, 5, 3), "bf16[8,4]!", orders=0)


def cases() -> Iterator[Case]:
    """All of them that the running JAX has."""
    for part in (_unary, _binary, _several, _casts, _same):
        yield from (c for c in part() if c.fn is not None)  # type: ignore[redundant-expr]  # not in each release
