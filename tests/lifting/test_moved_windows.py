"""Windows of pads by reflection and the like, and of joins: values, gradients, what is sent, whatever is sharded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes._compat.jaxprs import jaxpr_of
from shtypes.lifting.ways.grouping import grouped
from tests.end_to_end import host
from tests.lifting.windows import Case, assert_as_one_device, conv, gradients
from tests.tolerance import SERIES, assert_close

rng = np.random.default_rng(0)
MODES = ("reflect", "symmetric", "wrap", "edge")
ROW = 4 * 6 * 3 * 4  # of images with their pad


def f32(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def reflected(mode: str) -> Callable[..., Any]:
    return lambda x, k: conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode), k)


def of_ones(x: Any, k: Any) -> Any:
    return conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1), k)


def pooled(mode: str) -> Callable[..., Any]:
    def pool(x: Any) -> Any:
        y = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode)
        return lax.reduce_window(y, -np.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "VALID")

    return pool


def of_state(x: Any, state: Any, k: Any) -> Any:
    """A causal convolution of a sequence and what was before it."""
    return conv(jnp.concatenate([state, x], 1), k)


def around(x: Any, k: Any) -> Any:
    return conv(jnp.concatenate([x[:, -2:], x, x[:, :2]], 1), k)


def twice(x: Any, k: Any) -> Any:
    return reflected("wrap")(jax.nn.relu(reflected("reflect")(x, k)), k)


def odd(x: Any) -> Any:
    """Results whose number the devices do not divide."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 1, 1), (1, 2, 1, 1), "VALID")


def turned(x: Any, k: Any) -> Any:
    """Results along another dim than the operand."""
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NCHW"))


def convolved(x: Any, k: Any) -> Any:
    return jnp.convolve(jnp.pad(x, 4, mode="reflect"), k, "valid")


IMAGE, KERNEL = (f32(4, 32, 4, 3), f32(3, 3, 3, 3)), ("f32[4,32@x,4,3]", "f32[3,3,3,3]")
SEQ = f32(2, 64, 3)
CONVS = {"reflect": 960, "symmetric": 960, "wrap": 1344, "edge": 1632}
POOLS = {"reflect": 1440, "symmetric": 1440, "wrap": 1824, "edge": 2112}
CASES = [
    *(Case(f"conv, {m}", reflected(m), IMAGE, KERNEL, (2 * ROW, n)) for m, n in CONVS.items()),
    *(Case(f"pool, {m}", pooled(m), IMAGE[:1], KERNEL[:1], (2 * ROW, n)) for m, n in POOLS.items()),
    Case(
        "of a state",
        of_state,
        (SEQ, f32(2, 2, 3), f32(3, 3, 3)),
        ("f32[2,64@x,3]", "f32[2,2,3]", "f32[3,3,3]"),
        (48, 96),
    ),
    Case("around", around, (SEQ, f32(5, 3, 3)), ("f32[2,64@x,3]", "f32[5,3,3]"), (96, 240)),
    Case("conv, of ones", of_ones, IMAGE, KERNEL, (2 * 4 * 4 * 3 * 4, 768)),  # the border of both is one
    Case("twice", twice, IMAGE, KERNEL, (4 * ROW, 2304)),
    Case("odd", odd, IMAGE[:1], KERNEL[:1], (2880, 3072)),
    Case("turned", turned, IMAGE, KERNEL, (384, 768)),
    Case("jnp.convolve", convolved, (f32(64), f32(9)), ("f32[64@x]", "f32[9]"), (68, 224)),
]


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_it_sends_borders_and_is_what_one_device_computes(case: Case) -> None:
    assert_as_one_device(case)


def test_it_is_one_call_where_channels_are_joined_it_is_not() -> None:
    def names(f: Callable[..., Any], *shapes: Sequence[int]) -> list[str]:
        jaxpr = jax.make_jaxpr(f)(*[np.zeros(shape, np.float32) for shape in shapes]).jaxpr
        return [str(e.params.get("name", e.primitive.name)) for e in grouped(jaxpr, frozenset({16})).eqns]

    assert names(of_state, (2, 16, 3), (2, 2, 3), (3, 3, 3)) == ["conv"]
    joined = names(lambda x, y, k: conv(jnp.concatenate([x, y], 2), k, "SAME"), (2, 16, 3), (2, 16, 3), (3, 6, 3))
    assert joined == ["concatenate", "conv_general_dilated"]


def test_each_reader_of_a_pad_has_its_own() -> None:
    def f(x: Any, k: Any) -> Any:
        y = jnp.pad(x, ((0, 0), (1, 1), (0, 0)), mode="wrap")
        return conv(y, k), conv(jnp.sin(conv(y, k)), k, "SAME"), y

    program = grouped(jax.make_jaxpr(f)(np.zeros((2, 16, 3), np.float32), np.zeros((3, 3, 3), np.float32)).jaxpr)
    calls = [[e.primitive.name for e in jaxpr_of(c.params["jaxpr"]).eqns] for c in program.eqns if "jaxpr" in c.params]
    assert sum("conv_general_dilated" in call for call in calls) == 2


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize("seed", range(60))
def test_random_windows_of_what_is_moved(seed: int) -> None:
    r = random.Random(seed)
    low, high = r.randrange(1, 5), r.randrange(1, 5)
    mode = r.choice([*MODES, "join", "flip"])
    options = {"rhs_dilation": (r.randrange(1, 3),), "lhs_dilation": (r.randrange(1, 3),)}
    window, stride, axis = r.randrange(1, 5), r.randrange(1, 3), r.choice(["x", "(x,y)", "y"])
    padding, kind = [(r.randrange(3), r.randrange(3))], r.choice(["conv", "max", "add"])

    def moved(x: Any) -> Any:
        if mode == "join":
            return jnp.concatenate([x[:, :low] * 2, x, jnp.ones_like(x[:, :high])], 1)
        return x[:, ::-1][:, low - 1 :] if mode == "flip" else jnp.pad(x, ((0, 0), (low, high), (0, 0)), mode=mode)

    def f(x: Any, k: Any) -> Any:
        y = moved(x)
        if kind == "conv":
            return moved(conv(y, k, padding, stride, **options))
        init, operator = (-np.inf, lax.max) if kind == "max" else (0.0, lax.add)
        pads = [(0, 0), (0, 0), (0, 0)]
        y = lax.reduce_window(y, np.float32(init), operator, (1, window, 1), (1, stride, 1), pads)
        return y[:, : 2 * (y.shape[1] // 2)]

    args = f32(2, 32, 3), f32(window, 3, 3)
    typed = [sh.array(x, t) for x, t in zip(args, (f"f32[2,32@{axis},3]", f"f32[{window},3,3]"), strict=True)]
    for g in (f, gradients(f, 2)):
        lifted = jax.jit(sh.implicit_comm(sh.lift(g)))
        for found, wanted in zip(jax.tree.leaves(lifted(*typed)), jax.tree.leaves(jax.jit(g)(*args)), strict=True):
            assert_close(host(jax.block_until_ready(found)), wanted, SERIES)
