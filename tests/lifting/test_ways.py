"""Primitives along sharded dims: by borders, totals, the first few, columns, pencils and small factors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as jsl

import shtypes as sh
from shtypes._compat.jaxprs import equations
from shtypes.evaluation.value_info import WIDENED, note, noting, operand_key
from shtypes.lifting.ways import evaluated
from shtypes.lifting.ways.choice import CALLS, ways_of
from shtypes.lifting.ways.grouping import grouped
from shtypes.lifting.ways.matrices import by_blocks as of_cholesky
from shtypes.lifting.ways.moving import without_empty_parts
from shtypes.lifting.ways.order import first_of_their_kind
from shtypes.lifting.ways.scatters import with_sorted_places
from tests.end_to_end import host
from tests.lifting.windows import Case
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said

rng = np.random.default_rng(0)
IMAGES, WIDE = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")


def f32(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def conv(x: Any, k: Any, **options: Any) -> Any:
    layout = IMAGES if x.ndim == 4 else WIDE
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, k, dimension_numbers=layout, **options)


def pool(x: Any, operator: Any, init: Any, stride: int) -> Any:
    return lax.reduce_window(x, init, operator, (1, 3, 3, 1), (1, stride, stride, 1), "SAME")


def spectrum(f: Callable[..., Any]) -> Callable[..., Any]:
    def parts(x: Any) -> Any:
        y = f(x)
        return y.real, y.imag

    return parts


def singular_values(x: Any) -> Any:
    return jnp.linalg.svd(x, compute_uv=False)


def of_svd(x: Any) -> Any:
    u, s, v = jnp.linalg.svd(x, full_matrices=False)
    return (u * s) @ v, s


def _of_logarithms(x: Any) -> Any:
    return jnp.concatenate([jnp.log(x[1:]) - jnp.log(x[:-1]), x[:1]])


def _second_difference(x: Any) -> Any:
    return jnp.pad(x[2:] - 2 * x[1:-1] + x[:-2], 1)


def _gated_difference(x: Any, b: Any) -> Any:
    scale, shift = jnp.split(b, 2)
    return jnp.pad(x[1:] * scale - x[:-1], (0, 1)) + shift


def _recurrence(x: Any) -> Any:
    return lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x * 0.9, x))


def _of_differences(x: Any) -> Any:
    return jnp.pad(jax.nn.softplus(x[1:] - x[:-1]), (1, 0))


def _solved(factor: Any, b: Any) -> Any:
    return jax.scipy.linalg.cho_solve((factor, True), b)


def definite(*shape: int) -> Any:
    a = f32(*shape)
    return a @ a.mT + shape[-1] * np.eye(shape[-1], dtype=np.float32)


DEFINITE = definite(32, 32)
ROW = 2 * 4 * 3 * 4  # of an image of 2 x n x 4 x 3
IMAGE, KERNEL = f32(2, 32, 4, 3), f32(3, 3, 3, 3)
SEQUENCE, ROWS = f32(2, 64, 4), f32(4, 64)
CASES = [
    Case("conv", conv, (IMAGE, KERNEL), ("[2,32@x,4,3]", "[3,3,3,3]"), (2 * ROW, 2 * ROW)),
    Case(
        "strided conv",
        lambda x, k: conv(x, k, window_strides=(2, 2)),
        (IMAGE, KERNEL),
        ("[2,32@x,4,3]", "[3,3,3,3]"),
        (ROW, ROW),
    ),
    Case(
        "causal depthwise conv",
        lambda x, k: conv(x, k, padding=[(3, 0)], feature_group_count=4),
        (SEQUENCE, f32(4, 1, 4)),
        ("[2,64@x,4]", "[4,1,4]"),
        (96, 96),
    ),
    Case(
        "dilated conv",
        lambda x, k: conv(x, k, rhs_dilation=(3,)),
        (SEQUENCE, f32(3, 4, 4)),
        ("[2,64@x,4]", "[3,4,4]"),
        (192, 192),
    ),
    Case(
        "transposed conv",
        lambda x, k: lax.conv_transpose(x, k, (2,), "SAME", dimension_numbers=WIDE),
        (SEQUENCE, f32(3, 4, 4)),
        ("[2,64@x,4]", "[3,4,4]"),
        (32, 32),
    ),
    Case("border of two shards", conv, (f32(2, 16, 4), f32(9, 4, 4)), ("[2,16@x,4]", "[9,4,4]"), (256, 256)),
    Case(
        "borders of different sizes",
        lambda x, k: conv(x, k, padding="VALID"),
        (f32(2, 24, 3), f32(9, 3, 3)),
        ("[2,24@x,3]", "[9,3,3]"),
        (288, 288),
    ),
    Case(
        "fewer results than the devices divide",
        lambda x, k: conv(x, k, padding="VALID"),
        (f32(2, 40, 3), f32(3, 3, 1)),
        ("[2,40@x,3]", "[3,3,1]"),
        (7 * 40 + 2 * 24, 7 * 40 + 2 * 24),
    ),
    Case(
        "two and a half results of each device",
        lambda x, k: conv(x, k, window_strides=(2,)),
        (f32(2, 40, 3), f32(4, 3, 3)),
        ("[2,40@x,3]", "[4,3,3]"),
        (7 * 15 * 4 + 3 * 24, 7 * 15 * 4 + 3 * 24),
    ),
    Case(
        "results fewer than the elements, each with the next three",
        lambda x, k: conv(x, k, padding="VALID"),
        (f32(2, 32, 3), f32(4, 3, 1)),
        ("[2,32@x,3]", "[4,3,1]"),
        (7 * 4 * 8 + 3 * 24, 7 * 4 * 8 + 3 * 24),
    ),
    Case("max pool", lambda x: pool(x, lax.max, -jnp.inf, 1), (IMAGE,), ("[2,32@x,4,3]",), (2 * ROW, 2 * ROW)),
    Case("min pool", lambda x: pool(x, lax.min, jnp.inf, 2), (IMAGE,), ("[2,32@x,4,3]",), (ROW, ROW)),
    Case("sums of windows", lambda x: pool(x, lax.add, 0.0, 1), (IMAGE,), ("[2,32@x,4,3]",), (2 * ROW, 2 * ROW)),
    Case("cumsum", lambda x: jnp.cumsum(x, 1), (ROWS,), ("[4,64@x]",), (64, 64)),
    Case("cumprod, reverse", lambda x: lax.cumprod(x, 1, reverse=True), (1 + ROWS / 9,), ("[4,64@x]",), (64, 64)),
    Case("cummax", lambda x: lax.cummax(x, 1), (ROWS,), ("[4,64@x]",), (64, 64)),
    Case("cummin, reverse", lambda x: lax.cummin(x, 1, reverse=True), (ROWS,), ("[4,64@x]",), (64, 64)),
    Case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), (ROWS,), ("[4,64@x]",), (64, 64)),
    Case("roll", lambda x: jnp.roll(x, (3, 1), (1, 0)), (ROWS,), ("[4,64@x]",), (48, 48)),
    Case("roll by more than a shard", lambda x: jnp.roll(x, -17, 1), (ROWS,), ("[4,64@x]",), (128, 128)),
    Case("diff", lambda x: jnp.diff(x, prepend=2.0, axis=1), (ROWS,), ("[4,64@x]",), (16, 16)),
    Case("gradient", lambda x: jnp.gradient(x, axis=1), (ROWS,), ("[4,64@x]",), (96, 96)),
    Case("flip", lambda x: jnp.flip(x, 1), (ROWS,), ("[4,64@x]",), (128, 128)),
    Case("convolve", lambda x: jnp.convolve(x, jnp.arange(5.0), "same"), (ROWS[0],), ("[64@x]",), (16, 16)),
    Case("convolve, full", lambda x: jnp.convolve(x, jnp.arange(9.0)), (ROWS[0],), ("[64@x]",), (56, 56)),
    Case("convolve, valid", lambda x: jnp.convolve(x, jnp.arange(9.0), "valid"), (ROWS[0],), ("[64@x]",), (56, 56)),
    *(
        Case(f"pad, {mode}", functools.partial(jnp.pad, pad_width=4, mode=mode), (ROWS[0],), ("[64@x]",), (n, n))
        for mode, n in {"constant": 12, "edge": 26, "reflect": 12, "wrap": 28}.items()
    ),
    Case("logarithms of differences", _of_logarithms, (2 + ROWS[0] / 9,), ("[64@x]",), (8, 8)),
    Case("half", lambda x: x[:, 16:48], (ROWS,), ("[4,64@x]",), (128, 128)),
    Case("halo", lambda x: jnp.concatenate([x[-4:], x, x[:4]]), (ROWS[0],), ("[64@x]",), (28, 28)),
    Case("shift", lambda x: jnp.pad(x, ((0, 0), (1, 0)))[:, :-1], (ROWS,), ("[4,64@x]",), (16, 16)),
    Case("second difference", _second_difference, (ROWS[0],), ("[64@x]",), (8, 8)),
    Case("gated difference", _gated_difference, (ROWS[0], f32(2)), ("[64@x]", "[2]"), (4, 4)),
    Case("associative scan", _recurrence, (ROWS[0],), ("[64@x]",), (144, 144)),
    Case("softplus of differences", _of_differences, (ROWS[0],), ("[64@x]",), (4, 4)),
    Case(
        "searchsorted",
        lambda a, v: 1.0 * jnp.searchsorted(a, v),
        (np.sort(ROWS[0]), ROWS[1]),
        ("[64@x]", "[64]"),
        (0, 0),
    ),
    Case(
        "searchsorted, queries alike",
        lambda a, v: 1.0 * jnp.searchsorted(a, v, side="right"),
        (np.sort(ROWS.reshape(-1)), ROWS[1]),
        ("[256@x]", "[64@x]"),
        (2 * 7 * 8 * 4, 0),
    ),
    Case("top_k", lambda x: lax.top_k(x, 3), (ROWS.round(1),), ("[4,64@x]",), (7 * 2 * 4 * 3 * 4, 0)),
    Case(
        "sort",
        jnp.sort,
        (f32(1568).round(1),),
        ("[1568@x]",),
        (7 * 25 * (4 + 5) + 2 * 49 * 6 + 28 * 4, 7 * 25 * 8 + (2 * 49 + 28) * 4),
    ),
    Case(
        "argsort",
        lambda x: 1.0 * jnp.argsort(x),
        (f32(1568).round(1),),
        ("[1568@x]",),
        (7 * 25 * (4 + 1) + (7 * 25 + 98) * (4 + 2) + 28 * 2, 0),
    ),
    Case(
        "gradient of a sort",
        jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sort(x) * jnp.arange(1568)))),
        (f32(1568).round(1),),
        ("[1568@x]",),
        (7 * 196 * 4, 0),  # a gather, less than by merges and the pending sum that they leave
    ),
    Case("places of a sort", lambda x: jnp.sort(x)[np.array([5, 90])], (f32(512),), ("[512@x]",), (2 * 7 * 41, 0)),
    Case("median", jnp.median, (f32(512),), ("[512@x]",), (2 * 7 * 41 + 2, 0)),
    Case("lookup", lambda x, i: x[i.astype(int)], (f32(512, 4), f32(64) * 99), ("[512@x,4]", "[64@x]"), (1120, 896)),
    Case(
        "sums at positions",
        lambda x, i: jnp.negative(x).at[jnp.round(i * 9).astype(int)].add(jnp.stack([i, i], 1)),
        (f32(8, 2), f32(64)),
        ("[8@x,2]", "[64@x]"),
        (7 * 2 * 4, 7 * 2 * 4),
    ),
    Case("fft", spectrum(jnp.fft.fft), (f32(128),), ("[128@x]",), (3 * 7 * 16, 3 * 7 * 16)),
    Case("fft2", spectrum(jnp.fft.fft2), (f32(16, 16),), ("[16@x,16]",), (7 * 32, 7 * 32)),  # left transposed
    Case(
        "ifft, batch", spectrum(jnp.fft.ifft), (f32(8, 16),), ("[8,16@x]",), (7 * 8, 7 * 8)
    ),  # the sequence is resharded
    Case("half a spectrum", spectrum(jnp.fft.rfft2), (f32(16, 14),), ("[16@x,14]",), (7 * 16, 7 * 16)),
    Case("qr", jnp.linalg.qr, (f32(64, 4),), ("[64@x,4]",), (7 * 16 * 4 + 28, 112)),
    Case("cholesky", jnp.linalg.cholesky, (DEFINITE,), ("[32@x,32]",), (448 + 2842 + 7, 448 + 2842)),
    Case("cho_solve", _solved, (np.linalg.cholesky(DEFINITE), f32(32, 3)), ("[32@x,32]", "[32@x,3]"), (1176, 1176)),
    Case("singular values", singular_values, (f32(64, 4),), ("[64@x,4]",), (7 * 16 * 4, 112)),
    Case("svd", of_svd, (f32(64, 4),), ("[64@x,4]",), (7 * 16 * 4 + 28, 364)),
]


def across(f: Callable[..., Any]) -> Callable[..., Any]:
    return sh.implicit_comm(sh.lift(f))


def total(y: Any, m: Any) -> Any:
    """The sum of the sines of all that has a gradient."""
    return sum(m.sum(m.sin(leaf)) for leaf in jax.tree.leaves(y) if jnp.issubdtype(leaf.dtype, jnp.inexact))


@pytest.mark.one_in(71)
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_values_and_gradients_are_those_of_one_device(case: Case, policy: Any) -> None:
    places = tuple(range(len(case.args)))

    def plain_step(*args: Any) -> Any:
        return case.f(*args), jax.grad(lambda *args: total(case.f(*args), jnp), places)(*args)

    expected = jax.jit(plain_step)(*case.args)
    with sh.policy(policy):
        args = [sh.array(x, t) for x, t in zip(case.args, case.types, strict=True)]

        def step(*args: Any) -> Any:
            with sh.implicit_comm():
                return across(case.f)(*args), sh.grad(lambda *args: total(sh.lift(case.f)(*args), sh), places)(*args)

        assert_compiled_as_said(step, *args, jits=[jax.jit])
        for value, plain in zip(jax.tree.leaves(jax.jit(step)(*args)), jax.tree.leaves(expected), strict=True):
            assert_close(host(value), plain, SERIES)


@pytest.mark.one_in(21)
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_it_sends_what_its_closed_form_says(case: Case) -> None:
    args = [sh.abstract_array(f"f32{t}") for t in case.types]
    ledger = sh.ledger(across(case.f), *args)
    assert ledger.forward().total.bytes == case.sent[0]


@pytest.mark.mesh({"x": 8})
def test_what_moves_along_a_dim_keeps_its_shards_where_dims_behind_it_change() -> None:
    def mean(x: Any) -> Any:
        return jnp.mean(jnp.sin(x[:, :-2])[:, :, 0] ** 2)

    def shifted(x: Any) -> Any:
        return jnp.pad(x[:, 1:, 0], ((0, 0), (1, 0)))[:, :, None].reshape(4, 32, 1)

    x = np.arange(256, dtype=np.float32).reshape(4, 32, 2)
    typed = sh.array(x, "[4,32@x,2]")
    assert [sh.ledger(across(f), typed).total.bytes for f in (mean, shifted)] == [7, 0]
    assert np.array_equal(host(jax.jit(across(shifted))(typed)), shifted(x))


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_what_is_moved_along_a_dim_is_padded_along_others_where_it_arrives() -> None:
    blocks = f32(16, 6), f32(32, 10)
    typed = [sh.array(x, t) for x, t in zip(blocks, ("[16@x,6]", "[32@x,10]"), strict=True)]
    of_rows = 6 * (6 * 4) + 8 * (10 * 4)
    assert sh.ledger(across(jsl.block_diag), *typed).total.bytes == of_rows
    loss = jax.grad(lambda *xs: jnp.sum(jnp.sin(jsl.block_diag(*xs)) ** 2))

    def step(*args: Any) -> Any:
        return across(jsl.block_diag)(*args), across(loss)(*args)

    assert_compiled_as_said(step, *typed, jits=[jax.jit])
    value, gradient = jax.jit(step)(*typed)
    assert np.array_equal(host(value), jsl.block_diag(*blocks))
    assert_close(host(gradient), np.sin(2 * blocks[0]), SERIES)


@pytest.mark.nightly
@pytest.mark.one_in(2)
@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize(
    ("f", "types", "sent"),
    [
        (lambda x: (x[1:] + x[:-1])[:48], ("[64@x,3]",), (13 * 12, 25 * 12)),
        (lambda x, y: jnp.concatenate([x[1:], y[:33]]) * 2, ("[64@x,3]", "[64@x,3]"), (32 * 12, 64 * 12)),
    ],
    ids=["terms", "join"],
)
def test_rows_of_an_odd_size_move_as_others_and_terms_of_a_sum_together(f: Any, types: Any, sent: Any) -> None:
    args = [f32(64, 3) for _ in types]
    typed = [sh.array(x, t) for x, t in zip(args, types, strict=True)]
    gradient = jax.grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), tuple(range(len(args))))
    assert tuple(sh.ledger(across(g), *typed).total.bytes for g in (f, gradient)) == sent

    def step(*args: Any) -> Any:
        return across(f)(*args), across(gradient)(*args)

    assert_compiled_as_said(step, *typed, jits=[jax.jit])
    value, found = jax.jit(step)(*typed)
    assert_close(host(value), f(*args), SERIES)
    for a, b in zip(found, gradient(*args), strict=True):
        assert_close(host(a), b, SERIES)


@pytest.mark.mesh({"x": 8})
def test_few_elements_of_a_dim_are_not_gathered_with_all_of_it() -> None:
    def sent(f: Callable[..., Any]) -> int:
        return sh.ledger(across(f), sh.abstract_array("f32[56@x,5]")).total.bytes

    assert sent(lambda x: x[3:6]) == 0  # a pending sum
    assert sent(lambda x: x[41:56:2]) == 3 * 20
    assert sent(lambda x: jnp.pad(x[3:6], ((1, 1), (0, 0)), "edge")) == 0


def test_what_counts_sorted_elements_is_computed_with_those_at_places_that_it_tells() -> None:
    def f(x: Any) -> Any:
        y = jnp.sort(x)
        return y[3], jnp.sum(jnp.sin(y) > 0), jnp.cumsum(y > 0)[9]

    program = grouped(jax.make_jaxpr(lambda x: f(x)[:2])(ROWS[0]).jaxpr)
    (sort,) = (e for e in program.eqns if "jaxpr" in e.params and e.params["name"] == "sort")
    assert {e.primitive.name for e in program.eqns}.isdisjoint({"sort", "dynamic_slice", "gather"})
    assert program.eqns[[e.primitive.name for e in program.eqns].index("sin")].invars[0] in sort.outvars

    def needing_another(x: Any) -> Any:
        y = jnp.sort(x)
        return y[2], y[(y[3] * 9).astype(int) % 64]

    def needing_a_count(x: Any) -> Any:
        y = jnp.sort(x)
        return y[jnp.sum(y > 0) // 2], y[jnp.sum(y < 1)], jnp.sum(y)

    def far_from_it(x: Any) -> Any:
        y = z = jnp.sort(x)
        for _ in range(1200):
            z = -z
        return y[4], jnp.max(z)

    for g in (
        f,
        far_from_it,
        lambda x: f(x)[:2],
        lambda x: (jnp.sort(x)[::40], jnp.sort(x)[2]),
        needing_another,
        needing_a_count,
    ):
        closed = jax.make_jaxpr(g)(ROWS[0])
        program = grouped(closed.jaxpr)
        for value, plain in zip(jax.core.eval_jaxpr(program, closed.consts, ROWS[0]), g(ROWS[0]), strict=True):
            assert_close(value, plain, SERIES)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize(("t", "sent"), [("[64@x]", 144), ("[16,64@x]", 7 * 16 * 8 * 4 // 8)])
def test_equations_between_two_parts_of_a_group_are_in_the_group(t: str, sent: int) -> None:
    """The gradient of a tree of sums has a tree before what it is multiplied by, and another after it."""
    f = jax.grad(lambda x: jnp.sum(jnp.sin(lax.cumlogsumexp(x, x.ndim - 1))))
    assert sh.ledger(across(f), sh.abstract_array(f"f32{t}")).total.bytes == sent


@pytest.mark.mesh({"x": 8})
def test_the_gradient_of_a_pool_that_jax_makes_sends_its_borders_alone() -> None:
    f = jax.grad(lambda x: jnp.sum(jnp.sin(pool(x, lax.add, 0.0, 1))))
    ledger = sh.ledger(across(f), sh.abstract_array("f32[2,32@x,4,3]"))
    assert [(entry.kind, entry.bytes) for entry in ledger] == [("permute", ROW)] * 4


@pytest.mark.mesh({"x": 8})
def test_what_two_ops_need_of_one_value_is_sent_once() -> None:
    """A pool and its gradient read the same borders, which XLA too sends once."""
    pools = jax.grad(lambda x: jnp.sum(jnp.sin(pool(x, lax.max, -jnp.inf, 1))))
    assert sh.ledger(across(pools), sh.abstract_array("f32[2,32@x,4,3]")).total == (4 * ROW, 4)


@pytest.mark.mesh({"x": 4, "y": 2})
def test_tables_that_differ_by_device_are_one_constant_in_a_trace() -> None:
    """The pool along one dim needs its padding along the other; its gradient reads both borders again, not anew."""
    pools = jax.grad(lambda x: jnp.sum(jnp.sin(pool(x, lax.max, -jnp.inf, 2))))
    sent = sh.ledger(across(pools), sh.abstract_array("f32[2,64@x,32@y,8]"))
    assert [entry.bytes for entry in sent] == [1024, 1088, 1088, 1024]


@pytest.mark.mesh({"x": 8})
def test_equal_reshapes_of_one_value_are_sent_once() -> None:
    """Each convolution adds dims to the image of its own."""

    def edges(x: Any) -> Any:
        k = jnp.array([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
        across, along = (jax.scipy.signal.convolve2d(x, each, mode="valid") for each in (k, k.T))
        return jnp.mean(jnp.sqrt(across**2 + along**2 + 1e-3))

    sent = sh.ledger(across(edges), sh.abstract_array("f32[64@x,16]"))
    assert [(entry.kind, entry.bytes) for entry in sent] == [("permute", 64)] * 2


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_a_matrix_that_is_wanted_complete_is_gathered_before_it_is_made_symmetric() -> None:
    x = sh.abstract_array("f32[32@x,32]")
    (entry,) = sh.ledger(lambda x: sh.linalg.cholesky(x, out="[32,32]"), x)
    assert (entry.kind, entry.bytes) == ("all-gather", 7 * 512)


def test_scatters_to_the_numbers_of_a_sort_alone_say_that_each_place_is_once() -> None:
    def marked(f: Callable[..., Any], *args: Any) -> list[bool]:
        program = with_sorted_places(jax.make_jaxpr(f)(*args).jaxpr)
        return [e.params["unique_indices"] for e in equations(program) if e.primitive.name.startswith("scatter")]

    x, i = ROWS[0], np.arange(64)[::-1]
    assert marked(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sort(x)))), x) == [True]
    assert marked(lambda x: jnp.zeros(64).at[jnp.argsort(x)].set(x), x) == [True]
    assert marked(jax.grad(lambda x: jnp.sum(jnp.sin(jax.lax.map(jnp.sort, x)))), ROWS) == [True]
    assert marked(lambda x: jnp.zeros(65).at[jnp.argsort(x)].set(x), x) == [False]
    assert marked(lambda x, i: jnp.zeros(64).at[jnp.where(i < 0, jnp.argsort(x), i)].set(x), x, i) == [False]
    assert marked(lambda x, i: x.at[i].add(x), x, i) == [False]


def _kept(number: Callable[[Any], Any], mode: Any, read: Any, size: int) -> Callable[..., Any]:
    """Which of nine updates of ``size`` elements are found at their places after all were written."""
    places = ((), (0,), (0,))

    def f(ids: Any, y: Any) -> Any:
        ids, numbers = ids[:, None], number(y)
        x = lax.scatter(jnp.zeros(size, numbers.dtype), ids, numbers, lax.ScatterDimensionNumbers(*places), mode=mode)
        return numbers == lax.gather(x, ids, lax.GatherDimensionNumbers(*places), (1,), mode=read)

    return f


@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        (lambda y: lax.iota(np.uint32, 9) + lax.full((9,), 1, np.uint32), True),
        (lambda y: lax.iota(np.uint8, 9) + lax.full((9,), 1, np.uint8), True),
        (lambda y: lax.iota(np.uint32, 9) + lax.full((9,), 2, np.uint32), False),
        (lambda y: lax.iota(np.uint32, 9) + y, False),
        (lambda y: lax.broadcasted_iota(np.uint32, (3, 3), 0).reshape(9) + lax.full((9,), 1, np.uint32), False),
    ],
)
@pytest.mark.parametrize("mode", [lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP])
@pytest.mark.parametrize("dtype", [np.int32, np.int8])
def test_the_updates_that_a_scatter_keeps_are_found_by_their_indices_only_where_all_numbers_differ(
    number: Callable[[Any], Any], is_found: bool, mode: Any, dtype: Any
) -> None:
    ids = np.asarray([1, 2, 1, 9, -3, 7, 8, 2, 9], dtype)
    y = np.arange(9, 0, -1).astype(np.uint32)  # what is added to a count may make it one number
    for read in lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP:
        for size in 8, 300:
            f = _kept(number, mode, read, size)
            program = jax.make_jaxpr(f)(ids, y)
            found = with_sorted_places(program.jaxpr)
            assert (found is not program.jaxpr) == (is_found and read is lax.GatherScatterMode.CLIP)
            (kept,) = jax.core.eval_jaxpr(found, program.consts, ids, y)
            np.testing.assert_array_equal(kept, f(ids, y))


def _with_parts_of_no_elements(x: Any, y: Any) -> Any:
    """A product whose factors have such parts, and one cotangent."""
    s = jnp.sin(jnp.cos(x) + jnp.cos(y))
    return jnp.sum(jnp.concatenate([x[:0], s]) * jnp.concatenate([y[:0], s, x[:0]]))


@pytest.mark.parametrize(
    "f",
    [
        _with_parts_of_no_elements,
        lambda x, y: jnp.sum(jnp.concatenate([x[:0], jnp.sin(x + y)]) * jnp.concatenate([y[:0], jnp.sin(x + y)])),
        lambda x, y: jnp.sum(jnp.concatenate([x[:0], y]) * jnp.pad(y, (0, 0), mode="edge")),
    ],
)
def test_the_gradients_of_no_elements_are_not_added(f: Callable[..., Any]) -> None:
    args = ROWS[0], ROWS[1]
    closed = jax.make_jaxpr(jax.grad(f, (0, 1)))(*args)
    program = without_empty_parts(closed.jaxpr)
    assert len(program.eqns) < len(closed.jaxpr.eqns)
    for value, plain in zip(
        jax.core.eval_jaxpr(program, closed.consts, *args), jax.grad(f, (0, 1))(*args), strict=True
    ):
        np.testing.assert_array_equal(value, plain)


@jax.jit
def cholesky(a: Any) -> Any:
    """Another factor than JAX's function of this name computes."""
    return lax.linalg.cholesky((a.T + a) / 3)


@jax.jit
def unique_sorted_mask(x: Any) -> Any:
    """Another order than that by which `jnp.unique` finds elements."""
    y = jnp.sort(x)[::-1]
    return y, y > 0


@pytest.mark.parametrize(
    ("own", "of_jax"), [(cholesky, jnp.linalg.cholesky), (unique_sorted_mask, lambda x: jnp.unique(x[0], size=3))]
)
def test_a_function_that_only_has_the_name_of_jaxs_is_evaluated_as_it_is(own: Any, of_jax: Any) -> None:
    x = np.eye(16, dtype=np.float32)

    def has_way(f: Callable[..., Any], x: Any) -> bool:
        calls = [e for e in equations(jax.make_jaxpr(f)(x).jaxpr) if e.primitive.name in CALLS]
        return any(each.run in (of_cholesky, first_of_their_kind) for e in calls for each in ways_of(e))

    assert has_way(of_jax, x)
    assert not has_way(own, x if own is cholesky else x[0])


def test_a_program_that_has_no_odd_sizes_is_as_it_was() -> None:
    def f(x: Any) -> Any:
        return jnp.sum((x[1:] - x[:-1]) ** 2) + jnp.sum(x)  # what is reduced has no size that devices divide

    jaxpr = jax.make_jaxpr(f)(ROWS[0]).jaxpr
    assert grouped(jaxpr) is jaxpr
    (call,) = grouped(jax.make_jaxpr(_second_difference)(ROWS[0]).jaxpr).eqns
    assert call.primitive.name == "jit"
    assert grouped(call.params["jaxpr"].jaxpr) is call.params["jaxpr"].jaxpr


def _crossed(x: Any) -> Any:
    """Two groups of equations, each of which needs what the other makes on its way."""
    a, b = x[1:], jnp.cos(x)[1:]
    c, d = jnp.pad(a, (1, 0)), jnp.pad(b, (1, 0))
    return jnp.pad(a * d[1:], (1, 0)), jnp.pad(b * c[1:], (1, 0)), c, d


def _far_apart(x: Any) -> Any:
    """A group whose last equation needs what thousands after its first made."""
    first, y = x[1:], x
    for _ in range(2000):
        y = -y
    return jnp.pad(first, (1, 0)), jnp.pad(first + y[1:], (1, 0))


def _with_a_print(x: Any) -> Any:
    first = x[1:]
    jax.debug.callback(lambda _: None, x[0])
    return jnp.pad(first * 2, (1, 0))


def test_constants_and_numbers_of_odd_sizes_end_no_group() -> None:
    def f(x: Any, scale: Any) -> Any:
        y = jnp.where(np.arange(63) % 2 == 0, x[1:], 0)
        return jnp.pad(y + jnp.broadcast_to(scale, 63), (1, 0))

    program = grouped(jax.make_jaxpr(f)(ROWS[0], 1.5).jaxpr)
    assert [e.params["name"] for e in program.eqns if "jaxpr" in e.params] == ["pad"]


@pytest.mark.mesh({"x": 8})
def test_a_grouped_program_is_refused_in_the_words_of_what_the_user_called() -> None:
    def f(x: Any) -> Any:
        with sh.no_comm():
            return jnp.pad(jnp.sin(x[1:]) - x[:-1], (1, 0))

    with pytest.raises(sh.ShardingTypeError) as caught:
        across(f)(sh.abstract_array("f32[64@x]"))
    text = str(caught.value)
    assert "`pad` across shards by `ppermute`" in text
    assert "jnp.pad, by pad(f32[64@x])" in text
    assert caught.value.hints == ("pad before the scope, or after it",)


@pytest.mark.parametrize("f", [_crossed, _far_apart, _with_a_print])
def test_a_grouped_program_has_its_equations_in_an_order_in_which_they_can_run(f: Callable[..., Any]) -> None:
    closed = jax.make_jaxpr(f)(ROWS[0])
    program = grouped(closed.jaxpr)
    assert len(program.eqns) < len(closed.jaxpr.eqns)
    results = jax.core.eval_jaxpr(program, closed.consts, ROWS[0])
    for value, plain in zip(results, jax.tree.leaves(f(ROWS[0])), strict=True):
        assert_close(value, plain, SERIES)


def test_reads_of_references_stay_where_they_are_when_equations_are_grouped() -> None:
    def f(x: Any) -> Any:
        kept = jax.new_ref(x)
        first = x[1:]
        kept[...] = 2 * x
        return jnp.pad(first, (1, 0)), jnp.pad(first + kept[...][1:], (1, 0))

    closed = jax.make_jaxpr(f)(ROWS[0])
    for value, plain in zip(jax.core.eval_jaxpr(grouped(closed.jaxpr), [], ROWS[0]), f(ROWS[0]), strict=True):
        assert_close(value, plain, SERIES)


@pytest.mark.mesh({"x": 8})
@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_number_beside_odd_sizes_has_no_gradient_of_the_room_in_the_last_shards(policy: Any) -> None:
    """The room has zeros, whose reciprocals are infinite, and no cotangent: the product is no number."""

    def f(x: Any, scale: Any) -> Any:
        return jnp.pad(scale * jnp.log(x[1:]), (1, 0))

    x, scale = 2 + ROWS[0] / 9, np.float32(1.5)
    with sh.policy(policy), sh.implicit_comm():
        gradient = sh.jit(sh.grad(lambda x, scale: total(sh.lift(f)(x, scale), sh), (0, 1)))(
            sh.array(x, "[64@x]"), sh.array(scale, "[]")
        )
    expected = jax.jit(jax.grad(lambda x, scale: total(f(x, scale), jnp), (0, 1)))(x, scale)
    for value, plain in zip(gradient, expected, strict=True):
        assert_close(host(value), plain, SERIES)


@pytest.mark.parametrize(
    ("devices", "f", "types", "sent"),
    [
        (3, lambda a, b: lax.sort((a, b), num_keys=1), ("i8[39@x]", "f32[39@x]"), 2 * 13),  # a sum is left pending
        (2, lambda a, b: lax.sort((a, b, a), num_keys=2), ("i8[52@x]", "i32[52@x]"), 26 * (1 + 4)),
        (2, lambda x: lax.top_k(x, 12), ("f32[32@x]",), 16 * 4),
        (8, functools.partial(jnp.linalg.svd, full_matrices=False), ("f32[16@x,2]",), 7 * 2 * 2 * 4),
    ],
    ids=["sort", "sort of a key twice", "top_k", "svd"],
)
def test_nothing_sends_more_forward_than_a_gather(devices: int, f: Any, types: Sequence[str], sent: int) -> None:
    """Though it may send less in both directions."""
    with sh.use_mesh(sh.abstract_mesh({"x": devices})):
        ledger = sh.ledger(across(f), *map(sh.abstract_array, types))
        assert ledger.total.bytes == sent
        with sh.implicit_comm():
            assert sh.ledger(sh.lift(f), *map(sh.abstract_array, types)).total.bytes == sent


@pytest.mark.mesh({"x": 8})
def test_a_sort_sends_all_its_operands_and_places_once_where_ties_count() -> None:
    """Three shards of ``4 x 104``: twice 7 / 8 and twice 49 columns; slots are 104, and elements 832."""
    args = [sh.abstract_array("i32[4,832@x]")] * 3
    ledger = sh.ledger(across(lambda *xs: lax.sort(xs, num_keys=1)), *args)
    ends, slots = 2 * 49 * (3 * 4 + 2), 7 * 13 * 1
    assert ledger.total.bytes == 4 * (2 * 7 * 13 * 3 * 4 + slots + ends)


@pytest.mark.mesh({"x": 4})
def test_an_iota_that_others_read_too_is_sorted_along_in_the_narrowest_dtype() -> None:
    def f(x: Any) -> Any:
        i = lax.iota(np.int32, x.size)
        return lax.sort((x, i), num_keys=1)[1] - i

    x = sh.abstract_array("i32[256@x]")
    assert sh.ledger(across(f), x).total.bytes == sh.ledger(across(jnp.argsort), x).total.bytes < 3 * 64 * 4


@pytest.mark.mesh({"x": 8})
def test_a_call_of_which_one_result_is_read_has_its_way() -> None:
    x = sh.abstract_array("i32[65536@x]")
    inverse = across(lambda x: jnp.unique(x, size=9, return_inverse=True)[1])
    assert sh.ledger(inverse, x).total.bytes < 7 * 8192 * 4  # less than a gather
    assert sh.check(inverse, x).results.dims[0].axes == ("x",)


#: Places of zeros in a tall matrix that make the rows of one device singular.
SINGULAR = {
    "the last device has zeros, as of padding": (slice(224, 256), slice(None)),
    "the first device has zeros": (slice(0, 32), slice(None)),
    "a column is zero on the first device": (slice(0, 32), slice(0, 1)),
    "a column is zero on another": (slice(64, 96), slice(2, 3)),
}


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("f", [jnp.linalg.qr, of_svd, lambda x: jnp.linalg.lstsq(x, jnp.cos(x[:, 0]))[0]])
def test_the_rows_of_one_device_may_be_singular(name: str, f: Any) -> None:
    x = np.array(f32(256, 4))
    x[SINGULAR[name]] = 0
    expected = f(x), jax.jit(jax.grad(lambda x: total(f(x), jnp)))(x)
    typed = sh.array(x, "[256@x,4]")
    gradient = sh.grad(lambda x: total(sh.lift(f)(x), sh))
    y = across(f)(typed), jax.jit(sh.implicit_comm(gradient))(typed)
    for value, plain in zip(jax.tree.leaves(y), jax.tree.leaves(expected), strict=True):
        assert_close(host(value), plain, SERIES)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_unique_sorts_by_columns_and_places_keep_the_signs_of_zeros() -> None:
    x = np.where(rng.random(832) < 0.5, -0.0, rng.integers(-9, 9, 832)).astype(np.float32)
    uniques = across(lambda x: jnp.unique(x, size=16, return_index=True))
    values, places = jax.block_until_ready(jax.jit(uniques)(sh.array(x, "[832@x]")))
    expected = jnp.unique(x, size=16, return_index=True)
    np.testing.assert_array_equal(host(values), expected[0])
    np.testing.assert_array_equal(host(places), expected[1])
    assert sh.ledger(uniques, sh.array(x, "[832@x]")).forward().total.bytes < 7 * 104 * 4
    three = host(jax.jit(across(lambda x: jnp.sort(x)[np.array([400, 500, 600])]))(sh.array(x, "[832@x]")))
    np.testing.assert_array_equal(np.signbit(three), np.signbit(np.sort(x, kind="stable")[[400, 500, 600]]))


@pytest.mark.mesh({"x": 8})
def test_the_first_of_two_keys_has_its_gradient_where_the_second_is_of_integers() -> None:
    x, places = f32(8), np.arange(8, dtype=np.int32)

    def f(x: Any, places: Any) -> Any:
        return lax.sort((x, places), num_keys=2)[0] * np.arange(8, dtype=np.float32)

    typed = sh.array(x, "[8]{I:x}"), sh.array(places, "[8]")
    gradient = sh.grad(lambda x, places: total(sh.lift(f)(x, places), sh))(*typed)
    assert_close(host(gradient), jax.jit(jax.grad(lambda x: total(f(x, places), jnp)))(x), SERIES)


@pytest.mark.mesh({"x": 8})
def test_windows_with_gaps_between_them_have_gradients() -> None:
    """A window of 2 of 4 elements needs less than its shard; cut off as padding it has no transpose in JAX."""
    x = f32(2, 64, 4)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 1), (1, 4, 1), ((0, 0), (1, 0), (0, 0)))

    with sh.implicit_comm():
        gradient = sh.jit(sh.grad(lambda x: total(sh.lift(pool)(x), sh)))(sh.array(x, "[2,64@x,4]"))
    assert_close(host(gradient), jax.jit(jax.grad(lambda x: total(pool(x), jnp)))(x), SERIES)


@pytest.mark.mesh({"x": 8})
def test_what_it_sends_says_what_it_is_a_part_of() -> None:
    x = sh.abstract_array("f32[4,64@x]")

    def f(x: Any) -> Any:
        return sh.cumsum(sh.roll(x, 3, 1, out="[4,64@x]"), 1, out="[4,64@x]")

    text = str(sh.ledger(f, x))
    assert "roll_static across shards" in text
    assert "cumsum across shards" in text
    with (
        pytest.raises(sh.ShardingTypeError, match="`cumsum` across shards by `ppermute` takes") as caught,
        sh.no_comm(),
    ):
        sh.cumsum(x, 1, out="[4,64@x]")
    assert caught.value.hints == ("cumsum before the scope, or after it",)


@pytest.mark.mesh({"dp": 2, "tp": 4})
@pytest.mark.parametrize(("axis", "sent"), [(0, 16 * 4), (1, 4 * 4)])
def test_a_move_is_along_its_dim_where_others_are_sharded_too(axis: int, sent: int) -> None:
    x = sh.abstract_array("f32[8@dp, 64@tp]")
    for roll in (across(lambda x: jnp.roll(x, 1, axis)), lambda x: sh.roll(x, 1, axis, out="[8@dp, 64@tp]")):
        (entry,) = sh.ledger(roll, x)
        assert (entry.kind, entry.axes, entry.bytes) == ("permute", (("dp", "tp")[axis],), sent)


@pytest.mark.mesh({"x": 4, "y": 2})
def test_a_flip_of_two_sharded_dims_is_one_permute_over_both_axes() -> None:
    (entry,) = sh.ledger(across(jnp.flip), sh.abstract_array("f32[16@x, 8@y]"))
    assert (entry.kind, entry.axes, entry.bytes) == ("permute", ("x", "y"), 4 * 4 * 4)


@pytest.mark.mesh({"x": 4, "y": 2})
def test_a_roll_of_two_sharded_dims_sends_what_crosses_the_borders_of_each() -> None:
    rolled = across(lambda x: jnp.roll(x, (3, -5), (0, 1)))
    entries = sh.ledger(rolled, sh.abstract_array("f32[64@x, 64@y]"))
    assert [(e.kind, e.axes, e.bytes) for e in entries] == [
        ("permute", ("x",), 3 * 32 * 4),
        ("permute", ("y",), 16 * 5 * 4),
    ]


@pytest.mark.parametrize("axes", ["(x,y)", "(y,x)", "(x,y,z)"])
def test_a_sort_of_a_dim_on_several_axes_is_by_columns_of_all_of_them(axes: str) -> None:
    """Of one axis of two devices, where a gather sends no more, it is a way too."""
    mesh = {"x": 2, "y": 2, "z": 2} if "z" in axes else {"x": 4, "y": 2}
    with sh.use_mesh(sh.abstract_mesh(mesh)):
        ledger = sh.ledger(across(jnp.sort), sh.abstract_array(f"i32[16384@{axes}]"))
        assert ledger.total.bytes == (2 * 7 * 256 + 2 * 49) * 4


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.one_in(2)
@pytest.mark.parametrize("axes", ["(y,x)", "(x,y)"])
def test_queries_that_more_axes_shard_than_what_is_searched_are_gathered_over_its_axes(axes: str) -> None:
    a, v = np.sort(f32(256)), f32(64)
    f = sh.implicit_comm(sh.lift(jnp.searchsorted))
    args = sh.array(a, "[256@x]"), sh.array(v, f"[64@{axes}]")
    ledger = sh.ledger(f, *args)
    assert ledger.total.bytes <= 2 * 3 * 8 * 4  # and the counts back, unless they stay a pending sum
    assert "searchsorted across shards" in str(ledger) or ledger.total.launches == 1
    of_constant = sh.implicit_comm(sh.lift(lambda v: jnp.searchsorted(a, v)))
    for found in (f(*args), of_constant(args[1])):
        assert np.array_equal(host(found), np.searchsorted(a, v))


@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize(
    ("ids", "out", "sent"), [("i32[32]", "[_,_]", 2 * 7 * 4 * 64), ("i32[64@x]", "[_@x,_]", 7 * 8 * 68)]
)
def test_a_lookup_of_bools_sends_a_byte_for_each_of_the_result(ids: str, out: str, sent: int) -> None:
    table, i = sh.abstract_array("bool[4096@x,64]"), sh.abstract_array(ids)
    ledger = sh.ledger(lambda x, i: sh.take(x, i, axis=0, out=out), table, i)
    assert ledger.total.bytes == sent


CHANGES: dict[str, tuple[Callable[..., Any], str, str, int]] = {
    "max": (lambda x, i, v, **out: x.at[i].max(v, **out), "f32[64,8]", "[_,_]", 2 * 7 * 64 * 4),
    "min of a shard": (lambda x, i, v, **out: x.at[i].min(v, **out), "f32[64@x,8]", "[_@x,_]", 7 * 64 * 4),
    "product": (lambda x, i, v, **out: x.at[i].multiply(v, **out), "f32[64,8]", "[_,_]", 2 * 7 * 64 * 4),
    "segments": (lambda x, i, v, **out: sh.segment_max(v, i, 64, **out), "f32[]", "[_,_]", 2 * 7 * 64 * 4),
}


@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize(("change", "t", "out", "sent"), CHANGES.values(), ids=CHANGES)
def test_a_change_at_sharded_positions_sends_what_is_changed(change: Any, t: str, out: str, sent: int) -> None:
    args = [sh.abstract_array(t) for t in (t, "i32[4096@x]", "f32[4096@x,8]")]
    assert sh.ledger(lambda *args: change(*args, out=out), *args).total.bytes == sent


@pytest.mark.mesh({"x": 8})
@pytest.mark.one_in(2)
@pytest.mark.parametrize("t", ["[8@x,3]", "[8,3]"])
def test_a_gradient_is_shared_by_all_updates_that_are_the_greatest_and_by_what_they_change(t: str) -> None:
    x, i = np.ones((8, 3), np.float32), (np.arange(64) % 6).astype(np.int32)
    v = (np.arange(192).reshape(64, 3) % 5 == 0).astype(np.float32)
    scale, out = np.linspace(1, 2, 24, dtype=np.float32).reshape(8, 3), t.replace("8", "_").replace("3", "_")
    typed, at, updates = sh.array(x, t), sh.array(i, "[64@x]"), sh.array(v, "[64@x,3]")
    with sh.implicit_comm():
        found = sh.jit(sh.grad(lambda x, v: sh.sum(x.at[at].max(v, out=out) * scale), (0, 1)))(typed, updates)
    expected = jax.jit(jax.grad(lambda x, v: jnp.sum(x.at[i].max(v) * scale), (0, 1)))(jnp.asarray(x), v)
    for value, plain in zip(found, expected, strict=True):
        assert_close(host(value), plain, SERIES)


@pytest.mark.mesh({"x": 8})
def test_the_gradient_of_greatest_segments_holds_shards_and_no_rows_of_all() -> None:
    """JAX's rule gathers and counts constants, of which each device has all rows: one element of each will do."""
    v, i = f32(1024, 32).round(1), rng.integers(-5, 125, 1024).astype(np.int32)
    gradient = jax.grad(lambda v, i: jnp.sum(jnp.sin(jax.ops.segment_max(v, i, 120))))
    compiled: Any = (
        jax.jit(across(gradient)).lower(typed := sh.array(v, "[1024@x,32]"), at := sh.array(i, "[1024@x]")).compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * v.nbytes / 8
    assert_close(host(compiled(typed, at)), jax.jit(gradient)(v, i), SERIES)


@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("dilation", [1, 4])
def test_the_gradients_of_a_convolution_hold_two_shards_with_their_borders(dilation: int) -> None:
    x, kernel = sh.array(f32(4, 256, 16, 16), "[4,256@x,16,16]"), sh.array(f32(3, 3, 16, 16), "[3,3,16,16]")
    gradients = jax.grad(lambda x, k: total(conv(x, k, rhs_dilation=(dilation, 1)), jnp), (0, 1))
    used: Any = jax.jit(across(gradients)).lower(x, kernel).compile().memory_analysis()
    row = 4 * 16 * 16 * 4
    assert used.temp_size_in_bytes < 2 * (32 + 2 * dilation) * row + 3 * 9 * 16 * 16 * 4


@pytest.mark.one_in(3)
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize(
    "f",
    [
        jnp.flip,
        lambda x: jnp.pad(x[::2], (1, 0))[:-1],
        lambda x: lax.pad(x[::2], 0.0, [(0, 1, 1)]) + lax.pad(x[1::2], 0.0, [(1, 0, 1)]),
        lambda x: jnp.concatenate([x[:1], x[:-1] * 2]),
    ],
    ids=["flip", "every other", "in turn", "after the first"],
)
def test_elements_at_equal_distances_are_not_looked_up(f: Any) -> None:
    text = jax.jit(across(f)).lower(sh.array(ROWS[0], "[64@x]")).compile().as_text()
    assert text
    assert not [line for line in text.splitlines() if " gather(" in line and "[1]" not in line]
    assert_close(host(jax.jit(across(f))(sh.array(ROWS[0], "[64@x]"))), f(ROWS[0]), SERIES)


@pytest.mark.mesh({"x": 2})
def test_borders_between_two_devices_are_not_looked_up() -> None:
    text = jax.jit(across(lambda x: conv(x, f32(3, 4, 4)))).lower(sh.array(SEQUENCE, "[2,64@x,4]")).compile().as_text()
    assert text
    assert " gather(" not in text


@pytest.mark.mesh({"y": 2, "x": 4})
def test_halves_whose_gradients_are_exchanged_once_more_compile() -> None:
    """XLA's CPU backend let the layouts of the two pieces of an all-to-all differ after the transposes of another."""
    x = f32(16, 8)

    def loss(x: Any, m: Any, halves: Callable[..., Any]) -> Any:
        a, b = halves(x)
        return m.sum(m.sin(a) * 2 + b)

    halves = functools.partial(jnp.split, indices_or_sections=2)
    gradient = jax.jit(sh.implicit_comm(sh.grad(lambda x: loss(x, sh, sh.lift(halves)))))
    expected = jax.jit(jax.grad(lambda x: loss(x, jnp, halves)))(x)
    assert_close(host(gradient(sh.array(x, "[16@y,8@x]"))), expected, SERIES)


@pytest.mark.mesh({"x": 8})
@pytest.mark.one_in(2)
@pytest.mark.parametrize("k", [12, 0])
def test_the_top_of_more_than_a_shard_or_of_nothing_sends_no_more_than_the_shard(k: int) -> None:
    gradient = sh.grad(lambda x: total(sh.lift(lambda x: lax.top_k(x, k))(x), sh))
    x = sh.array(ROWS[0], "[64@x]")
    assert_compiled_as_said(sh.implicit_comm(gradient), x, jits=[jax.jit])
    assert sh.ledger(sh.implicit_comm(gradient), x).total.bytes == 7 * min(k, 8) * 4
    assert_close(
        host(sh.implicit_comm(gradient)(x)), jax.jit(jax.grad(lambda x: total(lax.top_k(x, k), jnp)))(ROWS[0]), SERIES
    )


@pytest.mark.mesh({"x": 8})
def test_a_roll_of_all_elements_of_a_matrix_sends_those_that_cross_a_border() -> None:
    ledger = sh.ledger(across(lambda x: jnp.roll(x, 5)), sh.abstract_array("f32[64@x,4]"))
    assert [(entry.kind, entry.bytes) for entry in ledger] == [("permute", 5 * 4)]


#: Programs that move random keys along a dim.
OF_KEYS: dict[str, Callable[[Any], Any]] = {
    "one": lambda keys: keys[3],
    "half": lambda keys: keys[:4],
    "every other": lambda keys: keys[::2],
    "a part": lambda keys: jnp.split(keys, 2)[1],
    "most": lambda keys: jax.vmap(jax.random.bits)(keys[:-1]),
    "a roll": lambda keys: jnp.roll(keys, 1),
    "a join": lambda keys: jnp.concatenate([keys[1:], keys[:1]]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("name", OF_KEYS)
@pytest.mark.mesh({"x": 4})
def test_random_keys_move_as_numbers_do(name: str, impl: str) -> None:
    def words(keys: Any) -> Any:
        y = OF_KEYS[name](keys)
        return jax.random.key_data(y) if jnp.issubdtype(y.dtype, jax.dtypes.prng_key) else y

    keys = jax.random.split(jax.random.key(7, impl=impl), 8)
    found = sh.implicit_comm(sh.lift(words))(sh.array(keys, "[8@x]"))
    np.testing.assert_array_equal(host(found), words(keys))


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_a_scan_of_products_of_matrices_is_one_program_that_moves_halves() -> None:
    def scanned(a: Any) -> Any:
        return lax.associative_scan(jnp.matmul, jnp.eye(3) + a / 8)

    def gradient(a: Any) -> Any:
        return jax.grad(lambda a: jnp.sum(jnp.sin(scanned(a))))(a)

    x = f32(64, 3, 3)
    typed, matrix = sh.array(x, "[64@x,3,3]"), 3 * 3 * 4
    step = jax.jit(lambda a: (across(scanned)(a), across(gradient)(a)))
    said = assert_compiled_as_said(step, typed, jits=[lambda f: f])
    assert said.total.bytes == (21 + 39.5) * matrix  # of 56 each
    for found, f in zip(step(typed), (scanned, gradient), strict=True):
        assert_close(host(found), jax.jit(f)(x), SERIES)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_products_along_what_is_moved_are_in_no_group() -> None:
    x, w = f32(4, 32, 3), f32(3, 5)
    programs: list[Callable[..., Any]] = [
        lambda x, w: jnp.flip(x[:, 1:] @ w, 1)[:, :16],
        lambda x, w: jnp.einsum("bsd,btd->bst", x[:, 2:], x[:, :-2])[:, :-2] @ x[:, 2:],
        lambda x, w: jnp.transpose(x[:, 1:], (0, 2, 1))[:, :, ::2] * 2,
    ]
    typed = sh.array(x, "[4,32@x,3]"), sh.array(w, "[3,5]")
    for f in programs:
        for g in (f, jax.grad(lambda *xs, f=f: jnp.sum(jnp.sin(f(*xs))))):
            assert_close(host(jax.jit(across(g))(*typed)), jax.jit(g)(x, w), SERIES)


def test_a_product_behind_the_last_move_is_in_no_group() -> None:
    def pooled(x: Any, w: Any) -> Any:
        return jnp.tanh(x[:, 0] @ w + 1)

    def of_parts(x: Any, w: Any) -> Any:
        return jnp.einsum("bc,bcd->bcd", jnp.split(x, [20], 1)[0], w[:, :20])

    rows = jax.make_jaxpr(pooled)(f32(4, 32, 3), f32(3, 5)).jaxpr
    assert [eqn.primitive.name for eqn in grouped(rows).eqns][-3:] == ["dot_general", "add", "tanh"]
    parts = jax.make_jaxpr(of_parts)(f32(4, 32), f32(4, 32, 5)).jaxpr
    assert any(eqn.primitive.name == "dot_general" for eqn in grouped(parts).eqns)


@pytest.mark.mesh({"x": 8})
def test_a_way_is_evaluated_once_for_equal_equations_under_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run = [], evaluated.Evaluation.run

    def counting(*args: Any) -> Any:
        runs.append(args)
        return run(*args)

    monkeypatch.setattr(evaluated.Evaluation, "run", counting)

    def loss(x: Any) -> Any:
        return jnp.tanh(jnp.diff(x, append=7.0)).sum()

    def counted(f: Callable[..., Any]) -> int:
        runs.clear()
        assert sh.ledger(across(f), sh.abstract_array("f32[72@x]")).bytes
        return len(runs)

    assert counted(loss) > 0
    assert counted(lambda x: loss(x) + 1) == 0
    with jax.default_matmul_precision("highest"):
        assert counted(lambda x: loss(x) + 2) > 0
    assert counted(jax.grad(loss)) > 0
    assert counted(jax.grad(lambda x: loss(x) + 3)) == 0


def test_the_key_of_an_operand_with_notes_has_its_type() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 8})), noting():
        values = [sh.abstract_array(t) for t in ("f32[64@x,8]", "f32[64,8@x]", "f32[64@x,8]")]
        for x in values[:2]:
            note(x, WIDENED, np.dtype(jnp.bfloat16))
        assert len(set(map(operand_key, values))) == 3


@pytest.mark.mesh({"x": 8})
def test_nothing_is_computed_of_what_a_join_has_no_elements_of() -> None:
    """Pads by a mean compute one for the dims that they do not pad, too."""

    def f(x: Any) -> Any:
        return jnp.pad(x, ((8, 8), (0, 0)), "mean")

    assert sh.ledger(across(f), sh.abstract_array("f32[64@x,3]")).total.bytes == 21 + 6 * 3 * 4
