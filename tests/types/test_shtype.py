"""Types as values: one object per type, the cotangent map, local shapes, and what a type refuses."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shtypes.errors import ShardingTypeError
from shtypes.types import COTANGENT, Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests import strategies

S, R, I, U, V = State.SHARDED, State.REDUCED, State.INVARIANT, State.UNREDUCED, State.VARYING
ROOT = Path(__file__).parents[2]
MESH = Mesh({"x": 2, "y": 4})


# identity


@given(strategies.types(named=True))
def test_equal_descriptions_are_one_object(t: ShType) -> None:
    assert ShType(t.mesh, t.dtype_name, list(t.dims), list(t.states)) is t
    rest = {a: s for a, s in zip(t.mesh.axis_names, t.states, strict=True) if s is not S}
    assert ShType(t.mesh, t.dtype_name, t.dims, rest) is t


@given(strategies.types(named=True))
def test_types_are_copied_and_pickled_by_identity(t: ShType) -> None:
    assert copy.copy(t) is t
    assert copy.deepcopy([t])[0] is t
    assert pickle.loads(pickle.dumps(t)) is t


def test_a_type_pickled_by_another_process_is_the_same_type_here() -> None:
    code = """if True:
        import pickle, sys
        from shtypes.types.mesh import Mesh
        from shtypes.types import Dim, ShType, State
        t = ShType(Mesh({"x": 2, "y": 4}), "f32", [Dim(8, ("y",), "seq"), 3], {"x": State.UNREDUCED})
        sys.stdout.buffer.write(pickle.dumps(t))
    """
    data = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT).stdout
    assert pickle.loads(data) is ShType(MESH, "f32", [Dim(8, ("y",), "seq"), 3], {"x": U})


@given(strategies.types(named=True))
def test_names_do_not_change_what_a_type_equals(t: ShType) -> None:
    bare = t.named([None] * t.ndim)
    assert t == bare
    assert hash(t) == hash(bare)
    assert t.uid == bare.uid
    assert (t is bare) == (t.names == (None,) * t.ndim)
    assert len({t, bare}) == 1
    assert t.exact == bare.exact or t is not bare


@given(strategies.types(), strategies.types())
def test_types_are_equal_exactly_if_all_their_parts_are(t: ShType, other: ShType) -> None:
    def parts(t: ShType) -> tuple[Any, ...]:
        return t.mesh, t.dtype_name, t.shape, [d.axes for d in t.dims], t.states

    assert (t == other) == (parts(t) == parts(other))
    assert (t == parts(t)) is False


def test_types_made_by_many_threads_at_once_stay_apart() -> None:
    made: list[list[ShType]] = []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        made.append([ShType(MESH, "f32", [n, 7], {"x": R, "y": I}) for n in range(3000)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(t is first for ts in zip(*made, strict=True) for t, first in zip(ts, ts[:1] * 4, strict=True))
    assert len({t.uid for t in made[0]}) == len(made[0])


def test_numpy_integers_are_sizes_and_numpy_dtypes_are_dtypes() -> None:
    sizes: list[Any] = [np.int64(24), Dim(np.int32(40))]  # type: ignore[arg-type]  # as shapes may hold them
    t = ShType(MESH, np.dtype("float16"), sizes, {"x": R, "y": R})
    assert t is ShType(MESH, "f16", [24, 40], {"x": R, "y": R})
    assert {type(d.size) for d in t.dims} == {int}


def test_a_subclass_keeps_its_class_and_equals_the_same_type() -> None:
    class Special(ShType):
        __slots__ = ()

    t = Special(MESH, "f32", [8], {"x": R, "y": I})
    assert type(t.cotangent()) is type(t.named(["n"])) is Special
    assert t == ShType(MESH, "f32", [8], {"x": R, "y": I})


# meaning


@given(strategies.types())
def test_every_axis_is_in_one_state_and_shards_at_most_one_dim(t: ShType) -> None:
    for axis in t.mesh.axis_names:
        dims = [i for i, d in enumerate(t.dims) if axis in d.axes]
        assert len(dims) == (t.state(axis) is S)
        assert t.dim_of(axis) == (dims[0] if dims else None)
        assert [s for s in State if axis in t.axes(s)] == [t.state(axis)]
    assert t.axes(*State) == t.mesh.axis_names


@given(strategies.types())
def test_shards_tile_the_global_array(t: ShType) -> None:
    for d, local in zip(t.dims, t.local_shape, strict=True):
        assert local * math.prod(t.mesh.shape[a] for a in d.axes) == d.size
    devices = math.prod(t.mesh.shape[a] for a in t.axes(S))
    assert math.prod(t.local_shape) * devices == t.size == math.prod(t.shape)
    if t.dtype_name not in ("float0", "key<fry>", "key<rbg>", "key<urbg>"):
        assert t.local_bytes == math.prod(t.local_shape) * t.dtype.itemsize


@pytest.mark.parametrize(("state", "cotangent"), [(S, S), (R, U), (I, I), (U, R), (V, V)], ids=str)
def test_the_cotangent_map_is_that_of_the_algebra(state: State, cotangent: State) -> None:
    assert COTANGENT[state] is cotangent
    dims = [Dim(8, ("x",) if state is S else ())]
    t = ShType(MESH, "f32", dims, {"y": I} if state is S else {"x": state, "y": I})
    assert t.cotangent().state("x") is cotangent
    assert t.cotangent().state("y") is I


@given(strategies.types(dtype=strategies.FLOATS, named=True))
def test_the_cotangent_is_an_involution_that_keeps_dims_and_dtype(t: ShType) -> None:
    ct = t.cotangent()
    assert ct.cotangent() is t
    assert ct.dims == t.dims
    assert ct.dtype_name == t.dtype_name
    assert t.tangent() is t


@given(strategies.types())
def test_what_has_no_gradient_has_float0_tangents_and_one_replicated_state(t: ShType) -> None:
    if t.differentiable:
        return
    assert t.cotangent() is t.tangent()
    assert t.tangent().dtype_name == "float0"
    assert t.tangent().dims == t.dims
    assert I not in t.states
    assert t.replace(states=[I if s is R else s for s in t.states]) is t


# types made from types


@st.composite
def changes(draw: st.DrawFn) -> tuple[ShType, str, State, int | None]:
    """A type, and an axis to put into a state that it can be in."""
    t = draw(strategies.types(dtype=strategies.FLOATS, named=True))
    axis = draw(st.sampled_from(t.mesh.axis_names))
    n = t.mesh.shape[axis]
    dims = [i for i, d in enumerate(t.dims) if t.local_shape[i] * (n if axis in d.axes else 1) % n == 0]
    state = draw(st.sampled_from([s for s in State if s is not S or dims]))
    return t, axis, state, draw(st.sampled_from(dims)) if state is S else None


@given(changes())
def test_with_axis_changes_one_axis_and_no_size(change: tuple[ShType, str, State, int | None]) -> None:
    t, axis, state, dim = change
    new = t.with_axis(axis, state, dim)
    assert new.state(axis) is state
    assert new.dim_of(axis) == dim
    if dim is not None:
        assert new.dims[dim].axes[-1] == axis
    assert (new.shape, new.names, new.dtype_name) == (t.shape, t.names, t.dtype_name)
    others = [a for a in t.mesh.axis_names if a != axis]
    assert [(new.state(a), new.dim_of(a)) for a in others] == [(t.state(a), t.dim_of(a)) for a in others]


@given(changes())
def test_with_axis_undoes_itself(change: tuple[ShType, str, State, int | None]) -> None:
    t, axis, state, dim = change
    old = t.dim_of(axis)
    t = t.with_axis(axis, t.state(axis), old)  # minor-most, where putting it back will place it
    new = t.with_axis(axis, state, dim)
    assert new.with_axis(axis, state, dim) is new
    assert new.with_axis(axis, t.state(axis), old) is t


def test_with_axis_shards_minor_most() -> None:
    t = ShType(MESH, "f32", [Dim(8, ("y",)), 2], {"x": U})
    assert t.with_axis("x", S, 0).dims == (Dim(8, ("y", "x")), Dim(2))
    assert t.with_axis("x", S, 0).with_axis("y", S, 0).dims == (Dim(8, ("x", "y")), Dim(2))


def test_with_axes_changes_several_axes_and_no_size() -> None:
    t = ShType(MESH, "f32", [Dim(8, ("y", "x")), 2], {})
    assert t.with_axes(("x", "y"), U) is ShType(MESH, "f32", [8, 2], {"x": U, "y": U})
    assert t.with_axes((), U) is t


def test_with_axis_needs_the_dim_to_shard() -> None:
    with pytest.raises(ValueError, match="needs its dim"):
        ShType(MESH, "f32", [8], {"x": R, "y": R}).with_axis("x", S)


@given(strategies.types(named=True), st.sampled_from(strategies.FLOATS))
def test_replace_changes_what_is_given_and_nothing_else(t: ShType, dtype: str) -> None:
    assert t.replace() is t
    assert t.replace(states=t.states) is t.replace(dims=t.dims) is t
    cast = t.replace(dtype=dtype)
    assert (cast.dtype_name, cast.dims, cast.states, cast.mesh) == (dtype, t.dims, t.states, t.mesh)
    grown = t.replace(dims=[d._replace(size=2 * d.size) for d in t.dims])
    assert grown.shape == tuple(2 * n for n in t.shape)
    assert grown.states == t.states
    assert t.replace(dims=(1, *t.dims)).local_shape == (1, *t.local_shape)


# refusals


def refusals() -> Iterator[Any]:
    dim = Dim(8, ("x",))
    yield pytest.param("f32", [dim], {"x": R, "y": R}, "`x` shards a dim and is also in state R", id="two states")
    yield pytest.param("f32", [dim], {}, "`y` has no state", id="no state")
    yield pytest.param("f32", [dim, dim], {"y": R}, "`x` shards two dims", id="two dims")
    yield pytest.param("f32", [8], {"x": R, "y": R, "z": R}, "the mesh has no axis `z`", id="unknown axis")
    yield pytest.param("f32", [Dim(8, ("z",))], {"x": R, "y": R}, "the mesh has no axis `z`", id="unknown on a dim")
    yield pytest.param("f32", [8], [R], "needs 2 states, not 1", id="too few states")
    yield pytest.param("f32", [8], [S, R], "in state S, which does not fit the dims", id="sharded nowhere")
    yield pytest.param("f32", [dim], [U, R], "in state U, which does not fit the dims", id="not sharded")
    yield pytest.param("bool", [8], [U, R], "`bool` array cannot be unreduced over `x`", id="bool sum")
    yield pytest.param("key<fry>", [8], [R, U], "`key<fry>` array cannot be unreduced over `y`", id="key sum")
    yield pytest.param("f32", [-1], [R, R], "dim 0 needs a size of at least 0, not `-1`", id="negative")
    yield pytest.param("f32", [8, 2.5], [R, R], "dim 1 needs a size of at least 0, not `2.5`", id="fraction")
    yield pytest.param("f33", [8], [R, R], "there is no dtype `f33`", id="dtype")


@pytest.mark.parametrize(("dtype", "dims", "states", "message"), list(refusals()))
def test_a_description_that_is_no_type_is_refused(dtype: str, dims: Any, states: Any, message: str) -> None:
    with pytest.raises(ShardingTypeError, match=message.replace("(", r"\(")):
        ShType(MESH, dtype, dims, states)


@pytest.mark.parametrize(
    ("dim", "message"),
    [
        (
            Dim(6, ("y",), "seq"),
            """\
dim 0 (`seq`) of size 6 cannot be sharded in 4 equal parts
  why:   it is sharded over `y` (size 4)
  try:   use a size that 4 divides, such as 4 or 8
  try:   shard dim 0 (`seq`) over fewer axes""",
        ),
        (
            Dim(3, ("x", "y")),
            """\
dim 0 of size 3 cannot be sharded in 8 equal parts
  why:   it is sharded over `x` (size 2) and `y` (size 4), 8 devices together
  try:   use a size that 8 divides, such as 8
  try:   shard dim 0 over fewer axes""",
        ),
    ],
    ids=["named", "smaller than the mesh"],
)
def test_a_size_that_does_not_divide_is_refused_with_sizes_that_would(dim: Dim, message: str) -> None:
    with pytest.raises(ShardingTypeError) as caught:
        ShType(MESH, "f32", [dim], {a: R for a in MESH.axis_names if a not in dim.axes})
    assert str(caught.value) == message


def test_an_empty_dim_is_sharded_in_empty_parts() -> None:
    assert ShType(MESH, "f32", [Dim(0, ("x", "y")), 3], {}).local_shape == (0, 3)
