"""What a training step does beside the optimizer, typed: one collective for what it needs, and nothing for the rest."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shtypes as sh
from tests.tolerance import assert_close

SIZES: Final = {"bias": (16,), "down": (32, 16), "up": (16, 32)}
TYPES: Final = {"bias": "f32[16@dp]", "down": "f32[32@tp, 16@dp]", "up": "f32[16@dp, 32@tp]"}
MATRICES: Final = {name: len(size) > 1 for name, size in SIZES.items()}


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def weights(k: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {name: rng.normal(size=size).astype(np.float32) for name, size in SIZES.items()}


def typed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: sh.array(w, TYPES[name]) for name, w in values.items()}


class LossScale(NamedTuple):
    """The factor of the loss, how many steps it has held, and the state of the transformation within."""

    factor: Any
    steps: Any
    inner: Any


def scaled(inner: Any, most: float = 0.5, first: float = 2.0**15, period: int = 2) -> Any:
    """In plain optax: gradients of a scaled loss are scaled back and clipped; a step that overflows changes nothing."""

    def init(params: Any) -> LossScale:
        return LossScale(jnp.asarray(first, jnp.float32), jnp.asarray(0, jnp.int32), inner.init(params))

    def update(grads: Any, state: LossScale, params: Any = None) -> Any:
        norm = optax.tree.norm(grads) / state.factor
        good = jnp.isfinite(norm)
        back = jnp.minimum(1.0, most / norm) / state.factor
        updates, new = inner.update(jax.tree.map(lambda g: g * back, grads), state.inner, params)

        def kept(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)

        steps = jnp.where(good, state.steps + 1, 0)
        grown = jnp.where(steps == period, 2 * state.factor, state.factor)
        factor = jnp.where(good, grown, state.factor / 2)
        return kept(updates, jax.tree.map(jnp.zeros_like, updates)), LossScale(
            factor, steps % period, kept(new, state.inner)
        )

    return optax.GradientTransformation(init, update)


def whole() -> Any:
    """All of a step: loss scaling, clipping, weight decay of matrices, Adam."""
    return scaled(optax.chain(optax.add_decayed_weights(1e-2, mask=MATRICES), optax.adam(1e-2)))


def step(optimizer: Any, apply: Any, average: Any) -> Any:
    """Parameters, the optimizer's state and a running average of the parameters, after a step."""

    def run(params: Any, state: Any, mean: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        params = apply(params, updates)
        return params, state, average(params, mean, 0.1)

    return run


def typed_step(optimizer: Any) -> Any:
    return step(optimizer, sh.optim.apply_updates, sh.lift(optax.incremental_update))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_step_that_overflows_is_left_out_as_on_one_device(policy: str) -> None:
    with sh.policy(policy):
        optimizer = sh.optim.lift(whole())
        params = typed(weights())
        state = (params, optimizer.init(params), params)
        kept = sh.tree.types(state)
        run = sh.jit(typed_step(optimizer))
        plain = jax.tree.map(jnp.asarray, weights())
        alone = (plain, whole().init(plain), plain)
        once = jax.jit(step(whole(), optax.apply_updates, optax.incremental_update))
        factors = []
        for k in range(4):
            grads = jax.tree.map(lambda g, f=float(alone[1].factor): f * g, weights(k + 1))
            if k == 2:
                grads["up"][3, 5] = np.inf
            before = state
            state, alone = jax.block_until_ready(run(*state, typed(grads))), once(*alone, grads)
            assert sh.tree.types(state) == kept
            factors.append(float(state[1].factor))
            unchanged = all(np.array_equal(state[0][name], before[0][name]) for name in SIZES)
            assert unchanged == (k == 2)
        assert factors == [2.0**15, 2.0**16, 2.0**15, 2.0**15]
        # Adam divides by roots of moments that may be small.
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(alone), strict=True):
            assert_close(np.asarray(one), other, 4096)


def test_a_whole_step_asks_the_other_devices_once() -> None:
    """The norm of the tree says by how much to clip, and whether all is finite."""
    optimizer = sh.optim.lift(whole())
    params, grads = typed(weights()), typed(weights(1))
    args = params, optimizer.init(params), params, grads
    run = typed_step(optimizer)
    assert [(e.kind, e.axes, e.src.ndim) for e in sh.ledger(run, *args)] == [("all-reduce", ("dp", "tp"), 0)]
    assert sh.jit(run).lower(*args).compile().as_text().count(" all-reduce(") == 1


@pytest.mark.parametrize(
    ("name", "tx", "launches"),
    [
        ("clipping", optax.clip_by_global_norm(0.5), 1),
        ("weight decay", optax.add_decayed_weights(1e-2, mask=MATRICES), 0),
        ("average of updates", optax.ema(0.9), 0),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_each_part_of_a_step_alone(name: str, tx: Any, launches: int) -> None:
    optimizer = sh.optim.lift(tx)
    params, grads = typed(weights()), typed(weights(1))
    state = optimizer.init(params)
    assert sum(e.launches for e in sh.ledger(optimizer.update, grads, state, params)) == launches
    updates, _ = sh.jit(optimizer.update)(grads, state, params)
    plain = jax.tree.map(jnp.asarray, weights())
    wanted, _ = tx.update(jax.tree.map(jnp.asarray, weights(1)), tx.init(plain), plain)
    assert sh.tree.types(updates) == sh.tree.types(params)
    for one, other in zip(updates.values(), wanted.values(), strict=True):
        assert_close(np.asarray(one), other)


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("policy", "times"), [("partial", 1), ("jax", 3)])
def test_gradients_of_microbatches_are_clipped_and_applied_after_one_sum(policy: str, times: int) -> None:
    """Pending gradients are carried through the loop as they are; under "jax" each is summed where it arises."""
    with sh.policy(policy):
        optimizer = sh.optim.lift(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1e-2)), pending="finish")
        w = sh.array(weights()["up"], "f32[16, 32]")
        rows = np.random.default_rng(0).normal(size=(3, 8, 16)).astype(np.float32)
        xs = sh.array(rows, "f32[micro, batch@dp, 16]")

        def run(w: Any, state: Any, xs: Any) -> Any:
            def one(total: Any, x: Any) -> Any:
                return total + sh.grad(lambda w: sh.sum(sh.square(x @ w)))(w), None

            grads, _ = sh.scan(one, sh.zeros_like(w), xs)
            updates, state = optimizer.update(grads, state, w)
            return sh.optim.apply_updates(w, updates), state

        state = optimizer.init(w)
        ledger = sh.ledger(run, w, state, xs)
        assert sum(e.times or 0 for e in ledger if e.src.ndim) == times
        found, _ = sh.jit(run)(w, state, xs)
        tx = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1e-2))
        plain = jnp.asarray(weights()["up"])
        grads = jax.jit(jax.grad(lambda w: jnp.sum(jnp.square(jnp.asarray(rows) @ w))))(plain)
        wanted = optax.apply_updates(plain, tx.update(grads, tx.init(plain), plain)[0])
        assert_close(np.asarray(found), wanted)
