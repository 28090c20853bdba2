"""Lookups by integers against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host
from tests.tolerance import assert_close

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def inside(*shape: int) -> Any:
    return rng.integers(0, 8, shape).astype(np.int32)


def _embedding(m: Any, table: Any, i: Any) -> Any:
    return m.embedding(table, i) if m is sh else table[i]


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
