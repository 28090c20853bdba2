"""Callbacks in programs that are evaluated by a plan: each is called as without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import shtypes as sh

X = np.arange(128, dtype=np.float32).reshape(16, 8)


class Calls(Counter[tuple[int, ...]]):
    """Counts calls by the shape of their operand."""

    def __call__(self, *operands: Any) -> None:
        self[np.shape(operands[0]) if operands else (-1,)] += 1


def called(f: Callable[..., Any], *args: Any) -> Any:
    jax.block_until_ready(f(*args))
    jax.effects_barrier()


def of_a_value(calls: Calls, x: Any) -> Any:
    jax.debug.callback(calls, x * 3)
    return jnp.sum(x * 2)


def of_nothing(calls: Calls, x: Any) -> Any:
    jax.debug.callback(calls)
    return jnp.sum(x * 2)


def of_what_is_moved(calls: Calls, x: Any) -> Any:
    jax.debug.callback(calls, jnp.roll(x, 1, 0))
    return jnp.sum(x * 2)


def of_a_maximum(calls: Calls, x: Any) -> Any:
    jax.debug.callback(calls, jnp.max(x, 0))
    return jnp.sum(x * 2)


def in_steps(calls: Calls, x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        jax.debug.callback(calls, carry)
        return carry * 2, None

    return jnp.sum(jax.lax.scan(step, x, None, length=3)[0])


def of_rows_alone(calls: Calls, x: Any) -> Any:
    jax.lax.scan(lambda carry, row: (jax.debug.callback(calls, row), (carry, None))[1], None, x)
    return jnp.sum(x)


def in_a_checkpoint(calls: Calls, x: Any) -> Any:
    @jax.checkpoint
    def block(x: Any) -> Any:
        jax.debug.callback(calls, y := jnp.sin(x))
        return jnp.sin(y)

    return jnp.sum(block(x))


def where_a_sum_is_positive(calls: Calls, x: Any) -> Any:
    jax.lax.cond(jnp.sum(x) > 0, lambda x: jax.debug.callback(calls, x), lambda x: None, x)
    return jnp.sum(x)


def while_small(calls: Calls, x: Any) -> Any:
    def step(state: Any) -> Any:
        jax.debug.callback(calls, state[1])
        return state[0] + 1, state[1] * 2

    return jnp.sum(jax.lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1])


def after_each_layer(calls: Calls, x: Any) -> Any:
    for _ in range(6):
        x = jnp.tanh(x @ jnp.ones((8, 8)))
        jax.debug.callback(calls, x)
    return jnp.sum(x)


#: The calls of each where the rows of its operand are sharded over 8 devices.
CALLS = {
    of_a_value: {(2, 8): 8},
    of_nothing: {(-1,): 1},
    of_what_is_moved: {(2, 8): 8},
    of_a_maximum: {(8,): 1},
    in_steps: {(2, 8): 24},
    of_rows_alone: {(8,): 16},
    in_a_checkpoint: {(2, 8): 8},
    where_a_sum_is_positive: {(2, 8): 8},
    while_small: {(2, 8): 24},
    after_each_layer: {(2, 8): 48},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrap", [lambda f: f, sh.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("f", CALLS)
def test_implicit_comm_keeps_callbacks(f: Callable[..., Any], wrap: Callable[..., Any]) -> None:
    calls = Calls()

    def run(x: Any) -> Any:
        with sh.implicit_comm():
            return sh.lift(lambda x: f(calls, x))(x)

    with sh.use_mesh(sh.make_mesh({"x": 8})):
        called(wrap(run), sh.array(X, "f32[16@x,8]"))
    assert dict(calls) == CALLS[f]


@pytest.mark.parametrize("f", [of_a_value, in_steps, in_a_checkpoint, after_each_layer])
def test_a_plan_keeps_callbacks(f: Callable[..., Any]) -> None:
    calls = Calls()

    def run(x: Any) -> Any:
        return f(calls, x)

    with sh.use_mesh(sh.make_mesh({"x": 8})):
        plan = sh.suggest(run, "f32[16,8]", fixed={"x": "[16@x,8]"})[0]
        called(sh.apply(run, plan), X)
    assert dict(calls) == CALLS[f]


def test_a_callback_alone_costs_nothing() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 8})), sh.implicit_comm():
        ledger = sh.ledger(sh.lift(lambda x: of_a_value(Calls(), x)), sh.abstract_array("f32[16@x,8]"))
    assert not ledger.total.bytes


def test_implicit_comm_refuses_a_call_that_would_run_once_on_each_device() -> None:
    def f(x: Any) -> Any:
        io_callback(print, None, x)
        return x * 2

    with (
        sh.use_mesh(sh.abstract_mesh({"x": 8})),
        sh.implicit_comm(),
        pytest.raises(sh.ShardingTypeError, match="`io_callback` of typed values would run once on each device"),
    ):
        sh.lift(f)(sh.abstract_array("f32[16@x,8]"))
