"""Jacobians and Hessians: values as on one device, types by the law, communication once for all rows or columns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(4, 2)).astype(np.float32), RNG.normal(size=(2, 4)).astype(np.float32)


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


def layer(m: Any, w: Any, x: Any) -> Any:
    y = x @ w
    return m.tanh(sh.all_reduce(y) if m is sh else y)


#: Types of ``w`` and ``x``, and the dims of a Jacobian of the layer by ``w``: forward and in reverse.
LAYOUTS = {
    ("f32[4,2]", "f32[2@y,4]"): ("[2@y,2,4,2]", "[2,2,4,2]"),
    ("f32[4@x,2]", "f32[2@y,4@x]"): ("[2@y,2,4,2]", "[2,2,4@x,2]"),
    ("f32[4,2@y]", "f32[2,4]"): ("[2,2@y,4,2]", "[2,2,4,2@y]"),
    ("f32[4,2]{I:x}", "f32[2,4@x]"): ("[2,2,4,2]", "[2,2,4,2]"),
}


def dims(t: Any) -> str:
    return str(t).removeprefix("f32").partition("{")[0]


@pytest.mark.one_in(9)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_jacobians_are_those_of_one_device(layout: tuple[str, str]) -> None:
    sh.set_policy("jax" if layout[0] == "f32[4@x,2]" else "partial")
    w, x = sh.array(W, layout[0]), sh.array(X, layout[1])
    wanted = jax.jit(jax.jacrev(lambda w, x: layer(jnp, w, x), argnums=(0, 1)))(W, X)
    both = [jacobian(functools.partial(layer, sh), argnums=(0, 1)) for jacobian in (sh.jacfwd, sh.jacrev)]
    for found, shown in zip(sh.jit(lambda w, x: [f(w, x) for f in both])(w, x), LAYOUTS[layout], strict=True):
        assert dims(found[0].type) == shown
        for mine, theirs in zip(found, wanted, strict=True):
            assert_close(host(mine), theirs)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_the_types_are_those_of_the_law(policy: str) -> None:
    sh.set_policy(policy)
    w, x = sh.array(W, "f32[4,2]"), sh.array(X, "f32[2@y,4]")
    y = layer(sh, w, x)
    assert sh.jacfwd(lambda w: layer(sh, w, x))(w).type.states == y.type.states
    assert sh.jacrev(lambda w: layer(sh, w, x))(w).type.states == w.type.cotangent().states


def test_a_pending_sum_has_a_jacobian_on_either_side() -> None:
    w, x = sh.array(W, "f32[4@x,2]"), sh.array(X, "f32[2,4@x]")
    wanted = jax.jit(jax.jacrev(lambda w: X @ w))(W)
    for jacobian in (sh.jacfwd, sh.jacrev):
        found = sh.jit(jacobian(lambda w: x @ w))(w)
        assert_close(host(found), wanted)
    assert sh.jacfwd(lambda w: x @ w)(w).type.axes(sh.State.UNREDUCED) == ("x",)
    pending = sh.reshard(sh.array(W, "f32[4,2]"), "[4,2]{U:x}")
    for jacobian in (sh.jacfwd, sh.jacrev):
        found = sh.jit(jacobian(lambda w: w * 3.0))(pending)
        assert_close(host(found), 3 * np.eye(8).reshape(4, 2, 4, 2))


def test_a_hessian_is_that_of_one_device() -> None:
    w, x = sh.array(W, "f32[4@x,2]"), sh.array(X, "f32[2@y,4@x]")
    found = sh.jit(sh.hessian(lambda w: sh.sum(sh.square(layer(sh, w, x)))))(w)
    wanted = jax.jit(jax.hessian(lambda w: jnp.sum(jnp.square(layer(jnp, w, X)))))(W)
    assert dims(found.type) == "[4@x,2,4,2]"
    assert_close(host(found), wanted)


def test_trees_and_what_is_plain_come_back_as_in_jax() -> None:
    params = {"w": sh.array(W, "f32[4@x,2]"), "b": jnp.float32(2.0)}

    def f(m: Any) -> Callable[[Any], Any]:
        return lambda p: {"y": p["w"] * p["b"], "s": m.sum(p["w"])}

    for ours, theirs in ((sh.jacfwd, jax.jacfwd), (sh.jacrev, jax.jacrev)):
        found, wanted = sh.jit(ours(f(sh)))(params), jax.jit(theirs(f(jnp)))({"w": W, "b": jnp.float32(2.0)})
        structures: list[Any] = [jax.tree.structure(found), jax.tree.structure(wanted)]
        assert structures[0] == structures[1]
        for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert_close(host(mine) if isinstance(mine, sh.Array) else mine, other)
    w = params["w"]
    assert sh.jacfwd(lambda w: (w * 2, 3.0), has_aux=True)(w)[1] == 3.0
    assert sh.jacrev(lambda w: (w * 2, w), has_aux=True)(w)[1].type == w.type


def test_each_step_of_vmap_has_its_own_jacobian() -> None:
    w = sh.array(W, "f32[4@x,2]")
    for jacobian in (sh.jacfwd, sh.jacrev):
        found = sh.jit(sh.vmap(jacobian(sh.square)))(w)
        assert dims(found.type) == "[4@x,2,2]"
        assert_close(host(found), 2 * W[:, :, None] * np.eye(2))


def test_communication_is_that_of_the_derivative_once() -> None:
    w, x = sh.array(W, "f32[4@x,2]"), sh.array(X, "f32[2,4@x]")
    with sh.merge_reshards(False):
        book = sh.ledger(sh.jacrev(lambda w: sh.all_reduce(x @ w, "x", to="R")), w)
    assert [(e.direction, e.kind, e.launches) for e in book] == [("backward", "all-reduce", 1)]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda w: sh.jacrev(lambda w: w)(sh.array(1)), "argument 0 of type i32[]"),
        (sh.jacfwd(lambda w: w > 0), "a Jacobian needs results that are real numbers; the result of"),
        (sh.jacrev(lambda w: "y"), "the result of `<lambda>` is no array: str has no Jacobian"),
        (sh.jacrev(lambda w: sh.reinterpret(w, x="V")), "f32[4,2]{V:x} has no Jacobian: it varies over"),
        (lambda w: sh.jacfwd(lambda w: w)(sh.reinterpret(w, x="V")), "f32[4,2]{V:x} has no Jacobian: it varies over"),
        (sh.jacfwd(lambda w: w, argnums=1), "`<lambda>` has no positional argument 1"),
        (sh.jacrev(lambda w: w, has_aux=True), "with has_aux=True, `<lambda>` must return"),
        (lambda w: sh.hessian(sh.square)(w > 0), "argument 0 of type bool[4,2]"),
    ],
)
def test_what_has_no_jacobian_is_refused(call: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(sh.array(W, "f32[4,2]"))
    assert caught.value.what.startswith(what)
    assert caught.value.where.startswith("test_jacobians.py:")
