"""Typed code inside plain programs, and on meshes of JAX's other kinds of axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import shtypes as sh
from tests import small_models as p


@pytest.fixture(autouse=True)
def mesh() -> Any:
    return p.mesh()


def plain(mesh: Any) -> Any:
    return jax.device_put(p.X, jax.NamedSharding(mesh, jax.P("dp", None)))


def test_a_plain_array_is_typed_inside_jit_and_has_a_plain_gradient(mesh: Any) -> None:
    _, w_in, w_out = p.values()
    found = jax.jit(lambda a: sh.silu(sh.from_jax(a)))(plain(mesh))
    assert found.type == sh.ShType.parse("f32[4@dp,8]{I:tp}")
    p.assert_close(found, p.one_device(jax.nn.silu, p.X))

    def loss(a: Any) -> Any:
        return p.loss(sh.from_jax(a), w_in, w_out)

    for grad in (sh.grad(loss), jax.jit(sh.grad(loss))):
        found = grad(plain(mesh))
        assert isinstance(found, jax.Array)
        assert jax.typeof(found).sharding.spec == jax.P("dp", None)
        p.assert_close(found, p.expected()[1][0])


def test_typed_code_runs_where_jax_shards_by_itself(mesh: Any) -> None:
    def f(a: Any) -> Any:
        return sh.silu(sh.from_jax(a, "f32[4@dp,8]{I:tp}")).to_jax()

    automatic = jax.sharding.auto_axes(f, out_sharding=jax.P("dp", None))
    p.assert_close(jax.jit(automatic)(plain(mesh)), p.one_device(jax.nn.silu, p.X))


def test_typed_code_runs_where_a_mesh_axis_is_manual(mesh: Any) -> None:
    def f(a: Any) -> Any:
        value = sh.from_jax(a, "f32[2,8]{I:(dp,tp)}")
        return sh.silu(value).to_jax()

    manual = jax.shard_map(
        f, mesh=mesh, in_specs=jax.P("dp", None), out_specs=jax.P("dp", None), axis_names={"dp"}, check_vma=False
    )
    p.assert_close(jax.jit(manual)(plain(mesh)), p.one_device(jax.nn.silu, p.X))


class TestAutomaticAxes:
    """A mesh whose axes are JAX's automatic ones: types are ours alone."""

    @pytest.fixture(autouse=True)
    def automatic(self) -> Iterator[Any]:
        mesh = jax.make_mesh(tuple(p.AXES.values()), tuple(p.AXES), axis_types=(AxisType.Auto,) * 2)
        with sh.use_mesh(mesh):
            yield mesh

    def test_programs_and_gradients_are_right(self) -> None:
        args = p.values()
        p.assert_close(p.mlp(*args), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))
        p.assert_gradients(jax.jit(sh.grad(p.loss, argnums=(0, 1, 2)))(*args), args, p.expected()[1])

    def test_loops_with_recomputation_are_right(self) -> None:
        args = (p.stack(), sh.array(p.X, p.X_TYPE))
        grads = jax.jit(sh.grad(sh.checkpoint(p.looped_loss), argnums=(0, 1)))(*args)
        p.assert_gradients(grads, args, p.expected_looped())

    def test_jax_grad_of_a_plain_loss_is_right(self) -> None:
        args = p.values()
        p.assert_gradients(jax.jit(jax.grad(p.plain_loss_of))(*args), args[0], p.expected()[1][0])

    def test_a_traced_plain_array_needs_a_type(self, automatic: Any) -> None:
        with pytest.raises(sh.ShardingTypeError, match="automatic mode owns it"):
            jax.jit(sh.from_jax)(plain(automatic))
        found = jax.jit(lambda a: sh.from_jax(a, "f32[4@dp,8]{I:tp}"))(plain(automatic))
        np.testing.assert_array_equal(np.asarray(found), p.X)
