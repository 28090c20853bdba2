"""Loops and branches over typed values: JAX's own and ours, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests import small_models as p


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


COMPILED = pytest.mark.parametrize("compile_", [as_it_is, jax.jit], ids=["eager", "jit"])


def operands() -> tuple[Any, Any]:
    return p.stack(), sh.array(p.X, p.X_TYPE)


# scan


@pytest.mark.core
@COMPILED
def test_a_loop_computes_what_one_device_computes(compile_: Callable[..., Any]) -> None:
    ws, x = operands()
    out = compile_(p.looped)(ws, x)
    assert out.type == x.type
    p.assert_close(out, p.one_device(p.reference_looped, p.STACK, p.X))


@pytest.mark.core
@COMPILED
def test_a_loop_has_the_gradients_of_one_device(compile_: Callable[..., Any]) -> None:
    args = operands()
    grads = compile_(sh.grad(p.looped_loss, argnums=(0, 1)))(*args)
    p.assert_gradients(grads, args, p.expected_looped())


def test_jax_scan_takes_typed_values_as_they_are() -> None:
    args = operands()

    def loss(ws: Any, x: Any) -> Any:
        out = lax.scan(lambda x, w: (p.layer(x, w), None), x, ws, length=p.LAYERS)[0]
        return sh.sum(out * out)

    p.assert_gradients(jax.jit(sh.grad(loss, argnums=(0, 1)))(*args), args, p.expected_looped())
    p.assert_gradients(sh.grad(jax.jit(loss), argnums=(0, 1))(*args), args, p.expected_looped())


@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 3}, {"unroll": True}], ids=str)
def test_a_loop_runs_backwards_and_unrolled(options: dict[str, Any]) -> None:
    args = operands()
    reverse = options.get("reverse", False)
    wanted = p.one_device(jax.grad(lambda ws, x: p.reference_looped_loss(ws, x, reverse), (0, 1)), p.STACK, p.X)
    found = jax.jit(sh.grad(lambda ws, x: p.looped_loss(ws, x, **options), argnums=(0, 1)))(*args)
    p.assert_gradients(found, args, wanted)


@pytest.mark.one_in(5)
@COMPILED
def test_stacked_results_are_typed_and_differentiated(compile_: Callable[..., Any]) -> None:
    args = operands()

    def loss(ws: Any, x: Any) -> Any:
        ys = sh.scan(lambda x, w: ((y := p.layer(x, w)), y), x, ws)[1]
        assert ys.type == sh.ShType.parse("f32[3, 4@dp, 8]")
        return sh.sum(ys * ys)

    def reference(ws: Any, x: Any) -> Any:
        ys = lax.scan(lambda x, w: ((y := jax.nn.silu(x @ w)), y), x, ws)[1]
        return (ys * ys).sum()

    wanted = p.one_device(jax.grad(reference, (0, 1)), p.STACK, p.X)
    p.assert_gradients(compile_(sh.grad(loss, argnums=(0, 1)))(*args), args, wanted)


@pytest.mark.one_in(5)
@COMPILED
def test_values_from_outside_are_constants_of_the_loop(compile_: Callable[..., Any]) -> None:
    x = sh.array(p.X, p.X_TYPE)
    w = sh.array(p.STACK[0], "f32[8,8]")

    def loss(w: Any, x: Any) -> Any:
        return sh.sum(sh.scan(lambda x, _: (p.layer(x, w), None), x, None, length=p.LAYERS)[0])

    def reference(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (jax.nn.silu(x @ w), None), x, None, length=p.LAYERS)[0].sum()

    wanted = p.one_device(jax.grad(reference, (0, 1)), p.STACK[0], p.X)
    p.assert_gradients(compile_(sh.grad(loss, argnums=(0, 1)))(w, x), (w, x), wanted)
    p.assert_gradients(compile_(sh.grad(lambda x: loss(w, x)))(x), x, wanted[1])


def test_typed_and_plain_carries_mix() -> None:
    _, x = operands()
    (out, count), _ = jax.jit(
        lambda x: sh.scan(lambda c, _: ((sh.silu(c[0]), c[1] + 1), None), (x, 0), None, length=2)
    )(x)
    assert int(count) == 2
    p.assert_close(out, p.one_device(lambda x: jax.nn.silu(jax.nn.silu(x)), p.X))


def test_a_loop_has_tangents() -> None:
    args = operands()
    found = jax.jvp(p.looped, args, args)[1]
    p.assert_close(found, p.one_device(lambda *a: jax.jvp(p.reference_looped, a, a)[1], p.STACK, p.X))


def test_loops_nest_with_stacked_results() -> None:
    ws, x = operands()

    def loss(ws: Any, x: Any) -> Any:
        def outer(x: Any, _: Any) -> tuple[Any, Any]:
            return sh.scan(lambda x, w: ((y := p.layer(x, w)), y), x, ws)

        return sh.sum(sh.scan(outer, x, None, length=2)[1])

    def reference(ws: Any, x: Any) -> Any:
        def outer(x: Any, _: Any) -> tuple[Any, Any]:
            return lax.scan(lambda x, w: ((y := jax.nn.silu(x @ w)), y), x, ws)

        return lax.scan(outer, x, None, length=2)[1].sum()

    wanted = p.one_device(jax.grad(reference, (0, 1)), p.STACK, p.X)
    p.assert_gradients(jax.jit(sh.grad(loss, argnums=(0, 1)))(ws, x), (ws, x), wanted)


def test_gradients_accumulate_unreduced_with_one_all_reduce_after_the_loop() -> None:
    ws = p.stack()
    rows = sh.array(p.ROWS, "f32[5, batch@dp, hidden]")

    def step(ws: Any, rows: Any) -> Any:
        def body(total: Any, x: Any) -> tuple[Any, None]:
            return total + sh.grad(p.looped_loss)(ws, x), None

        total, _ = sh.scan(body, sh.zeros_like(ws), rows)
        assert total.type == ws.type.cotangent(), "zeros started reduced, and became a pending sum"
        return sh.all_reduce(total)

    compiled = jax.jit(step).lower(ws, rows).compile()
    text = str(compiled.as_text())
    entry = text[text.index("\nENTRY") :]
    assert text.count(" all-reduce(") == entry.count(" all-reduce(") == 1

    def reference(ws: Any) -> Any:
        return sum(jax.grad(p.reference_looped_loss)(ws, p.ROWS[i]) for i in range(5))

    p.assert_close(compiled(ws, rows), p.one_device(reference, p.STACK))


# joins of the carry


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("start", "step", "joined"),
    [
        *(("R", "I", "I"), ("I", "R", "I"), ("R", "U", "U"), ("U", "R", "U"), ("I", "U", "U"), ("U", "I", "U")),
    ],
)
def test_a_carry_is_cast_to_what_both_ends_can_be_for_free(start: str, step: str, joined: str) -> None:
    x = sh.array(p.X, f"f32[4,8]{{{start}:dp}}")
    other = sh.array(p.X, f"f32[4,8]{{{step}:dp}}")

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        return (other * 2.0 if start != "U" else other), None

    def loss(x: Any) -> Any:
        out = sh.scan(body, x, None, length=2)[0]
        assert out.type.state("dp").value == joined
        return sh.sum(out)

    found = jax.jit(lambda x: sh.scan(body, x, None, length=2)[0])(x)
    p.assert_close(found, p.X * (1 if start == "U" else 2))
    p.assert_close(jax.jit(sh.grad(loss))(x), 0 * p.X)


def test_a_replicated_carry_becomes_sharded_before_the_loop() -> None:
    x = sh.array(p.X, "f32[4,8]")
    out, _ = sh.scan(lambda c, _: (c + sh.array(p.X, "f32[4@dp,8]"), None), x, None, length=2)
    assert out.type == sh.ShType.parse("f32[4@dp,8]")
    p.assert_close(out, 3 * p.X)


def test_a_carry_that_cannot_meet_itself_is_explained() -> None:
    x = sh.array(p.X, "f32[4@dp,8]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.scan(lambda c, _: ({"state": [sh.all_to_all(c["state"][0], "dp", 1)]}, None), {"state": [x]}, None, length=2)
    assert "the carry['state'][0] of `scan` starts as f32[4@dp,8] and comes back as f32[4,8@dp]" in str(caught.value)
    assert caught.value.hints == (
        'sh.reshard(init, "f32[4,8@dp]") before the loop',
        'sh.reshard(carry, "f32[4@dp,8]") at the end of the body',
    )


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        (lambda c: c.astype("bf16"), "nothing that is inserted changes a dtype", 'astype("f32")'),
        (lambda c: sh.concatenate([c, c], 1), "nothing that is inserted changes a shape", None),
    ],
    ids=["dtype", "shape"],
)
def test_other_dtypes_and_shapes_are_said_to_be_what_differs(change: Any, said: str, hint: str | None) -> None:
    x = sh.array(p.X, "f32[4@dp,8]")
    loops = lambda: sh.fori_loop(0, 2, lambda i, c: change(c), x), lambda: sh.cond(True, lambda c: c, change, x)
    for call in loops:
        with pytest.raises(sh.ShardingTypeError, match=said) as caught:
            call()
        assert hint is None or hint in str(caught.value.hints)


def test_a_carry_that_is_typed_on_one_side_only_is_explained() -> None:
    x = sh.array(p.X, "f32[4,8]")

    def looped(start: Any) -> Any:
        return sh.scan(lambda c, _: (x + c, None), start, None, length=2)[0]

    with pytest.raises(sh.ShardingTypeError, match="starts as a plain array and comes back as"):
        jax.jit(looped)(jnp.zeros((4, 8)))
    p.assert_close(looped(jnp.zeros((4, 8))), 2 * p.X)  # a constant has any type


def test_jax_scan_prints_our_types_when_a_carry_changes() -> None:
    _, x = operands()
    with pytest.raises(TypeError, match=r"f32\[batch@dp, hidden\].*f32\[batch, hidden@dp\]"):
        lax.scan(lambda c, _: (sh.all_to_all(c, "dp", 1), None), x, None, length=2)


@pytest.mark.parametrize(
    ("xs", "length", "words"),
    [
        ("f32[4@dp,8]", None, r"xs\['w'\]: the leading dim of f32\[4@dp,8\] is sharded over `dp`"),
        ("f32[4,8]", 3, r"in 3 steps: the leading dim of f32\[4,8\] has size 4"),
    ],
    ids=["sharded", "length"],
)
def test_what_no_loop_can_run_over_is_named(xs: str, length: int | None, words: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match=words):
        sh.scan(lambda c, x: (c, x), 0, {"w": sh.array(p.X, xs)}, length)


def test_a_loop_over_typed_and_plain_values_runs_over_both() -> None:
    ws, x = operands()
    gains = jnp.arange(1.0, 4.0)
    found = jax.jit(lambda ws, gains, x: sh.scan(lambda c, s: (c @ s[0] * s[1], None), x, (ws, gains))[0])(ws, gains, x)
    wanted = p.X
    for w, gain in zip(p.STACK, gains, strict=True):
        wanted = wanted @ w * float(gain)
    p.assert_close(found, wanted)


# counted and conditional loops


@pytest.mark.one_in(9)
@COMPILED
@pytest.mark.parametrize("loop", [lax.fori_loop, sh.fori_loop], ids=["jax", "sh"])
def test_a_counted_loop_computes_and_differentiates(loop: Callable[..., Any], compile_: Callable[..., Any]) -> None:
    _, x = operands()

    def f(x: Any) -> Any:
        return loop(0, 3, lambda i, x: sh.silu(x), x)

    def reference(x: Any) -> Any:
        return jax.nn.silu(jax.nn.silu(jax.nn.silu(x)))

    p.assert_close(compile_(f)(x), p.one_device(reference, p.X))
    wanted = p.one_device(jax.grad(lambda x: reference(x).sum()), p.X)
    p.assert_gradients(compile_(sh.grad(lambda x: sh.sum(f(x))))(x), x, wanted)


def test_a_counted_loop_takes_typed_bounds_and_joins_its_carry() -> None:
    _, x = operands()
    bound = sh.array(np.int32(3), "i32[]")
    total = sh.fori_loop(0, bound, lambda i, acc: acc + sh.sum(x, 0), sh.zeros("f32[8]"))
    assert total.type == sh.ShType.parse("f32[8]{U:dp}")
    p.assert_close(total, 3 * p.X.sum(0))


def norm(x: Any) -> Any:
    return sh.all_reduce(sh.sum(x * x))


@pytest.mark.parametrize("typed", [False, True], ids=["plain", "typed"])
def test_a_loop_stops_by_a_predicate_of_typed_values(typed: bool) -> None:
    _, x = operands()

    def f(x: Any) -> Any:
        if typed:
            return sh.while_loop(lambda x: norm(x) > 0.5, lambda x: x * 0.5, x)
        return lax.while_loop(lambda x: sh.to_jax(norm(x) > 0.5), lambda x: x * 0.5, x)

    wanted = p.X
    while (wanted**2).sum() > 0.5:
        wanted = wanted * 0.5
    p.assert_close(jax.jit(f)(x), wanted)
    tangent = jax.jvp(f, (x,), (x,))[1]
    p.assert_close(tangent, wanted)


# branches


def branches(pred: Any, x: Any, cond: Callable[..., Any] = sh.cond) -> Any:
    return cond(pred, sh.silu, lambda x: x, x)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("cond", [lax.cond, sh.cond], ids=["jax", "sh"])
@COMPILED
def test_a_branch_computes_and_differentiates(cond: Callable[..., Any], compile_: Callable[..., Any]) -> None:
    _, x = operands()
    p.assert_close(compile_(lambda q, x: branches(q, x, cond))(True, x), p.one_device(jax.nn.silu, p.X))
    grad = compile_(sh.grad(lambda x: sh.sum(branches(True, x, cond))))(x)
    p.assert_gradients(grad, x, p.one_device(jax.grad(lambda x: jax.nn.silu(x).sum()), p.X))


@pytest.mark.parametrize("switch", [lax.switch, sh.switch], ids=["jax", "sh"])
def test_a_switch_computes_and_differentiates(switch: Callable[..., Any]) -> None:
    _, x = operands()

    def loss(x: Any, i: Any) -> Any:
        return sh.sum(switch(i, [sh.silu, lambda x: x * 1.0, lambda x: x * x], x))

    p.assert_gradients(jax.jit(sh.grad(loss))(x, 2), x, 2 * p.X)


def test_predicates_and_indices_may_be_typed() -> None:
    _, x = operands()
    f = jax.jit(lambda x: sh.cond(norm(x) > 0, lambda x: x * 2.0, lambda x: x * 1.0, x))
    p.assert_close(f(x), 2 * p.X)
    index = sh.array(np.int32(1), "i32[]")
    p.assert_close(sh.switch(index, [lambda x: x * 1.0, lambda x: x * 3.0], x), 3 * p.X)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [("R", "I", "I"), ("R", "U", "U"), ("U", "I", "U"), ("S", "R", "S")],
)
def test_branches_of_several_types_join(first: str, second: str, joined: str) -> None:
    texts = {s: f"f32[4,8]{{{s}:dp}}" for s in "RIU"} | {"S": "f32[4@dp,8]"}
    x, y = sh.array(p.X, texts[first]), sh.array(2 * p.X, texts[second])

    def loss(x: Any, y: Any, q: Any) -> Any:
        return sh.sum(sh.cond(q, lambda: x * 1.0, lambda: y * 1.0))

    for q, wanted in ((True, p.X), (False, 2 * p.X)):
        out = jax.jit(lambda x, y, q: sh.cond(q, lambda: x * 1.0, lambda: y * 1.0))(x, y, q)
        assert out.type == sh.ShType.parse(texts[joined])
        p.assert_close(out, wanted)
        grads = jax.jit(sh.grad(loss, argnums=(0, 1)))(x, y, q)
        p.assert_gradients(grads, (x, y), (np.full_like(p.X, q), np.full_like(p.X, not q)))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda x: sh.all_to_all(x, "dp", 1), r"the results\['y'\] of the branches of `cond` need one type"),
        (lambda x: sh.all_gather(x, "dp").to_jax(), r"one branch of `cond` returns a plain array\['y'\]"),
    ],
    ids=["types", "plain"],
)
def test_branches_that_cannot_meet_are_explained(other: Callable[..., Any], words: str) -> None:
    _, x = operands()
    with pytest.raises(sh.ShardingTypeError, match=words):
        sh.cond(True, lambda x: {"y": x}, lambda x: {"y": other(x)}, x)


def test_jax_cond_prints_our_types_when_branches_differ() -> None:
    _, x = operands()
    with pytest.raises(TypeError, match=r"f32\[batch@dp, hidden\].*\{I:tp\}"):
        lax.cond(True, lambda x: x, lambda x: sh.reshard(x, tp="I"), x)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x: sh.cond(sh.sum(x), sh.silu, sh.silu, x), r"the predicate of `cond` has type f32\[\]\{U:dp\}"),
        (lambda x: sh.cond(x > 0, sh.silu, sh.silu, x), "the predicate of `cond` is a scalar"),
        (lambda x: sh.switch(sh.sum(x), [sh.silu], x), "the index of `switch` has type"),
        (lambda x: sh.fori_loop(0, sh.sum(x), lambda i, x: x, x), "a bound of `fori_loop` has type"),
        (lambda x: sh.while_loop(sh.sum, lambda x: x, x), "the predicate of `while_loop` has type"),
    ],
    ids=["cond", "vector", "switch", "fori_loop", "while_loop"],
)
def test_what_devices_do_not_agree_on_decides_nothing(run: Callable[[Any], Any], words: str) -> None:
    _, x = operands()
    with pytest.raises(sh.ShardingTypeError, match=words):
        run(x)


def test_ways_out_of_loops_and_branches_are_priced() -> None:
    x, total = sh.array(p.X, "[batch@dp, hidden]"), sh.array(np.zeros(p.X.shape[1], np.float32))
    with pytest.raises(sh.ShardingTypeError) as error:
        sh.scan(lambda carry, row: (carry + row, None), total, x)
    fixes = error.value.fixes
    assert fixes[0].code == 'sh.reshard(xs, "[batch, hidden]{U:dp}")'
    assert [(f.forward, f.backward) for f in fixes[:2]] == [("", ""), ("all-to-all over `dp`", "all-to-all over `dp`")]
    assert "test_control.py" in error.value.where
    with pytest.raises(sh.ShardingTypeError) as error:
        sh.cond(True, lambda a: a, lambda a: sh.all_gather(a, "dp", to="I"), x)
    fixes = error.value.fixes
    assert [f.code.partition(",")[0] for f in fixes] == [f"sh.reshard(result_{i}" for i in (0, 1, 0)]
    assert [bool(f.bytes_forward) for f in fixes] == [False, False, True]
    assert "test_control.py" in error.value.where
