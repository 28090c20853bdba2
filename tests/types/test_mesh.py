"""The mesh as types see it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given

from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh, current_mesh
from tests import strategies


@given(strategies.meshes())
def test_a_mesh_is_one_object_however_it_comes(mesh: Mesh) -> None:
    assert Mesh(dict(mesh.shape)) is Mesh(zip(mesh.axis_names, mesh.axis_sizes, strict=True)) is mesh
    assert pickle.loads(pickle.dumps(mesh)) is copy.copy(mesh) is copy.deepcopy(mesh) is mesh


def test_numpy_integers_are_sizes() -> None:
    size: Any = np.int64(3)
    mesh = Mesh({"numpy": size})
    assert mesh is Mesh({"numpy": 3})
    assert type(mesh.axis_sizes[0]) is type(mesh.shape["numpy"]) is int


@given(strategies.meshes())
def test_a_mesh_counts_its_devices(mesh: Mesh) -> None:
    assert mesh.size == mesh.product(mesh.axis_names) == math.prod(mesh.axis_sizes)
    assert mesh.product(()) == 1
    assert [mesh.index(a) for a in mesh.axis_names] == list(range(len(mesh.axis_names)))


def test_meshes_differ_in_names_sizes_and_order() -> None:
    meshes = [Mesh({"x": 2, "y": 4}), Mesh({"y": 4, "x": 2}), Mesh({"x": 2, "y": 2}), Mesh({"x": 2, "z": 4}), Mesh({})]
    assert len(set(meshes)) == len(meshes)
    assert repr(meshes[0]) == "Mesh(x=2, y=4)"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"": 2}, "a mesh axis needs a name like `dp`"),
        ({"a b": 2}, "a mesh axis needs a name like `dp`"),
        ({3: 2}, "a mesh axis needs a name like `dp`"),
        ({"x": 0}, "mesh axis `x` needs a size of at least 1, not `0`"),
        ({"x": 2.5}, "mesh axis `x` needs a size of at least 1, not `2.5`"),
        ([("x", 2), ("x", 2)], "mesh axis names must differ: x, x"),
    ],
    ids=str,
)
def test_axes_that_make_no_mesh_are_refused(axes: Any, message: str) -> None:
    with pytest.raises(ShardingTypeError, match=message):
        Mesh(axes)


def test_an_unknown_axis_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ShardingTypeError, match="the mesh has no axis `dq`; it has `dp`, `tp`") as caught:
        Mesh({"dp": 2, "tp": 2}).index("dq")
    assert caught.value.hints == ("`dp`",)
    with pytest.raises(ShardingTypeError, match="the mesh has no axis `x`; it has no axes"):
        Mesh({}).index("x")


def test_the_mesh_in_context_is_that_of_jax() -> None:
    with jax.set_mesh(None), pytest.raises(ShardingTypeError, match="no mesh is set"):
        current_mesh()
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("x",))):
        assert current_mesh() is Mesh({"x": 2})
