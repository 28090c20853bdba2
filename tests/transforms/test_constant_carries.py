"""Carries and results of branches that start as constants: no gradient comes back to them, so they have any type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import close, host

X = np.arange(16, dtype=np.float32).reshape(8, 2) / 8
RUN: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "sh.jit": sh.jit}


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


#: What a constant can be made by.
STARTS: dict[str, Callable[[Any], Any]] = {
    "sh.zeros": lambda x: sh.zeros(f"f32{list(x.shape)}"),
    "jnp.zeros": lambda x: jnp.zeros(x.shape),
    "np.zeros": lambda x: np.zeros(x.shape, np.float32),
    "of others": lambda x: sh.zeros(f"f32{list(x.shape)}") * 2 + 1 - 1,
    "stopped": lambda x: sh.stop_gradient(x) * 0,
}
Start = Callable[[Any], Any]


def scanned(x: Any, start: Start) -> Any:
    return sh.scan(lambda c, _: (c + x, None), start(x), None, 2)[0]


def two(x: Any, start: Start) -> Any:
    return sh.scan(lambda c, _: ((c[0] + sh.sin(c[1]), c[1] * x), None), (start(x), x), None, 2)[0][0]


def nested(x: Any, start: Start) -> Any:
    return sh.fori_loop(0, 2, lambda _, c: sh.scan(lambda d, _: (d + x, None), c, None, 2)[0], start(x))


def changed(x: Any, start: Start) -> Any:
    return sh.fori_loop(0, 2, lambda _, c: sh.scan(lambda d, _: (d + x, None), c * 2 + 1, None, 2)[0], start(x))


def branch(x: Any, start: Start) -> Any:
    yes = sh.constant(np.bool_(True))
    return sh.fori_loop(0, 2, lambda _, c: sh.cond(yes, lambda: c, lambda: c + x), start(x))


def reset(x: Any, start: Start) -> Any:
    return sh.scan(lambda c, _: (start(x), c + x), x, None, 2)[1][1]


def result(x: Any, start: Start) -> Any:
    return sh.cond(sh.constant(np.bool_(False)), lambda: start(x), lambda: x * 2) + x


def counted(x: Any, start: Start) -> Any:
    return sh.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (0, start(x)))[1]


#: What each denotes on one device, where zeros start it.
LOOPS: dict[Callable[[Any, Start], Any], Callable[[Any], Any]] = {
    scanned: lambda x: 2 * x,
    two: lambda x: jnp.sin(x) + jnp.sin(x * x),
    nested: lambda x: 4 * x,
    changed: lambda x: (2 * x + 1) * 2 + 1 + 2 * x,
    branch: lambda x: 0 * x,
    reset: lambda x: x,
    result: lambda x: 3 * x,
    counted: lambda x: 3 * x,
}


@pytest.mark.one_in(137)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("mapped", [False, True], ids=["sharded", "local"])
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("run", RUN.values(), ids=RUN)
def test_a_constant_starts_a_carry_of_any_type(loop: Any, start: Any, mapped: bool, policy: Any, run: Any) -> None:
    with sh.policy(policy):
        op: Any = sh.shard_map(lambda x: loop(x, start), out_specs="[_@x, _]") if mapped else lambda x: loop(x, start)
        x = sh.array(X, "[8@x, 2]")
        close(host(run(op)(x)), LOOPS[loop](X), "value")

        def loss(x: Any) -> Any:
            return sh.all_reduce(sh.sum(sh.sin(op(x))))

        if loop is not counted:
            of_one_device = LOOPS[loop]
            wanted = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(of_one_device(x)))))(X)
            close(host(run(sh.grad(loss))(x)), wanted, "gradient")
        assert sh.ledger(loss, x).bytes == sh.ledger(sh.sum, x).bytes + sh.ledger(sh.all_reduce, sh.sum(x)).bytes


@pytest.mark.parametrize("loop", [scanned, nested, changed], ids=lambda f: f.__name__)
def test_a_scope_sees_the_types_that_it_settles_in(loop: Any) -> None:
    with sh.policy("jax"):
        x = sh.array(X, "[8@x, 2]")
        with sh.no_comm():
            found = sh.jit(lambda x: loop(x, STARTS["sh.zeros"]))(x)
    assert found.type == x.type


def test_what_a_scope_forbids_in_the_last_round_is_refused() -> None:
    x = sh.array(X, "[8@x, 2]")
    with pytest.raises(sh.ShardingTypeError, match="forbids all-gather"), sh.no_comm():
        sh.scan(lambda c, _: (c + sh.all_gather(c + x, "x") * 0 + x, None), sh.zeros("f32[8, 2]"), None, 2)


def test_a_carry_with_a_gradient_is_no_constant() -> None:
    def looped(x: Any, w: Any) -> Any:
        return sh.scan(lambda c, _: (c + x, None), w * 2, None, 2)[0]

    with sh.policy("jax"), pytest.raises(sh.ShardingTypeError, match="the carry of `scan` starts as"):
        sh.jit(looped)(sh.array(X, "[8@x, 2]"), sh.ones("f32[8, 2]"))
