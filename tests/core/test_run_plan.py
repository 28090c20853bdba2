"""Plans on eight CPU devices: the value, and the collectives of the compiled program, are what the plan says."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from shtypes.core import run_plan as lowering
from shtypes.core.run_plan import run_plan
from shtypes.resharding import Kind, Plan, plan
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.compiling import needs
from tests.core.hlo import collectives
from tests.end_to_end import some
from tests.resharding import simulate
from tests.resharding.large import large_shards

M222, M24 = Mesh({"x": 2, "y": 2, "z": 2}), Mesh({"x": 2, "y": 4})
Family = np.ndarray[Any, Any]


@functools.cache
def jax_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    return jax.make_mesh(mesh.axis_sizes, mesh.axis_names)


def program_of(plans: list[Plan]) -> Any:
    """Every plan on families whose first dims are the mesh."""
    mesh = plans[0].src.mesh
    spec = PartitionSpec(*mesh.axis_names)
    rank = len(mesh.axis_names)

    def body(*locals_: jax.Array) -> tuple[jax.Array, ...]:
        outs = [run_plan(p, x.reshape(x.shape[rank:])) for p, x in zip(plans, locals_, strict=True)]
        return tuple(out.reshape(*(1,) * rank, *out.shape) for out in outs)

    return jax.shard_map(body, mesh=jax_mesh(mesh), in_specs=spec, out_specs=spec, check_vma=False)


def compiled(plans: list[Plan], families: list[Any]) -> tuple[Any, list[Any]]:
    """One program that runs every plan, and the families on the devices."""
    mesh = plans[0].src.mesh
    spec = PartitionSpec(*mesh.axis_names)
    placed = [jax.device_put(f, NamedSharding(jax_mesh(mesh), spec)) for f in families]
    return jax.jit(program_of(plans)).lower(*placed).compile(), placed


def execute(plans: list[Plan], families: list[Any]) -> list[Any]:
    program, placed = compiled(plans, families)
    return list(jax.block_until_ready(program(*placed)))


def sampled(mesh: Mesh, shape: tuple[int, ...], count: int, seed: int = 0) -> list[Plan]:
    every, dice = simulate.all_types(mesh, shape), random.Random(seed)
    return [plan(dice.choice(every), dice.choice(every)) for _ in range(count)]


BATCHES = [(M222, (8, 8), 60), (M222, (8,), 30), (M24, (8, 16), 40), (Mesh({"x": 2, "y": 2, "z": 1}), (4, 4, 2), 25)]


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("mesh", "shape", "count"), BATCHES, ids=str)
def test_sampled_plans_keep_the_value_on_real_devices(mesh: Mesh, shape: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    plans = sampled(mesh, shape, count)
    values = [rng.integers(-9, 9, shape).astype(np.float32) for _ in plans]
    families = [simulate.split(p.src, v, rng) for p, v in zip(plans, values, strict=True)]
    for p, value, out in zip(plans, values, execute(plans, families), strict=True):
        np.testing.assert_array_equal(simulate.meaning(p.dst, np.asarray(out)), value, err_msg=f"{p.src} {p.dst} {p}")


def test_the_devices_hold_what_the_specification_says_after_each_kind_of_step() -> None:
    rng = np.random.default_rng(0)
    steps = {s.kind: s for p in sampled(M222, (8, 8), 300, seed=1) for s in p.steps}
    assert set(steps) == set(Kind)
    plans = [Plan(s.src, s.dst, (s,)) for s in steps.values()]
    values = [rng.integers(-9, 9, s.src.shape).astype(np.float32) for s in steps.values()]
    families = [simulate.split(s.src, x, rng) for s, x in zip(steps.values(), values, strict=True)]
    for step, family, out in zip(steps.values(), families, execute(plans, families), strict=True):
        np.testing.assert_array_equal(np.asarray(out), simulate.run(step, family), err_msg=str(step))


# what the compiled program contains


def said(plans: Iterable[Plan]) -> Counter[tuple[Kind, int]]:
    out: Counter[tuple[Kind, int]] = Counter()
    for s in (s for p in plans for s in p.steps if s.launches):
        out[s.kind, s.bytes // s.launches] += s.launches
    return out


@pytest.mark.one_in(9)
@pytest.mark.parametrize("mesh", [M222, M24], ids=str)
def test_the_compiled_program_has_the_collectives_and_bytes_of_the_plan(mesh: Mesh) -> None:
    for p in sampled(mesh, (8, 16), some(10, 25), seed=2):
        family = np.zeros((*mesh.axis_sizes, *p.src.local_shape), np.float32)
        program, _ = compiled([p], [family])
        assert collectives(program.as_text()) == said([p]), str(p)


LARGE = [(M222, (8, 16), "R"), (M222, (8, 8, 8), "R"), (M222, (8, 8), "RU"), (M24, (16, 8), "RU")]


@pytest.mark.one_in(15)
@pytest.mark.parametrize(("mesh", "shape", "states"), LARGE, ids=str)
def test_pieces_of_large_shards_keep_the_value_and_send_what_the_plan_says(
    mesh: Mesh, shape: tuple[int, ...], states: str
) -> None:
    rng, types = np.random.default_rng(0), simulate.all_types(mesh, shape, states)
    dice = random.Random(0)
    with large_shards():
        plans = [plan(dice.choice(types), dice.choice(types)) for _ in range(300)]
    plans = [p for p in plans if any(s.pieces for s in p.steps)][: some(6, 12)]
    assert len(plans) > 5
    values = [rng.integers(-9, 9, shape).astype(np.float32) for _ in plans]
    families = [simulate.split(p.src, v, rng) for p, v in zip(plans, values, strict=True)]
    for p, value, family in zip(plans, values, families, strict=True):
        program, placed = compiled([p], [family])
        assert collectives(program.as_text()) == said([p]), str(p)
        (out,) = jax.block_until_ready(program(*placed))
        np.testing.assert_array_equal(simulate.meaning(p.dst, np.asarray(out)), value, err_msg=f"{p.src} {p.dst} {p}")


def test_pieces_are_also_written_into_zeros_where_a_branch_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_SERIAL", frozenset())
    pairs = [("yxz,-", "zx,y"), ("z,yx", "xyz,-"), ("y,-", "-,y"), ("xy,-", "y,xz")]
    with large_shards():
        plans = [plan(type_of("f32", a), type_of("f32", b)) for a, b in pairs]
    assert all(any(s.pieces for s in p.steps) for p in plans)
    rng = np.random.default_rng(0)
    values = [rng.integers(-9, 9, (8, 8)).astype(np.float32) for _ in plans]
    families = [simulate.split(p.src, v, rng) for p, v in zip(plans, values, strict=True)]
    for p, value, out in zip(plans, values, execute(plans, families), strict=True):
        np.testing.assert_array_equal(simulate.meaning(p.dst, np.asarray(out)), value, err_msg=str(p))


def test_axes_of_one_device_leave_no_collective_in_the_program() -> None:
    mesh = Mesh({"x": 1, "y": 2})
    types = simulate.all_types(mesh, (4, 2))
    plans = [plan(a, b) for a in types for b in types if a.states[1] is b.states[1] is not State.SHARDED]
    assert any(p.communicates for p in plans)
    families = [np.zeros((1, 2, *p.src.local_shape), np.float32) for p in plans]
    assert not collectives(compiled(plans, families)[0].as_text())


# dtypes


def type_of(dtype: str, dims: str, pending: str = "") -> ShType:
    """As ``x,-``: axes x on dim 0, none on dim 1, of an 8 x 8 array on 2 x 2 x 2."""
    axes = [tuple(d.replace("-", "")) for d in dims.split(",")]
    rest = {a: State.UNREDUCED if a in pending else State.REDUCED for a in "xyz" if a not in dims}
    return ShType(M222, dtype, [Dim(8, a) for a in axes], rest)


MOVED = [
    *(("x,-", "-,-"), ("-,y", "-,-"), ("x,-", "-,x"), ("x,y", "y,x"), ("-,-", "x,y"), ("x,y", "-,-")),
    ("xy,-", "-,yx"),
]


def moved(dtype: str) -> list[Plan]:
    """Plans between the types above, in whole shards and in pieces."""
    plans = [plan(type_of(dtype, a), type_of(dtype, b)) for a, b in MOVED]
    with large_shards():
        return [*plans, *(plan(p.src, p.dst) for p in plans)]


@pytest.mark.one_in(13)
@pytest.mark.parametrize("dtype", ["bool", "i32", "u8", "bf16", "f16", "f8_e4m3fn", "c64"])
def test_any_dtype_moves(dtype: str) -> None:
    needs(dtype)
    rng = np.random.default_rng(0)
    plans = moved(dtype)
    values = [rng.integers(0, 2 if dtype == "bool" else 8, (8, 8)) for _ in plans]
    families = [simulate.split(p.src, v, rng).astype(p.src.dtype) for p, v in zip(plans, values, strict=True)]
    for p, value, out in zip(plans, values, execute(plans, families), strict=True):
        assert out.dtype == p.dst.dtype
        wide = np.asarray(out).astype(np.complex64 if dtype == "c64" else np.float32)
        np.testing.assert_array_equal(simulate.meaning(p.dst, wide), value)


REDUCED = [("-,-", "x", "-,-"), ("-,-", "xy", "x,y"), ("-,-", "x", "-,x"), ("y,-", "xz", "y,z")]


@pytest.mark.parametrize("dtype", ["i32", "u8", "bf16", "f16", "f8_e4m3fn", "c64"])
def test_any_dtype_that_adds_is_reduced(dtype: str) -> None:
    needs(dtype)
    plans = [plan(type_of(dtype, a, u), type_of(dtype, b)) for a, u, b in REDUCED]
    families = [np.ones((2, 2, 2, *p.src.local_shape)).astype(p.src.dtype) for p in plans]
    for p, out in zip(plans, execute(plans, families), strict=True):
        assert out.dtype == p.dst.dtype
        terms = p.src.mesh.product(p.src.axes(State.UNREDUCED))
        np.testing.assert_array_equal(np.asarray(out).astype(np.complex64).real, terms)


def test_keys_move_as_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 64).reshape(8, 8)
    plans = moved("key<fry>")
    places = np.arange(64).reshape(8, 8)
    rng = np.random.default_rng(0)
    data = np.asarray(jax.random.key_data(keys))
    words_of = data.reshape(64, -1)
    families = [jax.random.wrap_key_data(words_of[simulate.split(p.src, places, rng)]) for p in plans]
    for p, out in zip(plans, execute(plans, families), strict=True):
        words = np.asarray(jax.random.key_data(out))
        for device in simulate.devices(M222):
            np.testing.assert_array_equal(words[device], data[simulate.own_slice(p.dst, device)])


def test_a_masked_infinity_leaves_zeros_and_not_nans() -> None:
    p = plan(type_of("f32", "-,-"), type_of("f32", "-,-", "x"))
    (out,) = execute([p], [np.full((2, 2, 2, 8, 8), np.inf, np.float32)])
    assert np.isinf(np.asarray(out)[0]).all()
    assert (np.asarray(out)[1] == 0).all()


def test_shards_move_with_64_bit_numbers_enabled() -> None:
    with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
        steps: dict[tuple[Kind, bool], Plan] = {}
        with large_shards():
            every = simulate.all_types(M222, (8, 8), "RU")
            dice = random.Random(0)
            for _ in range(300):
                for step in plan(dice.choice(every), dice.choice(every)).steps:
                    steps.setdefault((step.kind, step.pieces is not None), Plan(step.src, step.dst, (step,)))
        assert {(Kind.PLACE, False), (Kind.PERMUTE, True), (Kind.SLICE, False)} <= set(steps)
        rng = np.random.default_rng(0)
        for p in steps.values():
            family = simulate.split(p.src, rng.integers(-9, 9, p.src.shape).astype(np.float32), rng)
            (out,) = execute([p], [family])
            np.testing.assert_array_equal(np.asarray(out), simulate.run(p.steps[0], family))
