"""Whatever `no_comm` accepts compiles to no collective, forward and backward; the rest is refused, with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.core.hlo import CALL
from tests.scopes.communicating import DOORS, OPS, Case, held, placed, values
from tests.traced.compiled import Sent, compiled_text, sent_by_compiled
from tests.traced.random_programs import AXES, filled

pytestmark = pytest.mark.mesh(AXES)


def differentiable(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def cotangent(x: Any, seed: int) -> Any:
    if isinstance(x, sh.Array):
        return filled(x.type.cotangent(), seed)
    host = np.random.default_rng(seed).uniform(0.5, 1.5, x.shape).astype(np.float32)
    return jax.device_put(host, placed(*x.sharding.spec) if x.sharding is not None else None)


def with_backward(f: Callable[..., Any], args: list[Any], outs: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The function with its backward pass, and cotangents for it."""
    chosen = [i for i, a in enumerate(args) if differentiable(a)]
    leaves = [x for x in jax.tree.leaves(outs) if differentiable(x)]

    def step(args: Any, cts: Any) -> Any:
        def of_chosen(*xs: Any) -> Any:
            merged = list(args)
            for i, x in zip(chosen, xs, strict=True):
                merged[i] = x
            return [x for x in jax.tree.leaves(f(*merged)) if differentiable(x)]

        outs, pull = jax.vjp(of_chosen, *[args[i] for i in chosen])
        return outs, pull(cts)

    return step, [cotangent(x, i) for i, x in enumerate(leaves)]


def collectives(text: str) -> list[str]:
    return [line.strip()[:90] for line in text.splitlines() if CALL.search(line)]


def check(case: Case, jit: Any) -> None:
    args = values(case)
    if case.says is not None:
        with pytest.raises(sh.ShardingTypeError) as caught:
            run_both(sh.no_comm(case.f), args, jit)
        assert case.says in str(caught.value)
        assert "communicating.py" in caught.value.where or "test_no_comm.py" in caught.value.where
    else:
        for text in run_both(sh.no_comm(case.f), args, jit):
            assert not collectives(text)


def run_both(f: Callable[..., Any], args: list[Any], jit: Any) -> list[str]:
    """The compiled program of a function with its backward pass, or of it alone if it has none."""
    step, cts = with_backward(f, args, sh.jit(f).eval_shape(*args))
    return [compiled_text(jit(step), args, cts, options=None) if cts else compiled_text(jit(f), *args, options=None)]


@pytest.mark.one_in(29)
@pytest.mark.parametrize("name", list(OPS))
def test_an_op_that_jax_lets_communicate_is_refused_or_silent(name: str) -> None:
    check(OPS[name], sh.jit)


#: What JAX's releases refuse in different words.
SHARDINGS = ("JAX's reshard of a typed value", "constraint on a typed value", "out_shardings of a typed value",
             "sh.jit with out_shardings")  # fmt: skip


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.core] * (n in SHARDINGS)) for n in DOORS])
def test_what_leaves_the_typed_world_is_refused_or_silent(name: str) -> None:
    check(DOORS[name], sh.jit)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*OPS, *DOORS])
def test_under_jax_jit_it_is_the_same(name: str) -> None:
    check((OPS | DOORS)[name], jax.jit)


QUICK = ("plain arithmetic", "out_shardings", "JAX's custom_vjp")
LOUD = [n for n, case in DOORS.items() if case.says and not n.startswith("one") and "typed value" not in n]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.nightly) for n in LOUD if "sh.jit with" not in n]
)
def test_without_the_scope_it_is_another_matter(name: str) -> None:
    """The list is of programs that communicate or may: else a scope that refuses them proves nothing."""
    case = DOORS[name]
    args = values(case)
    if "callback" not in name:
        with sh.merge_reshards(False):  # a scope judges what is written
            assert any(map(collectives, run_both(case.f, args, sh.jit)))


# where a scope stands


TRAILING: dict[str, Callable[..., Any]] = {
    "jax.jit": lambda f, *args: jax.jit(f).lower(*args),
    "sh.jit": lambda f, *args: sh.jit(f).lower(*args),
    "sh.jit, called": lambda f, *args: jax.block_until_ready(sh.jit(f)(*args)),
    "eval_shape": jax.eval_shape,
    "scan": lambda f, x, a: sh.jit(lambda x, a: sh.scan(lambda c, _: (f(c, a), None), x, None, 2)[0]).lower(x, a),
    "vmap": lambda f, x, a: sh.jit(sh.vmap(f, (None, None), axis_size=3)).lower(x, a),
    "cond": lambda f, *args: sh.jit(lambda *args: sh.cond(True, f, lambda x, a: x, *args)).lower(*args),
    "grad": lambda f, *args: sh.jit(sh.grad(lambda x, a: sh.sum(f(x, a)))).lower(*args),
    "checkpoint": lambda f, *args: sh.jit(sh.checkpoint(f)).lower(*args),
}


@pytest.mark.parametrize("name", list(TRAILING))
def test_plain_arithmetic_is_seen_from_a_scope_around_and_inside(name: str) -> None:
    run = TRAILING[name]
    args = values(Case(lambda: None, ("f32[8@dp,8]", "plain")))

    def f(x: Any, a: Any) -> Any:
        return x * sh.constant(jnp.sum(a))

    run(f, *args)
    with pytest.raises(sh.ShardingTypeError, match="`no_comm` cannot vouch for `reduce_sum`"):
        run(sh.no_comm(f), *args)
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="`no_comm` cannot vouch for `reduce_sum`"):
        run(f, *args)


def foreign(v: Any) -> Any:
    """A function of another library, of which JAX knows the name alone."""
    return jax.ffi.ffi_call("a_kernel", jax.ShapeDtypeStruct(v.shape, v.dtype))(v)


def test_a_foreign_function_runs_on_shards_or_is_refused() -> None:
    x, plain = values(Case(foreign, ("f32[8@dp,8]", "plain")))
    on_shards = sh.local_map(foreign, out=lambda t: t)
    lowered = sh.jit(sh.no_comm(on_shards)).lower(x).as_text()
    (call,) = [line for line in lowered.splitlines() if "@a_kernel" in line]
    assert "tensor<4x8xf32>" in call
    with pytest.raises(sh.ShardingTypeError, match="`no_comm` cannot vouch for `ffi_call`"):
        jax.eval_shape(sh.no_comm(foreign), plain)


def test_the_message_names_the_line_the_operation_and_what_to_do() -> None:
    def f(x: Any, a: Any) -> Any:
        return x * sh.constant(jnp.sum(a))

    with pytest.raises(sh.ShardingTypeError) as caught:
        jax.eval_shape(sh.no_comm(f), *values(Case(f, ("f32[8@dp,8]", "plain"))))
    line = f.__code__.co_firstlineno + 1
    assert str(caught.value).replace(f"test_no_comm.py:{line}", "HERE") == (
        "`no_comm` cannot vouch for `reduce_sum`, which may communicate where no type shows it\n"
        "  where: HERE in test_the_message_names_the_line_the_operation_and_what_to_do.<locals>.f: reduce_sum\n"
        "  why:   JAX places it: it computes on a plain array that is sharded, float32[8@dp,8]\n"
        "  try:   sh.from_jax before the scope, and the function of the same name in shtypes\n"
        "  try:   sh.local_map, for a function of each device's shards"
    )


def test_what_came_before_the_scope_and_comes_after_it_is_not_its_matter() -> None:
    def f(x: Any, a: Any) -> Any:
        before = jnp.sum(a)
        with sh.no_comm():
            y = x * 2.0
        return y * sh.constant(before + jnp.sum(a))

    jax.eval_shape(f, *values(Case(f, ("f32[8@dp,8]", "plain"))))


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_function_linearized_outside_its_scope_is_silent(policy: str) -> None:
    with sh.policy(policy):
        x = filled(sh.ShType.parse("f32[8@dp,8]"), 0)
        f = sh.no_comm(lambda x: sh.sin(x @ sh.ones("f32[8,8@tp]")) if policy == "partial" else sh.sin(x))

        def step(x: Any) -> Any:
            y, push = jax.linearize(f, x)
            return y, push(x), jax.linear_transpose(push, x)(filled_like(y))

        def filled_like(y: Any) -> Any:
            return sh.ones(jax.typeof(y).cotangent()) if not jax.typeof(y).cotangent().axes(sh.State.UNREDUCED) else 0

        if policy == "jax":
            text = compiled_text(sh.jit(step), x, options=None)
            assert sent_by_compiled(text) == Sent({}, {})
        else:
            assert not collectives(compiled_text(sh.jit(lambda x: jax.linearize(f, x)[1](x)), x, options=None))


@pytest.mark.parametrize("checkpoint", [jax.checkpoint, sh.checkpoint], ids=["jax", "shtypes"])
@pytest.mark.parametrize("outside", [True, False], ids=["around", "inside"])
def test_what_a_checkpoint_runs_again_is_backward_communication(checkpoint: Any, outside: bool) -> None:
    def body(x: Any) -> Any:
        return sh.sin(sh.all_reduce(sh.sum(x, 0), to="I"))

    def f(x: Any, scope: Any) -> Any:
        return scope(checkpoint(body))(x) if outside else checkpoint(scope(body))(x)

    x = sh.abstract_array("f32[8@dp,8]{I:tp}")
    jax.eval_shape(lambda x: f(x, sh.comm_budget(kinds="all-reduce")), x)
    with pytest.raises(sh.ShardingTypeError, match="`checkpoint` may run it again there"):
        jax.eval_shape(lambda x: f(x, sh.no_comm("backward")), x)
    jax.eval_shape(sh.no_comm("backward")(body), x)


def test_a_loop_of_native_control_flow_is_looked_into() -> None:
    def f(a: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, a))[1]

    with pytest.raises(sh.ShardingTypeError, match="`no_comm` cannot vouch"):
        jax.eval_shape(sh.no_comm(f), *values(Case(f, ("plain",))))


# where JAX does not say how plain arrays lie

AUTO: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "a host array": (lambda x: x * np.ones((8, 8), np.float32), ("typed",), ""),
    "a captured array": (lambda x: x + held(), ("typed",), ""),
    "a scalar": (lambda x, i: x * sh.constant(sh.from_jax(i * 2.0, "f32[]{I:(dp,tp)}")), ("typed", "scalar"), ""),
    "an argument": (lambda a: sh.from_jax(a, "f32[8,8]{I:(dp,tp)}"), ("plain",), "`from_jax`"),
    "a sharded argument": (lambda a: sh.from_jax(a, "f32[8@dp,8]{I:tp}"), ("plain",), "`from_jax`"),
    "arithmetic": (
        lambda x, a: x * sh.constant(sh.from_jax(jnp.sum(a), "f32[]{I:(dp,tp)}")),
        ("typed", "plain"),
        "`reduce_sum`",
    ),
}


@pytest.mark.parametrize("name", list(AUTO))
def test_on_automatic_axes_only_what_is_known_to_lie_right_is_let_in(name: str) -> None:
    f, kinds, says = AUTO[name]
    made = {"typed": sh.ones("f32[8@dp,8]"), "scalar": np.float32(2), "plain": held()}
    types = (jax.sharding.AxisType.Auto,) * 2
    jax.set_mesh(jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=types))
    made["plain"] = jax.device_put(np.ones((8, 8), np.float32), jax.NamedSharding(jax.sharding.get_mesh(), jax.P("dp")))
    args = [made[kind] for kind in kinds]
    if says:
        with pytest.raises(sh.ShardingTypeError, match=f"`no_comm` cannot vouch for {says}"):
            sh.jit(sh.no_comm(f)).trace(*args)
    else:
        assert not collectives(compiled_text(sh.jit(sh.no_comm(f)), *args, options=None))


def test_the_shift_of_a_logsumexp_is_cast_without_a_price_backward() -> None:
    """It has no gradient to be summed, though a float of its type has."""
    with sh.use_mesh(sh.make_mesh({"dp": 2})), sh.policy("jax"), sh.no_comm("backward"):
        y = sh.logsumexp(sh.array(np.ones(4, np.float32), "f32[4@dp]"), 0, out="[]")
    np.testing.assert_allclose(np.asarray(y), 1 + np.log(4), rtol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jax.nn.logsumexp(x, 0),
        lambda x: jnp.log(jnp.sum(jnp.exp(x - jax.lax.stop_gradient(jnp.max(x))))) + 1.0,
        lambda x: jnp.sum(x * jnp.floor(jnp.max(x))),
        jax.jit(lambda x: jnp.sum(x * jnp.sign(jnp.prod(x)))),
    ],
)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled before"])
def test_what_has_no_cotangent_sends_nothing_backward(f: Any, compiled: bool) -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        x = sh.array(np.arange(1, 5, dtype=np.float32), "f32[4@dp]")

        free = sh.implicit_comm(sh.lift(f))
        free = sh.jit(free) if compiled else free
        y = sh.reshard(sh.no_comm("backward")(free)(x), "[]{I:dp}")
        np.testing.assert_allclose(np.asarray(y), f(jnp.arange(1.0, 5.0)), rtol=1e-6)
        assert not sh.ledger(sh.value_and_grad(lambda x: sh.reshard(free(x), "[]{I:dp}")), x).backward().total.bytes
        with pytest.raises(sh.ShardingTypeError, match="in the backward pass"):
            sh.no_comm("backward")(sh.implicit_comm(sh.lift(jnp.max)))(x)
