"""Every transformation of optax on typed trees: its steps are those of one device, and all types stay as they were."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib, transforms

import shtypes as sh
from tests.tolerance import assert_within, eps
from tests.training.transformations import COMMUNICATING, TRANSFORMATIONS, Case, loss, weights

SHARDED: Final = {
    "bias": "f32[16@dp]",
    "down": "f32[32@tp,16@dp]",
    "scale": "f32[32@(tp,dp)]",
    "up": "f32[16@dp,32@tp]",
}
TENSOR: Final = {"bias": "f32[16]", "down": "f32[32@tp,16]", "scale": "f32[32@tp]", "up": "f32[16,32@tp]"}
WHOLE: Final = {"bias": "f32[16]", "down": "f32[32,16]", "scale": "f32[32]", "up": "f32[16,32]"}
STEPS: Final = 3
#: optax says of some of its transformations that they will go.
pytestmark: Final = [
    pytest.mark.filterwarnings("ignore:.*deprecated.*:DeprecationWarning"),
    pytest.mark.mesh({"dp": 2, "tp": 4}),
]


class Way(NamedTuple):
    """How a transformation is used.

    Attributes:
        layout: The types of the parameters.
        policy: The policy.
        jit: What compiles a step.
        pending: Whether gradients are sums that are pending over ``dp``.
    """

    layout: dict[str, str]
    policy: str
    jit: Callable[..., Any]
    pending: bool = False


WAYS: Final = {
    "sharded": Way(SHARDED, "partial", sh.jit),
    "sharded, invariant": Way(SHARDED, "jax", jax.jit),
    "replicated": Way(WHOLE, "jax", sh.jit),
    "pending gradients": Way(TENSOR, "partial", jax.jit, pending=True),
}
#: Those that run by default; the others where there is time.
FEW: Final = [("scale_by_distance_over_gradients", way) for way in ("sharded, invariant", "replicated")]
CASES: Final = [
    pytest.param(name, way, marks=[] if (name, way) in FEW else [pytest.mark.nightly])
    for name in TRANSFORMATIONS
    for way in WAYS
]


def types_of(tree: Any) -> dict[str, Any]:
    """By path, the type of each leaf; of a plain one what it is."""
    return {
        jax.tree_util.keystr(path): x.type if isinstance(x, sh.Array) else type(x)
        for path, x in jax.tree.leaves_with_path(tree)
    }


def on_one_device(case: Case) -> tuple[Any, Any]:
    tx = case.make()
    params = case.params(jax.tree.map(jnp.asarray, weights()))
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any, grads: Any) -> Any:
        extra = {}
        if case.extra is not None:
            value, grads = jax.value_and_grad(loss)(params)
            extra = case.extra(value, grads)
        updates, state = tx.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    for k in range(STEPS):
        params, state = step(params, state, jax.tree.map(jnp.asarray, weights(k + 1, lead=case.lead)))
    return params, state


def typed_step(optimizer: Any, case: Case, way: Way) -> Callable[..., Any]:
    def step(params: Any, state: Any, grads: Any) -> Any:
        extra = {}
        if case.extra is not None:
            value, grads = sh.lift(jax.value_and_grad(loss))(params)
            grads = jax.tree.map(_pending, grads) if way.pending else grads
            extra = case.extra(value, grads)
        updates, state = optimizer.update(grads, state, params, **extra)
        return sh.optim.apply_updates(params, updates), state

    return step


def _pending(x: Any) -> Any:
    return sh.reshard(x, dp="U")


def typed(values: dict[str, Any], layout: dict[str, str], *, lead: tuple[int, ...] = ()) -> dict[str, Any]:
    more = "".join(f"{size}," for size in lead)
    return {name: sh.array(x, layout[name].replace("[", f"[{more}")) for name, x in values.items()}


def run(case: Case, way: Way, *, implicit: bool) -> tuple[Any, Any]:
    """Parameters and state after some steps, whose types stayed as they were."""
    optimizer = sh.optim.lift(case.make(), pending="finish" if way.pending else "refuse")
    init, step = optimizer.init, typed_step(optimizer, case, way)
    if implicit:
        init, step = sh.implicit_comm(init), sh.implicit_comm(step)
    params = case.params(typed(weights(), way.layout))
    state = jax.block_until_ready(init(params))
    held = types_of((params, state))
    assert all(isinstance(t, sh.ShType) for t in held.values()), held
    compiled = way.jit(step)
    for k in range(STEPS):
        grads = typed(weights(k + 1, lead=case.lead), way.layout, lead=case.lead)
        grads = jax.tree.map(_pending, grads) if way.pending else grads
        params, state = jax.block_until_ready(compiled(params, state, grads))
        found = types_of((params, state))
        assert {path: found.get(path) for path in held} == held
        held = found  # with the measurements that the first step adds
    assert not any(t.axes(sh.State.UNREDUCED) for t in held.values())
    return params, state


def numbers(x: Any) -> Any:
    """The numbers of an array, or of a key."""
    key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    words = (sh.random.key_data if isinstance(x, sh.Array) else jax.random.key_data) if key else (lambda x: x)
    return np.asarray(words(x))


@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_steps_of_every_transformation_are_those_of_one_device_and_keep_all_types(name: str, way: str) -> None:
    case, how = TRANSFORMATIONS[name], WAYS[way]
    with sh.policy(how.policy):
        found = run(case, how, implicit=name in COMMUNICATING)
    wanted = on_one_device(case)
    structure: Any = jax.tree.structure(found)
    assert structure == jax.tree.structure(wanted)
    # A step divides by roots of moments that may be small, and by powers of 0.999 that are taken from one. What is kept
    # in 16 bits may be rounded up on one side and down on the other, and all else is made of it.
    coarsest = max(eps(x.dtype) for x in jax.tree.leaves(wanted) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
    most = max(4096 * eps(np.float32), 4 * coarsest if coarsest > eps(np.float32) else 0)
    for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        one, other = numbers(one), numbers(other)
        assert one.dtype == other.dtype
        assert_within(one, other, most if eps(one.dtype) else 0.0, jax.tree_util.keystr(path))


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMUNICATING)
def test_what_needs_more_than_numbers_is_refused_with_what_can_be_done(name: str) -> None:
    with pytest.raises(sh.ShardingTypeError) as error:
        run(TRANSFORMATIONS[name], WAYS["sharded"], implicit=False)
    assert error.value.placed
    assert any(hint.startswith("sh.implicit_comm() around") for hint in error.value.hints), str(error.value)
    assert all("sh.lift(" not in fix.code for fix in error.value.fixes)


def test_no_transformation_of_optax_is_left_out() -> None:
    of = {}
    for space in (optax, contrib, transforms):
        for name in dir(space):
            made = getattr(space, name)
            if inspect.isfunction(made) and not name.startswith("_"):
                of[name] = str(inspect.signature(made).return_annotation)
    public = {name for name, returns in of.items() if "GradientTransformation" in returns}
    # optax does not say of all of them what they return
    public |= {name for name, returns in of.items() if returns.endswith("_empty'>") and name.startswith("scale_by_")}
    assert len(public) > 100
    assert public <= set(TRANSFORMATIONS)
