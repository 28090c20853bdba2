"""Modules that hold typed values: what Equinox's and NNX's own transformations do with them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 4}


def _plain_loss(module: Any, x: Any) -> Any:
    return jnp.sum(jnp.sin(jax.vmap(module)(x)))


def _input() -> Any:
    return np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


@pytest.mark.nightly
def test_equinox_takes_typed_values_for_arrays_and_differentiates_a_module_of_them() -> None:
    eqx: Any = pytest.importorskip("equinox")
    module, x = eqx.nn.Linear(16, 8, key=jax.random.key(0)), _input()
    wanted = eqx.filter_grad(_plain_loss)(module, x)
    with sh.use_mesh(sh.make_mesh(MESH)):
        held = sh.array(np.asarray(module.weight), "[out@tp, in]"), sh.array(np.asarray(module.bias), "[out@tp]")
        typed = eqx.tree_at(lambda m: (m.weight, m.bias), module, held)
        assert eqx.is_inexact_array(typed.weight)
        assert all(isinstance(y, sh.Array) for y in jax.tree.leaves(eqx.partition(typed, eqx.is_array)[0]))

        def loss(module: Any, x: Any) -> Any:
            return sh.all_reduce(sh.lift(_plain_loss)(module, x))

        for found in (
            eqx.filter_jit(eqx.filter_grad(loss))(typed, sh.array(x, "[batch@dp, in]")),
            sh.jit(sh.lift(eqx.filter_grad(_plain_loss)))(typed, sh.array(x, "[batch@dp, in]")),
        ):
            assert (found.weight.type.dims[0].axes, found.bias.type.dims[0].axes) == (("tp",), ("tp",))
            assert_close(denoted(found.weight), wanted.weight)
            assert_close(denoted(found.bias), wanted.bias)


@pytest.mark.nightly
def test_nnx_merges_a_typed_state_and_differentiates_what_it_made() -> None:
    nnx: Any = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx.Linear(16, 8, rngs=nnx.Rngs(0)))
    x = _input()

    def plain_loss(module: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(module(x)))

    wanted = nnx.grad(plain_loss)(nnx.merge(graph, state), x)
    with sh.use_mesh(sh.make_mesh(MESH)):
        typed = jax.tree.map(lambda a: sh.array(np.asarray(a), "[in, out@tp]" if a.ndim == 2 else "[out@tp]"), state)
        module, y = nnx.merge(graph, typed), sh.array(x, "[batch@dp, in]")

        def loss(module: Any, x: Any) -> Any:
            return sh.all_reduce(sh.lift(plain_loss)(module, x))

        for found in (
            nnx.grad(loss)(module, y),
            sh.lift(lambda state, x: nnx.grad(plain_loss)(nnx.merge(graph, state), x))(typed, y),
        ):
            for g, right, p in zip(*map(jax.tree.leaves, (found, wanted, typed)), strict=True):
                assert g.type.dims[-1].axes == p.type.dims[-1].axes
                assert_close(denoted(g), right)
        with pytest.raises(sh.ShardingTypeError, match="was given to `jax"):
            module(y)  # the module itself calls JAX's functions: it is to be lifted
