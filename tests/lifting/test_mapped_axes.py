"""Collectives over axes that `jax.vmap` names: reductions of a dim, in a plain program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close


@pytest.mark.one_in(5)
@pytest.mark.parametrize("collective", [jax.lax.psum, jax.lax.pmean, jax.lax.pmax, jax.lax.pmin])
@pytest.mark.parametrize("text", ["[batch, hidden]", "[batch, hidden@tp]", "[batch@dp, hidden@tp]"])
def test_a_collective_over_a_mapped_axis_reduces_its_dim(collective: Any, text: str) -> None:
    def f(x: Any) -> Any:
        return jax.vmap(lambda x: collective(x, "batch"), axis_name="batch")(x)

    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})), sh.implicit_comm():
        found = sh.jit(sh.implicit_comm(sh.lift(f)))(sh.array(x, text))
    assert_close(denoted(found), f(x))


@pytest.mark.parametrize("axis", ["dp", "", "data-parallel", "stage 1"])
def test_a_collective_over_an_axis_of_a_mesh_is_refused(axis: str) -> None:
    def f(x: Any) -> Any:
        return jax.lax.psum(x, axis)

    said = f"a collective of JAX's own goes along `{axis}`, over which nothing is mapped"
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})), pytest.raises(sh.ShardingTypeError, match=said) as caught:
        sh.lift(f)(sh.ones("f32[8]"))
    assert caught.value.where.startswith("test_mapped_axes.py")
    assert caught.value.hints == ("sh.shard_map(f, in_specs=..., out_specs=...)",)
