"""Lifted gradients of maxima: the maximum and the comparison with it are one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.evaluation.table import rewritten
from shtypes.lifting.ways.extremes import extremes
from tests.end_to_end import host
from tests.traced.compiled import assert_compiled_as_said


def _gradient(name: str, dims: Any, keepdims: bool = False) -> Callable[..., Any]:
    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(getattr(jnp, name)(x, dims, keepdims=keepdims) ** 2 * w)

    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.one_in(50)
@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize("type_text", ["[4,8@x]", "[4@y,8@x]", "[4,8@(x,y)]", "[4@x,8]", "[4@x,8@y]"])
@pytest.mark.parametrize(("dims", "keepdims"), [(1, False), (0, False), (None, False), ((0, 1), True), (1, True)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_elements_that_are_equal_share_the_gradient(type_text: str, dims: Any, keepdims: bool, name: str) -> None:
    numbers = np.random.default_rng(0)
    x = numbers.integers(-2, 3, (4, 8)).astype(np.float32)
    w = np.float32(numbers.uniform(0.5, 2))
    f = _gradient(name, dims, keepdims)
    typed = sh.array(x, type_text), sh.array(w, "[]")
    step = sh.implicit_comm(sh.lift(f))
    assert_compiled_as_said(step, *typed, jits=[jax.jit])
    found = jax.block_until_ready(jax.jit(step)(*typed))
    for value, plain in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(f)(x, w)), strict=True):
        np.testing.assert_array_equal(host(value), plain)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_comparisons_with_a_maximum_are_those_of_one_device(dtype: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (4, 8)), dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        x = x.at[1, 3].set(jnp.nan).at[2, ::2].set(jnp.inf)

    def f(x: Any) -> Any:
        most = jnp.max(x, 1, keepdims=True)
        return most, x == most, most == x, x == jnp.min(x, 0), jnp.sum(x == jnp.max(x))

    typed = sh.array(x, "[4,8@x]")
    for value, plain in zip(sh.implicit_comm(sh.lift(f))(typed), f(x), strict=True):
        found, wanted = (np.float32(v) for v in (host(jax.block_until_ready(value)), plain))
        np.testing.assert_array_equal(found, wanted)


def test_a_maximum_and_its_comparisons_are_one_call() -> None:
    def programs(f: Callable[..., Any]) -> list[str]:
        return [e.primitive.name for e in rewritten(jax.make_jaxpr(f)(jnp.ones((4, 8))).jaxpr).eqns]

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(jnp.max(x * x, 1)))(x)

    assert "reduce_max" not in programs(gradient)
    assert "eq" not in programs(gradient)
    assert "reduce_max" in programs(lambda x: jnp.max(x, 1)[:, None] == jnp.sin(x))


def test_a_reshape_that_transposes_gives_no_maximum_its_dims_back() -> None:
    def compared(x: Any, dims: Any) -> Any:
        return x == jax.lax.reshape(jnp.max(x, 2), (8, 8, 1), dimensions=dims)

    found = [
        list(extremes(jax.make_jaxpr(lambda x, dims=dims: compared(x, dims))(np.ones((8, 8, 4), np.float32)).jaxpr))
        for dims in (None, (1, 0))
    ]
    assert found == [[[0, 1, 2]], []]
