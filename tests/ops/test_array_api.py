"""Functions of `jax.numpy` and `jax.lax` against JAX on one device: a table of expressions over some types each.

Their rules have tests of their own; here each function is run replicated, and with some random types that it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from shtypes.context.unsupported import UNSUPPORTED
from tests.end_to_end import Case, check, host, sampled, some

pytestmark = pytest.mark.one_in(4)

m: Any = sh  # for calls that a type checker refuses too

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ints(n: int, *shape: int) -> Any:
    return rng.integers(-2, n + 2, shape).astype(np.int32)


def _of_lax(m: Any, name: str) -> Any:
    return getattr(m if m is sh else lax, name)


def _of_ops(m: Any, name: str) -> Any:
    return getattr(m if m is sh else jax.ops, name)


def _linalg(m: Any, name: str) -> Any:
    if m is sh:
        return getattr(sh.linalg, name)
    return getattr(jax.scipy.linalg if hasattr(jax.scipy.linalg, name) else jax.numpy.linalg, name)


def _linear_recurrence(p: Any, q: Any) -> Any:
    return p[0] * q[0], p[1] * q[0] + q[1]


Function = tuple[str, Callable[..., Any], tuple[Any, ...]]
MATRIX = arr(4, 4) + 4 * np.eye(4, dtype=np.float32)
POINTS, POSITIVE = np.sort(arr(8)), np.abs(arr(4, 4)) + 0.5

LINEAR: list[Function] = [
    ("interp", lambda m, x, p, v: m.interp(x, p, v), (arr(4), POINTS, arr(8))),
    ("interp, ends", lambda m, x, p, v: m.interp(x, p, v, left=2.0, right=-1.0), (3 * arr(4), POINTS, arr(8))),
    ("bincount", lambda m, x, w: m.bincount(x, w, length=6), (ints(4, 8), arr(8))),
    ("dot_general", lambda m, x, y: m.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), (arr(4, 2, 8), arr(4, 8, 2))),
    ("batch_matmul", lambda m, x, y: m.batch_matmul(x, y), (arr(4, 2, 8), arr(4, 8, 2))),
    ("kron", lambda m, x, y: m.kron(x, y), (arr(4), arr(2, 4))),
    ("cross", lambda m, x, y: m.cross(x, y, axis=0), (arr(3, 4), arr(3, 4))),
    ("convolve", lambda m, x, y: m.convolve(x, y, mode="same"), (arr(4), arr(3))),
    ("correlate", lambda m, x, y: m.correlate(x, y), (arr(4), arr(3))),
    ("polyval", lambda m, p, x: m.polyval(p, x), (arr(4), arr(4, 2))),
    ("trapezoid", lambda m, x: m.trapezoid(x, dx=0.5, axis=0), (arr(4, 4),)),
    ("trapezoid, truth", lambda m, y, x: m.trapezoid(y > 0, x), (arr(4, 4), arr(4))),
    ("trapezoid, places", lambda m, y, x: m.trapezoid(y, x), (arr(4, 4), arr(4))),
    ("ragged_dot", lambda m, x, y, n: m.ragged_dot(x, y, n), (arr(8, 4), arr(2, 4, 4), np.array([3, 4], np.int32))),
    ("mean of windows", lambda m, x: m.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID"), (arr(4, 4, 2),)),
    ("delete", lambda m, x: m.delete(x, np.array([1, 3]), axis=0), (arr(8, 4),)),
    ("insert", lambda m, x: m.insert(x, np.array([1, 3]), 7.0, axis=0), (arr(8, 4),)),
    ("insert a row", lambda m, x, v: m.insert(x, 2, v, axis=1), (arr(8, 4), arr(8))),
    ("append", lambda m, x, y: m.append(x, y, axis=1), (arr(4, 4), arr(4, 2))),
    ("resize", lambda m, x: m.resize(x, (5, 3)), (arr(4),)),
    ("put_along_axis", lambda m, x, i, v: m.put_along_axis(x, i, v, axis=1, inplace=False),
     (arr(4, 8), np.array([[0], [2], [3], [1]], np.int32), arr(4, 1))),
    ("fill_diagonal", lambda m, x: m.fill_diagonal(x, 2.0, inplace=False), (arr(4, 4),)),
    ("choose", lambda m, i, x, y: m.choose(i, [x, y], mode="wrap"), (ints(4, 4), arr(4), arr(4))),
    ("complex", lambda m, x, y: m.complex(x, y), (arr(4), arr(4))),
    ("select_n", lambda m, i, x, y: m.select_n(i, x, y, 2 * x), (np.array([0, 1, 2, 1], np.int32), arr(4), arr(4))),
    ("optimization_barrier", lambda m, x: m.optimization_barrier(x), (arr(4),)),
    ("div", lambda m, x, y: m.div(x, y), (arr(4), POSITIVE[0])),
    ("gradient", lambda m, x: m.gradient(x, 0.5, axis=0), (arr(8, 4),)),
    ("ediff1d", lambda m, x: m.ediff1d(x, to_end=1.0), (arr(8),)),
    ("ediff1d", lambda m, x: m.ediff1d(np.arange(4), x, m.ceil(x)), (arr(8),)),
    ("ediff1d", lambda m, x: m.ediff1d(m.astype(x, "bf16"), to_begin=x), (arr(8),)),
    ("cumulative_sum", lambda m, x: m.cumulative_sum(x, axis=1, include_initial=True), (arr(4, 4),)),
    ("a scan", lambda m, x: m.associative_scan(lambda p, q: p + q, x, reverse=True), (arr(7, 4),)),
    ("meshgrid", lambda m, x, y: m.meshgrid(x, y)[0] + m.meshgrid(x, y)[1], (arr(4), arr(8))),
    ("broadcast_arrays", lambda m, x, y: m.broadcast_arrays(x, y)[1], (arr(4, 4), arr(4))),
    ("collapse", lambda m, x: m.collapse(x, 0, 2), (arr(4, 2, 4),)),
    ("broadcast", lambda m, x: m.broadcast(x, (2,)), (arr(4),)),
    ("rollaxis", lambda m, x: m.rollaxis(x, 2, 1), (arr(2, 4, 2),)),
    ("atleast_3d", lambda m, x: m.atleast_3d(x), (arr(4, 2),)),
    ("sort_key_val", lambda m, k, v: _of_lax(m, "sort_key_val")(k, v)[1], (arr(4, 8), arr(4, 8))),
    ("at apply", lambda m, x: x.at[:, 1].apply(lambda v: -v) if m is sh else x.at[:, 1].multiply(-1), (arr(4, 8),)),
    ("vdot", lambda m, x, y: m.vdot(x, y), (arr(8, 4), arr(8, 4))),
    ("rev", lambda m, x: m.rev(x, (0,)), (arr(4, 4),)),
    ("reduce_sum", lambda m, x: m.reduce_sum(x, (0,)), (arr(4, 4),)),
    ("an index replaced", lambda m, x, y: m.dynamic_update_index_in_dim(x, y, 2, 0), (arr(4, 4), arr(4))),
    ("block_diag", lambda m, x, y: _linalg(m, "block_diag")(x, y), (arr(4, 4), arr(2, 4))),
    ("toeplitz", lambda m, x, y: _linalg(m, "toeplitz")(x, y), (arr(4), arr(6))),
    ("diagonals", lambda m, x: _linalg(m, "diagonal")(x, offset=1), (arr(4, 3, 3),)),
    ("map", lambda m, x: m.map(lambda v: 2 * v, x), (arr(3, 4),)),
    ("gradient between places", lambda m, x: m.gradient(x, np.array([0.0, 1, 3, 4], "f4"), axis=1), (arr(8, 4),)),
    ("a slice before the first", lambda m, x: _of_lax(m, "dynamic_slice")(
        x, (-3, 1), (2, 4), allow_negative_indices=False), (arr(4, 8),)),
    ("a slice replaced", lambda m, x, y: _of_lax(m, "dynamic_update_slice")(
        x, y, (-3, -2), allow_negative_indices=(False, True)), (arr(4, 8), arr(2, 4))),
    ("an index", lambda m, x: _of_lax(m, "dynamic_index_in_dim")(x, -2, 0, allow_negative_indices=False), (arr(4, 8),)),
]  # fmt: skip

NONLINEAR: list[Function] = [
    ("searchsorted", lambda m, s, v: m.searchsorted(s, v, side="right"), (POINTS, arr(4, 4))),
    ("digitize", lambda m, s, v: m.digitize(v, s), (POINTS, arr(4, 4))),
    ("isin", lambda m, x, y: m.isin(x, y, invert=True), (ints(4, 8), ints(4, 4))),
    ("histogram", lambda m, x: m.histogram(x, bins=4, range=(-1.0, 1.0))[0], (arr(8, 2),)),
    ("histogram", lambda m, x: m.histogram(x, np.arange(-2, 3))[1], (arr(8, 2),)),
    ("histogram", lambda m, x: m.histogram(m.astype(x, "bf16"), np.arange(-2, 3))[0], (arr(8, 2),)),
    ("histogram", lambda m, x: m.histogram(x, np.arange(-2, 3), weights=np.ones((8, 2), int))[0], (arr(8, 2),)),
    ("histogram_bin_edges", lambda m, x: m.histogram_bin_edges(x, np.arange(3)), (arr(8),)),
    ("nonzero", lambda m, x: m.nonzero(x, size=5)[1], (ints(1, 3, 3),)),
    ("where", lambda m, x: m.where(x, size=5, fill_value=-1)[0], (ints(1, 3, 3),)),
    ("argwhere", lambda m, x: m.argwhere(x, size=5), (ints(1, 3, 3),)),
    ("unique", lambda m, x: m.unique(x, size=5, return_counts=True)[1], (ints(1, 3, 3),)),
    ("union1d", lambda m, x, y: m.union1d(x, y, size=5), (ints(1, 3), ints(3, 3))),
    ("segment_max", lambda m, x, i: _of_ops(m, "segment_max")(x, i, 5), (ints(9, 4, 4), ints(4, 4))),
    ("segment_prod", lambda m, x, i: _of_ops(m, "segment_prod")(x, i, 5), (ints(9, 4, 4), ints(4, 4))),
    ("max of windows", lambda m, x: m.reduce_window(x, -np.inf, lax.max, (1, 3), (1, 2), "SAME"), (arr(4, 4),)),
    ("a recurrence", lambda m, x: m.associative_scan(_linear_recurrence, (x, x), axis=1)[1], (arr(4, 5),)),
    ("unravel_index", lambda m, i: m.unravel_index(i, (3, 4))[1], (ints(14, 8),)),
    ("ravel_multi_index", lambda m, i, j: m.ravel_multi_index((i, j), (4, 5), mode="wrap"), (ints(4, 8), ints(5, 8))),
    ("expi", lambda m, x: m.expi(x), (POSITIVE,)),
    ("beta", lambda m, x, y: m.beta(x, y), (POSITIVE, POSITIVE[0])),
    ("exp1", lambda m, x: m.exp1(x), (POSITIVE,)),
    ("div of integers", lambda m, x, y: m.div(x, y), (ints(9, 4), np.array([2, -2, 3, 1], np.int32))),
    ("rem", lambda m, x, y: m.rem(x, y), (ints(9, 4), np.array([2, -2, 3, 1], np.int32))),
    ("integer_pow", lambda m, x: m.integer_pow(x, 3), (arr(4),)),
    ("bitcast", lambda m, x: m.bitcast_convert_type(x, np.int32), (arr(4),)),
    ("frexp", lambda m, x: m.frexp(x)[1], (arr(4),)),
    ("quantile", lambda m, x: m.quantile(x, np.array([0.25, 0.5]), axis=1), (arr(4, 4),)),
    ("nanmedian", lambda m, x: m.nanmedian(x, axis=1, keepdims=True), (arr(4, 5),)),
    ("nanmean", lambda m, x: m.nanmean(x, axis=0), (np.where(arr(4, 4) > 1, np.nan, 1).astype(np.float32),)),
    ("nanstd", lambda m, x: m.nanstd(x, axis=0), (arr(4, 4),)),
    ("logmeanexp", lambda m, x: m.logmeanexp(x, axis=1), (arr(4, 4),)),
    ("logmeanexp of nothing", lambda m, x: m.logmeanexp(x, axis=1), (arr(4, 0),)),
    ("nancumsum", lambda m, x: m.nancumsum(x, axis=0), (np.where(arr(4, 4) > 1, np.nan, 1).astype(np.float32),)),
    ("cov", lambda m, x: m.cov(x), (arr(4, 6),)),
    ("corrcoef", lambda m, x: m.corrcoef(x, rowvar=False), (arr(6, 4),)),
    ("unwrap", lambda m, x: m.unwrap(x, axis=0), (4 * arr(6, 4),)),
    ("vander", lambda m, x: m.vander(x, 3), (arr(4),)),
    ("allclose", lambda m, x, y: m.allclose(x, y), (arr(4), arr(4))),
    ("array_equal", lambda m, x, y: m.array_equal(x, y), (ints(4, 4), ints(4, 4))),
    ("lexsort", lambda m, x, y: m.lexsort((x, y)), (ints(2, 6), ints(2, 6))),
    ("partition", lambda m, x: m.sort(m.partition(x, 2)[:, :2]), (arr(4, 6),)),
    ("argpartition", lambda m, x: m.argpartition(x, 1)[:, 1], (arr(4, 6),)),
    ("reduce_max", lambda m, x: m.reduce_max(x, (0,)), (arr(4, 4),)),
    ("cho_solve", lambda m, y: _linalg(m, "cho_solve")(_linalg(m, "cho_factor")(MATRIX @ MATRIX.T), y), (arr(4, 2),)),
    ("lstsq", lambda m, x, y: _linalg(m, "lstsq")(x, y)[0], (arr(6, 3), arr(6))),
    ("lstsq, residuals", lambda m, x, y: _linalg(m, "lstsq")(x, y)[1], (arr(6, 3), arr(6))),
    ("standardize, a mean", lambda m, x: m.standardize(x, 0, 0.25), (arr(4, 4),)),
    ("standardize, stable", lambda m, x: m.standardize(x, 0, 0.25, algorithm="stable"), (arr(4, 4),)),
    ("lu", lambda m, x: _linalg(m, "lu")(x)[1], (MATRIX,)),
    ("lu_factor", lambda m, x: _linalg(m, "lu_factor")(x)[1], (np.stack([MATRIX] * 4),)),
    ("tensorinv", lambda m, x: _linalg(m, "tensorinv")(x), (MATRIX.reshape(2, 2, 4),)),
    ("cond", lambda m, x: _linalg(m, "cond")(x), (np.stack([MATRIX] * 4),)),
    ("sort_complex", lambda m, x: m.sort_complex(x), (arr(6),)),
    ("gradient by a distance", lambda m, x, h: m.gradient(x, h[0], axis=0), (arr(4, 3), np.array([0.5], "f4"))),
    ("gradient at places", lambda m, x, h: m.gradient(x, h, axis=0), (arr(4, 3), np.array([0, 1, 3, 4], "f4"))),
    ("polynomials", lambda m, p, x: m.polyval(p, x), (arr(3, 4), arr(2, 4))),
    ("quantile at run time", lambda m, x, q: m.quantile(x, q, axis=1), (arr(4, 5), np.array([0.25, 0.5], "f4"))),
    ("nanquantile at run time", lambda m, x, q: m.nanquantile(x, q[0], axis=(0, 1), keepdims=True),
     (arr(4, 5, 2), np.array([0.25], "f4"))),
    ("weighted quantile", lambda m, x, w: m.quantile(x, 0.25, axis=1, method="inverted_cdf", weights=w),
     (arr(4, 5), np.array([1, 2, 3, 1, 2], "f4"))),
    ("weighted percentile", lambda m, x, w: m.percentile(x, 30.0, axis=1, method="inverted_cdf", weights=w),
     (arr(4, 5), np.abs(arr(4, 5)) + 1)),
    ("cov, counts", lambda m, x, w: m.cov(x, fweights=w), (arr(4, 6), np.array([1, 2, 3, 1, 2, 1], np.int32))),
    ("cov, weights", lambda m, x, w: m.cov(x, aweights=w), (arr(4, 6), np.arange(1, 7).astype("f4"))),
    ("cov, both", lambda m, x, f, a: m.cov(x, ddof=2, fweights=f, aweights=a),
     (arr(4, 6), np.array([1, 2, 3, 1, 2, 1], np.int32), np.arange(1, 7).astype("f4"))),
    ("cov of one, weighted", lambda m, x, w: m.cov(x, bias=True, aweights=w), (arr(6), np.arange(1, 7).astype("f4"))),
    ("cov of a number", lambda m, x: m.cov(x[0], bias=True), (arr(1),)),
    ("nanvar of known means", lambda m, x: m.nanvar(x, 0, ddof=1, mean=m.nanmean(x, 0, keepdims=True)),
     (np.where(arr(4, 4) > 1, np.nan, arr(4, 4)).astype(np.float32),)),
    ("nanprod from a number", lambda m, x: m.nanprod(x, 0, initial=2.0, where=np.arange(4) < 3), (arr(4, 4),)),
    ("intersect1d", lambda m, x, y: m.intersect1d(x, y, True, True, size=3)[2], (np.arange(4), np.arange(2, 6))),
    ("setdiff1d", lambda m, x, y: m.setdiff1d(x, y, True, size=3), (np.array([3, 1, 2, 0]), np.arange(2, 6))),
    ("pinv", lambda m, x: _linalg(m, "pinv")(x, rcond=1e-3), (MATRIX,)),
    ("svd, in part", lambda m, x: _linalg(m, "svd")(x, False, False, subset_by_index=(0, 2)), (MATRIX,)),
    ("eigvalsh", lambda m, x: _linalg(m, "eigvalsh")(x, symmetrize_input=False), (MATRIX @ MATRIX.T,)),
    ("expm", lambda m, x: _linalg(m, "expm")(x, max_squarings=8), (MATRIX,)),
    ("matrix_rank", lambda m, x: _linalg(m, "matrix_rank")(x, hermitian=True, tol=1e-3), (MATRIX @ MATRIX.T,)),
    ("mul", lambda m, x, y: _of_lax(m, "mul")(x, y, out_dtype=np.dtype("f4")), (ints(4, 8), ints(4, 8))),
    ("ravel_multi_index, dtype", lambda m, i, j: m.ravel_multi_index((i, j), (4, 5), "clip", dtype=np.int8),
     (ints(4, 8), ints(5, 8))),
    ("windows by one", lambda m, x: m.reduce_window(x, -np.inf, lax.max, (1, 3)), (arr(4, 4),)),
]  # fmt: skip


def cases(mesh: Any, functions: list[Function], grad: bool) -> Iterator[Case]:
    """Each function on operands of random types that it accepts; replicated ones if none of the first few is one."""
    for name, fn, operands in functions:
        found = sampled(mesh, fn, *operands, id=name, count=some(1, 3), grad=grad)
        replicated = Case(fn, operands, ("[...]",) * len(operands), id=name, grad=grad)
        yield found[0] if found else replicated


@pytest.mark.one_in(6)
@pytest.mark.parametrize("functions", [LINEAR, NONLINEAR], ids=["linear", "nonlinear"])
def test_functions_and_the_gradients_of_linear_ones_are_those_of_one_device(functions: list[Function]) -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    chosen = functions[:: some(4, 1)]
    check(mesh, cases(mesh, chosen, grad=functions is LINEAR))  # JAX differentiates the others; nightly all are


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("functions", [LINEAR, NONLINEAR], ids=["linear", "nonlinear"])
def test_functions_are_those_of_one_device_over_many_types(functions: list[Function], policy: str) -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    with sh.policy(policy):
        for name, fn, operands in functions:
            check(mesh, sampled(mesh, fn, *operands, id=name, count=40))


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
        (lambda x: sh.delete(sh.zeros("f32[4@x]"), 1, 0), "`slice` acts along dim 0"),
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
