"""Transformations of ours, and what makes typed values, called in a plain program that is lifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

RNG = np.random.default_rng(5)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
POLICIES = pytest.mark.parametrize("policy", ["partial", "jax"])
MESH = {"dp": 2, "tp": 4}


pytestmark = pytest.mark.mesh(MESH)


def reduced(x: Any, w: Any) -> Any:
    return sh.all_reduce(x @ w, "tp")


@sh.typed
def checked(x: Annotated[Any, "f32[b@dp, h@tp]"]) -> Annotated[Any, "f32[b@dp, h@tp]"]:
    return jnp.sin(x)


own_backward = sh.custom_vjp(lambda a: sh.sin(a))  # noqa: PLW0108  # so that it is looked up late
own_backward.defvjp(lambda a: (sh.sin(a), a), lambda a, ct: (ct * sh.cos(a),))

#: Programs, and what they compute on one device.
PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "scan": (
        lambda x, w: sh.scan(lambda c, _: (c + reduced(x, w), None), jnp.zeros((8, 8)), None, length=2)[0],
        lambda x, w: 2 * (x @ w),
    ),
    "while_loop": (
        lambda x, w: sh.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * 2, s[1] + 1), (x, 0))[0],
        lambda x, w: 8 * x,
    ),
    "fori_loop": (lambda x, w: sh.fori_loop(0, 3, lambda i, c: c * 2, x), lambda x, w: 8 * x),
    "cond": (lambda x, w: sh.cond(True, lambda: x * 2, lambda: x), lambda x, w: 2 * x),
    "switch": (lambda x, w: sh.switch(1, [lambda: x * 2, lambda: x]), lambda x, w: x),
    "vmap": (sh.vmap(reduced, in_axes=(0, None)), lambda x, w: x @ w),
    "checkpoint": (sh.checkpoint(lambda x, w: jnp.sin(reduced(x, w))), lambda x, w: jnp.sin(x @ w)),
    "checkpoint with a policy": (
        sh.checkpoint(lambda x, w: jnp.sin(reduced(x, w)), policy=sh.checkpoint_policies.dots_saveable),
        lambda x, w: jnp.sin(x @ w),
    ),
    "jit": (sh.jit(reduced), lambda x, w: x @ w),
    "grad": (
        lambda x, w: sh.all_reduce(sh.grad(lambda w: jnp.sum(jnp.sin(reduced(x, w))))(w), "dp"),
        lambda x, w: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w),
    ),
    "value_and_grad": (
        lambda x, w: sh.all_reduce(sh.value_and_grad(lambda w: jnp.sum(jnp.sin(reduced(x, w))))(w)[1], "dp"),
        lambda x, w: jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w),
    ),
    "vjp": (
        lambda x, w: sh.all_reduce(sh.vjp(lambda w: reduced(x, w), w)[1](jnp.ones((8, 8)))[0], "dp"),
        lambda x, w: jax.vjp(lambda w: x @ w, w)[1](jnp.ones((8, 8)))[0],
    ),
    "jvp": (lambda x, w: sh.jvp(lambda w: reduced(x, w), (w,), (w,))[1], lambda x, w: x @ w),
    "linearize": (lambda x, w: sh.linearize(lambda w: reduced(x, w), w)[1](w), lambda x, w: x @ w),
    "hessian": (lambda x, w: sh.hessian(lambda v: jnp.sum(v**3))(x[0]), lambda x, w: jnp.diag(6 * x[0])),
    "custom_vjp": (lambda x, w: own_backward(x), lambda x, w: jnp.sin(x)),
    "local_map": (lambda x, w: sh.local_map(lambda a: a * 2, out="[_@dp,_@tp]")(x), lambda x, w: x * 2),
    "local_map of what is made inside": (
        lambda x, w: sh.local_map(jnp.tanh, out="[_@dp,_@tp]")(x * 2),
        lambda x, w: jnp.tanh(x * 2),
    ),
    "shard_map": (
        lambda x, w: sh.shard_map(lambda a: sh.lax.psum(a, "tp"), in_specs=P("dp", "tp"), out_specs=P("dp"))(x),
        lambda x, w: x.reshape(8, 4, 4).sum(1),
    ),
    "shard_map of what is made inside": (
        lambda x, w: sh.shard_map(lambda a: sh.lax.psum(a, "tp"), in_specs=P("dp", "tp"), out_specs=P("dp"))(x * 3),
        lambda x, w: 3 * x.reshape(8, 4, 4).sum(1),
    ),
    "shard_map of an argument as it lies": (
        lambda x, w: sh.shard_map(lambda a: sh.lax.psum(a, "tp"), out_specs=P("dp"))(x),
        lambda x, w: x.reshape(8, 4, 4).sum(1),
    ),
    "array": (lambda x, w: sh.array(X, "f32[8@dp, 16@tp]") + x, lambda x, w: X + x),
    "array of a value": (lambda x, w: sh.array(x * 2, "f32[8@dp, 16]"), lambda x, w: x * 2),
    "zeros": (lambda x, w: sh.zeros("f32[8@dp, 16@tp]") + x, lambda x, w: x),
    "an initializer": (
        lambda x, w: sh.init.constant(2.0)(sh.random.key(0), "f32[8@dp, 16@tp]") * x,
        lambda x, w: 2 * x,
    ),
    "lift": (lambda x, w: sh.lift(lambda x: jnp.sin(x))(x), lambda x, w: jnp.sin(x)),  # noqa: PLW0108
    "lift with options": (
        sh.lift(lambda x, w: jnp.sin(x @ w), pending="finish"),
        lambda x, w: jnp.sin(x @ w),
    ),
    "typed": (lambda x, w: checked(x), lambda x, w: jnp.sin(x)),
    "typed under vmap": (lambda x, w: jax.vmap(checked)(jnp.stack([x, x]))[0], lambda x, w: jnp.sin(x)),
    "use_mesh": (lambda x, w: sh.use_mesh(sh.make_mesh(MESH))(lambda: sh.sin(x))(), lambda x, w: jnp.sin(x)),
    "overlap": (lambda x, w: sh.einsum("ab,bc->ac", x, w, out="[_@dp, _@tp]", overlap=True), lambda x, w: x @ w),
}


@pytest.mark.one_in(19)
@POLICIES
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_transformation_of_ours_in_a_lifted_program_is_what_it_is(name: str, policy: str) -> None:
    program, plain = PROGRAMS[name]
    wanted = plain(jnp.asarray(X), jnp.asarray(W))
    with sh.policy(policy):
        x, w = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")
        found = sh.jit(sh.lift(program))(x, w)
        assert_close(denoted(found), np.asarray(wanted), 1000)


@pytest.mark.one_in(19)
@POLICIES
@pytest.mark.parametrize(
    "name",
    ["local_map", "shard_map of what is made inside", "typed", "lift with options", "overlap", "checkpoint", "vmap"],
)
def test_gradients_through_it_are_those_of_one_device(name: str, policy: str) -> None:
    program, plain = PROGRAMS[name]
    weights = RNG.normal(size=plain(X, W).shape).astype(np.float32)
    wanted = jax.jit(jax.grad(lambda x: jnp.sum(plain(x, W) * weights)))(X)
    with sh.policy(policy):
        x, w = sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")
        total = lambda x: sh.all_reduce(sh.sum(sh.lift(program)(x, w) * weights))  # noqa: E731
        outside = sh.jit(sh.grad(total))(x)
        assert_close(denoted(outside), wanted, 2000)
        inside = sh.jit(sh.lift(jax.grad(lambda x, w: jnp.sum(program(x, w) * weights))))(x, w)
        assert_close(denoted(inside), wanted, 2000)


def test_a_signature_that_does_not_fit_is_refused_with_the_line_of_the_program() -> None:
    x = sh.array(X, "f32[8@tp, 16@dp]")
    with pytest.raises(sh.ShardingTypeError, match="argument `x` of `checked`") as caught:
        sh.lift(lambda x: checked(x))(x)  # noqa: PLW0108
    assert "test_transformations_inside.py" in caught.value.where


def test_shapes_that_follow_from_unknown_types_are_refused_in_words() -> None:
    x = sh.array(X, "f32[8@dp, 16@tp]")
    gathered = sh.shard_map(lambda a: sh.lax.all_gather(a, "tp", axis=1, tiled=True), out_specs=P("dp"))
    with pytest.raises(
        sh.ShardingTypeError, match=r"not known where a lifted program is traced|on one device"
    ) as caught:
        sh.lift(lambda x: gathered(x * 2))(x)
    assert any("in_specs" in hint for hint in caught.value.hints)


def test_a_function_of_shards_that_closes_over_a_value_of_the_program_is_refused_in_words() -> None:
    def program(x: Any) -> Any:
        y = jnp.sin(x)
        return sh.local_map(lambda a: a + y, out="[_@dp,_@tp]")(x)

    with pytest.raises(sh.ShardingTypeError, match="closes over a value of the lifted program"):
        sh.lift(program)(sh.array(X, "f32[8@dp, 16@tp]"))


def test_another_mesh_in_a_lifted_program_is_refused_in_words() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"one program runs on one mesh|under no mesh"):
        sh.lift(lambda x: sh.use_mesh(sh.make_mesh({"z": 8}))(lambda: sh.sin(x))())(sh.array(X, "f32[8@dp, 16@tp]"))
