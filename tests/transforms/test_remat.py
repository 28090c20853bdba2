"""Recomputation of typed programs: the same gradients, and the policies keep what they say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from tests import small_models as p

ALL = (0, 1, 2)
policies = sh.checkpoint_policies


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


def as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


COMPILED = pytest.mark.parametrize("compile_", [as_it_is, jax.jit], ids=["eager", "jit"])
EITHER = pytest.mark.parametrize("checkpoint", [jax.checkpoint, sh.checkpoint], ids=["jax", "sh"])


@pytest.mark.nightly
@pytest.mark.core
@EITHER
@COMPILED
def test_a_recomputed_function_has_the_same_gradients(checkpoint: Any, compile_: Callable[..., Any]) -> None:
    args = p.values()
    grads = compile_(sh.grad(checkpoint(p.loss), argnums=ALL))(*args)
    p.assert_gradients(grads, args, p.expected()[1])


@pytest.mark.one_in(9)
@EITHER
@COMPILED
def test_a_recomputed_part_has_the_same_gradients(checkpoint: Any, compile_: Callable[..., Any]) -> None:
    args = p.values()

    def loss(*args: Any) -> Any:
        return sh.sum(checkpoint(p.mlp)(*args) * p.mlp(*args))

    p.assert_gradients(compile_(sh.grad(loss, argnums=ALL))(*args), args, p.expected()[1])


def test_a_recomputed_function_may_close_over_traced_values() -> None:
    x, w_in, w_out = p.values()
    grad = jax.jit(sh.grad(lambda w_in: sh.checkpoint(lambda x: p.loss(x, w_in, w_out))(x)))(w_in)
    p.assert_gradients(grad, w_in, p.expected()[1][1])


def test_static_arguments_stay_python_values() -> None:
    x, _, _ = p.values()
    f = sh.checkpoint(lambda x, kind: sh.silu(x) if kind == "silu" else x, static_argnums=1)
    wanted = p.one_device(jax.grad(lambda x: jax.nn.silu(x).sum()), p.X)
    p.assert_gradients(sh.grad(lambda x: sh.sum(f(x, "silu")))(x), x, wanted)


def dots(policy: Any, checkpoint: Any = sh.checkpoint) -> int:
    """How many contractions the forward and backward program has under a policy."""

    def loss(*args: Any) -> Any:
        def block(*args: Any) -> Any:
            return sh.silu(sh.checkpoint_name(p.mlp(*args), "out"))

        return sh.sum(checkpoint(block, policy=policy)(*args))

    return sum("einsum" in e for e in p.equations(sh.grad(loss), *p.values()))


#: Two contractions forward, two backward (for the input alone), and what is recomputed of the first two.
@pytest.mark.parametrize(
    ("policy", "count"),
    [
        (None, 6),
        (policies.nothing_saveable, 6),
        (policies.everything_saveable, 4),
        (policies.dots_saveable, 4),
        (policies.checkpoint_dots, 4),
        (policies.dots_with_no_batch_dims_saveable, 4),
        (policies.save_only_these_names("out"), 5),
        (policies.save_only_these_names("other"), 6),
        (policies.save_any_names_but_these("out"), 6),
        (policies.save_any_names_but_these("other"), 5),
        (policies.save_anything_except_these_names("other"), 4),
        (policies.save_from_both_policies(policies.save_only_these_names("out"), policies.dots_saveable), 4),
        (jax.checkpoint_policies.dots_saveable, 4),
        (jax.checkpoint_policies.everything_saveable, 4),
        (jax.checkpoint_policies.save_only_these_names("out"), 5),
        (jax.checkpoint_policies.save_any_names_but_these("out"), 6),
        (lambda prim, *_, **params: prim is jax.lax.dot_general_p and params["dimension_numbers"][1] == ((), ()), 4),
    ],
)
def test_a_policy_keeps_what_it_says(policy: Any, count: int) -> None:
    assert dots(policy) == count


def test_policies_under_jax_names_work_with_jax_checkpoint() -> None:
    assert dots(policies.dots_saveable, jax.checkpoint) == 4
    assert dots(policies.save_only_these_names("out"), jax.checkpoint) == 5
    assert dots(jax.checkpoint_policies.dots_saveable, jax.checkpoint) == 4
    assert dots(jax.checkpoint_policies.save_only_these_names("out"), jax.checkpoint) == 5


def test_scores_are_recomputed_where_only_products_with_weights_are_kept() -> None:
    x, _, _ = p.values()

    def loss(x: Any) -> Any:
        def scores(x: Any) -> Any:
            return sh.sin(sh.einsum("bh,bh->bh", x, x))

        return sh.sum(sh.checkpoint(scores, policy=policies.dots_with_no_batch_dims_saveable)(x))

    kept = sum("einsum" in e for e in p.equations(sh.grad(loss), x))
    loss_dots = p.equations(sh.grad(lambda x: sh.sum(sh.sin(sh.einsum("bh,bh->bh", x, x)))), x)
    assert kept == sum("einsum" in e for e in loss_dots) + 1


@pytest.mark.parametrize(
    "policy",
    [policies.dots_saveable, policies.save_only_these_names("out", "plain"), policies.everything_saveable],
    ids=["dots", "names", "everything"],
)
def test_policies_hold_for_plain_arrays_beside_typed_ones(policy: Any) -> None:
    x, w_in, w_out = p.values()

    def block(x: Any, m: Any) -> Any:
        plain = sh.checkpoint_name(m @ m, "plain")
        return sh.sum(sh.silu(sh.checkpoint_name(p.mlp(x, w_in, w_out), "out")) * jnp.sum(jnp.sin(plain)))

    m = jnp.asarray(p.STACK[0])
    found = jax.jit(sh.grad(sh.checkpoint(block, policy=policy), argnums=(0, 1)))(x, m)

    def reference(x: Any, m: Any) -> Any:
        return (jax.nn.silu(p.reference_mlp(x, p.W_IN, p.W_OUT)) * jnp.sin(m @ m).sum()).sum()

    p.assert_close(found, p.one_device(jax.grad(reference, argnums=(0, 1)), p.X, p.STACK[0]))


@pytest.mark.parametrize("axis", [0, 1])
def test_policies_see_through_a_map(axis: int) -> None:
    _, w_in, w_out = p.values()
    rows = sh.array(p.ROWS, "f32[5,4,8]")

    def count(policy: Any) -> int:
        def block(x: Any) -> Any:
            return sh.sum(sh.silu(sh.checkpoint_name(p.mlp(x, w_in, w_out), "out")))

        mapped = sh.vmap(sh.checkpoint(block, policy=policy), in_axes=axis)
        return sum("einsum" in e for e in p.equations(sh.grad(lambda rows: sh.sum(mapped(rows))), rows))

    assert [count(q) for q in (None, policies.save_only_these_names("out"), policies.dots_saveable)] == [6, 5, 4]


def test_a_name_is_not_seen_by_values_tangents_or_gradients() -> None:
    x, _, _ = p.values()
    named = sh.checkpoint_name({"a": x, "b": jnp.ones(2)}, "n")
    assert named["a"].type == x.type
    p.assert_close(named["a"], p.X)
    text = str(jax.make_jaxpr(sh.grad(lambda x: sh.sum(sh.checkpoint_name(x * x, "n"))))(x))
    assert text.count("name[n]") == 1


# with loops


@COMPILED
def test_a_recomputed_loop_body_has_the_same_gradients(compile_: Callable[..., Any]) -> None:
    args = (p.stack(), sh.array(p.X, p.X_TYPE))

    def loss(ws: Any, x: Any) -> Any:
        body = sh.checkpoint(lambda x, w: (p.layer(x, w), None), prevent_cse=False)
        out = sh.scan(body, x, ws)[0]
        return sh.sum(out * out)

    p.assert_gradients(compile_(sh.grad(loss, argnums=(0, 1)))(*args), args, p.expected_looped())


@COMPILED
def test_a_recomputed_loop_has_the_same_gradients(compile_: Callable[..., Any]) -> None:
    args = (p.stack(), sh.array(p.X, p.X_TYPE))
    grads = compile_(sh.grad(sh.checkpoint(p.looped_loss), argnums=(0, 1)))(*args)
    p.assert_gradients(grads, args, p.expected_looped())


def test_a_recomputed_reshard_communicates_again() -> None:
    args = p.values()

    def loss(x: Any, *ws: Any) -> Any:
        return sh.sum(sh.sin(sh.checkpoint(lambda x: p.mlp(x, *ws))(x)))

    def nonlinear(x: Any, *ws: Any) -> Any:
        return sh.sum(sh.checkpoint(lambda x: sh.sin(p.mlp(x, *ws)))(x))

    counts = [sum("tp: U->R" in e for e in p.equations(sh.grad(f), *args)) for f in (loss, nonlinear)]
    assert counts == [2, 3], "forward and backward; the second one needs the reduced value once more"


@pytest.mark.parametrize("flag", ["jax_remat3"])
def test_the_next_remat_of_jax_works_too(flag: str) -> None:
    args = p.values()
    if not hasattr(jax.config, flag):
        pytest.skip("this JAX has one remat")
    jax.config.update(flag, True)
    try:
        grads = jax.jit(sh.grad(sh.checkpoint(functools.partial(p.loss)), argnums=ALL))(*args)
    finally:
        jax.config.update(flag, False)
    p.assert_gradients(grads, args, p.expected()[1])
