"""Loops without a carry over a sharded dim: each device loops over its own steps, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

X = np.linspace(-1, 2, 128, dtype=np.float32).reshape(16, 8)
W = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda x, w: lax.map(lambda row: jnp.tanh(row @ w), x),
    "scan": lambda x, w: lax.scan(lambda none, row: (none, (jnp.tanh(row @ w), row.sum())), None, x)[1],
    "from the end": lambda x, w: lax.scan(lambda none, row: (none, row @ w), (), x, reverse=True)[1],
    "batches": lambda x, w: lax.map(lambda row: jnp.tanh(row @ w), x, batch_size=4),
    "and numbers": lambda x, w: lax.map(lambda pair: (pair[0] @ w) * pair[1], (x, jnp.arange(16.0))),
    "and keys": lambda x, w: lax.map(
        lambda pair: (pair[0] @ w) * jax.random.normal(pair[1], (4,)), (x, jax.random.split(jax.random.key(0), 16))
    ),
    "of constants": lambda x, w: lax.map(lambda row: (jnp.ones(3), w.sum()), x),
    "branches": lambda x, w: lax.map(lambda row: lax.cond(row.sum() > 0, jnp.sin, jnp.cos, row), x),
    "a loop in a loop": lambda x, w: lax.map(lambda row: lax.scan(lambda c, e: (c + e, c), 0.0, row), x),
    "gradients": lambda x, w: lax.map(lambda row: jax.grad(lambda w: jnp.tanh(row @ w).sum())(w), x),
    "checkpoints": lambda x, w: lax.map(jax.checkpoint(lambda row: jnp.tanh(row @ w)), x),
}


@pytest.fixture(autouse=True)
def mesh() -> Any:
    with sh.use_mesh(sh.make_mesh({"x": 4, "y": 2})) as mesh:
        yield mesh


@pytest.mark.one_in(12)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_device_loops_over_its_own_steps(name: str, policy: Any) -> None:
    f, axes = PROGRAMS[name], "x" if len(name) % 2 else "(x,y)"

    def loss(x: Any, w: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x, w)))

    with sh.policy(policy):
        x, w = sh.array(X, f"[16@{axes},8]"), sh.array(W, "[8,4]")
        with sh.no_comm("forward"):
            results = jax.tree.leaves(sh.lift(f)(x, w))
        gradients = sh.grad(sh.lift(loss), (0, 1))(x, w)
        backward = sh.ledger(sh.grad(sh.lift(loss), (0, 1)), x, w).backward()
    for found, expected in zip(results, jax.tree.leaves(f(X, W)), strict=True):
        assert_close(host(found), expected)
    for found, expected in zip(gradients, jax.grad(loss, (0, 1))(X, W), strict=True):
        assert_close(host(found), expected)
    of_steps = {str(y.type.dims[0].axes) for y in results if isinstance(y, sh.Array) and y.type.dims[0].axes}
    assert of_steps == ({str(x.type.dims[0].axes)} if name != "of constants" else set())
    # of the weights alone, the sum that the policy asks for
    assert {entry.kind for entry in backward} <= ({"all-reduce"} if policy == "jax" else set())


def test_a_loop_with_a_carry_is_refused_as_before() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`scan` cannot run over"):
        sh.lift(lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(8), x)[1])(sh.array(X, "[16@x,8]"))


def test_a_step_that_needs_another_shard_gathers_where_it_may() -> None:
    x, w = sh.array(X, "[16@x,8]"), sh.array(W, "[8@x,4]")

    def looped(x: Any, w: Any) -> Any:
        return sh.scan(lambda none, row: (none, sh.tanh(row @ w)), None, x)[1]

    with pytest.raises(sh.ShardingTypeError, match="varying with sharded on mesh axis `x`"):
        looped(x, w)
    with sh.implicit_comm():
        assert_close(host(looped(x, w)), np.tanh(X @ W))


def test_lengths_are_those_of_all_steps() -> None:
    x = sh.array(X, "[16@x,8]")
    assert str(sh.scan(lambda _, row: (None, row * 2), None, x, length=16)[1].type) == "f32[16@x,8]"
    with pytest.raises(sh.ShardingTypeError, match=r"in 4 steps: the leading dim of .* has size 16"):
        sh.scan(lambda _, row: (None, row * 2), None, x, length=4)


@pytest.mark.parametrize("name", ["map", "checkpoints", "and numbers"])
def test_where_communication_is_allowed_nothing_is_sent_either(name: str) -> None:
    """The solver has no loops over sharded dims, and is asked whether its plan sends less than what ops choose."""
    x, w = sh.array(X, "[16@x,8]"), sh.array(W, "[8,4]")
    assert sh.ledger(sh.implicit_comm(sh.lift(PROGRAMS[name])), x, w).total.bytes == 0
