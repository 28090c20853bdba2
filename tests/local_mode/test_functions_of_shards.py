"""What is no function of shards is refused where it is applied, its backward pass included; the same in each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh

X = np.arange(32, dtype=np.float32).reshape(8, 4)


pytestmark = pytest.mark.mesh({"x": 2})


def kernel(forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Any:
    """Doubles; its two passes do more."""

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    double.defvjp(lambda x: (forward(x) * 2, None), lambda _, ct: (backward(ct) * 2,))
    return double


def tangent_sums() -> Any:
    @jax.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    double.defjvp(lambda x, t: (x[0] * 2, lax.psum(t[0], "x") * 2))
    return double


def same(x: Any) -> Any:
    return x


def spread(x: Any) -> Any:
    return lax.with_sharding_constraint(x, jax.P("x"))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (kernel(same, lambda ct: lax.psum(ct, "x")), "the backward pass of `f` is no function of shards: it uses a"),
        (kernel(lambda x: lax.psum(x, "x"), same), "the backward pass of `f` is no function of shards: it uses a"),
        (tangent_sums(), "the backward pass of `f` is no function of shards: it uses a mesh axis"),
        (kernel(same, spread), "the backward pass of `f` is no function of shards: `with_sharding_constraint` in it"),
        (kernel(same, lambda ct: ct[:1]), "the backward pass of `f` cannot be applied to shards f32[4, 4]"),
        (spread, "`f` is no function of shards: `with_sharding_constraint` in it"),
        (sh.sin, "`f` is no function of shards: it returns a typed value"),
        (lambda x: sh.sin(sh.from_jax(x)).to_jax(), "`f` is no function of shards: `from_jax` in it"),
        (lambda x: x * sh.from_jax(jnp.float32(2)).to_jax(), "`f` is no function of shards"),
    ],
    ids=["psum back", "psum forth", "psum of a tangent", "constraint back", "shape", "constraint", "typed result",
         "typed inside", "captured"],
)  # fmt: skip
def test_what_is_no_function_of_shards_is_refused_where_it_is_applied(function: Any, said: str) -> None:
    op = sh.local_map(function, out="[_@x, _]", name="f")
    for mode in (lambda f: f, sh.jit, jax.jit):
        with pytest.raises(sh.ShardingTypeError) as error:
            mode(lambda x: op(x) + 1)(sh.array(X, "[8@x,4]"))
        assert error.value.what.startswith(said)
        assert error.value.where.startswith("test_functions_of_shards.py")


def test_a_traced_value_is_no_constant_of_a_function_of_shards() -> None:
    def scaled(x: Any, factor: Any) -> Any:
        return sh.local_map(lambda x: x * factor, out="[_@x, _]", name="scaled")(x)

    for mode in (sh.jit, jax.jit):
        with pytest.raises(sh.ShardingTypeError, match="captures a traced value, f"):
            mode(scaled)(sh.array(X, "[8@x,4]"), jnp.float32(2))


def test_a_backward_pass_of_its_own_has_no_forward_derivative() -> None:
    op = sh.local_map(kernel(same, same), out="[_@x, _]", name="double")
    x = sh.array(X, "[8@x,4]")
    assert sh.grad(lambda x: sh.sum(op(x)))(x).type == x.type
    for mode in (lambda f: f, sh.jit, jax.jit):
        for derivative in (lambda x: sh.jvp(op, (x,), (x,)), lambda x: sh.linearize(op, x)[1](x)):
            with pytest.raises(sh.ShardingTypeError, match="has no forward derivative") as error:
                mode(derivative)(x)
            assert "test_functions_of_shards.py" in error.value.where
