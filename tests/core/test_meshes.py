"""JAX's meshes and ours."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.fresh import printed


def test_a_jax_mesh_is_a_mesh_for_types() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    for given in (mesh, mesh.abstract_mesh, sh.abstract_mesh({"dp": 2, "tp": 4})):
        assert sh.ShType.parse("f32[8@dp]", given) == sh.ShType.parse("f32[8@dp]", sh.abstract_mesh({"dp": 2, "tp": 4}))


def test_sizes_and_names_may_stand_apart_as_jax_takes_them() -> None:
    assert sh.make_mesh((2, 4), ("dp", "tp")) == sh.make_mesh({"dp": 2, "tp": 4})
    assert sh.abstract_mesh([2, 4], ["dp", "tp"]) is sh.abstract_mesh({"dp": 2, "tp": 4})
    axes: Any
    for axes in ((2,), {"dp": 2, "tp": 4}, 8):
        with pytest.raises(sh.ShardingTypeError, match="need one size each"):
            sh.make_mesh(axes, ("dp", "tp"))


def test_a_mesh_without_devices_may_be_of_any_size_inside_another() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        with sh.use_mesh(sh.abstract_mesh({"dp": 64, "tp": 64})):
            assert sh.abstract_array("f32[4096@(dp,tp)]").type.local_shape == (1,)
            with sh.use_mesh(sh.abstract_mesh({"x": 3})):
                assert sh.abstract_array("f32[6@x]").type.local_shape == (2,)
        assert sh.ShType.parse("f32[8@dp]").local_shape == (4,)


@pytest.mark.parametrize("mesh", [None, sh.abstract_mesh({"x": 2}), 3], ids=["none", "abstract", "number"])
def test_only_a_mesh_of_devices_is_set_for_all_that_follows(mesh: object) -> None:
    with pytest.raises(sh.ShardingTypeError, match="only a mesh of devices"):
        sh.set_mesh(mesh)  # type: ignore[arg-type]


@pytest.mark.parametrize("transformed", [jax.jit, sh.jit, lambda f: sh.grad(lambda x: sh.sum(f(x))), sh.vmap])
def test_the_mesh_of_a_program_may_be_set_in_it_and_no_other(transformed: Any) -> None:
    mesh, other = sh.make_mesh({"dp": 2}), sh.make_mesh({"dp": 4})

    def scaled(mesh: Any, x: Any) -> Any:
        with sh.use_mesh(mesh):
            y = x * sh.ones("f32[]")
        sh.set_mesh(mesh)
        return y

    with sh.use_mesh(mesh):
        x = sh.ones("f32[8@dp]")
        assert np.asarray(transformed(functools.partial(scaled, mesh))(x)).tolist() == [1] * 8
        with pytest.raises(sh.ShardingTypeError, match=r"a mesh is set, \(dp=4\), where .* under the mesh \(dp=2\)"):
            transformed(functools.partial(scaled, other))(x)


def test_the_mesh_that_jax_set_is_found_before_any_typed_value_is_made() -> None:
    code = (
        "import jax; jax.config.update('jax_num_cpu_devices', 2)\n"
        "import shtypes as sh\n"
        "jax.set_mesh(jax.make_mesh((2,), ('x',)))\n"
        "assert sh.ShType.parse('f32[8@x]').local_shape == (4,)\n"
    )
    printed(code)


def test_a_mesh_of_more_devices_than_there_are_says_how_to_get_them() -> None:
    with pytest.raises(sh.ShardingTypeError, match="needs 1024 devices") as caught:
        sh.make_mesh({"x": 1024})
    assert len(jax.devices()) < 1024
    with pytest.raises(sh.ShardingTypeError, match="needs 4 devices, and there are 2"):
        sh.make_mesh({"x": 4}, devices=jax.devices()[:2])
    assert any("jax_num_cpu_devices" in hint for hint in caught.value.hints)
