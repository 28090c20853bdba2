"""Branches and loops with predicates of their own at each mapped step, and arguments that JAX does not take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests import small_models as p
from tests.end_to_end import Case, check, host

X = np.linspace(-1, 2, 24, dtype=np.float32).reshape(3, 8)
CHOICE = np.array([True, False, True])
INDEX = np.array([-1, 1, 5], np.int32)
untyped: Any = sh  # for what mypy would refuse
TYPES = ("[3,8@x]", "[3,8]", "[3,8]{I:x}", "[3,8]{U:x}")


def _mapped(m: Any) -> Any:
    return sh.vmap if m is sh else jax.vmap


def _chosen(m: Any, x: Any, choice: Any) -> Any:
    return _mapped(m)(lambda x, c: m.cond(c, lambda x: (x * 3, x), lambda x: (x, -x), x)[0])(x, choice)


def _switched(m: Any, x: Any, index: Any) -> Any:
    return _mapped(m)(lambda x, i: m.switch(i, [lambda x: x * 2, lambda x: -x, lambda x: x], x))(x, index)


def _looped(m: Any, x: Any, index: Any) -> Any:
    def steps(x: Any, i: Any) -> Any:
        return m.while_loop(lambda c: c[0] < 6, lambda c: (c[0] + 1, c[1] * 2), (i, x))[1]

    return _mapped(m)(steps)(x, index)


def _slopes(m: Any, x: Any, w: Any, choice: Any) -> Any:
    """Gradients at each step: neither ``w`` nor the cotangents are mapped."""

    def loss(x: Any, c: Any) -> Any:
        return m.sum(m.cond(c, lambda x, w: m.sin(x) * w, lambda x, w: x, x, w)) * 2

    return _mapped(m)((sh if m is sh else jax).grad(loss))(x, choice)


def _looped_from_outside(m: Any, x: Any, w: Any, index: Any) -> Any:
    def steps(x: Any, i: Any) -> Any:
        return m.while_loop(lambda c: c[0] < 6, lambda c: (c[0] + 1, c[1] * 2), (i, w))[1] + x

    return _mapped(m)(steps)(x, index)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_mapped_predicates_repeat_what_is_not_mapped(policy: str) -> None:
    with sh.policy(policy):
        slopes = [
            Case(_slopes, (X, X[0], CHOICE), types) for types in (("[3,8@x]", "[8@x]", "[3]"), ("[3,8]", "[8]", "[3]"))
        ]
        looped = [
            Case(_looped_from_outside, (X, X[0], INDEX), (f"[3,{d}]", f"[{d}]", "[3]"), grad=False)
            for d in ("8", "8@x")
        ]
        check(sh.make_mesh({"x": 2}), [*slopes, *looped])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_mapped_predicates_choose_at_each_step(policy: str) -> None:
    with sh.policy(policy):
        chosen = [Case(_chosen, (X, CHOICE), (t, "[3]")) for t in TYPES]
        switched = [Case(_switched, (X, INDEX), (t, "[3]{I:x}")) for t in TYPES]
        looped = [Case(_looped, (X, INDEX), (t, "[3]"), grad=False) for t in TYPES]
        check(sh.make_mesh({"x": 2}), [*chosen, *switched, *looped])


@pytest.mark.parametrize("run", [_chosen, _looped])
def test_a_region_holds_what_maps_over_predicates(run: Callable[..., Any]) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, picked = sh.array(X, "[3,8@x]"), sh.array(CHOICE if run is _chosen else INDEX, "[3]")
        np.testing.assert_array_equal(
            host(sh.jit(functools.partial(run, sh), region="require")(x, picked)), host(run(sh, x, picked))
        )


def test_jaxs_own_branches_are_mapped_over_predicates_too() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(X, "[3,8@x]")
        found = jax.vmap(lambda x, c: lax.cond(c, lambda x: x * 2, lambda x: x, x))(x, jax.numpy.asarray(CHOICE))
        np.testing.assert_array_equal(host(found), np.where(CHOICE[:, None], 2 * X, X))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda x: sh.scan(lambda c, _: c, x, None, 2), "the body of `scan` returns (carry, y), not"),
        (
            lambda x: untyped.scan(lambda c, _: (c,) * 3, x, None, 2),
            "the body of `scan` returns (carry, y), not a tuple",
        ),
        (lambda x: sh.scan(lambda c, _: ((c, c), None), x, None, 2), "the carry of `scan` comes back as another"),
        (lambda x: sh.while_loop(lambda c: True, lambda c: (c, c), x), "the carry of `while_loop` comes back as"),
        (lambda x: sh.scan(lambda c, _: (c, None), x, None), "`scan` does not take these arguments"),
        (lambda x: sh.while_loop(lambda c: sh.array(1.0), lambda c: c, x), "the predicate of `while_loop` is a bool"),
        (lambda x: sh.fori_loop(0, sh.array(2.5), lambda i, c: c, x), "a bound of `fori_loop` is an integer"),
        (lambda x: sh.switch(sh.array(1.5), [sh.sin, sh.cos], x), "the index of `switch` is an integer, not f32[]"),
        (lambda x: sh.switch(0, [], x), "`switch` needs at least one branch"),
        (lambda x: untyped.cond(True, 1, 2, x), "a branch of `cond` is a function, not 1"),
        (lambda x: sh.cond(True, lambda x: x, lambda x: (x, x), x), "the branches of `cond` return different"),
        (lambda x: sh.sum(sh.vmap(sh.sin, 5)(x)), "`vmap` does not take these arguments"),
        (lambda x: sh.sum(sh.vmap(sh.sin, "a")(x)), "`vmap` does not take these arguments"),
        (lambda x: sh.sum(sh.vmap(sh.sin, (0, 0))(x)), "`vmap` does not take these arguments"),
        (lambda x: sh.sum(sh.vmap(sh.sin, out_axes=None)(x)), "`vmap` does not take these arguments"),
        (
            lambda x: -sh.grad(lambda x: sh.sum(sh.while_loop(lambda c: False, sh.sin, x)))(x),
            "`<lambda>` has no gradie",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_shape(run: Callable[[Any], Any], said: str) -> None:
    p.mesh()
    x = sh.array(X, "[3,8]")
    for mode in (lambda f: f, jax.jit):
        with pytest.raises(sh.ShardingTypeError) as error:
            mode(run)(x)
        assert error.value.what.startswith(said)
        assert "test_branches.py" in error.value.where


def test_errors_of_the_users_own_functions_stay_as_they_are() -> None:
    p.mesh()

    def body(c: Any, _: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine"):
        sh.scan(body, sh.array(X, "[3,8]"), None, 2)


def _carried(m: Any, x: Any) -> Any:
    return m.scan(lambda c, _: (m.cumsum(m.sin(c), axis=0), None), x, None, length=2)[0]


def _either(m: Any, x: Any) -> Any:
    return m.cond(True, lambda x: m.sin(m.cumsum(x, axis=0)), lambda x: x, x)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("run", [_carried, _either], ids=["carry", "branches"])
def test_a_scope_may_insert_the_reshards_of_joins(run: Callable[[Any, Any], Any]) -> None:
    square = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    mesh = sh.make_mesh({"x": 2})

    def in_scope(m: Any, x: Any) -> Any:
        return sh.implicit_comm(functools.partial(run, m))(x)

    check(mesh, [Case(in_scope, (square,), ("[4@x,4]",))])
    with sh.use_mesh(mesh):
        x = sh.array(square, "[4@x,4]")
        assert {entry.inserted for entry in sh.ledger(functools.partial(in_scope, sh), x)} == {True}
        with pytest.raises(sh.ShardingTypeError, match="`cumsum`"):
            run(sh, x)
        with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids"):
            in_scope(sh, x)


@pytest.mark.parametrize(
    "choose",
    [
        lambda c, x: sh.cond(c, sh.sin, sh.cos, x),
        lambda c, x: sh.cond(c, lambda: x * 2, lambda: x - 1),
        lambda c, x: sh.switch(sh.astype(c, "i32"), [lambda x: x, lambda x: sh.constant(np.ones((3, 8), "f4"))], x),
        sh.lift(lambda c, x: lax.cond(c, jax.numpy.sin, jax.numpy.cos, x)),
    ],
    ids=["cond", "closures", "other types", "lifted"],
)
def test_branches_leak_no_tracers(choose: Callable[..., Any]) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), jax.checking_leaks():
        jax.block_until_ready(sh.jit(choose)(sh.constant(np.array(True)), sh.array(X, "[3,8@x]")))


def test_what_is_wrong_with_a_scope_in_a_loop_is_not_its_communication() -> None:
    def loop(x: Any) -> Any:
        def halved(x: Any) -> Any:
            with untyped.no_comm("sideways"):
                return x * 0.5

        return sh.while_loop(lambda x: sh.sum(x) > 1, halved, x)

    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError, match="not 'sideways'"):
        sh.vmap(loop)(sh.array(X.T, "[8@x,3]"))
