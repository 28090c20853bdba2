"""Linear solvers in lifted programs: what they send, in which direction, and what they do with pending sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import cg

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

POLICIES = pytest.mark.parametrize("policy", ["partial", "jax"])
_HALF = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
A = _HALF @ _HALF.T / 8 + np.eye(8, dtype=np.float32)
B = np.arange(8, dtype=np.float32) / 8
#: So many roundings has a solution that is as exact as its tolerance, 1e-6.
SOLVED = 64


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


def solve(a: Any, b: Any) -> Any:
    return cg(lambda v: a @ v, b, tol=1e-6)[0]


def solve_in_parts(a: Any, b: Any) -> Any:
    """With the columns of the matrix sharded: each product is a pending sum, which is finished."""
    return cg(lambda v: sh.reshard(a @ v, tp="I"), b, tol=1e-6)[0]


def loss(a: Any, b: Any) -> Any:
    return jnp.sum(solve(a, b) ** 2)


def loss_in_parts(a: Any, b: Any) -> Any:
    return jnp.sum(solve_in_parts(a, b) ** 2)


def parts() -> tuple[Any, Any]:
    """Invariant operands, so that the cotangent of the solution is whole under either policy."""
    return sh.array(A, "f32[8, 8@tp]{I:dp}"), sh.array(B, "f32[8]{I:(dp,tp)}")


def wanted() -> Any:
    return jax.jit(jax.grad(loss, argnums=(0, 1)))(A, B)


@pytest.mark.one_in(3)
@POLICIES
def test_the_products_of_a_solver_are_in_the_ledger_of_the_pass_in_which_they_run(policy: str) -> None:
    with sh.policy(policy):
        a, b = parts()
        total = sh.lift(loss_in_parts)
        forward = sh.ledger(total, a, b)
        assert [(e.direction, e.kind, e.axes, e.bytes, e.times) for e in forward] == [
            ("forward", "all-reduce", ("tp",), 32, 1),
            ("forward", "all-reduce", ("tp",), 32, None),
        ]
        both = sh.ledger(sh.grad(total, argnums=(0, 1)), a, b)
        assert sorted((e.direction, e.times is None) for e in both if e.axes == ("tp",))[:4] == [
            ("backward", False),
            ("backward", True),
            ("forward", False),
            ("forward", True),
        ]
        found = sh.jit(sh.grad(total, argnums=(0, 1)))(a, b)
        for got, right in zip(found, wanted(), strict=True):
            assert_close(denoted(got), right, SOLVED)


@pytest.mark.nightly
def test_scopes_judge_what_a_solver_sends_and_not_what_its_transpose_would_if_there_were_one() -> None:
    a, b = parts()
    total = sh.lift(loss_in_parts)
    with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids all-reduce over `tp` in the forward pass"):
        sh.no_comm(total)(a, b)
    sh.no_comm("backward")(total)(a, b)  # nothing is differentiated
    with pytest.raises(sh.ShardingTypeError, match="over `tp` in the backward pass"):
        sh.jit(sh.grad(sh.no_comm("backward")(total)))(a, b)
    whole = sh.array(A, "f32[8, 8]")
    sh.jit(sh.grad(sh.no_comm(sh.lift(loss))))(whole, sh.array(B, "f32[8]"))


def test_a_constant_right_hand_side_takes_the_state_of_the_matrix() -> None:
    """Both are without a gradient in the solver's body, where the matrix is factored."""
    a = sh.abstract_array("f32[8, 8]{I:(dp,tp)}")
    solution = sh.lift(lambda a: jnp.sum(jnp.linalg.solve(a, B)))
    assert solution(a).type == "f32[]{I:(dp,tp)}"
    assert not sh.ledger(sh.grad(solution), a)


@pytest.mark.one_in(3)
@POLICIES
def test_a_sharded_right_hand_side_has_its_gradient_where_the_solution_is_a_pending_sum(policy: str) -> None:
    """JAX's rule adds the tangents of the two."""

    def of_weights(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.linalg.solve(a, b) * B)

    with sh.policy(policy):
        a, b = sh.array(A, "f32[8, 8]"), sh.array(B, "f32[8@tp]")
        found = sh.jit(sh.grad(sh.lift(of_weights), argnums=(0, 1)))(a, b)
        for x, got, right in zip((a, b), found, jax.jit(jax.grad(of_weights, argnums=(0, 1)))(A, B), strict=True):
            assert got.type == x.type.cotangent()
            assert_close(denoted(got), right, SOLVED)


@pytest.mark.one_in(3)
@POLICIES
def test_the_terms_of_a_pending_sum_are_solved_for_alone(policy: str) -> None:
    """An iteration takes no pending sum; a solution of a sum is the sum of the solutions."""
    terms = np.stack([B, -2 * B[::-1], B**2, np.zeros_like(B)])
    with sh.policy(policy):
        a = sh.array(A, "f32[8, 8]")
        b = sh.sum(sh.array(terms, "f32[4@(dp,tp), 8]"), 0)
        assert str(b.type) == "f32[8]{U:(dp,tp)}"
        assert not sh.ledger(sh.lift(solve), a, b)
        for run in (sh.lift(solve), sh.jit(sh.lift(solve))):
            found = run(a, b)
            assert found.type == b.type
            assert_close(denoted(found), np.linalg.solve(A, terms.sum(0)), SOLVED)


@pytest.mark.nightly
def test_a_solver_that_would_communicate_for_each_term_is_refused_with_the_hint() -> None:
    a, b = sh.array(A, "f32[8, 8@tp]"), sh.array(B, "f32[8]")
    pending = lambda a, b: sh.all_reduce(sh.sum(sh.lift(solve_in_parts)(a, b) ** 2))  # noqa: E731
    with pytest.raises(
        sh.ShardingTypeError, match="`custom_linear_solve` cannot be applied to a pending sum"
    ) as caught:
        sh.grad(pending, argnums=(0, 1))(a, b)
    assert caught.value.hints[-1].startswith('sh.reshard(x, dp="I", tp="I") of its operands x')
    with pytest.raises(sh.ShardingTypeError, match="cannot be applied to a pending sum") as caught:
        sh.lift(solve_in_parts)(a, sh.sum(sh.array(np.stack([B, B]), "f32[2@tp, 8]"), 0))
    assert caught.value.hints == ('sh.reshard(b, "f32[8]") before it',)


@pytest.mark.nightly
def test_a_pending_gradient_of_a_solver_that_communicates_is_finished_before_it() -> None:
    a, b = sh.array(A, "f32[8, 8@tp]"), sh.array(B, "f32[8]")
    pending = lambda a, b: sh.all_reduce(sh.sum(sh.lift(solve_in_parts)(a, b) ** 2))  # noqa: E731
    found = sh.jit(sh.implicit_comm(sh.grad(pending, argnums=(0, 1))))(a, b)
    for got, right in zip(found, wanted(), strict=True):
        assert_close(denoted(got), right, SOLVED)


def test_a_solver_is_listed_with_its_loops_forward_and_backward() -> None:
    with sh.policy("jax"):
        a, b = parts()
        text = str(sh.explain(sh.lift(loss_in_parts), a, b, grad=True))
    forward, backward = text.split("g_", 1)
    assert "while loop:" in forward
    assert "while loop:" in backward
    assert sh.memory(sh.grad(sh.lift(loss)), sh.array(A, "f32[8, 8]"), b).peak > 0


def test_a_loop_in_a_backward_pass_that_communicates_has_one_predicate_for_all_devices() -> None:
    """Mapped over a sharded dim, each device would end it by itself, and others would wait for it for ever."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x * 1.0

    def rows(ct: Any) -> Any:
        step = lambda r: sh.all_reduce(r @ jnp.eye(8), "tp") / 2  # noqa: E731
        return jax.vmap(lambda r: jax.lax.while_loop(lambda r: jnp.max(jnp.abs(r)) > 0.1, step, r))(ct)

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (rows(ct),))
    x = sh.array(A, "f32[8@dp, 8@tp]")
    with pytest.raises(sh.ShardingTypeError):
        sh.grad(lambda x: sh.all_reduce(sh.sum(sh.lift(f)(x) * x)))(x)


@pytest.mark.parametrize("t", ["f32[2, 8]", pytest.param("f32[2@dp, 8]", marks=pytest.mark.nightly)])
def test_solvers_are_mapped_as_jax_maps_them(t: str) -> None:
    rows = np.stack([B, B[::-1]])
    a, b = sh.array(A, "f32[8, 8]"), sh.array(rows, t)
    for f in (jnp.linalg.solve, solve):
        found = sh.jit(sh.vmap(sh.lift(f), (None, 0)))(a, b)
        assert_close(denoted(found), np.linalg.solve(A, rows.T).T, SOLVED)
