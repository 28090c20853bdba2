"""Lookups of plain programs whose positions count along a sharded dim: that dim is a batch dim, and nothing moves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.denotation import denoted
from tests.tolerance import assert_close

ROWS = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
LABELS = np.asarray([3, 7, 0, -1], np.int32)


def _of_labels(x: Any, labels: Any) -> Any:
    return x[jnp.arange(4), labels]


def _of_numpy_labels(x: Any, labels: Any) -> Any:
    return x[np.arange(4), labels]


def _along(x: Any, labels: Any) -> Any:
    return jnp.take_along_axis(x, labels[:, None], axis=1)[:, 0]


def _mapped(x: Any, labels: Any) -> Any:
    return jax.vmap(lambda row, label: row[label])(x, labels)


def _cross_entropy(x: Any, labels: Any) -> Any:
    return jax.nn.logsumexp(jax.lax.stop_gradient(x) * 0, axis=1) - _of_labels(x, labels)


def _put(x: Any, labels: Any) -> Any:
    return jnp.put_along_axis(x, labels[:, None], 2.0, 1, inplace=False)


def _added(x: Any, labels: Any) -> Any:
    return x.at[jnp.arange(4), labels].add(jnp.sin(x[:, 1]))


def _one_hot(x: Any, labels: Any) -> Any:
    return jnp.zeros((4, 8)).at[jnp.arange(4), labels].set(x[:, 2])


@pytest.mark.one_in(23)
@pytest.mark.parametrize(
    ("f", "given", "type_of_labels", "made"),
    [
        (_of_labels, "f32[4@x, 8]", "i32[4@x]", "f32[4@x]"),
        (_of_labels, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_of_labels, "f32[4@x, 8]{I:y}", "i32[4]", "f32[4@x]{I:y}"),
        (_of_labels, "f32[4, 8]", "i32[4@x]", "f32[4@x]"),
        (_of_numpy_labels, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_along, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_mapped, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x]{U:y}"),
        (_cross_entropy, "f32[4@x, 8]", "i32[4@x]", "f32[4@x]"),
        (_put, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
        (_put, "f32[4@x, 8@y]", "i32[4@x]", "f32[4@x,8@y]"),
        (_added, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
        (_one_hot, "f32[4@x, 8]", "i32[4@x]", "f32[4@x,8]"),
    ],
)
@pytest.mark.parametrize("jitted", [False, True])
def test_positions_that_count_run_together_with_a_sharded_dim(
    f: Callable[..., Any], given: str, type_of_labels: str, made: str, jitted: bool
) -> None:
    weights = np.arange(1, 9, dtype=np.float32)

    def loss(x: Any, labels: Any) -> Any:
        return jnp.sum(f(x, labels) ** 2 * weights[: f(x, labels).shape[-1]])

    wanted = jax.jit(f)(ROWS, LABELS)
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        x, labels = sh.array(ROWS, given), sh.array(LABELS, type_of_labels)
        run = sh.jit(sh.lift(f)) if jitted else sh.lift(f)
        y = run(x, labels)
        assert str(y.type) == made
        np.testing.assert_allclose(denoted(y), wanted, rtol=1e-6)
        if jitted and "U" not in made:
            total = sh.jit(sh.grad(lambda x, labels: sh.all_reduce(sh.lift(loss)(x, labels))))
            assert_close(
                denoted(total(x, labels)), jax.jit(jax.grad(loss))(jnp.asarray(ROWS), jnp.asarray(LABELS)), 100
            )


def test_a_count_of_other_rows_stays_a_lookup() -> None:
    def shifted(x: Any, labels: Any) -> Any:
        return x[jnp.arange(4)[::-1], labels], x[jnp.arange(2), labels[:2]], x[jnp.arange(4) + 1, labels]

    wanted = shifted(jnp.asarray(ROWS), jnp.asarray(LABELS))
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        found = sh.lift(shifted)(sh.array(ROWS, "f32[4@x, 8]"), sh.array(LABELS, "i32[4]"))
        for y, right in zip(found, wanted, strict=True):
            assert "U:x" in str(y.type)
            np.testing.assert_allclose(denoted(y), right, rtol=1e-6)


def test_a_carry_that_counts_along_its_first_dim_does_not_count_along_its_second() -> None:
    def carried(x: Any, labels: Any) -> Any:
        rows = jnp.zeros((4, 4), int)
        rows, _ = jax.lax.scan(lambda rows, _: (jax.lax.broadcasted_iota(int, (4, 4), 0), None), rows, None, 2)
        return x[rows, labels[:, None] - jnp.arange(4)]

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        found = sh.lift(carried)(sh.array(ROWS, "f32[4@x, 8]"), sh.array(LABELS, "i32[4]"))
        np.testing.assert_array_equal(denoted(found), carried(jnp.asarray(ROWS), jnp.asarray(LABELS)))


def test_a_table_that_is_a_pending_sum_takes_terms_of_the_rows_of_each_device() -> None:
    def added(x: Any, labels: Any, y: Any) -> Any:
        return x.at[jnp.arange(4), labels].add(y)

    y = np.arange(4, dtype=np.float32)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        for labels, terms in (("i32[4@x]", "f32[4@x]"), ("i32[4]", "f32[4@x]"), ("i32[4]", "f32[4]{U:x}")):
            typed = sh.array(ROWS, "f32[4, 8]{U:x}"), sh.array(LABELS, labels), sh.array(y, terms)
            with sh.no_comm():
                table = sh.lift(added)(*typed)
            assert str(table.type) == "f32[4,8]{U:x}"
            np.testing.assert_allclose(denoted(table), added(jnp.asarray(ROWS), LABELS, y), rtol=1e-6)


#: Positions of which some fit nowhere. JAX reads `x[i]` at the nearest ones, and drops their cotangents.
FAR = np.asarray([40, -40, -1, 3, 16, -17, 15, 0], np.int32)
BESIDE = np.asarray([2, -9, 4, 1, 0, 3, 3, 5], np.int32)
WEIGHTS = 2.0 ** np.arange(8, dtype=np.float32)
TABLE = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)

BEYOND: dict[str, tuple[Callable[[Any, Any, Any], Any], list[str]]] = {
    "one": (lambda x, i, j: x[i[0], 1] + 2 * x[i[1], 2], ["[16@tp,4]", "[16@(dp,tp),4]"]),
    "rows": (lambda x, i, j: jnp.sum(x[i] * WEIGHTS[:, None]), ["[16@tp,4]", "[16@dp,4@tp]"]),
    "columns": (lambda x, i, j: jnp.sum(x[:, j] * WEIGHTS), ["[16@dp,4@tp]"]),
    "both": (lambda x, i, j: jnp.sum(x[i, j] * WEIGHTS), ["[16@tp,4]", "[16,4@tp]", "[16@dp,4@tp]"]),
    "squares": (lambda x, i, j: jnp.sum(x[i] ** 2 * WEIGHTS[:, None]), ["[16@tp,4]"]),
    "mapped": (lambda x, i, j: jnp.sum(jax.vmap(lambda r: r[j] * WEIGHTS)(x)), ["[16@dp,4@tp]"]),
    "unsigned": (lambda x, i, j: jnp.sum(x[i.astype("u4")] * WEIGHTS[:, None]), ["[16@tp,4]"]),
    "clip": (lambda x, i, j: jnp.sum(x.at[i].get(mode="clip") * WEIGHTS[:, None]), ["[16@tp,4]"]),
    "fill": (lambda x, i, j: jnp.sum(x.at[i].get(mode="fill", fill_value=2.0) * WEIGHTS[:, None]), ["[16@tp,4]"]),
}


@pytest.mark.one_in(29)
@pytest.mark.mesh({"dp": 2, "tp": 4})
@pytest.mark.parametrize("ids", ["closed over", "[8]", "[8@dp]", "[8@tp]"])
@pytest.mark.parametrize(("form", "t"), [(form, t) for form, (_, types) in BEYOND.items() for t in types])
def test_positions_that_fit_nowhere_have_the_derivatives_that_jax_gives_them(form: str, t: str, ids: str) -> None:
    """The element that is read in their place got their cotangents where its dim is sharded."""
    f = BEYOND[form][0]
    x, v = sh.array(TABLE, t), np.ones_like(TABLE)
    if ids == "closed over":
        loss: Any = sh.implicit_comm(sh.lift(lambda x: f(x, jnp.asarray(FAR), jnp.asarray(BESIDE))))
    else:
        i, j = sh.array(FAR, ids), sh.array(BESIDE, ids)
        loss = lambda x: sh.implicit_comm(sh.lift(f))(x, i, j)  # noqa: E731
    plain = lambda x: f(x, jnp.asarray(FAR), jnp.asarray(BESIDE))  # noqa: E731

    def derivatives(grad: Any, loss: Any, x: Any, v: Any) -> Any:
        slope = grad(loss)
        return slope(x), jax.jvp(loss, (x,), (v,))[1], jax.jvp(slope, (x,), (v,))[1]

    inside = sh.implicit_comm(sh.lift(jax.grad(plain)))(x)  # of a sum, a plain array
    found = sh.jit(functools.partial(derivatives, sh.grad, loss))(x, sh.array(v, t))
    expected = jax.jit(functools.partial(derivatives, jax.grad, plain))(TABLE, v)
    for y, right in zip((inside, *found), (expected[0], *expected), strict=True):
        assert_close(denoted(y) if isinstance(y, sh.Array) else y, right, 64)


@pytest.mark.one_in(4)
@pytest.mark.mesh({"dp": 2, "tp": 4})
@pytest.mark.parametrize("start", [np.int32(40), np.int32(-40), np.uint8(3), np.int8(-2)])
def test_a_slice_that_starts_somewhere_looks_up_its_positions_and_sends_nothing(start: Any) -> None:
    """It starts at the nearest position at which it fits."""

    def f(x: Any, i: Any) -> Any:
        return jax.lax.dynamic_slice(x, (i, jnp.ones_like(i)), (3, 2))

    x, i, run = sh.array(TABLE, "[16@dp,4@tp]"), sh.array(start, "[]"), sh.implicit_comm(sh.lift(f))
    assert not sh.ledger(run, x, i)
    value, slope = sh.jit(sh.value_and_grad(lambda x: sh.sum(sh.all_reduce(run(x, i)) ** 2)))(x)
    expected = jax.jit(jax.value_and_grad(lambda x: jnp.sum(f(x, start) ** 2)))(TABLE)
    assert_close(denoted(value), expected[0])
    assert_close(denoted(slope), expected[1])


@pytest.mark.mesh({"x": 8})
def test_what_a_loop_looks_up_is_gathered_once_where_that_sends_less_forward_and_as_much_in_all() -> None:
    x, each = (
        sh.abstract_array("f32[64@x,3]"),
        sh.implicit_comm(sh.lift(lambda x: jax.lax.map(lambda i: jnp.sin(x[i]), np.arange(64)))),
    )
    assert [(e.kind, e.bytes) for e in sh.ledger(each, x)] == [("all-gather", 7 * 8 * 3 * 4)]


@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_one_index_of_few_bits_on_each_device_has_its_gradient_and_its_update(dtype: Any) -> None:
    """XLA loses the update of a scatter by one index that has fewer bits than the size of the dim."""
    places = np.array([0, 1, 127, 5, 5, 6, 7, 8], dtype)
    x, ids, ones = sh.array(np.zeros(300, "f"), "[300]"), sh.array(places, "[8@x]"), sh.array(np.ones(8, "f"), "[8@x]")
    expected = np.bincount(places, minlength=300)
    slope = sh.grad(lambda x: sh.sum(sh.lift(functools.partial(jnp.take, mode="clip"))(x, ids)))
    numbers = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
    added = sh.lift(lambda x, ids, y: jax.lax.scatter_add(x, ids[:, None], y, numbers))
    for y in (sh.jit(slope)(x), sh.jit(lambda x: sh.implicit_comm(added)(x, ids, ones))(x)):
        assert_close(denoted(y), expected)


@pytest.mark.mesh({"x": 8})
def test_a_place_of_a_sort_beyond_all_signed_numbers_is_the_last() -> None:
    x = np.random.default_rng(0).permutation(4096).astype(np.float32)
    place = sh.implicit_comm(sh.lift(lambda x, at: jax.lax.dynamic_slice(jnp.sort(x), [at], [1])))
    for at, right in ((2**31, 4095), (3, 3), (2**32 - 1, 4095)):
        y = place(sh.array(x, "[4096@x]"), sh.array(np.uint32(at), "[]"))
        assert_close(denoted(y), np.array([right], np.float32))
