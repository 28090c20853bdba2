"""A plain training step, lifted, beside the same step written in `sh`: what it sends, compiles to and computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from benchmarks.lift import counts
from benchmarks.models import common, transformer
from tests.tolerance import assert_close

CONFIG = transformer.Config(layers=2, batch=8, seq=16, hidden=32, heads=4, inter=64)
MESH = {"dp": 2, "tp": 4}


def with_its_own_gradient(config: transformer.Config) -> Callable[..., Any]:
    """The step whose loss and gradients plain JAX takes, all lifted; what is pending at the end is reduced."""
    hooks = common.Hooks(common.same, common.same, transformer._summed, common.mean_square)
    value_and_grad = sh.lift(jax.value_and_grad(transformer._loss(config, hooks)))

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(_finished, value_and_grad(params, x))

    return step


def _finished(y: Any) -> Any:
    return sh.all_reduce(y) if y.type.axes(sh.State.UNREDUCED) else y


@pytest.mark.parametrize("scan", [False, True])
def test_it_sends_what_the_typed_step_sends(scan: bool) -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)), sh.policy("partial"), sh.merge_reshards(False):
        written = transformer.only_types(CONFIG, sh.abstract_mesh(MESH), scan=scan)
        wanted = sh.ledger(written.step, *written.args).total
        assert sh.ledger(transformer.lifted_step(CONFIG, scan=scan), *written.args).total == wanted
        if not scan:  # its backward pass is written out, so that a sum of the forward pass serves it too
            own = sh.ledger(with_its_own_gradient(CONFIG), *written.args).total
            assert wanted.launches - 1 <= own.launches <= wanted.launches
            assert own.bytes <= wanted.bytes


def test_under_jaxs_policy_the_lifted_loss_sends_what_the_typed_one_sends() -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)), sh.policy("jax"):
        written = transformer.only_types(CONFIG, sh.abstract_mesh(MESH))
        found = sh.ledger(transformer.lifted_step(CONFIG), *written.args).total
        assert found == sh.ledger(written.step, *written.args).total


def test_it_compiles_to_the_same_collectives_and_products_and_computes_the_same() -> None:
    mesh = sh.make_mesh(MESH)
    with sh.use_mesh(mesh):
        written = transformer.typed(CONFIG, mesh)
        lifted = transformer.lifted_step(CONFIG)
        one, other = (counts(step, written.args) for step in (written.step, lifted))
        assert one == other
        right = jax.block_until_ready(sh.jit(written.step)(*written.args))
        found = jax.block_until_ready(sh.jit(with_its_own_gradient(CONFIG))(*written.args))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert x.type == y.type
        assert_close(np.asarray(x), np.asarray(y), 400)
    assert jnp.isfinite(np.asarray(found[0]))
