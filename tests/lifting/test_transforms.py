"""Transformations around lifted functions and inside them: loops, branches, `vmap`, `grad`, solvers, keys."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
W = RNG.normal(size=(8, 4)).astype(np.float32) / 3
LAYOUTS = [("f32[4@x, 8]", "f32[8, 4]"), ("f32[4, 8]", "f32[8, 4@x]")]


def _fori(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row: jax.lax.fori_loop(0, 3, lambda _, r: jnp.sin(r) * 1.5, row))(x @ w)


def _while_of_a_count(x: Any, w: Any) -> Any:
    y = x @ w
    return (
        y + jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, jax.lax.stop_gradient(y)))[1]
    )


def _scan(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row: jax.lax.scan(lambda c, r: (c + r, c * r), 1.0, row)[1], 0, 0)(x) @ w


def _cond(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row, n: jax.lax.cond(n > 1, jnp.sin, lambda r: r * 2, row))(x @ w, jnp.arange(4))


def _switch(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row, n: jax.lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], row))(x @ w, jnp.arange(4))


def _own_gradient(x: Any, w: Any) -> Any:
    return jax.jit(jax.grad(lambda y: jnp.sum(jnp.sin(y) ** 2)))(x @ w)


def _hessian_product(x: Any, w: Any) -> Any:
    f = lambda y: jnp.sum(y**3)  # noqa: E731
    return jax.jvp(jax.grad(f), (x @ w,), (jnp.ones((4, 4)),))[1]


def _associative_scan(x: Any, w: Any) -> Any:
    return jax.vmap(lambda row: jax.lax.associative_scan(jnp.add, row))(x) @ w


def _vectorized(x: Any, w: Any) -> Any:
    return jnp.vectorize(lambda row, w: jnp.tanh(row @ w), signature="(n),(n,m)->(m)")(x, w)


def _mapped(x: Any, w: Any) -> Any:
    return jax.lax.map(lambda col: jnp.tanh(col) * 2, (x @ w)[None], batch_size=1)[0]


def _root(x: Any, w: Any) -> Any:
    y = x @ w

    def solve(f: Any, guess: Any) -> Any:
        return jax.lax.fori_loop(0, 30, lambda _, z: z - f(z) / (3 * z**2 + 1), guess)

    def tangent_solve(g: Any, ct: Any) -> Any:
        return ct / g(jnp.ones_like(ct))

    return jax.lax.custom_root(lambda z: z**3 + z - y, jnp.ones_like(y), solve, tangent_solve)


def _linear_solve(x: Any, w: Any) -> Any:
    each = (x @ w)[:, :, None, None]
    return jnp.sum(jnp.linalg.solve(9 * jnp.eye(4) + each, jnp.ones((4, 1)) * each), (-2, -1))


def _random(x: Any, w: Any) -> Any:
    key = jax.random.key(3)
    return (x @ w) * jax.random.normal(jax.random.fold_in(key, 1), (4, 4))


def _random_of_a_plain_key(x: Any, w: Any) -> Any:
    mask = jax.random.bernoulli(jax.random.split(jax.random.PRNGKey(3))[0], 0.5, (4, 4))
    return jnp.where(mask, x @ w, 0.0)


PROGRAMS = [
    _fori, _while_of_a_count, _scan, _cond, _switch, _own_gradient, _hessian_product, _associative_scan, _vectorized,
    _mapped, _root, _linear_solve, _random, _random_of_a_plain_key,
]  # fmt: skip


@pytest.mark.one_in(23)
@pytest.mark.parametrize(
    "types", [pytest.param(LAYOUTS[0], id="rows", marks=pytest.mark.nightly), pytest.param(LAYOUTS[1], id="columns")]
)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_gradients_are_those_of_one_device(f: Callable[..., Any], types: tuple[str, str]) -> None:
    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(f(x, w) * jnp.arange(1.0, 5.0))

    wanted = jax.jit(f)(X, W), *jax.jit(jax.grad(loss, argnums=(0, 1)))(X, W)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        typed = [sh.array(v, t) for v, t in zip((X, W), types, strict=True)]
        total = lambda x, w: sh.all_reduce(sh.lift(loss)(x, w))  # noqa: E731
        run = sh.jit(lambda x, w: (sh.lift(f)(x, w), *sh.grad(total, argnums=(0, 1))(x, w)))
        for found, right in zip(run(*typed), wanted, strict=True):
            assert_close(denoted(found), right, 400)


@pytest.mark.parametrize("types", LAYOUTS, ids=["rows", "columns"])
def test_a_lifted_function_under_vmap(types: tuple[str, str]) -> None:
    f: Any = lambda x, w: jnp.tanh(x @ w)  # noqa: E731
    many = np.stack([X, 2 * X])
    wanted = jax.vmap(f, (0, None))(many, W)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(many, types[0].replace("[", "[2, ")), sh.array(W, types[1])
        assert_close(denoted(sh.jit(sh.vmap(sh.lift(f), (0, None)))(x, w)), wanted, 100)


def test_a_gradient_inside_is_the_gradient_outside() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(X, "f32[4, 8]"), sh.array(W, "f32[8, 4@x]")
        inside = sh.jit(sh.lift(jax.grad(loss)))(w, x)
        outside = sh.jit(sh.grad(lambda w, x: sh.all_reduce(sh.lift(loss)(w, x))))(w, x)
        assert_close(denoted(inside), jax.jit(jax.grad(loss))(W, X), 400)
        assert_close(denoted(outside), jax.jit(jax.grad(loss))(W, X), 400)


def test_a_constant_of_a_body_that_is_tried_again_is_not_that_of_the_first_try() -> None:
    """A carry that changes its type ends the trace of the body; what was made in it is not there in the next one."""

    def f(x: Any) -> Any:
        ones = jnp.ones(8)
        return jax.lax.fori_loop(0, 3, lambda _, s: (s[0] * ones, s[1] + x.sum(0)), (x[0], x[0]))[1]

    with sh.use_mesh(sh.make_mesh({"x": 2})), sh.implicit_comm():
        total = lambda x: sh.sum(sh.lift(f)(x))  # noqa: E731
        found = sh.jit(sh.grad(total))(sh.array(X, "f32[4@x, 8]"))
        assert_close(denoted(found), jax.jit(jax.grad(lambda x: f(x).sum()))(X), 100)


def test_a_comparison_with_a_captured_zero() -> None:
    zero = jnp.asarray(0.0)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        y = sh.jit(sh.lift(lambda x: jnp.where(jnp.asarray(4.0) < zero, x, 2 * x)))(sh.array(X, "f32[4@x, 8]"))
        assert_close(denoted(y), 2 * X, 1)


def test_arrays_that_a_plain_program_makes_at_once_are_on_no_mesh() -> None:
    """JAX would refuse them beside those that are traced, by explicit sharding's own rules."""

    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            two = jnp.asarray([2.0])
        return x * jax.lax.dynamic_update_slice(jnp.ones(8), two, (3,))

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        assert_close(denoted(sh.jit(sh.lift(f))(sh.array(X, "f32[4@x, 8]"))), f(X), 1)


@pytest.mark.parametrize("implicit", [False, True], ids=["strict", "implicit"])
def test_derivative_rules_of_a_program_see_its_mesh_and_no_types(implicit: bool) -> None:
    """Its own rules are told which operands are not differentiated, and may refuse to be by them."""
    seen: list[Any] = []

    @jax.custom_vjp
    def f(x: Any, w: Any) -> Any:
        return x @ w

    def fwd(x: Any, w: Any) -> Any:
        seen.append(jax.sharding.get_abstract_mesh().axis_names)
        assert not w.perturbed
        return x.value @ w.value, w.value

    f.defvjp(fwd, lambda w, ct: (3 * ct @ w.T, None), symbolic_zeros=True)

    @jax.custom_jvp
    def g(x: Any, w: Any) -> Any:
        return x * w

    def push(primals: Any, tangents: Any) -> Any:
        assert isinstance(tangents[1], jax.custom_derivatives.SymbolicZero)
        return g(*primals), tangents[0] * primals[1]

    g.defjvp(push, symbolic_zeros=True)

    def loss(x: Any, w: Any) -> Any:
        still = jax.lax.stop_gradient(w)
        return jnp.sum(jnp.sin(f(x, still))) + jnp.sum(g(x, still[:, 0]))

    wanted = jax.jit(jax.grad(loss))(X, W)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(X, "f32[4@x, 8]"), sh.array(W, "f32[8, 4]")
        step = sh.grad(lambda x: sh.all_reduce(sh.lift(loss)(x, w)))
        found = sh.jit(sh.implicit_comm(step) if implicit else step)(x)
        assert_close(denoted(found), wanted, 100)
    assert not seen[0]
    assert set(seen[1:]) == {("x",)}


def test_wide_floats() -> None:
    with jax.enable_x64(True), sh.use_mesh(sh.make_mesh({"x": 2})):
        f: Any = lambda x: jnp.cumsum(jnp.sin(x), 1) / jnp.arange(1, 9)  # noqa: E731
        wide = X.astype(np.float64)
        for t in ("f64[4@x, 8]", "f64[4, 8]"):
            y = sh.jit(sh.lift(f))(sh.array(wide, t))
            assert y.type.dtype_name == "f64"
            np.testing.assert_allclose(denoted(y), f(wide), rtol=1e-14)


def test_typed_keys_are_arguments() -> None:
    f: Any = lambda key, x: x * jax.random.uniform(key, x.shape)  # noqa: E731
    for key in (jax.random.key(5), jax.random.PRNGKey(5)):
        wanted = f(key, X)
        with sh.use_mesh(sh.make_mesh({"x": 2})):
            y = sh.jit(sh.lift(f))(key, sh.array(X, "f32[4@x, 8]"))
            assert str(y.type) == "f32[4@x,8]"
            np.testing.assert_allclose(denoted(y), wanted, rtol=1e-6)


def test_a_while_loop_that_each_row_ends_by_itself() -> None:
    def halve(x: Any) -> Any:
        return jax.lax.while_loop(lambda r: jnp.max(jnp.abs(r)) > 0.1, lambda r: r / 2, x)

    f = jax.vmap(halve)
    scaled = X * np.asarray([1, 10, 100, 0.01], np.float32)[:, None]
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        for t in ("f32[4, 8]", "f32[4@x, 8]"):
            x = sh.array(scaled, t)
            assert not sh.ledger(sh.lift(f), x)
            assert_close(denoted(sh.jit(sh.lift(f))(x)), f(scaled), 10)


@pytest.mark.parametrize("f", [jnp.sum, jnp.mean, lambda x: jnp.sum(x, 0)])
def test_sums_of_narrow_floats_are_pending_as_the_typed_ones(f: Any) -> None:
    """`jax.numpy` widens them to sum, and rounds the sum."""
    narrow = jnp.asarray(X, jnp.bfloat16)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(narrow, "bf16[4@x, 8]")
        y = sh.jit(sh.lift(f))(x)
        assert y.type.dtype_name == "bf16"
        assert "U:x" in str(y.type)
        np.testing.assert_allclose(denoted(y).astype(np.float32), f(narrow).astype(np.float32), rtol=0.02, atol=0.02)
        assert sh.jit(sh.grad(lambda x: sh.astype(sh.all_reduce(sh.lift(jnp.sum)(x)), "f32")))(x).type == x.type


def test_gcd_and_lcm_are_typed_as_a_whole() -> None:
    """They loop while any element does; a function of the user's of that name is no such."""
    n = RNG.integers(1, 50, (4, 8)).astype(np.int32)

    @jax.jit
    def gcd(x: Any, y: Any) -> Any:
        return x - y

    every: list[Any] = [jnp.gcd, jnp.lcm, gcd]
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        i = sh.array(n, "i32[4, 8@x]")
        for f in every:
            y = sh.jit(sh.lift(f))(i, i + 5)
            assert y.type == i.type
            np.testing.assert_array_equal(denoted(y), f(n, n + 5))


def test_a_constant_is_typed_where_it_is_made_and_not_in_the_loop_that_uses_it_first() -> None:
    """As in `jnp.interp`: a binary search in the points, and then a lookup among them."""
    x, points = np.linspace(0.1, 2.9, 8, dtype=np.float32), np.arange(4.0, dtype=np.float32)

    def f(x: Any) -> Any:
        points = jnp.arange(4.0) * 1.0
        return jnp.sum(jnp.interp(x, points, points**2) ** 2)

    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        typed = sh.array(x, "f32[8@dp]")
        total = lambda x: sh.all_reduce(sh.lift(f)(x))  # noqa: E731
        value, grad = sh.jit(sh.value_and_grad(total))(typed)
        assert_close(denoted(value), np.sum(np.interp(x, points, points**2) ** 2), 100)
        assert_close(denoted(grad), jax.jit(jax.grad(f))(x), 100)


def test_an_integer_result_of_a_rule_of_its_own_has_no_tangent() -> None:
    @jax.custom_jvp
    def both(x: Any) -> Any:
        return 2 * x, jnp.floor(x).astype(jnp.int32)

    @both.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return both(*primals), (7 * tangents[0], np.zeros(primals[0].shape, jax.dtypes.float0))

    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        x = sh.array(np.arange(8, dtype=np.float32) + 0.5, "[_@dp]")
        total = lambda x: sh.all_reduce(sh.lift(lambda x: jnp.sum(both(x)[0] * both(x)[1]))(x))  # noqa: E731
        np.testing.assert_array_equal(denoted(sh.grad(total)(x)), 7 * np.arange(8))
        np.testing.assert_array_equal(denoted(sh.jit(sh.grad(total))(x)), 7 * np.arange(8))
        nothing = sh.grad(lambda n: sh.all_reduce(sh.sum(sh.astype(n, "float32"))), allow_int=True)(
            sh.ones("i32[8@dp]")
        )
        assert repr(nothing) == "Array(float0[8@dp])"


@pytest.mark.core
def test_floats_that_are_taken_apart_have_the_gradient_of_their_mantissa() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jnp.frexp(x)[0] * jnp.ldexp(jnp.sin(x), jnp.arange(8)) + jnp.ldexp(x, 3))

    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})):
        typed = sh.array(X, "f32[4, 8@dp]")
        total = lambda x: sh.all_reduce(sh.lift(f)(x))  # noqa: E731
        value, grad = sh.jit(sh.value_and_grad(total))(typed)
        assert_close(denoted(value), f(X), 100)
        assert_close(denoted(grad), jax.jit(jax.grad(f))(X), 100)


@pytest.mark.parametrize("keys", ["[_]", "[_@dp]", None])
def test_keys_of_several_examples_give_the_numbers_that_they_give_on_one_device(keys: str | None) -> None:
    """Keys that are typed, sharded or not, and one key that the program splits."""

    def f(x: Any, keys: Any) -> Any:
        keys = keys if keys.ndim else jax.random.split(keys, 4)
        return x + jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(k, 1), (8,)))(keys)

    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})):
        one = sh.random.key(0)
        given = one if keys is None else sh.reshard(sh.random.split(one, 4), keys)
        x = sh.array(X, "[_@dp, _@tp]")
        found = sh.jit(sh.lift(f))(x, given)
        assert found.type == x.type
        assert not sh.ledger(sh.lift(f), x, given)
        assert_close(denoted(found), f(X, jax.random.split(jax.random.key(0), 4)), 100)


def test_a_plain_program_is_traced_once_for_what_is_decided_about_it() -> None:
    traces = []

    def f(x: Any, w: Any) -> Any:
        traces.append(x.shape)
        return jnp.sum(jax.nn.softmax(x @ w) @ w.T)

    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2})):
        x, w = sh.array(X, "[_, _@tp]"), sh.array(W, "[_@tp, _]")
        jax.block_until_ready(sh.jit(sh.implicit_comm(sh.lift(f)))(x, w))
    assert len(traces) == 1


@pytest.mark.parametrize("transform", [sh.lift, sh.shard_map(out_specs="[_@x]")], ids=["lift", "shard_map"])
def test_each_trace_of_a_program_has_all_its_calls_of_the_host(transform: Any) -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda x: seen.append("first"), x)
        jax.debug.callback(lambda x: seen.append("second"), x)
        return x * 2

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.ones("f32[4@x]")
        typed = transform(f)
        for run in (typed, sh.jit(typed), sh.jit(typed)):
            jax.block_until_ready(run(x))
            jax.effects_barrier()
            assert sorted(seen) == ["first"] * 2 + ["second"] * 2
            seen.clear()


def test_what_is_noted_of_the_values_of_a_trace_ends_with_it() -> None:
    def count() -> int:
        gc.collect()
        return sum(isinstance(x, jax.core.Tracer) for x in gc.get_objects())

    def trace(scale: float) -> None:
        jax.make_jaxpr(sh.lift(lambda x: jnp.sum(x * jnp.arange(4.0) * scale)))(x)

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(X[:, 0], "f32[4@x]")
        trace(1.0)
        before = count()
        for scale in (2.0, 3.0, 4.0):
            trace(scale)
        assert count() <= before  # tracers of earlier tests may go meanwhile
