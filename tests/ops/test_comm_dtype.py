"""`comm_dtype` and `ct_comm_dtype`: what is sent narrow, in which direction, what it does to values, and refusals."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import shtypes as sh
from shtypes.resharding import Kind
from tests.core.hlo import collectives
from tests.denotation import denoted
from tests.end_to_end import assignments, some
from tests.random_programs import spread
from tests.traced.compiled import assert_compiled_as_said, compiled_text, sent_by_compiled, sent_by_ledger

AXES = {"x": 2, "y": 4}
RNG = np.random.default_rng(3)
X = RNG.normal(size=(8, 16)).astype(np.float32)
W = RNG.normal(size=(8, 16)).astype(np.float32)
#: Whole numbers, of which bf16 adds a few without rounding.
WHOLE = RNG.integers(-8, 8, (8, 16)).astype(np.float32)
NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f8_e4m3fn": ml_dtypes.float8_e4m3fn}
POLICIES = ("partial", "jax")

m: Any = sh  # for calls that a type checker refuses too


pytestmark = pytest.mark.mesh(AXES)


def rounded(x: Any, dtype: str) -> Any:
    """What is left of a float that was sent in a narrower one."""
    return x.astype(NARROW[dtype]).astype(np.float32)


def pairs(count: int, states: str) -> list[tuple[str, str]]:
    """Some pairs of types whose states are among these."""
    types = list(assignments(sh.make_mesh(AXES), X.shape, states))
    chosen = np.random.default_rng(len(states)).integers(len(types), size=(count, 2))
    return [(types[i], types[j]) for i, j in chosen]


# values


@pytest.mark.one_in(23)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_value_that_is_moved_is_rounded_once_and_its_cotangent_not(dtype: str, policy: str) -> None:
    with sh.policy(policy):
        moves = [(sh.array(X, src), dst) for src, dst in pairs(some(6, 200), "SRI")]

        def run(xs: list[Any]) -> list[Any]:
            found = []
            for x, (_, dst) in zip(xs, moves, strict=True):
                y, pull = sh.vjp(lambda x, dst=dst: sh.reshard(x, dst, comm_dtype=dtype), x)
                found.append((y, pull(sh.array(W, y.type.cotangent()))[0]))
            return found

        xs = [x for x, _ in moves]
        for (x, dst), (y, ct) in zip(moves, jax.block_until_ready(sh.jit(run)(xs)), strict=True):
            sends = sh.ledger(lambda x, dst=dst: sh.reshard(x, dst), x).launches
            expected = rounded(X, dtype) if sends else X
            np.testing.assert_array_equal(denoted(y), expected, f"{x.type} to {y.type}")
            np.testing.assert_array_equal(
                denoted(jax.block_until_ready(sh.reshard(x, dst, comm_dtype=dtype))), expected
            )
            assert y.type == sh.reshard(x, dst).type
            assert ct.type == x.type.cotangent()
            np.testing.assert_allclose(denoted(ct), W, rtol=1e-6)


def test_a_cotangent_is_rounded_where_that_is_asked_for() -> None:
    def run(x: Any) -> Any:
        y, pull = sh.vjp(lambda x: sh.all_to_all(x, "y", 1, ct_comm_dtype="bf16"), x)
        return y, pull(sh.array(W, y.type.cotangent()))[0]

    x = sh.array(X, "[8@y,16]")
    for y, ct in (run(x), sh.jit(run)(x)):
        np.testing.assert_array_equal(denoted(y), X)
        np.testing.assert_array_equal(denoted(ct), rounded(W, "bf16"))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("policy", POLICIES)
def test_sums_are_narrow_where_that_is_said(policy: str) -> None:
    with sh.policy(policy):
        chosen = [(src, dst) for src, dst in pairs(some(24, 200), "SRIU")]
        xs = [spread(WHOLE, f"f32{src}") for src, _ in chosen]

        def run(xs: list[Any]) -> list[Any]:
            return [
                sh.reshard(x, dst, comm_dtype="bf16", narrow_sums=True) for x, (_, dst) in zip(xs, chosen, strict=True)
            ]

        for y, x, (_, dst) in zip(jax.block_until_ready(sh.jit(run)(xs)), xs, chosen, strict=True):
            assert y.type == sh.reshard(x, dst).type
            np.testing.assert_allclose(denoted(y), WHOLE, atol=0.2)  # the terms of a sum need not be whole


def test_a_narrow_sum_loses_what_its_dtype_cannot_hold() -> None:
    x = sh.reshard(sh.array(np.array([256.0, 1.0, 0.0, 0.0], np.float32), "[4@y]"), "[4]")
    pending = sh.sum(sh.reshard(x, y=0))
    assert sh.all_reduce(pending).to_jax() == 257
    assert sh.all_reduce(pending, comm_dtype="bf16", narrow_sums=True).to_jax() == 256


def test_nothing_is_rounded_where_nothing_is_sent() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 1, "y": 2})):
        x = sh.array(X, "[8@x,16]")
        np.testing.assert_array_equal(denoted(sh.all_gather(x, "x", comm_dtype="bf16")), X)
        pending = sh.reshard(x, "[8,16]{U:x}")
        with pytest.raises(sh.ShardingTypeError, match="would add 1 term in bf16"):
            sh.all_reduce(pending, comm_dtype="bf16")


# what is sent


def gathered(x: Any, dtype: Any, ct: Any = None) -> Any:
    return sh.sum(sh.sin(sh.all_gather(x, "y", comm_dtype=dtype, ct_comm_dtype=ct, narrow_sums=ct is not None)))


def ring(x: Any, dtype: Any, ct: Any = None) -> Any:
    """Each named form once, and a permute."""
    more = {"comm_dtype": dtype, "ct_comm_dtype": ct, "narrow_sums": True}
    x = sh.sin(sh.all_to_all(x, "x", 1, **more))
    x = sh.sin(sh.reshard(x, "[8@(y,x),16]", **more))
    x = sh.sin(sh.reshard(x, "[8@(x,y),16]", **more))
    x = sh.sin(sh.all_gather(x, "y", "x", **more))
    x = sh.reshard(x, y=1, **more)
    h = sh.reduce_scatter(sh.einsum("ab,cb->ac", x, x), "y", 1, **more)
    return sh.all_reduce(sh.sum(sh.sin(h)), "y", **more)


ARGUMENTS = {"gathered": (gathered, "[8@x,16@y]"), "ring": (ring, "[8@x,16]")}


@pytest.mark.one_in(15)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("ct", [None, "f16"])
def test_the_compiled_program_sends_what_the_ledger_says(name: str, ct: str | None, policy: str) -> None:
    f, text = ARGUMENTS[name]
    with sh.policy(policy):
        step = sh.value_and_grad(lambda x: f(x, "f16", ct))
        x = sh.array(X / 8, text)
        said = assert_compiled_as_said(step, x)
        assert {e.dtype for e in said.forward()} == {"f16"}
        assert all(e.src.dtype_name == e.dst.dtype_name == "f32" for e in said)
        wide = sh.ledger(sh.value_and_grad(lambda x: f(x, None)), x)
        assert 2 * said.forward().bytes == wide.forward().bytes
        assert said.backward().bytes * (1 if ct is None else 2) == wide.backward().bytes
        loss, grad = jax.block_until_ready(sh.jit(step)(x))
        exact = sh.value_and_grad(lambda x: f(x, None))(x)
        np.testing.assert_allclose(denoted(loss), denoted(exact[0]), rtol=0.02)
        np.testing.assert_allclose(denoted(grad), denoted(exact[1]), atol=0.02 * np.abs(denoted(exact[1])).max())


@pytest.mark.parametrize("ct", [None, "f16"])
def test_the_seed_of_a_loss_that_is_summed_narrow_is_not_summed_again(ct: str | None) -> None:
    more = {"comm_dtype": "f16", "ct_comm_dtype": ct, "narrow_sums": True}
    step = sh.value_and_grad(lambda x: sh.all_reduce(sh.sum(sh.sin(x)), "y", **more))
    x = sh.array(X, "[8@x,16@y]")
    assert len(assert_compiled_as_said(step, x).backward()) == 0
    np.testing.assert_allclose(denoted(step(x)[1]), np.cos(X), rtol=1e-6)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bf16_is_sent_before_cpu_devices_make_f32_of_it(name: str) -> None:
    f, text = ARGUMENTS[name]
    step, x = sh.jit(sh.value_and_grad(lambda x: f(x, "bf16", "bf16"))), sh.array(X, text)
    said = sh.ledger(step, x)
    assert {e.dtype for e in said} == {"bf16"}
    text = step.lower(x).as_text(dialect="hlo", debug_info=True)
    assert sent_by_compiled(text) == sent_by_ledger(said)


def test_a_gather_stays_narrow_in_the_compiled_program() -> None:
    """CPU devices have no bf16, and a pass of XLA makes f32 of it: without that pass it is what was asked for."""
    f, x = sh.jit(lambda x: gathered(x, "bf16")), sh.array(X, "[8@x,16@y]")
    text = compiled_text(f, x, options={"xla_disable_hlo_passes": "float-normalization-bf16"})
    assert collectives(text) == {(Kind.ALL_GATHER, sh.ledger(f, x)[0].bytes): 1}


def test_each_op_alone_sends_narrow() -> None:
    x = sh.array(X, "[8@x,16@y]")
    text = jax.jit(lambda x: sh.all_gather(x, "y", comm_dtype="f16")).lower(x).compile().as_text() or ""
    assert "f16[" in next(line for line in text.splitlines() if " all-gather(" in line)


# transformations


def test_what_is_printed_says_the_dtypes_and_the_transpose_exchanges_them() -> None:
    x = sh.abstract_array("f32[8@x,16@y]")
    f = functools.partial(gathered, dtype="bf16")
    text = str(jax.make_jaxpr(sh.grad(f))(x))
    assert "reshard[y: S(1)->R, comm bf16]" in text
    assert "reshard[y: U->S(1), ct comm bf16]" in text
    both = str(jax.make_jaxpr(sh.grad(lambda x: gathered(x, "bf16", "f16")))(x))
    assert "reshard[y: S(1)->R, comm bf16, ct comm f16]" in both
    assert "reshard[y: U->S(1), comm f16, ct comm bf16]" in both


def test_the_gradient_of_the_gradient_is_sent_as_the_value() -> None:
    with sh.use_mesh(sh.abstract_mesh({"y": 4})):
        x = sh.abstract_array("f32[8@y,16]")

    def f(x: Any) -> Any:
        return sh.sum(sh.sin(sh.all_to_all(x, "y", 1, comm_dtype="bf16", ct_comm_dtype="f16")))

    second = sh.ledger(sh.grad(lambda x: sh.sum(sh.square(sh.grad(f)(x)))), x)
    assert [(e.direction, e.dtype) for e in second if e.kind == "all-to-all"][:2] == [
        ("forward", "bf16"),
        ("backward", "f16"),
    ]
    assert {e.dtype for e in second if e.kind == "all-to-all"} == {"bf16", "f16"}


def test_a_tangent_is_sent_as_the_value_is() -> None:
    x, dx = sh.array(X, "[8@y,16]"), sh.array(W, "[8@y,16]")
    f = functools.partial(sh.all_to_all, axis="y", dim=1, comm_dtype="bf16")
    y, dy = sh.jvp(f, (x,), (dx,))
    np.testing.assert_array_equal(denoted(y), rounded(X, "bf16"))
    np.testing.assert_array_equal(denoted(dy), rounded(W, "bf16"))
    assert [e.dtype for e in sh.ledger(lambda x, dx: sh.jvp(f, (x,), (dx,)), x, dx)] == ["bf16", "bf16"]


def mapped(x: Any) -> Any:
    return sh.vmap(lambda row: sh.all_gather(row, "y", comm_dtype="f16"))(x)


def scanned(x: Any) -> Any:
    return sh.scan(lambda c, row: (c + sh.sum(sh.all_gather(row, "y", comm_dtype="f16")), None), sh.zeros("f32[]"), x)[
        0
    ]


def checkpointed(x: Any) -> Any:
    return sh.sum(sh.checkpoint(lambda x: sh.sin(sh.all_gather(sh.sin(x), "y", comm_dtype="f16")))(x))


@pytest.mark.parametrize("f", [mapped, scanned, checkpointed])
def test_inside_others(f: Callable[..., Any]) -> None:
    x = sh.array(X, "[8,16@y]")
    said = assert_compiled_as_said(f, x)
    assert {e.dtype for e in said} == {"f16"}
    back = sh.ledger(sh.grad(lambda x: sh.sum(f(x))), x)
    assert {(e.direction, e.dtype) for e in back} <= {("forward", "f16"), ("recomputed", "f16"), ("backward", "f32")}
    assert any(e.direction == "backward" for e in back)


def test_a_plain_program_is_lifted_with_it_and_loses_nothing_on_one_device() -> None:
    def model(x: Any) -> Any:
        gathered: Any = sh.all_gather(x, "y", comm_dtype="bf16")
        return jnp.sin(gathered)

    x = sh.array(X, "[8,16@y]")
    assert [e.dtype for e in sh.ledger(sh.lift(model), x)] == ["bf16"]
    np.testing.assert_allclose(denoted(sh.lift(model)(x)), np.sin(rounded(X, "bf16")), rtol=1e-5)
    assert [e.dtype for e in sh.ledger(sh.grad(lambda x: sh.sum(sh.lift(model)(x))), x)] == ["bf16", "f32"]


# scopes and reports


def test_a_budget_counts_what_is_sent() -> None:
    x = sh.abstract_array("f32[8@x,16@y]")
    with sh.comm_budget(bytes=96):
        sh.all_gather(x, "y", comm_dtype="bf16", ct_comm_dtype="bf16", narrow_sums=True)
    with sh.comm_budget(bytes=96), pytest.raises(sh.ShardingTypeError, match="allows 96 B/device in the backward pass"):
        sh.all_gather(x, "y", comm_dtype="bf16")
    with sh.comm_budget(bytes=96), pytest.raises(sh.ShardingTypeError, match="allows 96 B/device in the forward pass"):
        sh.all_gather(x, "y")


def test_a_time_is_that_of_what_is_sent() -> None:
    x, model = sh.abstract_array("f32[8@x,16@y]"), sh.cost_model(sh.Link(bandwidth=1.0))
    narrow = sh.ledger(lambda x: sh.all_gather(x, "y", comm_dtype="bf16"), x)
    assert narrow.time(model) == 96
    assert str(narrow[0]) == "all-gather over y in bf16"
    assert narrow[0].collective == "all-gather over y"


def test_reports_say_it() -> None:
    x = "f32[8@x,16@y]"
    f = functools.partial(gathered, dtype="bf16")
    assert "all-gather over y in bf16, 96 B/device" in str(sh.explain(f, x))
    assert "all-gather over y in bf16" in sh.explain(f, x).to_html()

    def differing(x: Any) -> Any:
        replicated = "f32[8@x,16]" + ("{R:y}" if sh.current_policy() == "partial" else "{I:y}")
        dtype = "bf16" if sh.current_policy() == "partial" else None
        return sh.reshard(x, replicated, comm_dtype=dtype)

    compared = sh.compare(differing, x)
    assert "all-gather over y in bf16" in str(compared)
    assert {
        use["dtype"] for c in json.loads(compared.to_json())["collectives"] for use in (c["jax"], c["partial"]) if use
    } == {
        "",
        "bf16",
    }


# refusals


MESSAGES: dict[str, tuple[Callable[..., Any], str]] = {
    "a sum": (
        lambda x: sh.all_reduce(sh.sum(x, 1), "y", comm_dtype="bf16"),
        """\
`all_reduce` would add 4 terms in bf16 forward: all-reduce over `y`, from f32[8@x]{U:y} to f32[8@x]
  where: test_comm_dtype.py:LINE in <lambda>: all_reduce(f32[8@x]{U:y})
  why:   a value that is moved is rounded once; of a sum each term is, and each partial sum again
  try:   narrow_sums=True with comm_dtype="bf16", where the sum may lose that
  try:   no comm_dtype, to add in f32""",
    ),
    "a sum in the backward pass": (
        lambda x: sh.reshard(x, y="R", ct_comm_dtype="bf16"),
        """\
`reshard` would add 4 terms in bf16 backward: reduce-scatter over `y`, from f32[8@x,16]{U:y} to f32[8@x,16@y]
  where: test_comm_dtype.py:LINE in <lambda>: reshard(f32[8@x,16@y])
  why:   a value that is moved is rounded once; of a sum each term is, and each partial sum again
  try:   narrow_sums=True with ct_comm_dtype="bf16", where the sum may lose that
  try:   no ct_comm_dtype, to add in f32""",
    ),
    "a wider dtype": (
        lambda x: sh.all_gather(x.astype("bf16"), "y", comm_dtype="f32"),
        """\
`comm_dtype` cannot send bf16 as f32, which is no narrower float
  where: test_comm_dtype.py:LINE in <lambda>: all_gather(bf16[8@x,16@y])
  why:   the value is cast to it before it is sent and back after that, to send less
  try:   comm_dtype="f8_e4m3fn"
  try:   x.astype("f32") before it is sent, where the value itself may be of f32""",
    ),
    "an integer": (
        lambda x: sh.all_gather(x.astype("i32"), "y", comm_dtype="i8"),
        """\
`comm_dtype` cannot send i32 as i8, which is no narrower float
  where: test_comm_dtype.py:LINE in <lambda>: all_gather(i32[8@x,16@y])
  why:   the value is cast to it before it is sent and back after that, to send less""",
    ),
    "a scope": (
        lambda x: sh.no_comm(lambda: sh.all_gather(x, "y", comm_dtype="bf16"))(),
        """\
`no_comm` forbids all-gather over `y` in bf16 in the forward pass: `all_gather` takes f32[8@x,16@y] to f32[8@x,16]
  where: test_comm_dtype.py:LINE in <lambda>: all_gather(f32[8@x,16@y])
  why:   each device would send 96 B
  try:   sh.all_gather(x, "y", comm_dtype="bf16") before the scope""",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_refusal_says_what_to_write(name: str) -> None:
    f, text = MESSAGES[name]
    with pytest.raises(sh.ShardingTypeError) as caught:
        f(sh.abstract_array("f32[8@x,16@y]"))
    line = str(f.__code__.co_firstlineno)
    assert str(caught.value) == text.replace("LINE", line)


@pytest.mark.parametrize("dtype", ["f32", jnp.float32, np.dtype("float32"), jnp.bfloat16, "bfloat16", "f16"])
def test_dtypes_are_written_as_everywhere_and_the_own_one_changes_nothing(dtype: Any) -> None:
    x = sh.array(X, "[8@x,16@y]")
    found = sh.all_gather(x, "y", comm_dtype=dtype)
    assert found.type == sh.ShType.parse("f32[8@x,16]")
    if "32" in str(np.dtype(dtype) if not isinstance(dtype, str) else dtype):
        assert "comm" not in str(jax.make_jaxpr(lambda x: sh.all_gather(x, "y", comm_dtype=dtype))(x))


@pytest.mark.parametrize("dtype", ["f64", "i8", "bool", "c64", "f4_e2m1fn", "f8_e8m0fnu", "nothing", 3, "key<fry>"])
@pytest.mark.parametrize("argument", ["comm_dtype", "ct_comm_dtype"])
def test_what_is_no_narrower_float_is_refused(dtype: Any, argument: str) -> None:
    for op in (m.all_gather, lambda x, axis, **how: m.reshard(x, **{axis: "R"}, **how)):
        with pytest.raises(sh.ShardingTypeError) as raised:
            op(sh.abstract_array("f32[8@x,16@y]"), "y", **{argument: dtype})
        assert raised.value.where.startswith("test_comm_dtype.py:")


@pytest.mark.parametrize("text", ["i32[8@y]", "bool[8@y]", "c64[8@y]", "key<fry>[8@y]", "u8[8@y]"])
def test_what_is_no_float_is_sent_as_it_is(text: str) -> None:
    x = sh.abstract_array(text)
    for argument in ("comm_dtype", "ct_comm_dtype"):
        (sent,) = sh.ledger(lambda x, argument=argument: m.all_gather(x, "y", **{argument: "bf16"}), x)
        assert (sent.dtype, sent.bytes) == (
            x.type.dtype_name,
            sh.ledger(lambda x: sh.all_gather(x, "y"), x).total.bytes,
        )


def test_of_a_tree_the_floats_are_sent_narrow() -> None:
    tree = {"w": sh.abstract_array("f32[8]{U:y}"), "count": sh.abstract_array("i32[8]{U:y}")}
    one = functools.partial(sh.all_reduce, comm_dtype="bf16", narrow_sums=True)
    sent = sh.ledger(lambda tree: jax.tree.map(one, tree), tree)
    assert sorted(e.dtype for e in sent) == ["bf16", "i32"]
