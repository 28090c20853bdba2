"""A traced value that was resharded to a type before is not sent again: values, gradients, ledgers and scopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close
from tests.traced.compiled import sent_by_compiled, sent_by_ledger

X = np.arange(32, dtype=np.float32).reshape(8, 4) / 10


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))


def gathered_twice(x: Any) -> Any:
    return sh.sum(sh.sin(sh.reshard(x, "[_, _]"))) + sh.sum(sh.square(sh.all_gather(x, "dp")))


def summed_twice(x: Any) -> Any:
    total = sh.sum(x, axis=0)
    return sh.sum(sh.sin(sh.all_reduce(total))) + sh.sum(sh.cos(sh.all_reduce(total)))


PROGRAMS = {
    "a gather": (gathered_twice, lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(jnp.square(x)), "all-gather"),
    "a sum": (summed_twice, lambda x: jnp.sum(jnp.sin(x.sum(0))) + jnp.sum(jnp.cos(x.sum(0))), "all-reduce"),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_sent_once_and_its_gradient_is_that_of_both(name: str, policy: str) -> None:
    typed, plain, kind = PROGRAMS[name]
    with sh.policy(policy):
        x = sh.array(X, "f32[8@dp, 4]")
        step = jax.jit(sh.value_and_grad(typed))
        value, gradient = step(x)
        wanted, plain_gradient = jax.jit(jax.value_and_grad(plain))(X)
        assert_close(host(value), wanted)
        assert_close(host(gradient), plain_gradient)
        found = sh.ledger(step, x)
        assert [e.kind for e in found.forward() if e.src.ndim] == [kind]
        text = step.lower(x).as_text("hlo", debug_info=True)
        bytes_sent = [sum(s.bytes.values()) for s in (sent_by_compiled(text), sent_by_ledger(found))]
        assert bytes_sent[0] == bytes_sent[1] > 0


@pytest.mark.parametrize("again", [lambda x: sh.reshard(x, "[_, _@tp]"), lambda x: sh.reshard(sh.sin(x), "[_, _]")])
def test_another_type_and_another_value_are_sent(again: Callable[[Any], Any]) -> None:
    x = sh.array(X, "f32[8@dp, 4]")
    assert sh.ledger(lambda x: (sh.reshard(x, "[_, _]"), again(x)), x).launches == 2


def test_what_was_sent_is_cast_where_only_the_state_differs() -> None:
    """XLA would send it once; a slice of it, which the first need not have kept, is sent."""
    x = sh.array(X, "f32[8@dp, 4]")

    def both(x: Any) -> Any:
        return sh.sum(sh.sin(sh.reshard(x, "[_, _]{R:dp}"))) + sh.sum(sh.cos(sh.reshard(x, "[_, _]{I:dp}")))

    with sh.policy("jax"):
        assert [e.kind for e in sh.ledger(both, x)] == ["all-gather"]
        assert_close(host(sh.grad(both)(x)), np.cos(X) - np.sin(X))


def test_what_sends_nothing_is_not_made_of_what_was_sent() -> None:
    """A slice beside zeros is of the shard, whatever was gathered before: a gathered value need not be kept for it."""
    x = sh.array(X, "f32[8@dp, 4]")
    jaxpr = jax.make_jaxpr(lambda x: (sh.reshard(x, "[_, _]"), sh.reshard(x, "[_, _]{U:dp}")))(x)
    assert [eqn.invars for eqn in jaxpr.jaxpr.eqns] == [jaxpr.jaxpr.invars] * 2


def test_a_narrower_dtype_is_sent_apart() -> None:
    x = sh.array(X, "f32[8@dp, 4]")
    both = lambda x: (sh.reshard(x, "[_, _]"), sh.reshard(x, "[_, _]", comm_dtype="bf16"))  # noqa: E731
    assert sh.ledger(both, x).launches == 2


def test_a_value_without_a_gradient_is_sent_once_in_a_function_that_is_differentiated() -> None:
    step = sh.grad(lambda w, x: gathered_twice(x) * sh.sum(sh.sin(w)))
    x = sh.array(X, "f32[8@dp, 4]")
    assert [e.kind for e in sh.ledger(step, sh.array(X, "f32[8, 4]"), x).forward() if e.src.ndim] == ["all-gather"]


def test_a_checkpoint_and_a_loop_send_their_own() -> None:
    def model(x: Any) -> Any:
        whole = sh.reshard(x, "[_, _]")
        inner = sh.checkpoint(lambda x: sh.sum(sh.sin(sh.reshard(x, "[_, _]"))))
        return sh.sum(whole) + inner(x)

    assert sh.ledger(model, sh.array(X, "f32[8@dp, 4]")).launches == 2


def test_a_scope_counts_what_is_sent() -> None:
    x = sh.array(X, "f32[8@dp, 4]")

    def model(x: Any) -> Any:
        first = sh.reshard(x, "[_, _]")
        with sh.no_comm():
            return first, sh.reshard(x, "[_, _]")

    assert sh.ledger(jax.jit(model), x).launches == 1
    with sh.comm_budget(launches=1):
        sh.ledger(jax.jit(gathered_twice), x)
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="forbids all-gather"):
        sh.ledger(jax.jit(gathered_twice), x)


def test_eager_calls_send_as_they_are_written() -> None:
    x = sh.array(X, "f32[8@dp, 4]")
    first, second = sh.reshard(x, "[_, _]"), sh.reshard(x, "[_, _]")
    assert first is not second
