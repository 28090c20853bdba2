"""Typed ops in plain programs: one annotated model, on one device and on a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.caches import Static
from tests.random_checks import denoted
from tests.tolerance import assert_close

RNG = np.random.default_rng(1)
X, UP, DOWN = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 32), (32, 8)))
TYPES = ("[batch@dp, model]", "[model, hidden@tp]", "[hidden@tp, model]")


def _einsum(x: Any, up: Any) -> Any:
    return sh.einsum("bd,dh->bh", x, up)


def model(x: Any, up: Any, down: Any) -> Any:
    hidden: Any = jax.nn.gelu(_einsum(x, up))
    y: Any = sh.all_reduce(hidden @ down, "tp")
    return sh.reshard(jnp.tanh(_norm(y)), "[_@..., _@tp]")


def _norm(y: Any) -> Any:
    return sh.nn.rms_norm(y, jnp.ones(8))


def bare(x: Any, up: Any, down: Any) -> Any:
    y = jax.nn.gelu(x @ up) @ down
    return jnp.tanh(y * jax.lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-6))


def loss(x: Any, up: Any, down: Any) -> Any:
    return jnp.sum(model(x, up, down) ** 2)


def step(x: Any, up: Any, down: Any) -> Any:
    gradients = jax.grad(loss, argnums=(1, 2))(x, up, down)
    return [w - 0.1 * sh.all_reduce(g, "dp") for w, g in zip((up, down), gradients, strict=True)]


@pytest.mark.nightly
@pytest.mark.core
def test_on_one_device_it_is_the_model_without_annotations() -> None:
    arrays = [jnp.asarray(a) for a in (X, UP, DOWN)]
    wanted = jax.jit(bare)(*arrays)
    for run in (model, jax.jit(model), jax.jit(jax.checkpoint(model))):
        assert_close(run(*arrays), wanted, 400)
    plain = jax.jit(jax.grad(lambda *a: jnp.sum(bare(*a) ** 2), argnums=(0, 1, 2)))(*arrays)
    for found, right in zip(jax.grad(loss, argnums=(0, 1, 2))(*arrays), plain, strict=True):
        assert type(found) is type(right)
        assert_close(found, right, 400)
    rows = jax.vmap(lambda x: sh.einsum("d,dh->h", x, arrays[1]))(arrays[0])
    assert_close(rows, X @ UP, 400)


@pytest.mark.core
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_on_a_mesh_each_call_is_the_typed_op(policy: str) -> None:
    wanted = [np.asarray(w) for w in step(*(jnp.asarray(a) for a in (X, UP, DOWN)))]
    with sh.policy(policy), sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        typed = [sh.array(a, t) for a, t in zip((X, UP, DOWN), TYPES, strict=True)]
        assert str(sh.lift(model)(*typed).type).startswith("f32[batch@dp, model@tp]")
        if policy == "partial":
            found = sh.jit(sh.lift(step))(*typed)
            for x, right, w in zip(found, wanted, typed[1:], strict=True):
                assert x.type == w.type
                assert_close(denoted(x), right, 400)
            assert {r.direction for r in sh.ledger(sh.lift(step), *typed)} == {"forward", "backward"}


def test_a_mapped_row_may_be_asked_to_vary_over_the_axis_that_shards_the_rows() -> None:
    def rows(x: Any) -> Any:
        return jax.vmap(lambda row: sh.softmax(row, out="[_@tp]{V:dp}"))(x)

    assert_close(rows(jnp.asarray(X)), jax.nn.softmax(X), 8)
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        made = jax.eval_shape(sh.lift(rows), sh.abstract_array("f32[8@dp, 16@tp]"))
        assert str(made) == "f32[8@dp,16@tp]"


def test_a_call_in_a_plain_program_that_makes_a_value_is_typed_there() -> None:
    def f(x: Any) -> Any:
        return x + sh.reshard(jnp.arange(8.0), "[_@dp]")

    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        assert str(sh.lift(f)(sh.ones("f32[8@dp]")).type) == "f32[8@dp]"


def _pending(x: Any) -> Any:
    return sh.all_reduce(sh.ones("f32[8]{U:dp}"), "dp") + x


def _numbered(x: Any) -> Any:
    return (
        sh.shard_map(lambda: jnp.full((4,), jax.lax.axis_index("dp"), jnp.float32), in_specs=(), out_specs="[8@dp]")()
        + x
    )


@pytest.mark.parametrize("f", [_pending, _numbered])
def test_a_call_without_operands_has_the_value_that_it_has_elsewhere(f: Any) -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        x = sh.ones("f32[8@dp]")
        expected = f(x)
        for lifted in (sh.lift(f), jax.jit(sh.lift(f))):
            y = lifted(x)
            assert y.type == expected.type
            np.testing.assert_array_equal(np.asarray(y), np.asarray(expected))


def test_without_a_mesh_values_that_only_a_mesh_gives_are_still_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="no mesh is set"):
        sh.zeros("f32[8@dp]")


def test_numbers_that_are_equal_and_not_the_same_are_told_apart() -> None:
    counts, ones = jnp.arange(3), jnp.ones(2)
    assert [_dtype(sh.multiply(counts, n)) for n in (2, 2.0)] == ["int32", "float32"]
    assert [float(np.asarray(sh.divide(ones, n))[0]) for n in (0.0, -0.0)] == [np.inf, -np.inf]
    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        divided, x = sh.lift(lambda x, n: x / n), sh.ones("f32[2@dp]")
        assert [float(np.asarray(divided(x, n))[0]) for n in (0.0, -0.0)] == [np.inf, -np.inf]
        both = sh.jit(sh.lift(lambda x: (1 / jnp.full_like(x, 0.0), 1 / jnp.full_like(x, -0.0))))(x)
        assert [float(np.asarray(y)[0]) for y in both] == [np.inf, -np.inf]
    assert Static((2, (0.0,))) == Static((2, (0.0,))) != Static((2, (-0.0,)))
    table = np.zeros(2)
    assert Static(("table", table)) == Static(("table", table)) != Static(("table", table.copy()))


def _dtype(x: Any) -> str:
    return str(x.dtype)
