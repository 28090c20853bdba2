"""One scope, one program: reports, both `jit`s, calls that run at once and the compiled program agree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.scopes.comm import open_trackers
from tests.random_checks import Context
from tests.random_choices import evaluated
from tests.random_plain import CONSTANTS
from tests.random_programs import POLICIES, Program, generate_program, spread
from tests.traced.compiled import (
    JITS,
    Sent,
    assert_compiled_as_said,
    assert_sent_as_said,
    compiled_text,
    sent_by_compiled,
)

pytestmark = pytest.mark.usefixtures("on_a_mesh")

X, W, V = "f32[8@dp, 16]", "f32[16, 16@tp]", "f32[16@tp, 16]"


def arguments(*types: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [sh.array(rng.standard_normal(sh.ShType.parse(t).shape).astype(np.float32) / 4, t) for t in types]


def mlp(x: Any, w: Any, v: Any) -> Any:
    return sh.all_reduce(sh.tanh(x @ w) @ v, "tp")


def loss(x: Any, w: Any, v: Any) -> Any:
    """One that is reduced at its end: the seed of its gradient is a pending sum under "partial"."""
    return sh.all_reduce(sh.sum(mlp(x, w, v) ** 2))


# programs: each takes gradients in another way


def several_losses(x: Any, w: Any, v: Any) -> Any:
    """A loss and another that is no part of it, with a regularizer that is reduced from the start."""
    value = loss(x, w, v)
    return value + 1e-3 * sh.all_reduce(sh.sum(w * w)), {"count": sh.all_reduce(sh.sum(x)), "name": None}


def microbatches(x: Any, w: Any, v: Any) -> Any:
    def step(total: Any, factor: Any) -> tuple[Any, Any]:
        value, grad = sh.value_and_grad(lambda w: loss(x * sh.constant(factor), w, v))(w)
        return total + grad, value

    return sh.scan(step, sh.zeros(w.type.cotangent()), jnp.arange(1.0, 4.0))


def seeds_in_a_loop(x: Any, w: Any, v: Any) -> Any:
    """The loss is the carry of a loop, so that each step of the backward pass starts from it."""
    start = sh.zeros(sh.typeof(loss(x, w, v)))

    def total(w: Any) -> Any:
        factors = jnp.arange(1.0, 4.0)
        return sh.scan(lambda c, factor: (c + loss(x * sh.constant(factor), w, v), None), start, factors)[0]

    return sh.grad(total)(w)


@sh.custom_vjp
def _scaled(x: Any, w: Any) -> Any:
    return sh.all_reduce(sh.sum(x @ w))


def _scaled_forward(x: Any, w: Any) -> tuple[Any, Any]:
    return _scaled(x, w), (x, w)


def _scaled_backward(saved: Any, ct: Any) -> tuple[Any, Any]:
    pulled: tuple[Any, Any] = sh.vjp(lambda x, w: sh.all_reduce(sh.sum(x @ w)), *saved)[1](ct)
    return pulled


_scaled.defvjp(_scaled_forward, _scaled_backward)


def own_derivative(x: Any, w: Any, v: Any) -> Any:
    return sh.value_and_grad(lambda w: _scaled(sh.tanh(x), w))(w)


def mapped_gradients(x: Any, w: Any, v: Any) -> Any:
    return jax.vmap(lambda s: jax.grad(lambda w: loss(x, w * s, v))(w))(sh.ones("f32[3]"))


def pulled_back(x: Any, w: Any, v: Any) -> Any:
    value, pull = jax.vjp(loss, x, w, v)
    return value, pull(sh.ones(sh.typeof(value).cotangent()))


def second_derivatives(x: Any, w: Any, v: Any) -> Any:
    return sh.grad(lambda w: sh.all_reduce(sh.sum(sh.reshard(sh.grad(lambda w: loss(x, w, v))(w), "[...]") ** 2)))(w)


def tangents(x: Any, w: Any, v: Any) -> Any:
    return sh.jvp(loss, (x, w, v), (x, w, v))


def donated(x: Any, w: Any, v: Any) -> Any:
    step = jax.jit(lambda w: w - sh.reshard(sh.grad(lambda w: loss(x, w, v))(w), w.type), donate_argnums=0)
    return step(w * 1.0)


def in_branches(x: Any, w: Any, v: Any) -> Any:
    return sh.value_and_grad(
        lambda w: sh.cond(loss(x, w, v) > 0, lambda w: loss(x, w, v), lambda w: 2 * loss(x, w, v), w)
    )(w)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "grad": jax.grad(loss, argnums=(0, 1, 2)),
    "value_and_grad": sh.value_and_grad(loss, argnums=(0, 1, 2)),
    "has_aux": sh.value_and_grad(several_losses, argnums=1, has_aux=True),
    "vjp": pulled_back,
    "jvp": tangents,
    "second derivatives": second_derivatives,
    "microbatches in a scan": microbatches,
    "a loss that a scan carries": seeds_in_a_loop,
    "checkpoint": sh.value_and_grad(sh.checkpoint(loss), argnums=1),
    "jax.checkpoint": jax.grad(jax.checkpoint(loss), argnums=1),
    "custom_vjp": own_derivative,
    "vmap of grad": mapped_gradients,
    "cond": in_branches,
    "jit inside": jax.grad(jax.jit(loss), argnums=1),
    "sh.jit inside": sh.grad(sh.jit(loss), argnums=1),
    "donated": donated,
    "a tree": lambda *args: sh.all_reduce(sh.value_and_grad(loss, argnums=(0, 1, 2))(*args)),
}


@pytest.mark.one_in(35)
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_jits_send_what_the_ledgers_say(name: str, policy: str) -> None:
    assert_compiled_as_said(PROGRAMS[name], *arguments(X, W, V))


# what runs at once


def ran_at_once(f: Callable[..., Any], *args: Any) -> int:
    """The collectives that are launched where nothing is compiled around a call."""
    with sh.comm_budget(launches=10**9):
        (tracker,) = open_trackers()
        jax.block_until_ready(f(*args))
        return sum(sums.launches for (direction, _), sums in tracker.total().items() if direction != "caused")


#: What is not here has something that only runs where nothing is compiled: a value that a gradient does not need.
AT_ONCE = ["value_and_grad", "has_aux", "vjp", "jvp", "microbatches in a scan", "checkpoint", "cond", "a tree"]


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", AT_ONCE)
def test_what_runs_at_once_sends_what_the_ledger_says(name: str, policy: str) -> None:
    args = arguments(X, W, V)
    assert ran_at_once(PROGRAMS[name], *args) == sh.ledger(PROGRAMS[name], *args).launches


# what is inserted


def layer(x: Any, w: Any, v: Any) -> Any:
    """A pending sum that two ops take, and a gathered value that serves two."""
    y = sh.sin(x) @ w @ v
    return sh.tanh(y) * sh.cos(y) + x


def inserted_loss(x: Any, w: Any, v: Any) -> Any:
    return sh.sqrt(sh.sum(layer(layer(x, w, v), w, v) ** 2))


def in_a_block(*args: Any) -> Any:
    with sh.implicit_comm():
        return inserted_loss(*args)


def around(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call inside the scope."""

    @functools.wraps(call)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with sh.implicit_comm():
            return call(*args, **kwargs)

    return inside


#: How a scope is put around a function: the function, and what is put around each report or call of it.
Put = tuple[Callable[..., Any], Callable[[Callable[..., Any]], Callable[..., Any]]]
PUT: dict[str, Put] = {
    "decorated": (sh.implicit_comm(inserted_loss), lambda call: call),
    "a block inside": (in_a_block, lambda call: call),
    "a block around": (inserted_loss, around),
}
#: Reports of a function for arguments.
REPORTS: dict[str, Callable[..., sh.Ledger]] = {
    "ledger": sh.ledger,
    "ledger of jax.jit": lambda f, *args: sh.ledger(jax.jit(f), *args),
    "ledger of sh.jit": lambda f, *args: sh.ledger(sh.jit(f), *args),
    "check": lambda f, *args: sh.check(f, *args).ledger,
    "explain": lambda f, *args: sh.explain(f, *args).ledger,
    "compare": lambda f, *args: getattr(sh.compare(f, *args, grad=False), sh.current_policy()).ledger,
    "assert_comm": sh.assert_comm,
}


#: The reports that take a function's backward pass too.
WITH_GRADIENT: dict[str, Callable[..., sh.Ledger]] = {
    "check": lambda f, *args: sh.check(f, *args, grad=True).ledger,
    "explain": lambda f, *args: sh.explain(f, *args, grad=True).ledger,
    "compare": lambda f, *args: getattr(sh.compare(f, *args), sh.current_policy()).ledger,
    "assert_comm": lambda f, *args: sh.assert_comm(f, *args, grad=True),
}


@pytest.mark.nightly
@pytest.mark.parametrize("put", PUT)
def test_one_scope_is_one_program_for_all_that_ask_and_run(put: str, policy: str) -> None:
    f, around = PUT[put]
    args = arguments(X, W, V)
    wanted = around(sh.ledger)(f, *args)
    assert any(e.inserted for e in wanted)
    with sh.merge_reshards(False):
        for name, report in REPORTS.items():
            assert around(report)(f, *args).total == wanted.total, name
    around(assert_compiled_as_said)(f, *args)
    assert around(ran_at_once)(f, *args) == wanted.launches


@pytest.mark.one_in(43)
@pytest.mark.parametrize("put", PUT)
def test_one_scope_is_one_program_with_its_gradient(put: str, policy: str) -> None:
    f, around = PUT[put]
    args = arguments(X, W, V)
    wanted = around(sh.ledger)(sh.value_and_grad(f, argnums=(0, 1, 2)), *args).total
    for name, report in WITH_GRADIENT.items():
        assert around(report)(f, *args).total == wanted, name
    around(assert_compiled_as_said)(sh.value_and_grad(f, argnums=(0, 1, 2)), *args)
    assert around(ran_at_once)(sh.value_and_grad(f, argnums=(0, 1, 2)), *args) == wanted.launches


def test_a_decorated_function_sends_no_more_than_one_whose_ops_choose_for_themselves(policy: str) -> None:
    args = arguments(X, W, V)
    alone, ahead = (sh.value_and_grad(PUT[put][0], argnums=(0, 1, 2)) for put in ("a block inside", "decorated"))
    assert sh.ledger(ahead, *args).bytes <= sh.ledger(alone, *args).bytes


# what `sh.jit` merges is in reports of what it made


def two_ways(x: Any, w: Any, v: Any) -> Any:
    """An all-reduce and a slice of it, which `sh.jit` makes a reduce-scatter of."""
    return sh.sin(sh.shard(mlp(x, w, v), "tp", 1))


class Model:
    @sh.jit
    def step(self, x: Any, w: Any, v: Any) -> Any:
        return two_ways(x, w, v)


jax.tree_util.register_pytree_node(Model, lambda model: ((), None), lambda *_: Model())


ASKED = [pytest.param(REPORTS[name], id=name) for name in ("ledger", "check", "explain", "compare", "assert_comm")]
ASKED += [pytest.param(report, id=f"{name}, gradient") for name, report in WITH_GRADIENT.items()]


@pytest.mark.parametrize("report", ASKED)
def test_each_report_is_of_the_program_that_the_function_runs(report: Callable[..., sh.Ledger]) -> None:
    args = [sh.abstract_array(t) for t in (X, W, V)]
    for f in (two_ways, jax.jit(two_ways), sh.jit(two_ways, region="off")):
        assert "reduce-scatter" not in report(f, *args).forward().by_kind()
    for f in (sh.jit(two_ways), functools.partial(sh.jit(two_ways)), Model().step):
        assert "all-reduce" not in report(f, *args).forward().by_kind()


def test_memory_is_that_of_the_program_that_the_function_runs() -> None:
    def gathered_first(x: Any) -> Any:
        return sh.sin(sh.reshard(sh.reshard(x, "[512, 512]"), "[512@dp, 512@tp]"))

    x = sh.abstract_array("f32[512@dp, 512]")
    with sh.merge_reshards(False):
        unmerged = sh.memory(sh.jit(gathered_first), x).temporaries
    assert sh.memory(gathered_first, x).temporaries == unmerged > sh.memory(sh.jit(gathered_first), x).temporaries


# random programs


def stepped(program: Program) -> Callable[[dict[str, Any]], Any]:
    """All values of a random program, and the gradients of a scalar that is linear in none of them."""
    names = [name for name, (array, _) in program.inputs.items() if array.dtype.kind == "f"]

    def step(inputs: dict[str, Any]) -> Any:
        def scalar(*parts: Any) -> Any:
            values = program.values(sh, {**inputs, **dict(zip(names, parts, strict=True))})
            floats = [x for x in values.values() if jnp.issubdtype(x.dtype, jnp.floating)]
            sums = [sh.sum(sh.sin(sh.reshard(x.astype("f32"), "[...]")) ** 2) for x in floats]
            return functools.reduce(sh.add, [sh.all_reduce(s) if s.type.axes(sh.State.UNREDUCED) else s for s in sums])

        return sh.value_and_grad(scalar, argnums=tuple(range(len(names))))(*[inputs[n] for n in names])

    return step


def silent(program: Program, inputs: dict[str, Any]) -> dict[str, Any]:
    """The values of the steps that `no_comm` accepts."""
    env: dict[str, Any] = {**CONSTANTS, **inputs, "m": sh}
    found = {}
    for step in program.accepted:
        try:
            with sh.no_comm():
                env[step.name] = found[step.name] = evaluated(step, env)
        except (sh.ShardingTypeError, NameError):  # refused, or of one that was
            continue
    return found


@sh.no_comm()
def silent_gradient(program: Program, floats: dict[str, Any], others: dict[str, Any], cts: Any = None) -> Any:
    """The values of such steps, and what cotangents of them pull back; without those, the types of theirs."""

    def values(floats: dict[str, Any]) -> Any:
        found = silent(program, {**floats, **others})
        return [x for x in found.values() if isinstance(x, sh.Array) and x.type.differentiable], found

    outs, pull, found = jax.vjp(values, floats, has_aux=True)
    return outs if cts is None else (found, pull(cts))


@pytest.mark.one_in(229)
@pytest.mark.parametrize("seed", range(200))
def test_what_no_comm_accepts_of_a_random_program_compiles_to_no_collective(seed: int) -> None:
    program = generate_program(seed, steps=(4, 14), policy=POLICIES[seed % 2])
    with Context(program):
        inputs = {
            name: sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype))
            for name, (array, text) in program.inputs.items()
        }
        floats, others = ({n: x for n, x in inputs.items() if x.type.differentiable is kind} for kind in (True, False))
        pull = functools.partial(silent_gradient, program)
        cts = [sh.abstract_array(t.cotangent()) for t in jax.eval_shape(pull, floats, others)]
        for jit in JITS:
            text = compiled_text(jit(pull), floats, others, cts)
            assert sent_by_compiled(text, unknown=1) == Sent({}, {}), str(program)


@pytest.mark.nightly
def test_what_is_its_operand_itself_or_no_part_of_a_result_is_not_sent() -> None:
    x, one = sh.abstract_array("f32[8]{U:dp}"), sh.abstract_array("f32[1]{U:dp}")
    rows = sh.abstract_array("f32[1, 8]{I:dp}")

    def sent(f: Callable[..., Any], *args: Any) -> int:
        assert_compiled_as_said(f, *args)
        return len(sh.ledger(f, *args))

    assert sent(lambda x: (sh.all_reduce(x), sh.all_reduce(sh.real(x)), sh.all_reduce(sh.conj(x))), x) == 1
    assert sent(lambda x: (sh.all_reduce(x), sh.all_reduce(sh.roll(x, 2)), sh.all_reduce(x)), one) == 1
    assert not sent(lambda x: sh.all_reduce(x)[:0], x)
    branches = [lambda x: x * 2, lambda x: x, lambda x: sh.reshard(sh.all_reduce(x), x.type)]
    assert not sent(lambda x: (sh.switch(-1, branches, x), sh.cond(True, branches[0], branches[2], x)), x)
    assert sent(lambda x: (sh.switch(7, branches, x), sh.cond(False, *branches[1:], x)), x) == 2
    assert not sent(sh.grad(lambda x: sh.sum(x**0)), sh.abstract_array("f32[8]{R:dp}"))

    def before(x: Any, rows: Any) -> Any:  # the carry before the only step, of which the rows are no part
        return sh.sum(sh.scan(lambda c, row: (c + sh.reshard(row, "[8@dp]"), c), x, rows)[1])

    assert not sent(sh.grad(before, 1), sh.abstract_array("f32[8@dp]"), rows)


@pytest.mark.one_in(229)
@pytest.mark.parametrize("seed", range(200))
def test_a_random_program_of_any_ops_compiles_to_what_its_ledger_says(seed: int) -> None:
    program = generate_program(seed, steps=(4, 14), policy=POLICIES[seed % 2])
    if any("'bf16'" in step.text for step in program.steps):
        pytest.skip("CPU devices send f32 in the place of bf16")
    with Context(program):
        inputs = {name: spread(array, text) for name, (array, text) in program.inputs.items()}
        for jit in JITS:
            run = jit(stepped(program))
            said = sh.ledger(run if jit is sh.jit else run.__wrapped__, inputs)
            assert_sent_as_said(run, (inputs,), said, unknown=1)
