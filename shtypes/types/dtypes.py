"""Dtype names, short and long, and facts about dtypes. Imports numpy only on demand."""

from __future__ import annotations

import difflib
import functools
from typing import Any, Final

from shtypes.errors import ShardingTypeError

#: Short names (JAX's) to long ones (numpy's).
LONG: Final[dict[str, str]] = {
    "bool": "bool",
    **{f"i{n}": f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (2, 4, 8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    **{
        f"f{name}": f"float{name}"
        for name in (
            "8_e4m3fn", "8_e4m3", "8_e5m2", "8_e4m3b11fnuz", "8_e4m3fnuz", "8_e5m2fnuz", "8_e3m4", "8_e8m0fnu",
            "4_e2m1fn",
        )
    },
    "float0": "float0",
}  # fmt: skip
_SHORT: Final = {long: short for short, long in LONG.items()}
_KEY_IMPLS: Final = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}


def is_key(name: str) -> bool:
    """Whether it is a dtype of random keys."""
    return name.startswith("key<")


def key_impl(name: str) -> str:
    """JAX's name for the generator of a key dtype."""
    return _KEY_IMPLS[name[4:-1]]


@functools.lru_cache(maxsize=1024)
def short_name(name: str) -> str:
    """The short name of a dtype, from its short or its long one."""
    if name in LONG:
        return name
    if name in _SHORT:
        return _SHORT[name]
    if is_key(name) and name.endswith(">") and name[4:-1] in _KEY_IMPLS:
        return name
    names = {**LONG, **_SHORT, **{f"key<{impl}>": "" for impl in _KEY_IMPLS}}
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    raise ShardingTypeError(f"there is no dtype `{name}`", hints=similar)


@functools.lru_cache(maxsize=1024)
def differentiable(name: str) -> bool:
    """Whether values of this dtype have gradients: floats and complex numbers."""
    return (name[0] in "fc" and name != "float0") or name == "bf16"


def summable(name: str) -> bool:
    """Whether values of this dtype can be pending sums: all but bools and keys."""
    return name != "bool" and not is_key(name)


def may_wrap(name: str) -> bool:
    """Whether integer sums in this dtype commonly wrap around: unsigned, or fewer than 32 bits."""
    return name[0] == "u" or (name[0] == "i" and bits(name) < 32)


def wraps_alike(src: str, dst: str) -> bool:
    """Whether a wrapped integer sum in ``src`` is correct modulo the range of ``dst``: an integer of no more bits."""
    return dst[0] in "iu" and bits(dst) <= bits(src)


@functools.lru_cache(maxsize=1024)
def bits(name: str) -> int:
    """Bits of one element in memory."""
    if is_key(name):
        return {"fry": 64}.get(name[4:-1], 128)
    if name == "bool":
        return 8
    if name == "float0":
        return 0
    return int("".join(c for c in name.lstrip("biufc").split("_")[0] if c.isdigit()))


@functools.lru_cache(maxsize=1024)
def itemsize(name: str) -> int:
    """Bytes of one element in memory (at least one)."""
    return -(-bits(name) // 8)


@functools.lru_cache(maxsize=1024)
def to_numpy(name: str) -> Any:
    """The numpy dtype, or JAX's extended dtype for keys (which imports JAX)."""
    if is_key(name):
        import jax

        return jax.eval_shape(lambda: jax.random.key(0, impl=_KEY_IMPLS[name[4:-1]])).dtype
    import numpy as np

    if name == "float0":
        return np.dtype([("float0", np.void, 0)])
    long = LONG[name]
    if hasattr(np, long):
        return np.dtype(long)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, long))


@functools.lru_cache(maxsize=1024)
def from_numpy(dtype: Any) -> str:
    """The short name of a numpy dtype, a scalar type or a JAX key dtype."""
    if isinstance(dtype, type):
        import numpy as np

        dtype = np.dtype(dtype)
    dtype = getattr(dtype, "dtype", dtype)  # such as `jax.numpy.float32`
    text = str(dtype)
    if is_key(text):
        return short_name(text)
    name = str(getattr(dtype, "name", text))
    return "float0" if name.startswith("void") or text == "[('float0', 'V')]" else short_name(name)


def from_any(dtype: Any) -> str:
    """The short name of a dtype: from a name, a numpy dtype, a scalar type or a JAX key dtype."""
    return short_name(dtype) if isinstance(dtype, str) else from_numpy(dtype)
