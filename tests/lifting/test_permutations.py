"""Changes at all places of a sharded dim: which are sorts by these places, and which only look so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close

N = 288
RNG = np.random.default_rng(0)
KEYS = RNG.permutation(N).astype(np.float32)
X, V = (RNG.normal(size=N).astype(np.float32) for _ in range(2))


def _carried(k: Any, dtype: Any) -> Any:
    """The numbers of elements, of a dtype, in the order of their keys."""
    return lax.sort((k, lax.iota(dtype, N)), num_keys=1)[1]


CHANGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "set": lambda k, x, v: x.at[jnp.argsort(k)].set(v),
    "added": lambda k, x, v: x.at[jnp.argsort(k)].add(v),
    "by a function": lambda k, x, v: x.at[jnp.argsort(k)].apply(jnp.sin),
    "by a function, promised": lambda k, x, v: x.at[jnp.argsort(k)].apply(
        lambda y: 2 * y + 1, unique_indices=True, mode="promise_in_bounds"
    ),
    "multiplied": lambda k, x, v: x.at[jnp.argsort(k)].multiply(v),
    "least": lambda k, x, v: x.at[jnp.argsort(k)].min(v),
    "numbers that wrap": lambda k, x, v: x.at[_carried(k, jnp.uint8)].add(v),
    "numbers that do not": lambda k, x, v: x.at[_carried(k, jnp.uint16)].add(v),
    "numbers made narrow": lambda k, x, v: x.at[jnp.argsort(k).astype(jnp.uint8)].add(v),
    "numbers halved": lambda k, x, v: x.at[jnp.argsort(k) // 2].add(v),
    "numbers from behind": lambda k, x, v: x.at[-jnp.argsort(k) - 1].add(v),
    "beside a choice by a number": lambda k, x, v: lax.select_n(np.bool_(True), x, x * 2),
    "at a choice by a number": lambda k, x, v: x.at[lax.select_n(np.bool_(False), jnp.argsort(k), jnp.argsort(v))].add(
        v
    ),
}


@pytest.mark.nightly
@pytest.mark.mesh({"x": 6})
@pytest.mark.parametrize("dtype", ["f4", "bfloat16", "float8_e4m3fn", "float4_e2m1fn", "u4", "i1", "?", "c8"])
def test_a_sort_that_the_devices_do_not_divide_has_no_elements_but_its_own(dtype: str) -> None:
    """What fills the last parts comes last in every dtype, also where that has no NaN, and behind equal elements."""
    x = jnp.asarray(RNG.choice([-3.0, -1.0, 0.0, 1.0, 2.0, 6.0, np.inf], 606)).astype(dtype)
    x = (
        x.at[::7].set(np.nan).at[3::11].set(2.0**31)
        if dtype == "f4"
        else x.at[::5].set(2**32 - 1)
        if dtype == "u4"
        else x
    )
    for f in (jnp.sort, jnp.argsort):
        found = denoted(sh.implicit_comm(sh.lift(f))(sh.array(x, "[606@x]")))
        assert found.tobytes() == np.asarray(f(x)).tobytes()


@pytest.mark.nightly
@pytest.mark.mesh({"tp": 4})
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_places_in_order_is_what_one_device_does(change: str, compiled: bool) -> None:
    """A change by a function was taken for one that sets, and places of eight bits for all of them, each once."""
    f = CHANGES[change]
    lifted: Any = sh.implicit_comm(sh.lift(f))
    typed = [sh.array(a, "f32[288@tp]") for a in (KEYS, X, V)]
    y = (jax.jit(lifted) if compiled else lifted)(*typed)
    assert_close(denoted(y), jax.jit(f)(KEYS, X, V), 64)


@pytest.mark.mesh({"tp": 4})
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_integers_of_four_bits_are_as_others(dtype: Any) -> None:
    """Whether a cast keeps places was asked of numpy, which has no such integers."""

    def f(x: Any) -> Any:
        y = x.astype(dtype)
        return (
            jnp.sort(y).astype(x.dtype),
            jnp.zeros(16).at[jnp.argsort(y)].set(x),
            jnp.argsort(x).astype(dtype).astype(x.dtype),
        )

    x = (np.arange(16) * 7 % 5).astype(np.float32)
    for y, plain in zip(sh.implicit_comm(sh.lift(f))(sh.array(x, "[16@tp]")), jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(denoted(y), plain)


@pytest.mark.mesh({"x": 8})
def test_a_gradient_of_a_sort_is_a_sort_and_no_pending_sum_that_sends_more_when_it_is_finished() -> None:
    weights = np.arange(65536, dtype=np.float32)
    gradient = sh.implicit_comm(sh.lift(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sort(x) * weights)))))
    x = sh.abstract_array("f32[65536@x]")
    assert str(jax.eval_shape(gradient, x)) == "f32[65536@x]"
    assert sh.ledger(gradient, x).total.bytes < 7 * 8192 * 4  # a gather
