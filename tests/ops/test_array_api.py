"""Functions of `jax.numpy` and `jax.lax`: what is free, methods, what is made by position, and what is not here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.context.unsupported import UNSUPPORTED
from tests.end_to_end import Case, check, host

pytestmark = pytest.mark.one_in(9)

m: Any = sh  # for calls that a type checker refuses too

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ints(n: int, *shape: int) -> Any:
    return rng.integers(-2, n + 2, shape).astype(np.int32)


POINTS = np.sort(arr(8))
PENDING = [
    ("interp", (arr(4), POINTS, arr(8)), 2),
    ("convolve", (arr(4), arr(3)), 0),
    ("polyval", (arr(4), arr(4)), 0),
    ("cross", (arr(4, 3), arr(4, 3)), 1),
    ("kron", (arr(4), arr(4)), 1),
    ("gradient", (arr(8),), 0),
    ("trapezoid", (arr(8),), 0),
    ("complex", (arr(4), arr(4)), 0),
    ("ragged_dot", (arr(8, 4), arr(2, 4, 4), np.array([3, 4], np.int32)), 1),
]


@pytest.mark.parametrize(("name", "operands", "place"), PENDING, ids=[p[0] for p in PENDING])
def test_pending_sums_stay_pending(name: str, operands: tuple[Any, ...], place: int) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        types = ["[...]{U:x}" if i == place else "[...]" for i in range(len(operands))]
        out = getattr(sh, name)(*[sh.array(v, t) for v, t in zip(operands, types, strict=True)])
        assert out.type.state("x") is sh.State.UNREDUCED


@pytest.mark.nightly
def test_arrays_by_position_are_made_in_parts() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 2}))
    jnp = jax.numpy
    made = [
        (sh.eye(4, type="[4@x,4@y]"), jnp.eye(4)),
        (sh.eye(4, 6, 1, type="[4@x,6]{U:y}"), jnp.eye(4, 6, 1)),
        (sh.tri(4, k=-1, dtype="i32", type="[4,4@x]"), jnp.tri(4, k=-1, dtype=np.int32)),
        (sh.identity(3), jnp.identity(3)),
        (sh.iota(np.int32, 8, type="[8@x]"), lax.iota(np.int32, 8)),
        (sh.broadcasted_iota("f32", (4, 8), 1, type="[4,8@(x,y)]"), lax.broadcasted_iota(np.float32, (4, 8), 1)),
        (sh.indices((2, 3)), jnp.indices((2, 3))),
        (sh.linspace(0, 1, 8, type="[_@x]{U:y}"), jnp.linspace(0, 1, 8)),
        (sh.linspace(0, 10, 8, endpoint=False, dtype="i32"), jnp.linspace(0, 10, 8, endpoint=False, dtype=np.int32)),
        (sh.logspace(0, 2, 8, type="[8@y]"), jnp.logspace(0, 2, 8)),
        (sh.geomspace(1, 8, 4, type="[4@x]"), jnp.geomspace(1, 8, 4)),
        (sh.hamming(8), jnp.hamming(8)),
        (sh.tril_indices(3)[1], jnp.tril_indices(3)[1]),
        (sh.empty_like(sh.eye(3), shape=(2,)), jnp.zeros(2)),
        (sh.full(shape=(2, 3), fill_value=1.5), jnp.full((2, 3), 1.5)),
        (sh.ones(3, bool), jnp.ones(3, bool)),
        (sh.asarray([1, 2], "f32"), jnp.asarray([1, 2], np.float32)),
    ]
    for mine, theirs in made:
        np.testing.assert_array_equal(host(mine), theirs)
        assert host(mine).dtype == theirs.dtype


def test_methods_are_those_of_jax() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    plain = arr(4, 6)
    x, y = sh.array(plain, "[4@x, 6]"), jax.numpy.asarray(plain)
    np.testing.assert_array_equal(host(x.take(np.array([1, 0]), 1)), y.take(np.array([1, 0]), 1))
    mask = np.array([True, False, True, False, False, True])
    np.testing.assert_array_equal(host(x.compress(mask, 1)), y.compress(mask, 1))
    np.testing.assert_array_equal(host(x.view("i32")), y.view(np.int32))
    np.testing.assert_array_equal(host(sh.array(POINTS).searchsorted(0.0)), POINTS.searchsorted(0.0))
    assert (x.nbytes, x.itemsize) == (y.nbytes, y.itemsize)
    assert x.copy().conjugate().type == x.type
    assert jax.eval_shape(lambda x: sh.zeros(x.nbytes // x.itemsize), x).shape == (24,)
    assert (sh.shape(x), sh.ndim(x), sh.size(x, 1), sh.result_type(x, "i32")) == ((4, 6), 2, 6, np.float32)


def test_what_is_a_sum_or_acts_row_by_row_is_free() -> None:
    x, places, rows = arr(4, 8), ints(8, 4, 1), arr(4, 1)

    def norm(m: Any, a: Any) -> Any:
        return (m.linalg if m is sh else jnp.linalg).norm(a, 1, axis=1)

    check(
        sh.make_mesh({"x": 2, "y": 2}),
        [
            Case(norm, (x,), ("[4@y,8@x]",), "[4@y]{U:x}"),
            Case(lambda m, a: m.histogram(a, 4, (-2.0, 2.0))[0], (x,), ("[4@y,8@x]",), "[4]{U:(x,y)}", grad=False),
            Case(
                lambda m, a, i, u: m.put_along_axis(a, i, u, 1, inplace=False),
                (x, places, rows),
                ("[4@x,8]{U:y}", "[4,1]", "[4@x,1]"),
                "[4@x,8]{U:y}",
            ),
            Case(
                lambda m, a, i: m.put_along_axis(a, i, 2.0, 1, inplace=False),
                (x, places),
                ("[4@x,8@y]", "[4@x,1]"),
                "[4@x,8@y]",
            ),
            Case(lambda m, a: m.roll(a, (16, 1), (1, 0)), (x,), ("[4,8@(x,y)]",), "[4,8@(x,y)]"),
            Case(lambda m, a: m.resize(a, (2, 16)), (x,), ("[4@x,8]",), "[2@x,16]"),
        ],
    )


def test_what_is_not_here_says_what_to_use() -> None:
    assert not [name for absence in UNSUPPORTED for name in absence.names if hasattr(sh, name)]
    with pytest.raises(AttributeError, match="would depend on values: use"):
        m.trim_zeros  # noqa: B018  # that it is not there is the test
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    for absence in UNSUPPORTED:
        names = ", ".join(f"`{name}`" for name in absence.names)
        assert f"| {names} | {absence.why} | {absence.instead} |" in table


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (sh.nonzero, "`nonzero` must know the values of an argument before it runs"),
        (sh.unique, "`unique` must know the values of an argument before it runs"),
        (lambda x: sh.bincount(sh.iota("i32", 4)), "`bincount` must know the values of an argument before it runs"),
        (lambda x: sh.interp(sh.zeros("f32[4]{U:x}"), np.ones(4), np.ones(4)), "`eq` is nonlinear in the operand"),
        (lambda x: sh.searchsorted(sh.zeros("f32[4@x]"), x), "`eq` is nonlinear in the operand"),
        (lambda x: sh.delete(sh.zeros("f32[4@x]"), 1, 0), "`delete` acts along dim 0"),
        (lambda x: sh.segment_max(sh.zeros("f32[4@x]"), np.zeros(4, np.int32), 3), "`scatter_max` has positions"),
        (lambda x: sh.choose(x, [x, x]), "`choose` does not take these arguments"),
        (lambda x: x.at[np.array([1])].apply(sh.sin), "`at[...].apply` needs positions that differ"),
        (lambda x: sh.linalg.norm(sh.zeros("f32[4@x,2,2]"), 1, out="[]"), "`norm` does not take these arguments"),
        (sh.linalg.lu, "`lu` does not take these arguments"),
        (lambda x: sh.linspace(x, 1), "`linspace` takes numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_or_done_apart_is_refused(call: Callable[[Any], Any], what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4), "[4]"))
    assert info.value.what.startswith(what)
    assert "test_array_api.py" in info.value.where
