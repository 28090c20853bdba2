"""How casts that rules insert are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.traced.ledger import ledger
from tests.tolerance import assert_close


@pytest.fixture(autouse=True)
def jax_policy() -> Iterator[None]:
    with sh.use_mesh(sh.make_mesh({"dp": 2})), sh.policy("jax"):
        yield


def operands() -> tuple[Any, Any]:
    w = np.linspace(-0.5, 0.5, 64, dtype=np.float32).reshape(8, 8)
    x = np.linspace(0.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
    return sh.array(w, "f32[8,8]"), sh.array(x, "f32[4@dp,8]")


def total(y: Any) -> Any:
    return sh.reshard(sh.sum(y), dp="I").to_jax()


def twice(w: Any, x: Any) -> Any:
    return total((x @ w) @ w)


def in_a_scan(w: Any, x: Any) -> Any:
    return total(jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=3)[0])


def in_a_checkpoint(w: Any, x: Any) -> Any:
    return total(sh.checkpoint(lambda c: (c @ w) @ w)(x))


@pytest.mark.core
@pytest.mark.parametrize("f", [twice, in_a_scan, in_a_checkpoint], ids=lambda f: f.__name__)
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_operand_is_cast_once_and_where_it_was_made(f: Callable[..., Any], outer: Callable[..., Any]) -> None:
    w, x = operands()
    entries = [e for e in ledger(jax.grad(outer(f)), w, x) if e.direction != "forward"]
    assert [(e.kind, e.times, e.inserted) for e in entries] == [("all-reduce", 1, True)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("f", [twice, in_a_scan, in_a_checkpoint], ids=lambda f: f.__name__)
def test_the_gradient_through_a_shared_cast_is_that_of_one_device(f: Callable[..., Any]) -> None:
    w, x = operands()
    power = 3 if f is in_a_scan else 2
    host_w, host_x = np.asarray(w), np.asarray(x)
    ones = np.ones((4, 8), np.float32)
    powers = [np.linalg.matrix_power(host_w, k) for k in range(power)]
    wanted = sum((host_x @ powers[k]).T @ (ones @ powers[power - 1 - k].T) for k in range(power))
    for g in (jax.grad(f)(w, x), jax.jit(jax.grad(f))(w, x)):
        assert_close(np.asarray(g), wanted)


@pytest.mark.one_in(15)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize(
    "op",
    [lambda x, n: x * n, lambda x, n: n - x, lambda x, n: x / n, lambda x, n: x > n, lambda x, n: sh.maximum(n, x)],
    ids=["mul", "rsub", "div", "greater", "maximum"],
)
def test_eager_calls_with_other_numbers_share_a_compilation_and_its_bits(op: Any, dtype: str) -> None:
    x = sh.astype(sh.array(np.linspace(-3, 9, 8, dtype=np.float32), "[8@dp]"), dtype)
    numbers = [3, 7, 12] if dtype == "i32" else [0.37, 1 / 3, 2.7, -0.1, 3e-5]
    jax.block_until_ready(op(x, numbers[0]))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        found = [op(x, n) for n in numbers]
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    for number, y in zip(numbers, found, strict=True):
        wanted = jax.jit(op, static_argnums=1)(x, number)
        assert y.type == wanted.type
        np.testing.assert_array_equal(np.asarray(y), np.asarray(wanted))
