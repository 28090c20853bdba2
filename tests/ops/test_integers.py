"""Sums of integers that wrap around: an op gives what one device gives, or is refused with a fix that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.compiling import compiles
from tests.end_to_end import host


def cast_to(dtype: str) -> Callable[[Any, Any], Any]:
    return lambda m, x: x.astype(dtype)


#: Ops that give another dtype than their operand's, or may: of the value, and of JAX's functions of the plain one.
OPS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"astype {dtype}": cast_to(dtype) for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32")},
    **{f"astype {dtype}": cast_to(dtype) for dtype in ("float32", "bfloat16", "float16", "complex64")},
    "times a float": lambda m, x: x * 1.5,
    "times an integer": lambda m, x: x * 3,
    "plus a float": lambda m, x: x + 0.5,
    "over a number": lambda m, x: x / 2,
    "negative": lambda m, x: -x,
    "minus itself": lambda m, x: x - x - x,
    "plus i32": lambda m, x: x + m.ones((), "int32"),
    "plus f32": lambda m, x: x + m.ones((), "float32"),
    "times i32": lambda m, x: x * m.ones((4,), "int32"),
    "times f32": lambda m, x: x * m.ones((4,), "float32"),
    "sum": lambda m, x: m.sum(x),
    "sum along one": lambda m, x: m.sum(x, 0),
    "sum in its dtype": lambda m, x: m.sum(x, dtype=x.dtype),
    "sum in i32": lambda m, x: m.sum(x, dtype="int32"),
    "mean": lambda m, x: m.mean(x),
    "mean along one": lambda m, x: m.mean(x, 1),
    "cumsum": lambda m, x: m.cumsum(x, 0),
    "cumsum in i32": lambda m, x: m.cumsum(x, 0, dtype="int32"),
    "trace": lambda m, x: m.trace(x),
    "average": lambda m, x: m.average(x, 0),
    "matmul": lambda m, x: x @ m.ones((4, 2), "int32"),
    "matmul with f32": lambda m, x: x @ m.ones((4, 2), "float32"),
    "matmul in its dtype": lambda m, x: x @ m.ones((4, 2), x.dtype),
    "einsum": lambda m, x: m.einsum("ij,jk->ik", x, m.ones((4, 2), "int32")),
    "einsum in i32": lambda m, x: m.einsum("ij->j", x, preferred_element_type="int32"),
    "dot in i32": lambda m, x: m.dot(x, m.ones((4, 2), x.dtype), preferred_element_type="int32"),
    "outer": lambda m, x: m.outer(x, m.ones((2,), "int32")),
    "concatenate": lambda m, x: m.concatenate([x, m.zeros((2, 4), "int32")], 0),
    "stack": lambda m, x: m.stack([x, m.zeros((2, 4), "int32")]),
    "where": lambda m, x: m.where(np.eye(2, 4) > 0, x, m.zeros((), "int32")),
    "where of a float": lambda m, x: m.where(np.eye(2, 4) > 0, x, 0.5),
    "diff": lambda m, x: m.diff(x),
    "flip": lambda m, x: m.flip(x, 0),
    "pad": lambda m, x: m.pad(x, 1),
    "roll": lambda m, x: m.roll(x, 1, 1),
    "real": lambda m, x: m.real(x),
    "square": lambda m, x: m.square(x),
    "absolute": lambda m, x: m.absolute(x),
    "sign": lambda m, x: m.sign(x),
    "sqrt": lambda m, x: m.sqrt(x),
    "max": lambda m, x: m.max(x),
    "prod": lambda m, x: m.prod(x, 0),
    "argmax": lambda m, x: m.argmax(x),
    "left_shift": lambda m, x: x << 1,
    "bitwise_and": lambda m, x: x & 3,
    "invert": lambda m, x: ~x,
    "floor_divide": lambda m, x: x // 2,
    "power": lambda m, x: x**2,
    "equal": lambda m, x: x == 0,
    "take": lambda m, x: m.take(x, np.array([0, 1]), 1),
    "at add": lambda m, x: m.zeros((2, 4), "int32").at[0].add(x[0]),
    "at set": lambda m, x: m.zeros((2, 4), "int32").at[0].set(x[0]),
    "var": lambda m, x: m.var(x),
    "std": lambda m, x: m.std(x, 0),
    "nanmean": lambda m, x: m.nanmean(x),
    "count_nonzero": lambda m, x: m.count_nonzero(x),
    "median": lambda m, x: m.median(x),
    "interp": lambda m, x: m.interp(x, np.arange(3.0), np.arange(3.0)),
    "linalg.norm": lambda m, x: m.linalg.norm(x),
    "tensordot": lambda m, x: m.tensordot(x, m.ones((4, 2), "float32"), 1),
    "polyval": lambda m, x: m.polyval(np.array([1, 2]), x),
    "convolve": lambda m, x: m.convolve(x[0], np.array([1.0, 2.0], np.float32)),
}

DTYPES = ("int8", "int16", "uint8", "uint16", "int32")


class _Typed:
    """The functions of shtypes, with jax.numpy's way to make arrays."""

    linalg = sh.linalg
    zeros = staticmethod(lambda shape, dtype: sh.array(np.zeros(shape, dtype)))
    ones = staticmethod(lambda shape, dtype: sh.array(np.ones(shape, dtype)))

    def __getattr__(self, name: str) -> Any:
        return getattr(sh, name)


def wrapping(dtype: str) -> Any:
    """Four terms for each element: their sums leave the range of narrow integers, above, below and twice around."""
    info = np.iinfo(dtype)
    big = min(info.max, 2**15)
    terms = np.array([[big, big, 3, big // 2], [big - 1, 1, big // 2, 7]], dtype)
    signs = np.array([1, 1, -1, 1]).astype(dtype)
    return (terms[None] * signs[:, None, None] + np.arange(4, dtype=dtype)[:, None, None]).astype(dtype)


def pending(dtype: str) -> tuple[Any, Any]:
    """A pending sum of integers over x, and the sum on one device."""
    terms = wrapping(dtype)
    value = sh.sum(sh.array(terms, f"{_short(dtype)}[4@x,2,4]"), 0, dtype=dtype)
    assert value.type.state("x") is sh.State.UNREDUCED
    return value, terms.sum(0, dtype=dtype)


def _short(dtype: str) -> str:
    return dtype.replace("uint", "u").replace("int", "i")


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_op_gives_what_one_device_gives_or_is_refused_with_a_fix(dtype: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    value, whole = pending(dtype)
    ops = {name: op for name, op in OPS.items() if compiles("f16") or "float16" not in name}

    def typed(value: Any) -> dict[str, Any]:
        found = {}
        for name, op in ops.items():
            try:
                result = op(_Typed(), value)
            except sh.ShardingTypeError:
                result = op(_Typed(), sh.all_reduce(value))
            left = result.type.axes(sh.State.UNREDUCED)
            found[name] = sh.all_reduce(result, *left) if left else result
        return found

    found = sh.jit(typed)(value)
    wanted = jax.jit(lambda x: {name: op(jnp, x) for name, op in ops.items()})(whole)
    for name in ops:
        assert str(found[name].dtype) == str(wanted[name].dtype), name
        np.testing.assert_array_equal(host(found[name]), np.asarray(wanted[name]), err_msg=f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize(
    "name", ["astype int32", "times a float", "over a number", "mean", "sum", "plus i32", "matmul"]
)
def test_narrow_sums_are_not_widened_term_by_term(name: str, dtype: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    value, _ = pending(dtype)
    with pytest.raises(sh.ShardingTypeError, match=r"would turn the terms of .* into") as caught:
        OPS[name](_Typed(), value)
    (fix, *_) = caught.value.fixes
    assert fix.forward in ("all-reduce over `x`", "reduce-scatter over `x`")


@pytest.mark.parametrize("name", ["astype float32", "times a float", "mean", "over a number", "sum"])
def test_sums_of_32_bits_are_free_to_change_their_dtype(name: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    value, _ = pending("int32")
    assert OPS[name](_Typed(), value).type.state("x") is sh.State.UNREDUCED


def test_a_sum_of_narrow_integers_along_a_sharded_dim_is_free() -> None:
    """Its terms were summed in 32 bits on each device."""
    sh.set_mesh(sh.make_mesh({"x": 4}))
    x = sh.array(np.full((8,), 100, np.int8), "i8[8@x]")
    assert str(sh.sum(x).type) == "i32[]{U:x}"
    assert int(sh.all_reduce(sh.sum(x))) == 800


def test_a_product_of_narrow_integers_that_wraps_is_not_widened() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    rows, columns = np.full((1, 4), 8, np.int8), np.full((4, 1), 8, np.int8)
    product = sh.array(rows, "i8[1,4@x]") @ sh.array(columns, "i8[4@x,1]")
    assert host(sh.all_reduce(product)) == jax.jit(lambda a, b: a @ b)(rows, columns) == 0
    with pytest.raises(sh.ShardingTypeError, match="may have wrapped around"):
        product.astype("int32")
