"""Pads of elements that are pads of blocks: programs, values, gradients, what is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes._compat.jaxprs import equations
from shtypes.lifting.ways.paddings import with_paddings
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said

X = np.random.default_rng(0).normal(size=(2, 32, 3)).astype(np.float32)


def attention(x: Any) -> Any:
    """To the block of each position and its neighbours."""
    blocks = jnp.pad(x, ((0, 0), (4, 4), (0, 0))).reshape(2, 10, 4, 3)
    near = jnp.concatenate([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], 2)
    weights = jax.nn.softmax(jnp.einsum("bnqd,bnkd->bnqk", x.reshape(2, 8, 4, 3), near), -1)
    return jnp.einsum("bnqk,bnkd->bnqd", weights, near).reshape(x.shape)


def shifted(x: Any) -> Any:
    """By a block."""
    return jnp.pad(x, ((0, 0), (4, 0), (0, 0))).reshape(2, 9, 4, 3)[:, :-1]


def merged(x: Any) -> Any:
    return jnp.pad(x.reshape(2, 8, 4, 3), ((0, 0), (1, 0), (0, 0), (0, 0))).reshape(2, 36, 3)[:, :-4]


@pytest.mark.parametrize("f", [attention, shifted, merged])
def test_values_and_gradients_are_the_same_and_only_blocks_are_padded(f: Callable[..., Any]) -> None:
    for g in (f, jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))):
        closed = jax.make_jaxpr(g)(X)
        program = with_paddings(closed.jaxpr)
        sizes = {v.aval.shape for e in equations(program) for v in e.outvars}
        assert sizes.isdisjoint({(2, 40, 3), (2, 36, 3)})
        (found,) = jax.core.eval_jaxpr(program, closed.consts, X)
        assert_close(found, g(X), SERIES)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.pad(x, ((0, 0), (3, 5), (0, 0))).reshape(2, 10, 4, 3),  # no whole blocks
        lambda x: jnp.pad(x, ((0, 0), (0, 8), (0, 0))).reshape(2, 4, 10, 3),
        lambda x: jnp.pad(x, ((0, 0), (4, 4), (1, 0))).reshape(2, 10, 4, 4),
        lambda x: jnp.pad(x, ((0, 0), (4, 4), (0, 0))).reshape(4, 20, 3),
        lambda x: (y := jnp.pad(x, ((0, 0), (4, 4), (0, 0))), y.reshape(2, 10, 4, 3)),
        lambda x: lax.pad(x, 0.0, ((0, 0, 0), (0, 1, 1), (0, 0, 0))).reshape(2, 8, 8, 3),
        lambda x: x.reshape(2, 8, 12)[:, :, 1:],
        lambda x: x.reshape(64, 3)[2:],
        lambda x: x.reshape(2, 8, 4, 3).reshape(2, 32, 3)[:, 2:],
        lambda x: x.reshape(2, 8, 4, 3).reshape(2, 32, 3)[:, ::4],
        lambda x: lax.reshape(jnp.pad(x, ((0, 0), (4, 4), (0, 0))), (2, 10, 4, 3), (0, 1, 2)),
    ],
)
def test_other_pads_and_crops_are_the_same(f: Callable[..., Any]) -> None:
    closed = jax.make_jaxpr(f)(X)
    found = jax.core.eval_jaxpr(with_paddings(closed.jaxpr), closed.consts, X)
    for value, wanted in zip(found, jax.tree.leaves(f(X)), strict=True):
        assert np.array_equal(value, wanted)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize(("f", "sent"), [(shifted, 96), (attention, 192), (merged, 96)])
def test_it_sends_the_blocks_that_cross_borders(f: Callable[..., Any], sent: int) -> None:
    x = sh.array(X, "[2,32@x,3]")
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))
    assert sh.ledger(sh.implicit_comm(sh.lift(f)), x).total.bytes == sent
    assert sh.ledger(sh.implicit_comm(sh.lift(gradient)), x).total.bytes == 2 * sent

    @sh.implicit_comm
    def step(x: Any) -> Any:
        inside = sh.lift(gradient)(x)
        return sh.lift(f)(x), inside, sh.grad(sh.lift(lambda x: jnp.sum(jnp.sin(f(x)))))(x)

    assert_compiled_as_said(step, x, jits=[jax.jit])
    value, *gradients = jax.block_until_ready(jax.jit(step)(x))
    assert_close(host(value), f(X), SERIES)
    for found in gradients:
        assert_close(host(found), jax.jit(gradient)(X), SERIES)
