"""``out=``: the result of an op in the type that is asked for, with the reshard that it needs and no other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

X = np.arange(32, dtype=np.float32).reshape(8, 4)

CASES: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "reshape": (lambda x, **out: sh.reshape(x, (4, 8), **out), X.reshape(4, 8), "[4,8@x]"),
    "reshape method": (lambda x, **out: x.reshape(4, 8, **out), X.reshape(4, 8), "[4,8@x]"),
    "ravel": (sh.ravel, X.ravel(), "[32]"),
    "broadcast_to": (lambda x, **out: sh.broadcast_to(x, (2, 8, 4), **out), np.broadcast_to(X, (2, 8, 4)), "[2@x,8,4]"),
    "broadcast": (lambda x, **out: sh.broadcast(x, (2,), **out), np.broadcast_to(X, (2, 8, 4)), "[2@x,8,4]"),
    "broadcast_in_dim": (
        lambda x, **out: sh.broadcast_in_dim(x, (2, 8, 4), (1, 2), **out), np.broadcast_to(X, (2, 8, 4)), "[2,8,4]"
    ),
    "repeat": (lambda x, **out: sh.repeat(x, 2, 1, **out), np.repeat(X, 2, 1), "[8,8@x]"),
    "reduce_sum": (lambda x, **out: sh.reduce_sum(x, (0,), **out), X.sum(0), "[4@x]"),
    "reduce_max": (lambda x, **out: sh.reduce_max(x, (0,), **out), X.max(0), "[4@x]"),
    "reduce_min": (lambda x, **out: sh.reduce_min(x, (0,), **out), X.min(0), "[4]"),
    "reduce_prod": (lambda x, **out: sh.reduce_prod(x, (0,), **out), X.prod(0), "[4@x]"),
    "reduce_and": (lambda x, **out: sh.reduce_and(x > 3, (0,), **out), (X > 3).all(0), "[4]"),
    "reduce_or": (lambda x, **out: sh.reduce_or(x > 3, (0,), **out), (X > 3).any(0), "[4]"),
}  # fmt: skip


pytestmark = pytest.mark.mesh({"x": 2})


@pytest.mark.parametrize("jit", [lambda f: f, sh.jit], ids=["eager", "jit"])
def test_the_result_has_the_type_that_is_asked_for(jit: Any) -> None:
    found = jit(lambda x: {name: f(x, out=out) for name, (f, _, out) in CASES.items()})(sh.array(X, "f32[8@x,4]"))
    for name, (_, wanted, out) in CASES.items():
        assert found[name].type == f"{found[name].type.dtype_name}{out}", name
        assert_close(host(found[name]), wanted, what=name)


def test_a_cast_of_a_pending_sum_says_what_there_is() -> None:
    x = sh.array(X, "f32[8,4]{U:x}")
    with pytest.raises(sh.ShardingTypeError) as caught:
        x.astype("bf16")
    assert caught.value.hints == ("reduce first, then cast", 'x.astype("bf16", narrow=True) rounds each term')
    np.testing.assert_array_equal(host(x.astype("bf16", narrow=True)), X.astype(jnp.bfloat16))


def test_a_fix_that_sends_nothing_says_what_each_device_holds() -> None:
    dims = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.ragged_dot_general(
            sh.array(X, "[8@x,4]"), sh.zeros("f32[2,4,4]"), sh.array(np.array([3, 5], np.int32)), dims
        )
    fixes = [str(fix) for fix in caught.value.fixes]
    assert 'sh.reshard(lhs, "[8,4]{U:x}")   [free, but each device holds all of it]' in fixes


@pytest.mark.mesh({"x": 8})
def test_out_takes_the_way_that_sends_least_until_there() -> None:
    x, y = sh.abstract_array("i32[1024@x]"), sh.abstract_array("c64[64@x,64]")
    kinds = {
        "[1024@x]": {"all-to-all", "permute"},  # by columns and borders
        "[1024]": {"all-gather"},  # which is sorted by each device
    }
    for out, sent in kinds.items():
        assert {e.kind for e in sh.ledger(lambda x, out=out: sh.sort(x, out=out), x)} == sent
    for out, times in {"[64@x,64]": 2, "[64,64@x]": 1}.items():  # the spectrum is left transposed
        ledger = sh.ledger(lambda x, out=out: sh.fft.fft2(x, out=out), y)
        assert [(e.kind, e.bytes) for e in ledger] == [("all-to-all", 3584)] * times


#: Moves along dim 0, and what each sends to a result that no axis shards, and to one that an axis shards.
ALL_OR_SHARES: dict[str, tuple[Callable[..., Any], int, dict[str, int]]] = {
    "roll": (lambda m, x, **out: m.roll(x, 1, 0, **out), 1, {"[_@x,_]": 32, "[_,_@x]": 120}),
    "flip": (lambda m, x, **out: m.flip(x, 0, **out), 1, {"[_@x,_]": 128, "[_,_@x]": 96}),
    "repeat": (lambda m, x, **out: m.repeat(x, 2, 0, **out), 1, {"[_@x,_]": 0}),
    "tile": (lambda m, x, **out: m.tile(x, (2, 1), **out), 1, {"[_,_@x]": 96}),
    "cumsum": (lambda m, x, **out: m.cumsum(x, 0, **out), 1, {"[_@x,_]": 96}),
    "split": (lambda m, x, **out: m.split(x, 2, **out), 2, {"[_@x,_]": 128, "[_,_@x]": 96}),
}


def total(m: Any, f: Callable[..., Any], x: Any) -> Any:
    return functools.reduce(m.add, [m.sum(m.sin(y)) for y in jax.tree.leaves(f(x))])


@pytest.mark.one_in(3)
@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize("name", ALL_OR_SHARES)
def test_a_result_that_no_axis_shards_is_of_operands_that_are_gathered_once(name: str) -> None:
    f, count, others = ALL_OR_SHARES[name]
    value = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    x = sh.array(value, "[16@x,8]")
    for out, sent in {"[_,_]": 12 * 8 * 4, **others}.items():
        asked = functools.partial(f, sh, out=out if count == 1 else (out,) * count)
        assert sh.ledger(asked, x).total.bytes == sent, out
        for found, plain in zip(jax.tree.leaves(sh.jit(asked)(x)), jax.tree.leaves(f(jnp, value)), strict=True):
            assert_close(host(found), plain)
        loss, plain_loss = (functools.partial(total, m, g) for m, g in ((sh, asked), (jnp, functools.partial(f, jnp))))
        gradient = jax.grad(plain_loss)(value)
        assert_close(host(sh.jit(sh.grad(loss))(x)), gradient)


#: Calls on the rows of `f32[8@dp,64@tp]` and lines of `f32[64@...]`: what is gathered first, over which axes.
GATHERED_FIRST: dict[str, tuple[Callable[..., Any], Sequence[str], int]] = {
    "sorted, equal gradients": (
        lambda x: sh.sort(x, 1, out="[_,_]{I:(dp,tp)}"),
        ("f32[8@dp,64@tp]",),
        7 * 64 * 4,
    ),
    "running sums, equal gradients": (
        lambda x: sh.cumsum(x, 1, out="[_,_]{I:(dp,tp)}"),
        ("f32[8@dp,64@tp]",),
        7 * 64 * 4,
    ),
    "places, which have no gradients": (lambda x: sh.argsort(x, 1, out="[_,_]"), ("f32[8@dp,64@tp]",), 7 * 64 * 4),
    "over axes that shard no result": (
        lambda *a: sh.interp(*a, out="[_@dp]"),
        ("f32[64@dp]", "f32[64@tp]", "f32[64@tp]"),
        2 * 3 * 16 * 4,
    ),
    "over all, for a result on another": (
        lambda *a: sh.interp(*a, out="[_@tp]"),
        ("f32[64@dp]", "f32[64@tp]", "f32[64@tp]"),
        32 * 4 + 2 * 3 * 16 * 4,
    ),
    "what is searched": (
        lambda a, v: sh.searchsorted(a, v, out="[_@tp]"),
        ("f32[64@(dp,tp)]", "f32[64@tp]"),
        7 * 8 * 4,
    ),
    "an operand that is given twice": (lambda x: sh.stack([x, x], out="[_,_]"), ("f32[64@tp]",), 3 * 16 * 4),
    "a matrix with both dims sharded": (
        lambda x: sh.linalg.cholesky(x, out="[_@dp,_@tp]"),
        ("f32[64@dp,64@tp]",),
        7 * 8 * 64 * 4,
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", GATHERED_FIRST)
def test_operands_are_gathered_first_where_that_sends_least(name: str) -> None:
    f, types, sent = GATHERED_FIRST[name]
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        assert sh.ledger(f, *map(sh.abstract_array, types)).total.bytes == sent


@pytest.mark.mesh({"x": 4})
@pytest.mark.parametrize("name", ALL_OR_SHARES)
def test_an_axis_may_shard_a_result_by_the_name_of_its_dim(name: str) -> None:
    f, count, _ = ALL_OR_SHARES[name]
    x = sh.abstract_array("f32[16@x,8]")
    with sh.dim_axes({"rows": "x"}):
        by_name, by_axis = (
            sh.ledger(functools.partial(f, sh, out=out if count == 1 else (out,) * count), x)
            for out in ("[rows,_]", "[_@x,_]")
        )
    assert [(e.kind, e.bytes) for e in by_name] == [(e.kind, e.bytes) for e in by_axis]


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
def test_a_fix_of_a_call_with_a_loop_has_the_price_of_all_its_steps() -> None:
    x = sh.abstract_array("f32[4096@x]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.median(x)
    fix = next(fix for fix in caught.value.fixes if "out=" in fix.code)
    assert fix.forward == "2 times all-gather over `x` and 34 times all-reduce over `x`"
    assert fix.bytes_forward == sh.ledger(lambda x: sh.median(x, out="[]{U:x}"), x).total.bytes


@pytest.mark.mesh({"x": 8})
def test_elementwise_functions_of_shtypes_move_with_their_operands_in_plain_programs() -> None:
    x = sh.abstract_array("f32[16@x]")
    assert {e.kind for e in sh.ledger(lambda x: sh.associative_scan(sh.add, x, out="[16@x]"), x)} == {"permute"}

    def products(m: Any, x: Any) -> Any:
        return jnp.pad(m.multiply(x[1:], m.sin(x[:-1])), (1, 0))

    lifted = sh.implicit_comm(sh.lift(functools.partial(products, sh)))
    assert {e.kind for e in sh.ledger(lifted, x)} == {"permute"}
    value = np.linspace(0.5, 1.5, 16, dtype=np.float32)
    gradient = sh.jit(sh.grad(lambda x: sh.sum(lifted(x))))(sh.array(value, "[16@x]"))
    assert_close(host(gradient), jax.jit(jax.grad(lambda x: jnp.sum(products(jnp, x))))(value), what="gradient")


@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_call_sends_no_more_forward_than_where_it_gathers_first(policy: Any) -> None:
    x = sh.abstract_array("f32[16384@x]")
    with sh.policy(policy):
        assert sh.ledger(lambda x: sh.sort(x, out="[16384]"), x).forward().total.bytes == 7 * 2048 * 4


@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_number_that_fills_has_no_gradient_that_is_sent(policy: Any) -> None:
    x = sh.abstract_array("f32[8@y,4096@x]")
    with sh.policy(policy):
        ledger = sh.ledger(lambda x: sh.pad(x, ((0, 0), (4, 4)), out="[_@y,_@x]"), x)
    assert [(e.kind, e.axes, e.bytes) for e in ledger] == [("permute", ("x",), 2 * 4 * 4)]


MOVES: dict[str, tuple[Callable[..., Any], str, list[tuple[str, int]]]] = {
    "pad": (lambda x: sh.pad(x, ((4, 4), (1, 1)), out="[_@x,_@y]"), "f32[64@x,32@y]", [("x", 2 * 16 * 4)]),
    "roll": (lambda x: sh.roll(x, (130, -3), (0, 1), out="[_@x,_@y]"), "f32[640@x,80@y]", [("x", 20800), ("y", 1920)]),
}


@pytest.mark.one_in(3)
@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize(("move", "t", "sent"), MOVES.values(), ids=MOVES)
def test_a_move_along_two_sharded_dims_sends_the_borders_of_each(
    move: Any, t: str, sent: list[tuple[str, int]]
) -> None:
    ledger = sh.ledger(move, sh.abstract_array(t))
    assert [(e.kind, e.axes, e.bytes) for e in ledger] == [("permute", (axis,), n) for axis, n in sent]


@pytest.mark.mesh({"x": 8})
def test_out_has_a_type_for_each_result_or_one_for_all() -> None:
    x = sh.array(np.arange(64, dtype=np.float32), "[64@x]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.top_k(x, 3)
    assert 'sh.top_k(..., out=("[3]", "[3]"))' in [fix.code for fix in caught.value.fixes]
    for out in ('"[3]"', '("[3]", "[3]")'):
        values, places = eval(f"sh.top_k(x, 3, out={out})")
        np.testing.assert_array_equal(host(values), [63, 62, 61])
        np.testing.assert_array_equal(host(places), [63, 62, 61])
    with pytest.raises(sh.ShardingTypeError, match="`out=` has 3 types, and the call 2 results"):
        sh.top_k(x, 3, out=("[3]", "[3]", "[3]"))


CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...], set[str]]] = {
    "a function of functions": (
        lambda x: sh.associative_scan(sh.multiply, x, reverse=True),
        ("f32[8@x,4]",),
        {'sh.reshard(x, "[8,4@x]")', 'sh.reshard(x, "[8,4]")'},
    ),
    "operands by their parameters": (
        lambda q, k, v: sh.nn.dot_product_attention(q, k, v, is_causal=True),
        ("f32[1,8@x,2,4]",) * 3,
        {
            'sh.reshard(key, "[1,8,2,4]"); sh.reshard(value, "[1,8,2,4]")',
            'sh.reshard(query, "[1,8,2@x,4]"); sh.reshard(key, "[1,8,2@x,4]"); sh.reshard(value, "[1,8,2@x,4]")',
        },
    ),
    "elements of a list": (
        lambda *xs: sh.concatenate([*xs], axis=0),
        ("f32[8@x,4]", "f32[8,4]", "f32[8,4]"),
        {'sh.reshard(arrays[0], "[8,4]")'},
    ),
}


@pytest.mark.parametrize(("call", "types", "fixes"), CALLS.values(), ids=CALLS)
def test_a_refused_call_offers_types_for_its_own_operands(call: Any, types: Any, fixes: set[str]) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(*map(sh.abstract_array, types))
    assert {fix.code for fix in caught.value.fixes} >= fixes


def _resharded(goal: str, x: Any) -> Any:
    return sh.reshard(x, goal)


def test_a_fix_with_an_invariant_result_says_what_a_use_with_replicated_values_sends() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 4})):

        def loss(as_fixed: Callable[[Any], Any], a: Any, b: Any) -> Any:
            return sh.sum(sh.sort(as_fixed(a), axis=0) * b)

        with pytest.raises(sh.ShardingTypeError) as caught:
            sh.sort(sh.abstract_array("f32[8@x]"), axis=0)
        of_goals = {'sh.reshard(x, "[8]")': "[8]", 'sh.reshard(x, "[8]{I:x}")': "[8]{I:x}"}
        fixes = [f for f in caught.value.fixes if f.code in of_goals]
        assert [f.code for f in fixes] == [*of_goals]
        for fix, goal in zip(fixes, of_goals.values(), strict=True):
            step = sh.grad(functools.partial(loss, functools.partial(_resharded, goal)), argnums=(0, 1))
            assert sh.ledger(step, "f32[8@x]", "f32[8]").total.bytes == fix.bytes + fix.bytes_later


def test_an_operand_is_gathered_first_where_a_cast_of_another_sends_more_backward() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 2})):
        step = sh.value_and_grad(lambda x, b: sh.sum(sh.where(b, 1, x, out="[8,4]{I:x}")))
        book = sh.ledger(step, "f32[8,4]{I:x}", "f32[8,4@x]")
    assert [(e.direction, e.kind, e.bytes) for e in book] == [("forward", "all-gather", 64)]  # of the result: 128
