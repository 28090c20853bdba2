"""Lookups by integers against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host, sampled, some
from tests.tolerance import assert_close

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ids(*shape: int) -> Any:
    """Positions of dims of size 8, many of them out of range."""
    return rng.integers(-14, 15, shape).astype(np.int32)


def inside(*shape: int) -> Any:
    return rng.integers(0, 8, shape).astype(np.int32)


def _embedding(m: Any, table: Any, i: Any) -> Any:
    return m.embedding(table, i) if m is sh else table[i]


def _segment_sum(m: Any, x: Any, i: Any) -> Any:
    return m.segment_sum(x, i, 8) if m is sh else jax.ops.segment_sum(x.reshape(-1, 4), i.ravel(), 8)


LOOKUPS: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("take", lambda m, x, i: m.take(x, i, axis=0), (arr(8, 4), ids(4))),
    ("take of columns", lambda m, x, i: m.take(x, i, 1), (arr(4, 8), ids(4, 2))),
    ("take of all", lambda m, x, i: m.take(x, i, mode="clip"), (arr(2, 4), ids(4))),
    ("take clip", lambda m, x, i: m.take(x, i, 0, mode="clip"), (arr(8, 4), inside(4))),
    ("take wrap", lambda m, x, i: m.take(x, i, 0, mode="wrap"), (arr(8, 4), ids(8))),
    ("take fill value", lambda m, x, i: m.take(x, i, 0, fill_value=2.0), (arr(8, 4), ids(8))),
    ("take of integers", lambda m, x, i: m.take(x, i, 0), (ids(8, 4), ids(4))),
    ("embedding", _embedding, (arr(8, 4), inside(4, 2))),
    ("along", lambda m, x, i: m.take_along_axis(x, i, 1), (arr(4, 8), ids(4, 2))),
    ("along stretched positions", lambda m, x, i: m.take_along_axis(x, i, 0), (arr(8, 4), ids(4, 1))),
    ("along a stretched operand", lambda m, x, i: m.take_along_axis(x, i, -1), (arr(1, 8), ids(4, 4))),
    ("along clip", lambda m, x, i: m.take_along_axis(x, i, 1, mode="clip"), (arr(4, 8), inside(4, 2))),
    ("segment_sum", _segment_sum, (arr(4, 4), ids(4))),
    ("segment_sum of two dims", _segment_sum, (arr(2, 4, 4), ids(2, 4))),
    ("one_hot", lambda m, i: m.one_hot(i, 8), (ids(4),)),
    ("one_hot in front", lambda m, i: m.one_hot(i, 8, axis=0, dtype=np.int32), (ids(4, 2),)),
]


@pytest.mark.one_in(28)
@pytest.mark.parametrize("start", range(0, len(LOOKUPS), 8))
def test_lookups_and_their_gradients_are_those_of_one_device(start: int) -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    chosen = LOOKUPS[start : start + 8]
    check(mesh, [c for name, fn, xs in chosen for c in sampled(mesh, fn, *xs, id=name, count=some(3, 12))])


def test_a_sharded_vocabulary_is_looked_up_without_communication() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    tokens, table = rng.integers(0, 16, (4, 8)).astype(np.int32), arr(16, 4)
    types = ("f32[vocab=16@tp, 4]", "i32[batch=4@dp, 8]")
    case = Case(_embedding, (table, tokens), types, out="f32[4@dp,8,4]{U:tp}")
    check(mesh, [case])
    check(mesh, [case], eager=True)
    sh.set_mesh(mesh)
    jaxpr = jax.make_jaxpr(sh.embedding)(sh.array(table, types[0]), sh.array(tokens, types[1]))
    assert "reshard" not in str(jaxpr)
    assert "cast" not in str(jaxpr)


def test_labels_are_found_in_a_sharded_vocabulary() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    check(mesh, [
        Case(
            lambda m, x, i: m.take_along_axis(x, i[:, None], 1),
            (arr(4, 16), rng.integers(0, 16, 4).astype(np.int32)),
            ("f32[4@dp,16@tp]", "i32[4@dp]"),
            out="f32[4@dp,1]{U:tp}",
        )
    ])  # fmt: skip


def test_classes_are_sharded_by_their_global_number() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    plain = rng.integers(-2, 10, 4).astype(np.int32)
    hot = jax.jit(lambda i: sh.one_hot(i, 8, over="y"))(sh.array(plain, "i32[4@x]"))
    assert hot.type == sh.ShType.parse("f32[4@x,8@y]", hot.type.mesh)
    np.testing.assert_array_equal(host(hot), jax.nn.one_hot(plain, 8))
    small = sh.one_hot(np.array([1, 200], np.uint8), 8, over=("x", "y"))
    np.testing.assert_array_equal(host(small), jax.nn.one_hot(np.array([1, 200]), 8))
    with pytest.raises(sh.ShardingTypeError, match="cannot shard the classes on mesh axis `x`"):
        sh.one_hot(sh.array(plain, "i32[4@x]"), 8, over="x")


def test_segments_are_sharded_where_every_device_has_all_rows() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    rows, numbers = arr(6, 4), rng.integers(-2, 10, 6).astype(np.int32)
    f = lambda x, i: sh.segment_sum(x, i, 8, over="y")  # noqa: E731
    x, i = sh.array(rows, "f32[6,4@x]"), sh.array(numbers, "i32[6]")
    out, pull = jax.vjp(lambda x: f(x, i), x)  # type: ignore[no-untyped-call]
    assert out.type == sh.ShType.parse("f32[8@y,4@x]", out.type.mesh)
    assert_close(host(out), jax.ops.segment_sum(rows, numbers, 8))
    (gradient,) = pull(out)
    assert gradient.type == x.type.cotangent()
    _, wanted_pull = jax.vjp(lambda x: jax.ops.segment_sum(x, numbers, 8), rows)
    (wanted,) = wanted_pull(jnp.asarray(host(out)))
    assert_close(host(gradient), wanted)
    with pytest.raises(sh.ShardingTypeError, match="cannot shard the segments"):
        sh.segment_sum(sh.array(rows, "f32[6@x,4]"), i, 8, over="x")


def test_lookups_map() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    plain, where = arr(8, 4), inside(3, 2)
    table = sh.array(plain, "f32[8@x,4]")
    rows = sh.vmap(lambda i: sh.take(table, i, 0))(sh.array(where, "i32[3,2]"))
    np.testing.assert_array_equal(host(rows), plain[where])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: sh.take(x, 1.5, 0), "`take` does not take `axis=0`"),
        (lambda x: sh.take(x, np.array([1]), 0, mode="nearest"), "`take` does not take these arguments"),
        (lambda x: sh.take_along_axis(x, np.array([1]), 0), "`take_along_axis` does not take these arguments"),
        (lambda x: sh.segment_sum(x, [1, 2], 4), "`segment_sum` needs a number for each row"),
    ],
)  # fmt: skip
def test_lookups_that_do_not_fit_say_why(call: Callable[[Any], Any], what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    with pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(8, 4), "f32[8@x,4]"))
    assert info.value.what.startswith(what)
