"""Derivatives of first and second order of lifted functions that have rules of their own: as JAX applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.lifting.derivative_programs import (
    NOT_MAPPED,
    OF_WHOLE_COTANGENTS,
    ONCE,
    ONLY_BACKWARD,
    PROGRAMS,
)
from tests.random_checks import denoted
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

X = np.asarray([0.7, -1.2, 1.6])
V = np.asarray([0.3, 0.5, -0.8])
WEIGHTS = np.asarray([1.0, -2.0, 0.5])
LAYOUTS = {"replicated": "f64[3]", "batch": "f64[2@x, 3]"}


def loss_of(name: str, layout: str) -> Callable[[Any], Any]:
    """A sum of what a program gives, of each row of a batch in the layout with one."""
    one: Any = lambda x: jnp.sum(PROGRAMS[name](x) * WEIGHTS)  # noqa: E731
    if layout == "batch":
        return lambda x: jnp.sum(jax.vmap(one)(x))
    return one if name not in OF_WHOLE_COTANGENTS else lambda x: one(sh.reshard(x, x="I"))


def orders(name: str) -> set[str]:
    """The derivatives that JAX has."""
    found = {"grad", "gradgrad", "jvp", "jvpgrad", "gradjvp", "hessian"}
    found -= {"jvp", "jvpgrad", "gradjvp", "hessian"} if name in ONLY_BACKWARD else set()
    found -= {"gradgrad"} if name in ONCE else set()
    return found - ({"hessian"} if name in NOT_MAPPED else set())


def derivatives(loss: Any, x: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """By order: plain JAX's."""
    push: Any = lambda f, x: jax.jvp(f, (x,), (v,))[1]  # noqa: E731
    return {
        "grad": lambda: jax.grad(loss)(x),
        "gradgrad": lambda: jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) * v))(x),
        "jvp": lambda: push(loss, x),
        "jvpgrad": lambda: push(jax.grad(loss), x),
        "gradjvp": lambda: jax.grad(lambda x: push(loss, x))(x),
        "hessian": lambda: jax.hessian(loss)(x),
    }


def typed_derivatives(loss: Any, x: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """By order and way: inside of `lift`, outside of it, and one inside and one outside."""
    total: Any = lambda x: sh.all_reduce(sh.lift(loss)(x))  # noqa: E731
    gradient: Any = sh.lift(jax.grad(loss))
    push: Any = lambda f, x: sh.jvp(f, (x,), (v,))[1]  # noqa: E731
    whole: Any = lambda g: g if "U:x" not in str(g.type) else sh.all_reduce(g)  # noqa: E731

    def inside(order: str) -> Callable[[], Any]:
        return lambda: sh.lift(lambda x, v: derivatives(loss, x, v)[order]())(x, v)

    def grad_of_product(g: Any) -> Any:
        return sh.grad(lambda x: sh.all_reduce(sh.sum(whole(g(x)) * v)))(x)

    return {
        **{f"{order} inside": inside(order) for order in ("grad", "gradgrad", "jvp", "jvpgrad", "gradjvp", "hessian")},
        "grad outside": lambda: sh.grad(total)(x),
        "gradgrad outside": lambda: grad_of_product(sh.grad(total)),
        "gradgrad mixed": lambda: grad_of_product(gradient),
        "jvp outside": lambda: push(total, x),
        "jvp linearized": lambda: sh.linearize(total, x)[1](v),
        "jvpgrad outside": lambda: push(sh.grad(total), x),
        "jvpgrad mixed": lambda: push(gradient, x),
        "gradjvp outside": lambda: sh.grad(lambda x: sh.all_reduce(push(total, x)))(x),
        "hessian outside": lambda: sh.hessian(total)(x),
    }


#: A chain of so many roundings is longer than any here; of wide floats that is 1e-10, and a wrong rule is off by one.
ROUNDINGS = 1 << 20


#: The cases that run by default: one of each kind, and of those the quick ones.
QUICK = {
    ("straight_through", "replicated", "partial"),
    ("rule_that_closes_over_a_value", "batch", "jax"),
    ("cotangents_that_are_zero", "batch", "partial"),
}


def cases() -> list[Any]:
    every = [(n, layout, policy) for n in PROGRAMS for layout in LAYOUTS for policy in ("partial", "jax")]
    mapped = [case for case in every if case[1] == "replicated" or case[0] not in NOT_MAPPED]
    return [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.nightly, id="-".join(case)) for case in mapped
    ]


@pytest.mark.parametrize(("name", "layout", "policy"), cases())
def test_derivatives_are_those_of_one_device(name: str, layout: str, policy: str) -> None:
    x, v = (X, V) if layout == "replicated" else (np.stack([X, 0.9 * X + 0.1]), np.stack([V, V]))
    loss = loss_of(name, layout)
    with jax.enable_x64(True):
        plain = derivatives(loss, jnp.asarray(x), jnp.asarray(v))
        wanted = jax.jit(lambda: {order: plain[order]() for order in orders(name)})()

        def run(x: Any, v: Any) -> Any:
            found = typed_derivatives(loss, x, v)
            return {way: f() for way, f in found.items() if way.split()[0] in orders(name)}

        with sh.policy(policy), sh.use_mesh(sh.make_mesh({"x": 2})):
            found = sh.jit(run)(sh.array(x, LAYOUTS[layout]), sh.array(v, LAYOUTS[layout]))
            for way, value in found.items():
                got = denoted(value) if isinstance(value, sh.Array) else np.asarray(value)
                assert_close(got, wanted[way.split()[0]], ROUNDINGS, f"{name} {way}")


# what is not a number


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_singular_systems_have_what_jax_gives(policy: str) -> None:
    singular = np.asarray([[1.0, 2.0], [2.0, 4.0]])
    b = np.asarray([1.0, 1.0])

    def both(a: Any, b: Any) -> Any:
        loss: Any = lambda a, b: jnp.sum(jnp.linalg.solve(a, b))  # noqa: E731
        return jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.solve(0 * a, b), jax.grad(loss)(a, b)

    with jax.enable_x64(True):
        wanted = jax.jit(both)(singular, b)
        with sh.policy(policy), sh.use_mesh(sh.make_mesh({"x": 2})):
            a, typed = sh.array(singular, "f64[2, 2]"), sh.array(b, "f64[2]")
            found = list(sh.jit(sh.lift(both))(a, typed))
            if policy == "jax":  # a pending gradient is (value, 0), and zero times infinity is no number
                found.append(sh.jit(sh.grad(lambda a: sh.sum(sh.lift(jnp.linalg.solve)(a, typed))))(a))
            for got, right in zip(found, (*wanted, wanted[-1]), strict=False):
                assert not np.isfinite(right).all()
                np.testing.assert_array_equal(denoted(got), right)
