"""Dtype names and the facts that rules ask for, against numpy, ml_dtypes and JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes

PLAIN = [name for name in dtypes.LONG if name != "float0"]
KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


@pytest.mark.parametrize("name", PLAIN)
def test_names_and_numpy_dtypes_are_one_to_one(name: str) -> None:
    dtype = dtypes.to_numpy(name)
    assert dtype.name == dtypes.LONG[name]
    assert dtypes.from_numpy(dtype) == dtypes.from_numpy(dtype.type) == name
    assert dtypes.short_name(dtypes.LONG[name]) == dtypes.short_name(name) == name
    assert dtypes.from_any(name) == dtypes.from_any(dtype.name) == dtypes.from_any(dtype) == name


@pytest.mark.parametrize("name", PLAIN)
def test_facts_agree_with_jax(name: str) -> None:
    dtype = dtypes.to_numpy(name)
    inexact = jax.numpy.issubdtype(dtype, np.inexact)
    assert dtypes.differentiable(name) == inexact
    assert dtypes.itemsize(name) == dtype.itemsize
    assert dtypes.summable(name) == (name != "bool")
    assert not dtypes.is_key(name)


@pytest.mark.parametrize("name", PLAIN)
def test_short_names_are_those_that_jax_prints(name: str) -> None:
    assert jax.core.ShapedArray((), dtypes.to_numpy(name)).str_short(short_dtypes=True) == f"{name}[]"


@pytest.mark.parametrize(("name", "impl"), KEYS.items(), ids=KEYS)
def test_random_keys_are_dtypes_without_gradient_or_sum(name: str, impl: str) -> None:
    keys = jax.eval_shape(lambda: jax.random.key(0, impl=impl))
    assert dtypes.to_numpy(name) == keys.dtype
    assert dtypes.from_numpy(keys.dtype) == name
    assert str(keys.dtype) == name
    assert dtypes.itemsize(name) == keys.dtype.itemsize
    assert dtypes.is_key(name)
    assert not dtypes.differentiable(name)
    assert not dtypes.summable(name)


def test_float0_is_the_dtype_of_tangents_of_what_has_no_gradient() -> None:
    assert dtypes.to_numpy("float0") == jax.dtypes.float0
    assert dtypes.from_numpy(jax.dtypes.float0) == "float0"
    assert dtypes.itemsize("float0") == 0
    assert not dtypes.differentiable("float0")


@pytest.mark.parametrize("dtype", [float, np.float64, np.dtype("f8"), jax.numpy.float64, "float64", "f64"], ids=repr)
def test_all_that_names_a_dtype_is_read(dtype: Any) -> None:
    assert dtypes.from_any(dtype) == "f64"


@pytest.mark.parametrize(
    ("name", "near"),
    [("float3", "float32"), ("fp32", "f32"), ("bfloat", "bfloat16"), ("key<threefry>", "key<fry>"), ("", None)],
    ids=str,
)
def test_an_unknown_dtype_is_refused_with_those_that_are_near(name: str, near: str | None) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        dtypes.short_name(name)
    assert caught.value.what == f"there is no dtype `{name}`"
    assert near in caught.value.hints if near else not caught.value.hints
    assert len(set(caught.value.hints)) == len(caught.value.hints)


def test_a_dtype_that_types_do_not_know_is_refused() -> None:
    with pytest.raises(ShardingTypeError, match="there is no dtype `datetime64"):
        dtypes.from_numpy(np.dtype("datetime64[s]"))
