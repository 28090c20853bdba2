"""Checkpoints of lifted programs: what is kept and what is computed again is what JAX keeps and computes again.

It is counted in compiled programs, so that what XLA undoes is seen too. JAX differentiates `exp`, `tanh` and their kind
by their results, a typed operation by its operands: so the functions here are those that both differentiate alike.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import shtypes as sh
from tests.random_checks import denoted
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

X = np.linspace(-1, 1, 32).reshape(8, 4).astype(np.float32)
W = np.ones((4, 4), np.float32) * 0.3
policies = jax.checkpoint_policies


def body(x: Any, w: Any) -> Any:
    h = checkpoint_name(jnp.sin(x @ w), "h")
    return jnp.sin(checkpoint_name(jnp.sin(h @ w), "g") @ w)


@jax.custom_jvp
def pushed(x: Any) -> Any:
    return jnp.sin(x)


pushed.defjvp(lambda p, t: (pushed(*p), t[0] * checkpoint_name(jnp.cos(p[0]), "c")))


@jax.custom_vjp
def pulled(x: Any) -> Any:
    return jnp.sin(x)


pulled.defvjp(lambda x: (jnp.sin(x), checkpoint_name(jnp.cos(x), "c")), lambda cos, ct: (cos * ct,))
inner = jax.checkpoint(lambda x, w: checkpoint_name(jnp.sin(x @ w), "h"), policy=policies.save_only_these_names("h"))


def of_policy(policy: Any) -> Callable[..., Any]:
    return jax.checkpoint(body, policy=policy)


def twice(x: Any, w: Any) -> Any:
    return inner(jnp.sin(inner(x, w) @ w), w)


def looped(x: Any, w: Any, **options: Any) -> Any:
    step = jax.checkpoint(lambda c: jnp.sin(jnp.sin(c @ w) @ w), **options)
    return jax.lax.scan(lambda c, _: (step(c), None), x, None, 3)[0]


def branched(x: Any, w: Any) -> Any:
    return jax.lax.cond(w[0, 0] > 0, body, lambda x, w: x @ w, x, w)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "no policy": of_policy(None),
    "nothing": of_policy(policies.nothing_saveable),
    "everything": of_policy(policies.everything_saveable),
    "dots": of_policy(policies.dots_saveable),
    "dots without batch dims": of_policy(policies.dots_with_no_batch_dims_saveable),
    "a name": of_policy(policies.save_only_these_names("h")),
    "names but one": of_policy(policies.save_any_names_but_these("h")),
    "anything except a name": of_policy(policies.save_anything_except_these_names("h")),
    "either": of_policy(policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("h"))),
    "a primitive": of_policy(lambda prim, *_, **__: prim is jax.lax.sin_p),
    "a primitive's name": of_policy(lambda prim, *_, **__: prim.name in ("sin", "dot_general")),
    "a shape": of_policy(lambda prim, *a, **__: prim.name == "dot_general" and a[0].shape == (8, 4)),
    "a rule": jax.checkpoint(lambda x, w: pushed(pushed(x @ w) @ w)),
    "a name in a rule": jax.checkpoint(
        lambda x, w: pushed(pushed(x @ w) @ w), policy=policies.save_only_these_names("c")
    ),
    "a name in a forward function": jax.checkpoint(
        lambda x, w: pulled(pulled(x @ w) @ w), policy=policies.save_only_these_names("c")
    ),
    "nested": jax.checkpoint(twice),
    "nested, with names": jax.checkpoint(twice, policy=policies.save_only_these_names("h")),
    "nested, with dots": jax.checkpoint(twice, policy=policies.dots_saveable),
    "in a loop": lambda x, w: looped(x, w, prevent_cse=False),
    "in a loop, with dots": lambda x, w: looped(x, w, prevent_cse=False, policy=policies.dots_saveable),
    "around a loop": jax.checkpoint(looped, policy=policies.dots_saveable),
    "around a branch": jax.checkpoint(branched, policy=policies.dots_saveable),
    "of a jitted function": jax.checkpoint(jax.jit(body), policy=policies.dots_saveable),
    "that may be undone": jax.checkpoint(body, prevent_cse=False),
    "of one argument that is pinned": jax.checkpoint(body, prevent_cse=(True, False)),
}
QUICK = {"no policy", "a name", "a primitive's name", "a name in a rule", "nested, with dots", "that may be undone"}


def counted(compiled: Any) -> dict[str, int]:
    """The operations of a compiled program that are worth counting."""
    return dict(collections.Counter(re.findall(r"= \S+ (sine|cosine|dot)\(", compiled.as_text())))


def loss_of(name: str) -> Callable[..., Any]:
    return lambda x, w: jnp.sum(PROGRAMS[name](x, w) ** 2)


def first(loss: Any) -> Any:
    return jax.grad(loss, argnums=(0, 1))


def second(loss: Any) -> Any:
    return lambda x, w: (jax.grad(lambda x: jnp.sum(jax.grad(loss)(x, w) * x))(x),)


def typed_first(total: Any) -> Any:
    return sh.grad(total, argnums=(0, 1))


def typed_second(total: Any) -> Any:
    return lambda x, w: (sh.grad(lambda x: sh.all_reduce(sh.sum(sh.grad(total)(x, w) * x)))(x),)


def cases() -> list[Any]:
    found = [(name, order) for name in PROGRAMS for order in ("first", "second")]
    found = [(name, order) for name, order in found if order == "first" or name != "a name in a forward function"]
    quick = [order == "first" and name in QUICK for name, order in found]
    nightly = pytest.mark.nightly
    return [pytest.param(*c, marks=() if q else nightly, id="-".join(c)) for c, q in zip(found, quick, strict=True)]


#: Without fusion, which computes again what is cheap. What else fuses would put operations where they are not counted.
UNFUSED: Any = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion,fusion-wrapper"}


@pytest.mark.parametrize(("name", "order"), cases())
def test_what_is_computed_again_is_what_jax_computes_again(name: str, order: str) -> None:
    loss = loss_of(name)
    derive, typed = (first, typed_first) if order == "first" else (second, typed_second)
    plain = jax.jit(derive(loss))
    lowered = plain.lower(X, W).compile(compiler_options=UNFUSED)
    wanted, count = plain(X, W), counted(lowered)
    assert count
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(X, "f32[8@x, 4]"), sh.array(W, "f32[4, 4]")
        total: Any = lambda x, w: sh.all_reduce(sh.lift(loss)(x, w))  # noqa: E731
        # The second derivative of a typed op takes its operand: that of a sine computes the sine, be it saved or not,
        # and which of those XLA finds to be one depends on its release.
        for run, kinds in (
            (typed(total), count.keys() if order == "first" else {"dot"}),
            (sh.lift(derive(loss)), count.keys()),
            (sh.implicit_comm(sh.lift(derive(loss))), count.keys()),
        ):
            found = counted(sh.jit(run).lower(x, w).compile(compiler_options=UNFUSED))
            assert {kind: found[kind] for kind in kinds} == {kind: count[kind] for kind in kinds}
            for got, right in zip(sh.jit(run)(x, w), wanted, strict=True):
                assert_close(denoted(got), right, 400)


@pytest.mark.parametrize("prevent", [True, False, (True, False)])
def test_implicit_comm_lets_xla_undo_what_the_program_lets_it_undo(prevent: Any) -> None:
    step = jax.checkpoint(body, prevent_cse=prevent)

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(step(step(x, w), w))

    def total(x: Any, w: Any) -> Any:
        return sh.all_reduce(sh.implicit_comm(sh.lift(loss))(x, w))

    def barriers(jitted: Any, *args: Any) -> list[int]:
        return [line.count("tensor<") for line in jitted.lower(*args).as_text().splitlines() if "barrier" in line]

    wanted = barriers(jax.jit(jax.grad(loss)), X, W)
    assert bool(wanted) is (prevent is not False)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(X, "f32[8@x, 4]"), sh.array(W, "f32[4, 4]")
        for run in (sh.implicit_comm(sh.lift(jax.grad(loss))), sh.grad(total)):
            assert barriers(sh.jit(run), x, w) == wanted


def test_a_policy_that_is_false_is_none_as_in_jax() -> None:
    false: Any = False

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(of_policy(false)(x, w) ** 2)

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.abstract_array("f32[8@x, 4]"), sh.abstract_array("f32[4, 4]")
        for run in (
            sh.lift(loss),
            sh.implicit_comm(sh.lift(loss)),
            lambda x, w: sh.sum(jax.checkpoint(sh.sin, policy=false)(x @ w)),
        ):
            sh.check(sh.grad(lambda *args, run=run: sh.all_reduce(run(*args))), x, w)


def test_a_policy_that_offloads_is_refused() -> None:
    names = {"names_which_can_be_saved": ["h"], "names_which_can_be_offloaded": ["g"]}
    policy = policies.save_and_offload_only_these_names(**names, offload_src="device", offload_dst="pinned_host")
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, w = sh.array(X, "f32[8@x, 4]"), sh.array(W, "f32[4, 4]")
        total: Any = lambda x, w: sh.all_reduce(sh.sum(sh.lift(of_policy(policy))(x, w) ** 2))  # noqa: E731
        assert_close(denoted(total(x, w)), np.sum(body(X, W) ** 2))
        with pytest.raises(sh.ShardingTypeError, match="a policy of `checkpoint` offloads a typed value"):
            sh.grad(total)(x, w)
