"""What is computed of raveled arrays has the dims that these had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(8, 16)).astype(np.float32) for _ in range(2))
MESH = {"dp": 2, "tp": 4}

FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "vdot": jnp.vdot,
    "of one array": lambda a, _: jnp.vdot(a, a),
    "in a loop": lambda a, b: jax.lax.fori_loop(0, 2, lambda _, s: s + jnp.vdot(a, b), 0.0),
    "under vmap": lambda a, b: jnp.sum(jax.vmap(jnp.vdot)(a[:, None], b[:, None])),
    "in jit": jax.jit(lambda a, b: jnp.vdot(a, b) + jnp.vdot(b, a)),
    "of complex numbers": lambda a, b: jnp.vdot(a + 2j * b, b + 1j * a).real,
    "its gradient": lambda a, b: jnp.sum(jax.grad(lambda x: 3 * jnp.vdot(x, jnp.sin(b)))(a) * b),
    "its gradient on both sides": lambda a, b: jnp.sum(jax.grad(lambda x: jnp.vdot(x, jnp.sin(x)))(a) * b),
    "what is computed between": lambda a, b: jnp.sum(jnp.where(a.ravel() > 0, 2 * a.ravel() - 1.0, b.ravel())),
    "in functions that are compiled": lambda a, b: jnp.sum(jax.jit(lambda x, y: (x * y, y))(a.ravel(), b.ravel())[0]),
    "with its dims again": lambda a, b: jnp.sum(jnp.exp(jnp.reshape(a, -1) * 0.1).reshape(8, 16) * b),
    "without a gradient": lambda a, b: jnp.sum(jax.lax.stop_gradient(a.ravel()) * b.ravel()),
    "of a tree": lambda a, b: optax.tree.vdot({"a": a, "b": b}, {"a": b, "b": a}),
}


@pytest.mark.one_in(13)
@pytest.mark.parametrize("form", FORMS)
def test_dims_that_do_not_merge_are_contracted_without_communication(form: str) -> None:
    f = FORMS[form]
    with sh.use_mesh(sh.make_mesh(MESH)):
        a, b = (sh.array(x, "[_@dp, _@tp]") for x in (A, B))
        assert not sh.ledger(sh.lift(f), a, b)
        total = lambda *args: sh.all_reduce(sh.lift(f)(*args))  # noqa: E731
        value, grads = sh.jit(sh.value_and_grad(total, argnums=(0, 1)))(a, b)
        assert_close(denoted(value), f(A, B), 400)
        for found, wanted in zip(grads, jax.jit(jax.grad(f, argnums=(0, 1)))(A, B), strict=True):
            assert_close(denoted(found), wanted, 400)


def test_a_ravel_that_is_used_otherwise_too_stays() -> None:
    def f(a: Any, b: Any) -> Any:
        return jnp.vdot(a, b) * jnp.ravel(a)

    with sh.use_mesh(sh.make_mesh(MESH)):
        a, b = sh.array(A, "[_@dp, _]"), sh.array(B, "[_@dp, _]")
        assert_close(denoted(sh.implicit_comm(sh.lift(f))(a, b)), f(A, B), 400)
        with pytest.raises(sh.ShardingTypeError, match="merges dim 1"):
            sh.lift(f)(sh.array(A, "[_@dp, _@tp]"), sh.array(B, "[_@dp, _@tp]"))


def test_ravels_of_two_shapes_are_not_taken_for_one() -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        a, b = sh.array(A, "[_@dp, _]"), sh.array(B.reshape(16, 8), "[_@dp, _]")
        assert_close(denoted(sh.all_reduce(sh.lift(jnp.vdot)(a, b))), np.vdot(A, B), 400)


@pytest.mark.nightly
def test_l_bfgs_keeps_histories_sharded_like_the_parameters() -> None:
    params, grads = {"w": A, "b": B[0]}, [{"w": B * n, "b": A[0] / n} for n in (1, 2, 3)]
    types = {"w": "[_@dp, _@tp]", "b": "[_@tp]"}
    tx = optax.scale_by_lbfgs(memory_size=2)

    def typed(tree: Any) -> Any:
        return {name: sh.array(x, types[name]) for name, x in tree.items()}

    with sh.use_mesh(sh.make_mesh(MESH)):
        optimizer = sh.optim.lift(tx)
        state, plain = optimizer.init(typed(params)), tx.init(params)
        update = sh.jit(optimizer.update)
        for g in grads:
            found, after = jax.block_until_ready(update(typed(g), state, typed(params)))
            wanted, plain = tx.update(g, plain, params)
            assert sh.tree.types(after) == sh.tree.types(state)
            state = after
            for name, u in found.items():
                assert_close(denoted(u), wanted[name], 10_000)
        assert str(state.diff_params_memory["w"].type) == "f32[2,8@dp,16@tp]"


OUTER: dict[str, Callable[[Any], Any]] = {
    "tensordot": lambda a: jnp.tensordot(a.ravel(), a.ravel(), 0).sum(0),
    "einsum": lambda a: jnp.einsum("i,j->ij", a.ravel(), a.ravel()).sum(0),
    "largest": lambda a: jnp.max(jnp.einsum("i,j->ij", a.ravel(), jnp.sin(a.ravel())), 0),
    "filled": lambda a: jnp.sum(jax.lax.dot_general(a.ravel(), jnp.full(8, 2.0), (((), ()), ((), ()))), 0),
    "filled first": lambda a: jnp.sum(jax.lax.dot_general(jnp.full(8, 2.0), a.ravel(), (((), ()), ((), ()))), 1),
    "elementwise": lambda a: jnp.tanh(jax.lax.dot_general(a.ravel(), a.ravel(), (((), ()), ((), ())))).sum(0),
}


@pytest.mark.mesh(MESH)
@pytest.mark.parametrize("form", OUTER)
def test_an_outer_product_of_raveled_arrays_is_none_of_their_elements(form: str) -> None:
    """As a product of two arrays without contracted dims it was taken for one of an array and a scalar."""
    f, a = OUTER[form], A[:4, :4]
    assert_close(denoted(sh.lift(f)(sh.array(a, "f32[4,4]"))), f(jnp.asarray(a)), 64)


@pytest.mark.mesh(MESH)
@pytest.mark.parametrize("form", ["vdot", "in jit", "its gradient", "with its dims again"])
def test_a_solver_sees_no_ravels_either(form: str) -> None:
    args = [sh.abstract_array("f32[8@dp,16@tp]")] * 2
    assert sh.ledger(sh.implicit_comm(sh.lift(FORMS[form])), *args).total.bytes == 0
