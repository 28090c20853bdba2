"""What plans predict of programs with repeated parts, unused results and sums: the bytes that they send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.traced.equations import operands_read
from tests.solver.models import f32

ROWS: Final = 8


def _normalized_by_an_iteration(w: Any) -> Any:
    """Power iterations, of which one group of equations takes the last directions without a gradient."""

    def step(u: Any, _: None) -> tuple[Any, Any]:
        v = w.T @ u
        v = v / jnp.linalg.norm(v)
        u = w @ v
        return u / jnp.linalg.norm(u), v

    u, v = lax.scan(step, jnp.ones(ROWS) / ROWS**0.5, None, length=3)
    u, v = lax.stop_gradient((u, v[-1]))
    return w / (u @ w @ v)


@pytest.mark.parametrize("given", ["[8@x, _]", "[_, 8@x]"])
def test_what_has_no_cotangent_is_not_priced_backward(given: str) -> None:
    def loss(w: Any) -> Any:
        return jnp.sum(jnp.sin(_normalized_by_an_iteration(w)))

    for plan in sh.suggest(loss, f32(ROWS, ROWS), mesh={"x": 2}, grad=True, fixed={"w": given}):
        assert plan.bytes == pytest.approx(plan.ledger.total.bytes, abs=1)


def test_a_copy_has_no_cotangent_if_no_use_of_it_has_one() -> None:
    def loss(x: Any, w: Any) -> Any:
        z = x @ w
        kept = jnp.tanh(z) + jnp.sin(z)
        return jnp.sum(z) + lax.stop_gradient(jnp.sum(kept))

    line = loss.__code__.co_firstlineno
    fixed = {f"test_predicted.py:{line + 2} <- dot_general in {op}": "[_, _]" for op in ("tanh", "sin")}
    fixed |= {"x": "[_, _@x]", "w": "[_@x, _]", f"test_predicted.py:{line + 3} <- dot_general": "[_, _]{U:x}"}
    for plan in sh.suggest(loss, f32(8, 8), f32(8, 16), mesh={"x": 2}, grad=(0, 1), fixed=fixed):
        assert plan.bytes == plan.ledger.total.bytes


def test_a_gradient_of_which_a_part_is_cast_is_summed_as_it_is_in_the_step() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(x @ w))

    fixed = {"w": "[_@x, _]", "x": "[_, _]"}
    for plan in sh.suggest(loss, f32(8, 8), f32(8, 8), mesh={"x": 4, "y": 2}, fixed=fixed, links=sh.Link(1e9)):
        assert plan.bytes == plan.ledger.total.bytes


def test_operands_are_read_for_the_results_that_are_used() -> None:
    def f(p: Any, a: Any, b: Any) -> Any:
        return lax.cond(p, lambda: (jnp.sin(a), b * 2), lambda: (a, b))

    cond = jax.make_jaxpr(f)(True, jnp.ones(4), jnp.ones(4)).eqns[-1]
    read = {used: operands_read(cond, used) for used in ((True, False), (False, True), (True, True))}
    assert [sum(read[used]) for used in read] == [2, 2, 3]
    assert read[True, False] != read[False, True]


def _weighted(y: Any) -> Any:
    return jnp.sum(y * np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape))


def _image(x: Any, k: Any) -> Any:
    """A convolution, a pool, and two equal parts (mean and variance), for all of which an image is resharded."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, k, (2, 2), "SAME", rhs_dilation=(2, 2), dimension_numbers=numbers)
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    normal = (x - x.mean((1, 2), keepdims=True)) * lax.rsqrt(x.var((1, 2), keepdims=True) + 1e-5)
    return _weighted(y) + _weighted(pooled) + _weighted(normal)


def _gated(x: Any, wi: Any, wh: Any, b: Any) -> Any:
    """A sum of two products and a bias in each step: their cotangents are one."""

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        return jax.nn.sigmoid(h @ wi + (jnp.cos(h) @ wh + b)) * x, h

    return jnp.sum(jnp.sin(lax.scan(step, x[0], x)[1]))


def _largest(x: Any) -> Any:
    """The largest elements, without their places, and a sort that takes along what is unused."""
    first = lax.sort((x, jnp.sin(x), jnp.broadcast_to(jnp.arange(64), x.shape)), num_keys=1)[1]
    return _weighted(lax.top_k(x, 4)[0]) + _weighted(first)


def _counted(p: Any) -> Any:
    """A table that begins as zeros, and that each step reads by rows."""

    def step(table: Any, i: Any) -> tuple[Any, None]:
        a = jnp.argmax(p[i] * jnp.sqrt(table.sum(1, keepdims=True) + 1)[i])
        return table.at[i, a].add(1), None

    table = lax.scan(step, jnp.zeros((8, 16)), jnp.arange(6) % 8)[0]
    return jnp.sum(jnp.cos(table / jnp.maximum(table.sum(1, keepdims=True), 1)))


SENT: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, str]]]] = {
    "equal parts": (_image, {"x": f32(2, 16, 16, 4), "k": f32(3, 3, 4, 8)}, {"x": "[2@x, 16@y, _, _]"}),
    "constant carry": (_counted, {"p": f32(8, 16)}, {"p": "[8@x, 16@y]"}),
    "unused results": (_largest, {"x": f32(64)}, {"x": "[64@(x,y)]"}),
    "terms of a sum": (
        _gated,
        {"x": f32(6, 4, 8), "wi": f32(8, 8), "wh": f32(8, 8), "b": f32(8)},
        {"x": "[_, _, 8@(x,y)]", "wi": "[8@(x,y), _]", "wh": "[8@(x,y), _]", "b": "[8@(x,y)]"},
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SENT)
def test_plans_send_what_they_predict(name: str) -> None:
    f, args, fixed = SENT[name]
    for plan in sh.suggest(f, *args.values(), mesh={"x": 2, "y": 2}, grad=tuple(range(len(args))), fixed=fixed):
        assert plan.bytes == pytest.approx(plan.ledger.total.bytes, abs=1)
