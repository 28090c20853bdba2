"""What rules of custom derivatives are told in lifted programs, what they may close over, and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

X = np.asarray([0.7, -1.2, 1.6, 0.4], np.float32)


pytestmark = pytest.mark.mesh({"x": 2})


def with_jvp(fun: Callable[..., Any], rule: Callable[..., Any], *, name: str = "f") -> Any:
    def named(*args: Any) -> Any:
        return fun(*args)

    named.__name__ = name
    f = jax.custom_jvp(named)
    f.defjvp(rule)
    return f


def with_vjp(fun: Callable[..., Any], fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Any:
    f = jax.custom_vjp(fun)
    f.defvjp(fwd, bwd)
    return f


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: sh.all_reduce(sh.sum(sh.lift(f)(*args)))


# types of what a rule gives


def test_a_rule_communicates_nothing_that_is_not_written_in_it() -> None:
    """A cotangent that is a pending sum, for an operand that is sharded."""
    bwd = lambda x, ct: (jnp.broadcast_to(jnp.sum(ct, 0), ct.shape),)  # noqa: E731
    f = with_vjp(lambda x: x * 2, lambda x: (x * 2, x), bwd)
    x = sh.array(X, "f32[4@x]")
    with pytest.raises(
        sh.ShardingTypeError, match=r"gives a cotangent of type f32\[4\]\{U:x\}, which has to be"
    ) as caught:
        sh.grad(total(f))(x)
    assert caught.value.where.startswith("test_derivative_rules.py:")
    assert 'sh.reshard(cotangent, "f32[4@x]") in the rule' in caught.value.hints
    found = sh.grad(sh.implicit_comm(total(f)))(x)
    assert_close(denoted(found), jax.jit(jax.grad(lambda x: f(x).sum()))(X))


def test_a_tangent_of_another_type_than_its_result_is_refused() -> None:
    f = with_jvp(lambda x: sh.all_reduce(jnp.sum(x), "x"), lambda p, t: (f(*p), jnp.sum(t[0])))
    x = sh.array(X, "f32[4@x]")
    with pytest.raises(sh.ShardingTypeError, match=r"gives a tangent of type f32\[\]\{U:x\}, which has to be f32\[\]"):
        sh.jvp(sh.lift(f), (x,), (x,))


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_the_cotangent_of_an_invariant_operand_is_summed_and_the_ledger_says_so(policy: str) -> None:
    f = with_vjp(lambda x, w: x @ w, lambda x, w: (x @ w, (x, w)), lambda r, ct: (ct @ r[1].T, r[0].T @ ct))
    with sh.policy(policy):
        x, w = sh.array(np.ones((4, 2), np.float32), "f32[4@x, 2]"), sh.array(np.ones((2, 3), np.float32), "f32[2, 3]")
        loss = lambda x, w: sh.all_reduce(sh.sum(sh.lift(f)(x, w)))  # noqa: E731
        ledger = sh.ledger(sh.grad(loss, argnums=1), x, w)
        backward = [e.bytes for e in ledger if e.direction == "backward"]
        assert backward == ([24] if policy == "jax" else [])


def test_a_result_whose_type_differs_from_that_of_its_function_is_refused() -> None:
    f = with_jvp(lambda x: sh.all_reduce(jnp.sum(x), "x"), lambda p, t: (jnp.sum(p[0]), jnp.sum(t[0])), name="mine")
    x = sh.array(X, "f32[4@x]")
    with pytest.raises(sh.ShardingTypeError, match="the derivative rule of `mine` gives a result of type"):
        jax.make_jaxpr(sh.grad(sh.jit(sh.lift(f))))(x)


# what a rule closes over


def test_a_value_that_is_differentiated_cannot_be_closed_over() -> None:
    def jvp(x: Any) -> Any:
        y = jnp.sin(x)
        f = with_jvp(lambda z: z * y, lambda p, t: (f(*p), t[0]))
        return f(x)

    def vjp(x: Any) -> Any:
        y = jnp.sin(x)
        return with_vjp(lambda z: z * y, lambda z: (z * 1, None), lambda _, ct: (ct,))(x)

    for f in (jvp, vjp):
        with pytest.raises(sh.ShardingTypeError, match="closes over a value that is differentiated"):
            sh.grad(total(f))(sh.array(X, "f32[4@x]"))


def test_a_rule_in_a_loop_that_closes_over_a_value_outside_of_it_is_refused() -> None:
    """As in JAX, which ends in an error of its own: the value is not there in the body."""

    def f(x: Any) -> Any:
        weights = jnp.arange(4.0)
        g = with_jvp(lambda y: y * 2, lambda p, t: (g(*p), t[0] * weights))
        return jax.lax.scan(lambda c, _: (g(c), None), x, None, 2)[0]

    with pytest.raises(
        sh.ShardingTypeError, match="a derivative rule of `f` closes over a value of the lifted program"
    ):
        sh.grad(total(f))(sh.array(X, "f32[4@x]"))


def test_a_rule_may_close_over_a_typed_value() -> None:
    weights = sh.array(X, "f32[4@x]")
    f = with_jvp(lambda y: y * 2, lambda p, t: (f(*p), t[0] * weights * p[0]))
    found = sh.grad(lambda x: sh.all_reduce(sh.sum(sh.grad(total(f))(x))))(sh.array(X, "f32[4@x]"))
    assert_close(denoted(found), X)


# no forward derivative, no transpose


@pytest.mark.parametrize(
    "derive",
    [
        lambda f, x: sh.jvp(f, (x,), (x,)),
        lambda f, x: sh.grad(lambda x: sh.jvp(f, (x,), (x,))[1])(x),
        lambda f, x: sh.hessian(f)(x),
    ],
    ids=["jvp", "grad of jvp", "hessian"],
)
def test_a_function_with_its_own_backward_pass_has_no_forward_derivative(derive: Any) -> None:
    f = with_vjp(lambda x: x**2, lambda x: (f(x), x), lambda x, ct: (2 * x * ct,))
    with pytest.raises(sh.ShardingTypeError, match="own backward pass has no forward derivative"):
        jax.block_until_ready(sh.jit(lambda x: derive(total(f), x))(sh.array(X, "f32[4@x]")))


def test_a_linear_call_has_no_derivative_in_what_it_is_linear_beside() -> None:
    call = jax.custom_derivatives.linear_call
    f = lambda x: call(lambda r, v: r * v, lambda r, ct: r * ct, jnp.sin(x), x)  # noqa: E731
    with pytest.raises(sh.ShardingTypeError, match="has no derivative in its residual arguments") as caught:
        sh.grad(total(f))(sh.array(X, "f32[4@x]"))
    assert caught.value.hints == ("jax.lax.stop_gradient(residual_args)",)


def test_what_jax_does_not_map_is_refused_in_words() -> None:
    call = jax.custom_derivatives.linear_call
    f = lambda x: call(lambda r, v: r * v, lambda r, ct: r * ct, jnp.ones(4), x)  # noqa: E731
    with pytest.raises(sh.ShardingTypeError, match="JAX has no such rule for `linear_call`"):
        sh.vmap(sh.lift(f))(sh.array(np.stack([X, X]), "f32[2, 4]"))


def test_a_backward_function_that_is_not_linear_wants_a_whole_cotangent_and_the_hint_gives_it_one() -> None:
    f = with_vjp(lambda x: x * 2, lambda x: (x * 2, x), lambda x, ct: (jnp.clip(ct, -1, 1) * x,))
    x = sh.array(X, "f32[4]")
    with pytest.raises(sh.ShardingTypeError, match="nonlinear") as caught:
        sh.grad(total(lambda x: f(x) * 3))(x)
    assert caught.value.hints[-1].startswith('sh.reshard(x, x="I") of its operands x')
    found = sh.grad(total(lambda x: f(sh.reshard(x, x="I")) * 3))(x)
    assert_close(denoted(found), X)


# the mesh


def constrained(x: Any) -> Any:
    whole = jax.lax.with_sharding_constraint(x, jax.P())
    return jax.lax.with_sharding_constraint(jnp.flip(jnp.flip(whole)), jax.P("x"))


def rule_that_annotates() -> Any:
    f = with_jvp(jnp.sin, lambda p, t: (f(*p), constrained(3 * jnp.cos(p[0])) * t[0]))
    return f


def functions_that_annotate() -> Any:
    return with_vjp(jnp.sin, lambda x: (jnp.sin(x), constrained(x)), lambda x, ct: (constrained(3 * ct * jnp.cos(x)),))


@pytest.mark.parametrize("make", [rule_that_annotates, functions_that_annotate], ids=["jvp", "vjp"])
def test_annotations_in_rules_are_reshards_as_those_of_the_program(make: Callable[[], Any]) -> None:
    f, x = make(), sh.array(X, "f32[4@x]")
    ways: list[Any] = [sh.grad(total(f)), sh.jit(sh.grad(total(f))), sh.lift(jax.grad(lambda x: jnp.sum(f(x))))]
    if make is rule_that_annotates:
        ways = [*ways, lambda x: sh.jvp(sh.lift(f), (x,), (sh.ones_like(x),))[1]]
    for run in ways:
        assert_close(denoted(run(x)), 3 * np.cos(X))
        assert "all-gather" in {entry.kind for entry in sh.ledger(run, x)}


# a map by a rule


def test_a_function_is_mapped_by_its_rule_outside_of_the_lifted_program_too() -> None:
    f = jax.custom_batching.custom_vmap(jnp.sin)
    f.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    rows = np.stack([X, X + 1])
    for t in ("f32[2, 4]", "f32[2@x, 4]", "f32[2, 4@x]"):
        found = sh.jit(sh.vmap(sh.lift(f)))(sh.array(rows, t))
        assert found.type == sh.array(rows, t).type
        assert_close(denoted(found), np.cos(rows))
    assert_close(denoted(sh.jit(sh.lift(f))(sh.array(X, "f32[4@x]"))), np.sin(X))


# traces


@pytest.mark.parametrize("loop", ["scan", "fori_loop", "while_loop"])
def test_a_lifted_loop_leaks_no_tracers(loop: str) -> None:
    f = {
        "scan": lambda x: jax.lax.scan(lambda c, r: (c + r, c), jnp.float32(0), x)[1],
        "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 1.5, x),
        "while_loop": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1],
    }[loop]
    with jax.checking_leaks():
        for run in (sh.lift(f), sh.jit(sh.lift(f))):
            jax.block_until_ready(run(sh.array(X, "f32[4]")))


#: JAX finds its own lowering of a checkpoint of typed values to hold tracers.
_LEAKS = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX leaks tracers of checkpoints of typed values")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["jvp", "vjp", "solver", pytest.param("checkpoint", marks=_LEAKS)])
def test_a_lifted_function_leaks_no_tracers(name: str) -> None:
    jvp = with_jvp(jnp.round, lambda p, t: (jvp(*p), t[0]))
    f = {
        "jvp": jvp,
        "vjp": with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, ct: (ct * x,)),
        "solver": lambda x: jnp.linalg.solve(jnp.outer(x, x) + jnp.eye(4), x),
        "checkpoint": jax.checkpoint(jnp.sin),
    }[name]
    x = sh.array(X, "f32[4]")
    with jax.checking_leaks():
        for run in (total(f), sh.grad(total(f)), sh.jit(sh.grad(total(f))), sh.lift(jax.grad(lambda x: jnp.sum(f(x))))):
            jax.block_until_ready(run(x))


# constants


def _steps(x: Any, rows: Any) -> Any:
    """A value and a number that starts as a constant, which a loop in a loop multiplies."""

    def inner(_: Any, state: Any) -> Any:
        x, t = state
        return x * t, t * rows[0, 1]

    def step(carry: Any, _: Any) -> Any:
        return jax.lax.fori_loop(0, 2, inner, carry), None

    return jax.lax.scan(step, (x, rows[1, 0]), None, 3)[0][0]


def _by_steps(x: Any, rows: Any) -> Any:
    return with_vjp(_steps, lambda x, rows: (_steps(x, rows), rows), lambda rows, ct: (_steps(ct, rows), None))(x, rows)


def _by_tangents(x: Any, rows: Any) -> Any:
    return with_jvp(_steps, lambda xs, dots: (_steps(*xs), _steps(dots[0], xs[1])))(x, rows)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("f", [_by_steps, _by_tangents, jax.checkpoint(_by_steps)], ids=["vjp", "jvp", "checkpoint"])
def test_constants_stay_constants_in_rules(f: Callable[..., Any], kind: str) -> None:
    """So they meet values of any type, on meshes of either kind."""
    rows = np.asarray([[0.3, 0.5], [0.7, 0.9]], np.float32)
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)

    def loss(x: Any) -> Any:
        return jnp.sum(f(x, jnp.asarray(rows) * 1.5))

    with jax.set_mesh(mesh):
        x = sh.array(X, "f32[4@x]{U:y}")
        value, found = jax.value_and_grad(lambda x: sh.all_reduce(sh.lift(loss)(x)))(x)
    assert sh.typeof(found) == sh.typeof(x).cotangent()
    assert_close(denoted(value), loss(X))
    assert_close(denoted(found), jax.jit(jax.grad(loss))(X))


def _reached_later(x: Any) -> Any:
    """A loop with a number that the value reaches in the second step, by way of another number."""

    def step(carry: Any) -> Any:
        i, x, now, _ = carry
        return i + 1, x * now, now + jnp.sum(x) * 0.1, now

    return jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x, 1.0, 1.0))[1:]


def _by_branches(x: Any) -> Any:
    """A loop whose branches meet a number that is a constant, and a number that starts as one."""

    def step(carry: Any, i: Any) -> Any:
        x, t, _ = carry
        x = jax.lax.switch(i, [lambda x, t: x * t, lambda x, t: x / t, lambda x, t: x + t], x, t)
        return (x, jax.lax.cond(i > 1, lambda t: t * 2, lambda t: t + 1, t), jnp.sum(x)), t

    (x, t, total), ts = jax.lax.scan(step, (x, 1.5, 0.0), jnp.arange(3))
    return jnp.sum(x * jnp.sum(ts)) * t * total


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_a_number_that_a_value_reaches_has_the_values_state(wrap: Callable[..., Any], kind: str) -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    with jax.set_mesh(mesh):
        x = sh.array(X, "f32[4]{I:x}")
        for run in (sh.lift(wrap(_reached_later)), sh.jit(sh.lift(wrap(_reached_later)))):
            found = run(x)
            assert [str(sh.typeof(y)) for y in found] == ["f32[4]{I:x}", "f32[]{I:x}", "f32[]{I:x}"]
            for y, right in zip(found, _reached_later(X), strict=True):
                assert_close(denoted(y), right)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("layout", ["f32[4@x]", "f32[4]{I:x}", "f32[4]"])
def test_constants_stay_constants_in_branches_of_a_loop(layout: str, kind: str) -> None:
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)
    with jax.set_mesh(mesh), sh.implicit_comm():
        found = sh.grad(sh.lift(_by_branches))(sh.array(X, layout))
    assert_close(denoted(found), jax.jit(jax.grad(_by_branches))(X))
