"""Functions with their own derivatives: JAX's `custom_vjp` and `custom_jvp`, and ours, which names wrong cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import small_models as p

EITHER = [pytest.param(jax.custom_vjp, id="jax"), pytest.param(sh.custom_vjp, id="sh")]


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def tripled(custom_vjp: Any) -> Any:
    """`silu` with 3 for its derivative."""
    f = custom_vjp(sh.silu)
    f.defvjp(lambda x: (sh.silu(x), None), lambda _, ct: (ct * 3.0,))
    return f


def through(f: Callable[..., Any], context: str) -> Callable[..., Any]:
    """A loss through ``f`` in some context."""
    contexts: dict[str, Any] = {
        "bare": f,
        "jit": jax.jit(f),
        "checkpoint": jax.checkpoint(f),
        "vmap": sh.vmap(f),
        "scan": lambda x: sh.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    }
    return lambda x: sh.sum(contexts[context](x))


@pytest.mark.one_in(9)
@pytest.mark.core
@pytest.mark.parametrize("custom_vjp", EITHER)
@pytest.mark.parametrize("context", ["bare", "jit", "checkpoint", "scan", "vmap"])
def test_a_backward_function_is_used_in_every_context(custom_vjp: Any, context: str) -> None:
    x = sh.array(p.X, "f32[4,8@dp]" if context == "vmap" else p.X_TYPE)
    grad = sh.grad(through(tripled(custom_vjp), context))
    factor = 9 if context == "scan" else 3
    for compiled in (grad, jax.jit(grad)):
        p.assert_gradients(compiled(x), x, np.full_like(p.X, factor))


def wrong(custom_vjp: Any) -> Any:
    """A backward function that returns the primal: reduced where the gradient is unreduced."""
    f = custom_vjp(sh.silu)
    f.defvjp(lambda x: (sh.silu(x), x), lambda x, _: (x,))
    return f


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_cotangent_of_the_wrong_type_is_named(compiled: bool) -> None:
    x, _, _ = p.values()
    grad = sh.grad(through(wrong(sh.custom_vjp), "bare"))
    with pytest.raises(sh.ShardingTypeError) as caught:
        (jax.jit(grad) if compiled else grad)(x)
    place = str(caught.value).split("where: ")[1].split("\n")[0]
    assert place.startswith("test_custom.py:")
    assert str(caught.value) == (
        "the cotangent of argument 0 that the backward function of `silu` returns has type f32[batch@dp, hidden] "
        "instead of f32[batch@dp, hidden]{U:tp}\n"
        f"  where: {place}\n"
        "  why:   the type of a gradient is a function of the type of the value, which is f32[batch@dp, hidden]\n"
        '  try:   sh.reshard(ct, "f32[4@dp,8]{U:tp}")'
    )


def test_jax_refuses_a_cotangent_of_the_wrong_type_too() -> None:
    x, _, _ = p.values()
    with pytest.raises(sh.ShardingTypeError, match="does not take these arguments"):
        sh.grad(through(wrong(jax.custom_vjp), "bare"))(x)


@pytest.mark.parametrize(
    ("cotangents", "words"),
    [
        (lambda ct: ct, "returns a tuple of 2"),
        (lambda ct: (ct,), "returns a tuple of 2"),
        (lambda ct: (ct, ct), "argument 1 .* is typed, but the argument is a plain array"),
        (lambda ct: (jnp.ones((4, 8)), jnp.float32(0)), "argument 0 .* is a plain array"),
    ],
    ids=["bare", "short", "typed for plain", "plain for typed"],
)
def test_cotangents_that_do_not_fit_the_arguments_are_named(cotangents: Callable[..., Any], words: str) -> None:
    x, _, _ = p.values()
    f = sh.custom_vjp(lambda x, gain: x * gain)
    f.defvjp(lambda x, gain: (x * gain, gain), lambda _, ct: cotangents(ct))
    with pytest.raises(sh.ShardingTypeError, match=words):
        sh.grad(lambda x: sh.sum(f(x, jnp.float32(2))))(x)


def test_none_is_zero_and_undifferentiated_arguments_come_first() -> None:
    x, w, _ = p.values()

    product = sh.custom_vjp(lambda x, w: x @ w)
    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, ct: (ct @ sh.transpose(kept[1]), None))
    dx, dw = sh.grad(lambda x, w: sh.sum(product(x, w)), argnums=(0, 1))(x, w)
    p.assert_gradients((dx, dw), (x, w), (np.ones((4, 16)) @ p.W_IN.T, 0 * p.W_IN))

    power = sh.custom_vjp(lambda n, x: x * n, nondiff_argnums=(0,))
    power.defvjp(lambda n, x: (x * n, None), lambda n, _, ct: (ct * (10 * n),))
    p.assert_gradients(sh.grad(lambda x: sh.sum(power(3, x)))(x), x, np.full_like(p.X, 30))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_forward_rule_of_jax_is_used(compiled: bool) -> None:
    f = jax.custom_jvp(sh.silu)
    f.defjvp(lambda primals, tangents: (sh.silu(primals[0]), tangents[0] * 3.0))
    x, _, _ = p.values()
    grad = sh.grad(lambda x: sh.sum(f(x)))
    p.assert_gradients((jax.jit(grad) if compiled else grad)(x), x, np.full_like(p.X, 3))


def test_a_forward_rule_with_a_tangent_of_the_wrong_type_is_refused() -> None:
    f = jax.custom_jvp(sh.silu)
    f.defjvp(lambda primals, tangents: (sh.silu(primals[0]), sh.reshard(tangents[0], tp="I")))
    x, _, _ = p.values()
    with pytest.raises(TypeError, match=r"f32\[batch@dp, hidden\]\{I:tp\}"):
        sh.grad(lambda x: sh.sum(f(x)))(x)
