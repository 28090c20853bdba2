"""Dtypes as the plugin promotes them are those of JAX, or unknown."""

from __future__ import annotations

import functools
import importlib
import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shtypes.editor.call import Number
from shtypes.editor.dtypes import of_elementwise, of_mean, of_sum, promoted, together
from shtypes.editor.space import Unknown
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh

DTYPES = ("bool", "i8", "i16", "i32", "u8", "u16", "u32", "bf16", "f16", "f32", "c64")
NUMBERS = {"bool": True, "int": 2, "float": 0.5, "complex": 1j}
ELEMENTWISE = {name: op for name, op in OPS.items() if op.operands}
#: What some functions must be told besides.
MORE: dict[str, dict[str, Any]] = {
    "reduce_precision": {"exponent_bits": 4, "mantissa_bits": 3},
    "multigammaln": {"d": 2},
}


def typed(dtype: str) -> ShType:
    return ShType(Mesh({}), dtype, [2], {})


def struct(dtype: str) -> Any:
    return jax.ShapeDtypeStruct((2,), dtypes.to_numpy(dtype))


@pytest.mark.parametrize("a", DTYPES)
def test_two_dtypes_promote_as_in_jax(a: str) -> None:
    known = 0
    for b in DTYPES:
        try:
            found = promoted(a, b)
        except Unknown:
            continue
        known += 1
        assert found == dtypes.from_numpy(jnp.promote_types(dtypes.to_numpy(a), dtypes.to_numpy(b))), b
    assert known >= len(DTYPES) - 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_and_a_number_promote_as_in_jax(dtype: str) -> None:
    for kind, number in NUMBERS.items():
        found = together([typed(dtype), Number(kind, number)])
        wanted = jax.eval_shape(lambda x, n=number: jnp.add(x, n), struct(dtype)).dtype
        assert found == dtypes.from_numpy(wanted), kind


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_means_are_in_the_dtypes_of_jax(dtype: str) -> None:
    assert of_sum(dtype) == dtypes.from_numpy(jax.eval_shape(jnp.sum, struct(dtype)).dtype)
    assert of_mean(dtype) == dtypes.from_numpy(jax.eval_shape(jnp.mean, struct(dtype)).dtype)


def made(op: Op, given: tuple[str, ...]) -> str | None:
    """The dtype that JAX's own function makes; None where it refuses the operands."""
    module, _, name = op.jax.rpartition(".")
    native = functools.partial(getattr(importlib.import_module(module), name), **MORE.get(name, {}))
    if module == "jax.lax" and op.arity > 1:  # ours promotes first
        given = (dtypes.from_numpy(jnp.result_type(*map(dtypes.to_numpy, given))),) * op.arity
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constants that a narrow dtype cannot hold
            return dtypes.from_numpy(jax.eval_shape(native, *map(struct, given)).dtype)
    except (TypeError, ValueError):
        return None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_function_makes_the_dtype_that_jax_makes(name: str) -> None:
    op = ELEMENTWISE[name]
    of_floats = 0
    pairs = itertools.product(("f32", "bf16", "i32", "u8", "bool", "c64"), repeat=min(op.arity, 2))
    for pair in pairs:
        given = (*pair, *pair[-1:] * (op.arity - len(pair)))
        wanted = made(op, given)
        try:
            found = of_elementwise(op.attr, [typed(d) for d in given])
        except Unknown:
            continue
        assert wanted in (None, found), given
        of_floats += set(given) == {"f32"}
    assert of_floats == 1 or made(op, ("f32",) * op.arity) is None or name in ("ldexp", "polygamma", "expn")
