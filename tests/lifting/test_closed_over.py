"""What a lifted function closes over: typed values and plain ones, of its own process or of the traces around it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.lifting import traced_program
from shtypes.programs.jit import JitFunction
from tests.denotation import denoted
from tests.tolerance import assert_close
from tests.traced.compiled import assert_compiled_as_said

RNG = np.random.default_rng(3)
X, Y, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 4), (8, 8), (4, 8)))
POLICIES = pytest.mark.parametrize("policy", ["partial", "jax"])


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def typed() -> tuple[Any, Any, Any]:
    return sh.array(W, "[4, 8@tp]"), sh.array(X, "[8@dp, 4]"), sh.array(Y, "[8@dp, 8@tp]")


def loss(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.square(jnp.tanh(x @ w) - y))


def scanned(w: Any, x: Any, y: Any) -> Any:
    gradient = sh.grad(sh.lift(lambda w: loss(w, x, y)))
    start = gradient(w) * 0.0
    return sh.scan(lambda total, _: (total + gradient(w) * 0.5, None), start, None, length=2)[0]


#: By what is closed over, and where: the gradient of the loss with respect to the weights.
GRADIENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "values": lambda w, x, y: sh.grad(sh.lift(lambda w: loss(w, x, y)))(w),
    "values, compiled": lambda w, x, y: sh.jit(sh.grad(sh.lift(lambda w: loss(w, x, y))))(w),
    "values, of a gradient inside": lambda w, x, y: sh.lift(jax.grad(lambda w: loss(w, x, y)))(w),
    "values, in jax.jit inside": lambda w, x, y: sh.grad(sh.lift(jax.jit(lambda w: loss(w, x, y))))(w),
    "values, in a checkpoint": lambda w, x, y: sh.grad(sh.lift(jax.checkpoint(lambda w: loss(w, x, y))))(w),
    "traced": sh.jit(lambda w, x, y: sh.grad(sh.lift(lambda w: loss(w, x, y)))(w)),
    "traced by JAX": jax.jit(lambda w, x, y: sh.grad(sh.lift(lambda w: loss(w, x, y)))(w)),
    "differentiated": lambda w, x, y: sh.grad(lambda w: sh.lift(lambda x: loss(w, x, y))(x))(w),
    "differentiated, compiled": sh.jit(sh.grad(lambda w, x, y: sh.lift(lambda y: loss(w, x, y))(y))),
    "traced, in a checkpoint": sh.jit(lambda w, x, y: sh.grad(sh.checkpoint(sh.lift(lambda w: loss(w, x, y))))(w)),
    "traced, in a scan": sh.jit(scanned),
}


@pytest.mark.one_in(7)
@pytest.mark.core
@POLICIES
@pytest.mark.parametrize("how", GRADIENTS)
def test_a_loss_that_closes_over_its_batch_is_the_one_that_takes_it(how: str, policy: str) -> None:
    """In type under both policies, and in value under one: the values are one device's under each."""
    takes_it: Callable[..., Any] = sh.grad(sh.lift(loss))
    if how == "values, of a gradient inside":  # whose cotangents no policy types
        takes_it = sh.lift(jax.grad(loss))
    with sh.policy(policy):
        operands = typed()
        assert result_types(GRADIENTS[how], operands) == result_types(takes_it, operands)
        if policy == "partial":
            assert_close(np.asarray(sh.all_reduce(GRADIENTS[how](*operands))), wanted_gradient(), 400)


def result_types(f: Callable[..., Any], operands: Sequence[Any]) -> list[Any]:
    return list(jax.make_jaxpr(f)(*operands).out_avals)


@functools.cache
def wanted_gradient() -> Any:
    return jax.jit(jax.grad(loss))(W, X, Y)


#: What closes over an array like the operand, of shape ``[8, 4]``.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "an operator": lambda x, a: x * a,
    "an operator, the other way": lambda x, a: a * x - a,
    "a ufunc": jnp.add,
    "of it alone": lambda x, a: jnp.sin(a) * x,
    "its method": lambda x, a: a.mean(1)[:, None] + x,
    "a part of it": lambda x, a: x + a[:, :1],
    "lax": lambda x, a: jax.lax.dot_general(x, a, (((1,), (1,)), ((0,), (0,)))),
    "einsum": lambda x, a: jnp.einsum("ab,ab->a", x, a),
    "branches": lambda x, a: jax.lax.cond(True, lambda: x * a, lambda: x),
    "a loop": lambda x, a: jax.lax.scan(lambda c, y: (c + y * a, None), x, jnp.ones(3))[0],
    "like it": lambda x, a: x + jnp.ones_like(a),
    "a result": lambda x, a: (x, a),
    "stacked": lambda x, a: jnp.stack([x, a]),
    "selected": lambda x, a: jnp.where(a > 0, x, a),
    "a map over it": lambda x, a: jax.vmap(lambda row: jnp.sin(row) * jnp.ones(4))(a) * x,
    "a map over both": jax.vmap(lambda u, v: u * v, out_axes=1),
    "a loop from it": lambda x, a: jax.lax.fori_loop(0, 3, lambda i, c: c * x, a),
    "an unknown number of turns": lambda x, a: jax.lax.while_loop(
        lambda c: c[1] < 3, lambda c: (c[0] * x, c[1] + 1), (a, 0)
    )[0],
    "a branch of it": lambda x, a: jax.lax.cond(True, jnp.sin, jnp.cos, a) * x,
    "a custom derivative": lambda x, a: jax.nn.relu(a) * x,
    "asarray": lambda x, a: jnp.asarray(a) * x,
    "an update": lambda x, a: a.at[:, 0].set(x[:, 1]),
    "a key": lambda x, a: jax.random.normal(jax.random.key(0), a.shape) * a * x,
    "its shape": lambda x, a: x.reshape(a.shape) / a.shape[1],
}


@pytest.mark.one_in(27)
@POLICIES
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_closes_over_a_typed_value_is_the_one_that_takes_it(name: str, policy: str) -> None:
    f, other = PROGRAMS[name], np.flip(X, 0).copy()
    with sh.policy(policy):
        x, a = sh.array(X, "[8@dp, 4]"), sh.array(other, "[8@dp, 4]")
        found, taken = sh.lift(lambda x: f(x, a))(x), sh.lift(f)(x, a)
        inside = sh.jit(lambda x, a: sh.lift(lambda x: f(x, a))(x))(x, a)
    for one, of_trace, right, plain in zip(
        *map(jax.tree.leaves, (found, inside, taken, f(jnp.asarray(X), jnp.asarray(other)))), strict=True
    ):
        assert one.type == of_trace.type == right.type
        assert_close(np.asarray(one), plain, 100)
        assert_close(np.asarray(of_trace), plain, 100)


#: Ops of ours, of a plain array of the program and of what it closes over; and what they compute.
TYPED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (sh.add, lambda x, a: x + a),
    "of it alone": (lambda x, a: sh.sin(a) * x, lambda x, a: np.sin(a) * x),
    "einsum": (lambda x, a: sh.einsum("ab,ac->bc", a, x), lambda x, a: a.T @ x),
    "a reshard": (lambda x, a: sh.all_reduce(a.T @ x, "dp"), lambda x, a: a.T @ x),
    "in a map": (lambda x, a: jax.vmap(lambda x: sh.einsum("ab,b->a", a[:, :], x))(x.T), lambda x, a: x.T @ a.T),
}


@pytest.mark.parametrize("name", TYPED)
def test_typed_ops_inside_take_what_the_program_closes_over(name: str) -> None:
    f, right = TYPED[name]
    x, a = sh.array(X, "[8@dp, 4]"), sh.array(Y[:, :4] if name != "in a map" else Y, "[8@dp, ...]")
    if name == "in a map":
        x, a = sh.array(X, "[8, 4@tp]"), sh.array(Y, "[8@dp, 8]")
    found = sh.lift(lambda x: f(x, a))(x)
    assert_close(np.asarray(sh.all_reduce(found)), right(np.asarray(x), np.asarray(a)), 100)


@pytest.mark.nightly
def test_a_module_that_is_closed_over_is_typed() -> None:
    module = eqx.nn.MLP(4, 4, 8, 2, key=jax.random.key(0))
    rules = {"layers/0/*": "[hidden@tp, ...]", "**": "[...]"}
    weights = sh.tree.array(eqx.filter(module, eqx.is_array), rules)
    placed = eqx.combine(weights, eqx.filter(module, eqx.is_array, inverse=True))
    x = sh.array(X, "[8@dp, 4]")
    with sh.implicit_comm():
        found = sh.lift(jax.vmap(placed))(x)
    assert_close(np.asarray(sh.all_reduce(found)), jax.vmap(module)(X), 400)


@pytest.mark.core
def test_plain_values_of_the_traces_around_are_closed_over() -> None:
    x, c = sh.array(X, "[8@dp, 4]"), jnp.asarray(X)
    assert_close(np.asarray(sh.jit(lambda x, c: sh.lift(lambda x: x * c)(x))(x, c)), X * X, 1)

    def total(c: Any) -> Any:
        return sh.all_reduce(sh.sum(sh.lift(lambda x: x * c)(x))).to_jax()

    assert_close(jax.jit(jax.grad(total))(c), X, 1)


def test_each_trace_has_its_own_values() -> None:
    held: dict[str, Any] = {}
    lifted = sh.lift(lambda x: x * held["c"])

    def step(x: Any, c: Any) -> Any:
        held["c"] = c
        return lifted(x)

    x = sh.array(X, "[8@dp, 4]")
    for factor in (2.0, 3.0):
        found = jax.jit(functools.partial(step))(x, sh.array(np.full((8, 4), factor, np.float32), "[8@dp, 4]"))
        assert_close(np.asarray(found), factor * X, 1)


def test_the_ledger_is_that_of_the_program_that_takes_it() -> None:
    with sh.policy("jax"):
        w, x, y = typed()
        closed = sh.ledger(sh.grad(sh.lift(lambda w: loss(w, x, y))), w)
        taken = sh.ledger(sh.grad(sh.lift(loss)), w, x, y)
    assert closed.bytes == taken.bytes > 0


def test_a_program_differentiates_with_respect_to_what_it_closes_over() -> None:
    x, y = sh.array(X, "[8@dp, 4]"), sh.array(np.flip(X, 0).copy(), "[8@dp, 4]")
    found = sh.lift(lambda y: jax.grad(lambda x: jnp.sum(jnp.sin(x) * y))(x))(y)
    assert_close(np.asarray(found), np.cos(X) * np.flip(X, 0), 10)


#: Ways to call a lifted function that nobody compiled: each gives an array that is proportional to what it closes over.
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "called": lambda lifted, x: lifted(x),
    "with a plain array": lambda lifted, x: lifted(x, jnp.zeros(())),
    "gradient": lambda lifted, x: sh.grad(lambda x: sh.all_reduce(sh.sum(lifted(x))))(x),
    "derivative": lambda lifted, x: sh.jvp(lifted, (x,), (x,))[1],
    "mapped": lambda lifted, x: sh.vmap(lifted)(x),
    "linearized": lambda lifted, x: sh.linearize(lifted, x)[1](x),
    "in a scope": lambda lifted, x: sh.implicit_comm(lifted)(x),
    "under plain jit of the results alone": lambda lifted, x: sh.jit(lambda y: y * 1)(lifted(x)),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_bound_again_is_seen_as_plain_jax_sees_it(way: str) -> None:
    row = sh.array(np.ones(4, np.float32), "[4]")
    held: dict[str, Any] = {"row": row}
    STATE["global"] = scale = 1.0

    class Module:
        factor = 1.0

    module = Module()

    def f(x: Any, *more: Any) -> Any:
        return x * held["row"] * scale * module.factor * STATE["global"]

    lifted, x = sh.lift(f), sh.array(np.ones((8, 4), np.float32), "[8@dp, 4]")

    def now() -> float:
        return float(np.asarray(sh.all_reduce(WAYS[way](lifted, x)))[0, 0])

    assert now() == 1.0
    held["row"] = row * 2
    assert now() == 2.0
    held["row"] = jnp.full(4, 3.0)
    assert now() == 3.0
    scale = 2.0
    assert now() == 6.0
    module.factor = 5.0
    assert now() == 30.0
    STATE["global"] = 2
    assert now() == 60.0
    assert now() == 60.0


STATE: dict[str, Any] = {}
#: What reports say of a function that sends more the more often it goes round.
REPORTS: dict[str, Callable[..., int]] = {
    "ledger": lambda f, x: sh.ledger(f, x).bytes,
    "ledger of a gradient": lambda f, x: sh.ledger(sh.grad(lambda x: sum(sh.sum(sh.sin(y)) for y in f(x))), x).bytes,
    "check": lambda f, x: sh.check(f, x).ledger.bytes,
    "explain": lambda f, x: sh.explain(f, x, grad=True).ledger.bytes,
    "explain, in words": lambda f, x: len(str(sh.explain(f, x, fold=False))),
    "memory": lambda f, x: sh.memory(f, x).peak,
    "compare": lambda f, x: getattr(sh.compare(f, x), sh.current_policy()).ledger.bytes,
    "assert_comm": lambda f, x: sh.assert_comm(f, x).bytes,
}
#: How a function is given to them, of which nothing is compiled by the user.
FORMS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda f: f,
    "lifted": sh.lift,
    "in a scope": sh.implicit_comm,
    "lifted, in a scope": lambda f: sh.implicit_comm(sh.lift(f)),
    "with its annotations": sh.typed,
}


@pytest.mark.one_in(13)
@POLICIES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("report", REPORTS)
def test_each_report_is_of_what_a_function_closes_over_now(report: str, form: str, policy: str) -> None:
    STATE["global"] = turns = 1
    listed, module = [1], types.SimpleNamespace(turns=1)

    def f(x: Any) -> Any:
        sums = []
        for _ in range(turns * listed[0] * module.turns * STATE["global"] + 2 * jax.config.read("jax_enable_x64")):
            x = x * x
            sums.append(x.sum(0))
        return sums

    given, x = FORMS[form](f), sh.abstract_array("f32[8@dp, 4]")

    def reduced(x: Any) -> Any:
        return [sh.all_reduce(y) for y in given(x)]

    def now() -> int:
        return REPORTS[report](reduced, x)

    with sh.policy(policy):
        start = now()
        for change in (functools.partial(listed.__setitem__, 0), functools.partial(setattr, module, "turns"), _global):
            change(3)
            assert now() > start
            change(1)
            assert now() == start
        turns = 3
        assert now() > start
        turns = 1
        with jax.enable_x64(True):
            assert now() > start
        assert now() == start


def _global(turns: int) -> None:
    STATE["global"] = turns


def test_a_program_that_comes_again_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sh.array(X, "[8@dp, 4]")
    lifted = sh.lift(lambda x: jnp.sin(x) * 2)
    compiled: list[Any] = []

    class Counted(JitFunction[..., Any]):
        def __init__(self, *args: Any) -> None:
            compiled.append(self)
            super().__init__(*args)

    monkeypatch.setattr(traced_program, "JitFunction", Counted)
    for _ in range(3):
        lifted(x)
    assert len(compiled) == 1
    scale = 1.0
    other = sh.lift(lambda x: jnp.sin(x) * scale)
    for scale in (1.0, 2.0, 3.0, 3.0):  # noqa: B007  # the first is compiled, and the one that comes again
        other(x)
    assert len(compiled) == 3


def _reduced(y: Any) -> Any:
    return sh.all_reduce(y, "tp")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments that are no arrays: equal ones need not be the same."""

    scale: float
    shift: float = dataclasses.field(default=0.0, compare=False)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_that_are_equal_and_not_the_same_are_those_of_the_call(compiled: bool) -> None:
    x = sh.ones("f32[4@dp]")
    programs: list[tuple[Callable[..., Any], list[Any]]] = [
        (lambda x, c: x / c.scale, [Settings(0.0), Settings(-0.0)]),
        (lambda x, c: x.astype(jnp.int32) * c.scale, [Settings(1), Settings(1.0), Settings(True)]),
        (lambda x, c: x * c.shift, [Settings(1.0, 2.0), Settings(1.0, 3.0)]),
        (lambda x, c: x + c["of"].shift, [{"of": Settings(1.0, 2.0)}, {"of": Settings(1.0, 3.0)}]),
    ]
    for f, settings in programs:
        lifted = sh.lift(f)
        for c in (*settings, *settings):
            run = sh.jit(lambda x, c=c, lifted=lifted: lifted(x, c)) if compiled else functools.partial(lifted, c=c)
            found, wanted = np.asarray(run(x)), np.asarray(f(jnp.ones(4), c))
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted)


def test_a_model_that_ran_in_plain_jax_before_keeps_its_reshards() -> None:
    inner = {
        "jit": jax.jit(lambda y: sh.all_reduce(y, "tp")),
        "checkpoint": jax.checkpoint(lambda y: sh.all_reduce(y, "tp")),
        "scan": lambda y: jax.lax.scan(lambda c, _: (c + sh.all_reduce(y, "tp"), None), 0 * Y, None, length=1)[0],
        "cond": lambda y: jax.lax.cond(True, lambda y: sh.all_reduce(y, "tp"), lambda y: sh.all_reduce(-y, "tp"), y),
        "vmap": jax.vmap(lambda row: sh.all_reduce(row, "tp")),
        "custom_jvp": jax.jit(lambda y: jax.nn.relu(_reduced(y))),
    }
    for name, reduced in inner.items():

        def model(x: Any, w: Any, reduced: Any = reduced) -> Any:
            return reduced(x @ w)

        with jax.set_mesh(None):  # plain JAX, which traces and remembers
            y = jnp.asarray(Y)
            plain = np.asarray(jax.jit(model)(y, y))
            jax.block_until_ready((model(y, y), jax.jit(jax.grad(lambda x, y, f=model: jnp.sum(f(x, y))))(y, y)))
        x, w = sh.array(Y, "[8, 8@tp]"), sh.array(Y, "[8@tp, 8]")
        assert sh.ledger(sh.lift(model), x, w).launches == 1, name
        found = sh.lift(model)(x, w)
        assert not found.type.axes(sh.State.UNREDUCED)
        assert_close(np.asarray(found), plain, 400)


@pytest.mark.parametrize(
    ("f", "fix"),
    [
        (lambda x, a: x + a[0], 'sh.reshard(a[0], "[4]")'),
        (lambda x, a: x - jnp.mean(a, 0), 'sh.reshard(jnp.mean(a, 0), "[4]")'),
        (lambda x, a: jnp.sum(a) + x, 'sh.reshard(jnp.sum(a), "[]")'),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_a_fix_speaks_of_the_operand_before_jax_puts_dims_in_front(f: Any, fix: str, closed: bool) -> None:
    x, a = sh.array(X, "[8@dp, 4]"), sh.array(X, "[8@dp, 4]")
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.lift(lambda x: f(x, a))(x) if closed else sh.lift(f)(x, a)
    assert fix in [fix.code for fix in caught.value.fixes]


# plain arrays that are sharded


def _carried(c: Any, w: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        c, total = carry
        return (c * 0.5, total + jnp.sum(c * w)), None

    return jax.lax.scan(step, (c, 0.0), None, 3)[0][1]


@jax.custom_vjp
def _product(c: Any, w: Any) -> Any:
    return c * w


_product.defvjp(lambda c, w: (c * w, (c, w)), lambda saved, ct: (ct * saved[1], ct * saved[0]))

#: Functions of a constant and a typed value, by where these meet.
MEETINGS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda c, w: jnp.sum(c * w),
    "after an op": lambda c, w: jnp.sum((c * 0.5) * w),
    "carry": _carried,
    "branch": lambda c, w: jnp.sum(jax.lax.cond(w.size > 3, lambda c, w: c * w, lambda c, w: c + w, c, w)),
    "derivative rule": lambda c, w: jnp.sum(_product(c, w)),
    "checkpoint": lambda c, w: jnp.sum(jax.checkpoint(lambda c, w: jnp.sin(c * w))(c, w)),
    "positions": lambda c, w: jnp.sum(w[c.astype("i4") - 1] * c),
}


@pytest.mark.one_in(23)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("how", ["closed over", "given", "compiled"])
@pytest.mark.parametrize("where", MEETINGS)
def test_a_plain_array_that_is_sharded_is_a_constant_that_is_sharded(where: str, how: str, kind: str) -> None:
    """It was made whole on each device as soon as an op of plain arrays or a loop used it, which no ledger had."""
    f, w = MEETINGS[where], np.linspace(0.1, 1, 8).astype(np.float32)
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)
    with jax.set_mesh(mesh):
        c = jax.device_put(np.arange(1, 9, dtype=np.float32), jax.NamedSharding(mesh, jax.P("dp")))
        loss: Any = (lambda w: sh.lift(f)(c, w)) if how == "given" else sh.lift(lambda w: f(c, w))
        gradient: Any = sh.value_and_grad(loss)
        typed_w = sh.array(w, "f32[8]")
        with sh.no_comm():
            value, grad = (sh.jit(gradient) if how == "compiled" else gradient)(typed_w)
        assert str(value.type) == "f32[]{U:dp}"
        assert str(grad.type) == "f32[8]{U:(dp,tp)}"
        assert_close(denoted(value), f(np.arange(1, 9, dtype=np.float32), w), 64)
        assert_close(denoted(grad), jax.jit(jax.grad(f, 1))(np.arange(1, 9, dtype=np.float32), w), 64)
        assert_compiled_as_said(loss, typed_w)


def test_plain_arrays_on_other_devices_or_dims_are_refused_by_their_types() -> None:
    mesh, other = (jax.make_mesh(sizes, ("dp", "tp")) for sizes in ((2, 4), (4, 2)))
    with jax.set_mesh(mesh):
        w = sh.array(np.ones(8, np.float32), "f32[8@tp]")
        for on, match in ((mesh, r"over `\(dp\)` in lhs and over `\(tp\)` in rhs"), (other, "of different meshes")):
            c = jax.device_put(np.ones(8, np.float32), jax.NamedSharding(on, jax.P("dp")))
            with pytest.raises(sh.ShardingTypeError, match=match) as caught:
                sh.lift(lambda w, c=c: c * w)(w)
            assert "where:" in str(caught.value)


KEYS: dict[str, Callable[[Any, Any], Any]] = {
    "mapped": lambda keys, w: jnp.sum(jax.vmap(lambda key, w: jax.random.normal(key) * w)(keys, w)),
    "split": lambda keys, w: jnp.sum(jax.vmap(lambda k: jax.random.uniform(jax.random.split(k)[1]))(keys) * w),
    "data": lambda keys, w: jnp.sum(jax.random.key_data(keys).astype("f4") * w[:, None]),
    "branch": lambda keys, w: jnp.sum(
        jax.lax.cond(w.size > 3, lambda k: jax.vmap(jax.random.normal)(k) * w, lambda k: w, keys)
    ),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("where", KEYS)
def test_keys_that_are_sharded_are_too(where: str, kind: str) -> None:
    """JAX saw their sharding on a mesh of explicit axes, and refused to map over them with an array of the program."""
    f, w, keys = KEYS[where], np.linspace(0.1, 1, 8).astype(np.float32), jax.random.split(jax.random.key(0), 8)
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)
    expected, slope = jax.jit(jax.value_and_grad(f, 1))(keys, w)
    with jax.set_mesh(mesh):
        sharded, typed_w = jax.device_put(keys, jax.NamedSharding(mesh, jax.P("dp"))), sh.array(w, "f32[8]")
        with sh.no_comm():
            value, grad = sh.value_and_grad(sh.lift(lambda w: f(sharded, w)))(typed_w)
        assert str(value.type) == "f32[]{U:dp}"
        assert_close(denoted(value), expected, 64)
        assert_close(denoted(grad), slope, 64)


def _beside(a: Any, b: Any) -> Any:
    return jnp.concatenate([a, b], 1)


def _within(a: Any, b: Any) -> Any:
    return jax.lax.dynamic_update_slice(a, b, (0, 0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("f", "closed", "given", "fix"),
    [
        (jnp.matmul, "f32[8@dp,4]", "f32[4@dp,8]", "[4,8]"),
        (jnp.matmul, "f32[8,16@dp]{I:tp}", "f32[16,8@dp]", "[16@dp,8]"),
        (jnp.multiply, "f32[8@(dp,tp),16]", "f32[8,16@tp]", "[8@(dp,tp),16]"),
        (jnp.subtract, "f32[8@dp,16]{U:tp}", "f32[8,16]{U:dp}", "[8@dp,16]{U:tp}"),
        (_beside, "f32[8@tp,16]", "f32[8@tp,8@dp]", "[8@tp,8]{U:dp}"),
        (_beside, "f32[8@dp,16]", "f32[8@(tp,dp),8]", "[8@(dp,tp),8]"),
        (_within, "f32[8,16@dp]", "f32[8,8@dp]{I:tp}", "[8,8]{I:(dp,tp)}"),
    ],
)
def test_a_fix_beside_what_the_program_closes_over_costs_what_it_says(
    f: Any, closed: str, given: str, fix: str
) -> None:
    """Half of what is tried moved the value that has no name in the program, and its gradient was part of the price."""
    a, b = sh.ones(closed), sh.ones(given)
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.lift(lambda b: f(a, b))(b)
    moving = [one for one in caught.value.fixes if "(..., out=" not in one.code]
    targets = [one.code.removeprefix('sh.reshard(b, "').partition('")')[0] for one in moving]
    assert targets[0] == fix
    for one, to in zip(moving, targets, strict=True):
        sent = sh.ledger(sh.value_and_grad(lambda b, to=to: sh.sum(sh.lift(lambda b: f(a, b))(sh.reshard(b, to)))), b)
        assert (one.bytes_forward, one.bytes_backward) == (sent.forward().bytes, sent.backward().bytes)


@functools.cache
def _mask(n: int) -> jax.Array:
    return jnp.tril(jnp.ones((n, n)))


def _remembered(left: list[Any], x: Any) -> Any:
    left += [] if left else [jnp.cos(jnp.ones(4))]
    return x + left[0]


def _out_of_a_loop(left: list[Any], x: Any) -> Any:
    def body(c: Any, _: Any) -> Any:
        left.append(c)
        return c, None

    jax.lax.scan(body, jnp.ones(4), None, length=2)
    return x + left[0]


def _returned(left: list[Any], x: Any) -> Any:
    left += [] if left else [jnp.cos(jnp.ones(4))]
    return x, left[0]


@pytest.mark.parametrize("f", [lambda _, x: x @ _mask(4), _remembered, _out_of_a_loop, _returned])
def test_a_traced_value_that_left_its_trace_is_told_as_one(f: Callable[..., Any]) -> None:
    """It was told of as an array of an automatic mesh, with a hint to give it a type, which no dead value takes."""
    left: list[Any] = []
    f = functools.partial(f, left)
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        with contextlib.suppress(sh.ShardingTypeError):
            sh.lift(f)(sh.abstract_array("f32[8@dp,4]"))
        with pytest.raises(jax.errors.UnexpectedTracerError, match="left its trace, which has ended") as caught:
            sh.lift(f)(sh.abstract_array("f32[16@dp,4]"))
    error = caught.value
    assert isinstance(error, sh.ShardingTypeError)
    assert error.where.startswith("test_closed_over.py:")
    assert "jax.ensure_compile_time_eval()" in str(error)


def test_a_constant_of_compile_time_may_be_remembered() -> None:
    @functools.cache
    def mask(n: int) -> jax.Array:
        with jax.ensure_compile_time_eval():
            return jnp.tril(jnp.ones((n, n)))

    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        for n in (8, 16):
            y = sh.lift(lambda x: x @ mask(4))(sh.abstract_array(f"f32[{n}@dp,4]"))
            assert str(y.type) == f"f32[{n}@dp,4]"


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "checkpoint"])
def test_a_constant_of_compile_time_sends_nothing(around: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            mask = jnp.tril(jnp.ones((4, 4)))
        return x @ mask[:, ::-1]

    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})), sh.no_comm():
        assert not sh.ledger(sh.jit(sh.lift(around(f))), sh.abstract_array("f32[8@dp,4]")).not_covered
