"""Steps of large shards: the same value and no more bytes, in pieces and in gathers of one dim at a time."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from shtypes.resharding import Kind, Plan, plan
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.resharding import simulate
from tests.resharding.large import large_shards

M22, M24, M222 = Mesh({"x": 2, "y": 2}), Mesh({"x": 2, "y": 4}), Mesh({"x": 2, "y": 2, "z": 2})


def some_pairs(mesh: Mesh, shape: tuple[int, ...], states: str) -> list[tuple[ShType, ShType]]:
    types = simulate.all_types(mesh, shape, states)
    pairs = [(a, b) for a, b in itertools.product(types, types) if a != b]
    return random.Random(0).sample(pairs, min(250, len(pairs)))


def shaped(src: ShType, dst: ShType) -> Plan:
    with large_shards():
        return plan(src, dst)


SETS = [(M22, (8, 8), "RIU"), (M24, (16, 8), "RU"), (M222, (8, 8), "R"), (M222, (8, 16), "RU"), (M222, (8, 8, 8), "R")]


@pytest.mark.one_in(13)
@pytest.mark.parametrize(("mesh", "shape", "states"), SETS, ids=str)
def test_plans_in_pieces_keep_the_value(mesh: Mesh, shape: tuple[int, ...], states: str) -> None:
    rng = np.random.default_rng(0)
    plans = [shaped(a, b) for a, b in some_pairs(mesh, shape, states)]
    assert any(s.pieces for p in plans for s in p.steps)
    for p in plans:
        value = rng.integers(-9, 9, shape).astype(np.float32)
        after = simulate.follow(p.steps, simulate.split(p.src, value, rng))
        np.testing.assert_array_equal(simulate.meaning(p.dst, simulate.seen_as(p.dst, after)), value, err_msg=str(p))
        assert all(simulate.received(s) <= s.bytes for s in p.steps), str(p)


@pytest.mark.one_in(13)
@pytest.mark.parametrize(("mesh", "shape", "states"), SETS, ids=str)
def test_pieces_never_send_more_than_the_steps_in_their_place(mesh: Mesh, shape: tuple[int, ...], states: str) -> None:
    fewer = 0
    for src, dst in some_pairs(mesh, shape, states):
        p, plain = shaped(src, dst), plan(src, dst)
        assert p.bytes <= plain.bytes, f"{p.src} {p.dst}: {p}"
        assert p.peak_bytes <= plain.peak_bytes, f"{p.src} {p.dst}: {p}"
        assert p.launches <= plain.launches + 4, f"{p.src} {p.dst}: {p}"
        fewer += p.bytes < plain.bytes
    assert fewer or len(mesh.axis_names) == 2


def typed(*dims: str) -> ShType:
    axes = [tuple(d.replace("-", "")) for d in dims]
    return ShType(M222, "f32", [Dim(8, a) for a in axes], {a: State.REDUCED for a in "xyz" if a not in "".join(dims)})


def test_all_to_alls_in_a_row_are_one_exchange_of_what_each_device_lacks() -> None:
    p = shaped(typed("yxz", "-"), typed("zx", "y"))
    (step,) = p.steps
    assert (step.kind, step.launches, step.bytes) == (Kind.PERMUTE, 2, 32)
    assert step.pieces is not None
    assert step.pieces.shape == (1, 4)


def test_the_major_dim_is_gathered_last_and_by_itself() -> None:
    p = shaped(typed("x", "zy"), typed("-", "-"))
    assert [(s.kind, s.axes, s.dst) for s in p.steps] == [
        (Kind.ALL_GATHER, ("z", "y"), typed("x", "-")),
        (Kind.ALL_GATHER, ("x",), typed("-", "-")),
    ]
    assert p.bytes == 7 * 8 * 4


def test_a_gather_that_would_transpose_comes_in_pieces_with_what_is_before_it() -> None:
    p = shaped(typed("z", "x"), typed("xy", "-"))
    (step,) = p.steps
    assert (step.kind, step.launches, step.bytes) == (Kind.PERMUTE, 2, 64)
    assert step.pieces is not None
    assert step.pieces.shape == (2, 4)
    in_rows = shaped(typed("yx", "z"), typed("y", "x"))
    assert [s.kind for s in in_rows.steps] == [Kind.PERMUTE, Kind.ALL_GATHER]
    assert [s.kind for s in shaped(typed("x", "y"), typed("x", "-")).steps] == [Kind.ALL_GATHER]


def test_small_shards_take_as_few_launches_as_they_can() -> None:
    assert plan(typed("x", "zy"), typed("-", "-")).launches == 1
    assert not any(s.pieces for a, b in some_pairs(M222, (8, 8), "R") for s in plan(a, b).steps)
