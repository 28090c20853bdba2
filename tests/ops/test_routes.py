"""Lookups and sums by segment with a stated capacity: rows by all-to-alls, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said

rng = np.random.default_rng(0)
TABLE = rng.normal(size=(32, 4)).astype(np.float32)
TABLE[3] = -0.0
IDS = rng.integers(-3, 36, size=(8, 16)).astype(np.int32)
LINE, PLANE = {"x": 8}, {"x": 4, "y": 2}
LAYOUTS = [
    (LINE, "[32@x,4]", "[8@x,16]"),
    (LINE, "[32@x,4]", "[8,16@x]"),
    (PLANE, "[32@x,4]{I:y}", "[8@y,16@x]"),
    (PLANE, "[32@x,4@y]", "[8@x,16]"),
    (PLANE, "[32@(x,y),4]", "[8@(x,y),16]"),
]


def _kept(ids: Any, capacity: int) -> Any:
    """Which ids of a device are among the first so many of those that another has."""
    owners = np.clip(ids, 0, 31) // 4
    before = np.array([np.sum(owners[:i] == owner) for i, owner in enumerate(owners)])
    return before < capacity


def _as_said(f: Callable[..., Any], differentiated: Any, other: Any) -> tuple[Any, Any]:
    """The values of a function, and the gradient of the sum of their sines, which send what the ledger says."""

    def both(x: Any, ids: Any) -> Any:
        return f(x, ids), sh.grad(lambda x: sh.sum(sh.sin(f(x, ids))))(x)

    assert_compiled_as_said(both, differentiated, other, jits=[jax.jit])
    y, gradient = jax.block_until_ready(jax.jit(both)(differentiated, other))
    return host(y), host(gradient)


@pytest.mark.one_in(63)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize(("mesh", "table", "ids"), LAYOUTS, ids=[f"{t} {i}" for _, t, i in LAYOUTS])
@pytest.mark.parametrize("capacity", [1, 3, 16, 1000])
def test_a_lookup_has_the_rows_or_the_fill(mesh: Any, table: str, ids: str, capacity: int, policy: Any) -> None:
    with sh.policy(policy), sh.use_mesh(sh.make_mesh(mesh)):
        y, gradient = _as_said(
            lambda x, i: sh.embedding(x, i, capacity=capacity, fill_value=7), sh.array(TABLE, table), sh.array(IDS, ids)
        )
    rows = TABLE[np.clip(IDS, 0, 31)]
    filled = (y == 7).all(-1)
    np.testing.assert_array_equal(y[~filled], rows[~filled])
    np.testing.assert_array_equal(np.signbit(y[~filled]), np.signbit(rows[~filled]))
    assert filled.any() == (capacity < 16)

    def one(x: Any) -> Any:
        return jnp.sum(jnp.where(filled[..., None], 0, jnp.sin(x[np.clip(IDS, 0, 31)])))

    assert_close(gradient, jax.jit(jax.grad(one))(TABLE), SERIES)


@pytest.mark.mesh(LINE)
def test_the_first_ids_are_those_that_are_looked_up() -> None:
    y = host(sh.embedding(sh.array(TABLE, "[32@x,4]"), sh.array(IDS, "[8@x,16]"), capacity=2))
    np.testing.assert_array_equal(~np.isnan(y).all(-1), [_kept(ids, 2) for ids in IDS])


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("mode", [None, "clip"])
@pytest.mark.parametrize("capacity", [1, 2, 64])
@pytest.mark.parametrize(
    ("mesh", "rows", "ids", "over"),
    [
        (LINE, "[64@x,4]", "[64@x]", "x"),
        (PLANE, "[64@x,4@y]", "[64@x]", "x"),
        (PLANE, "[64@(x,y),4]", "[64@(x,y)]", ("x", "y")),
        (PLANE, "[64@x,4]{U:y}", "[64@x]", "x"),
    ],
)
def test_segments_have_the_sums_of_the_rows_that_were_sent(
    mesh: Any, rows: str, ids: str, over: Any, capacity: int, mode: Any, policy: Any
) -> None:
    data, numbers = rng.normal(size=(64, 4)).astype(np.float32), rng.integers(-2, 20, size=64).astype(np.int32)

    def f(data: Any, numbers: Any) -> Any:
        y = sh.segment_sum(data, numbers, 16, over=over, capacity=capacity, mode=mode)
        return sh.all_reduce(y) if "U" in rows else y

    with sh.policy(policy), sh.use_mesh(sh.make_mesh(mesh)):
        typed = sh.array(numbers, ids)
        y, gradient = _as_said(f, sh.array(data, rows), typed)
        places = sh.array(np.eye(64, dtype=np.float32), ids[:-1] + ",64]")  # which rows were sent
        sent = host(sh.segment_sum(places, typed, 16, over=over, capacity=capacity, mode=mode)).sum(0)[:, None]
    if capacity == 64:
        assert sent.sum() == (64 if mode else np.sum((numbers >= 0) & (numbers < 16)))
    else:
        assert 0 < sent.sum() < 64

    def one(data: Any) -> Any:
        return jax.ops.segment_sum(data * sent, numbers, 16, mode=mode)

    assert_close(y, one(data), SERIES)
    assert_close(gradient, jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(one(x)))))(data), SERIES)


@pytest.mark.mesh(LINE)
def test_a_change_may_communicate_where_its_type_is_asked_for() -> None:
    x, ids, rows = np.zeros((32, 4), np.float32), IDS[0], rng.normal(size=(16, 4)).astype(np.float32)
    args = sh.array(x, "[32@x,4]"), sh.array(ids, "[16@x]"), sh.array(rows, "[16@x,4]")
    with pytest.raises(sh.ShardingTypeError, match="two different dims sharded"):
        args[0].at[args[1]].add(args[2])
    y = args[0].at[args[1]].add(args[2], out="[32@x,4]")
    assert_close(host(y), jnp.asarray(x).at[ids].add(rows), SERIES)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "replicated ids": (lambda t, i: sh.embedding(t, sh.reshard(i, "[8,16]"), capacity=3), "sharded as what they"),
    "no capacity": (lambda t, i: sh.embedding(t, i, capacity=0), "must be a positive integer, not 0"),
    "pending sum": (lambda t, i: sh.embedding(sh.reshard(t, "[32@x,4]{U:y}"), i, capacity=2), "takes no pending sum"),
    "two dims": (
        lambda t, i: sh.embedding(sh.reshard(t, "[32@x,4@y]"), sh.reshard(i, "[8@x,16@y]"), capacity=2),
        "would shard two dims over 'y'",
    ),
    "odd size": (lambda t, i: sh.segment_sum(i, i, 15, over="x", capacity=2), "size 15 cannot be sharded"),
    "rows elsewhere": (lambda t, i: sh.segment_sum(t, i[:, 0], 16, over="x", capacity=2), "rows that are sharded as"),
    "no axis": (lambda t, i: sh.segment_sum(i, i, 16, capacity=2), "sharded as what they number"),
}


@pytest.mark.mesh(PLANE)
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_routes_is_refused(name: str) -> None:
    f, what = REFUSED[name]
    with pytest.raises(sh.ShardingTypeError, match=what):
        f(sh.array(TABLE, "[32@x,4]"), sh.array(IDS, "[8@x,16]"))
