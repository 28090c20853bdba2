"""The tensor and sequence parallel block under both policies: its gradients, and what that of the input sends."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples import replicate_forwards as model
from tests.core.hlo import CALL, group_size
from tests.end_to_end import host
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 4}
SHAPES = ((8, 4, 16), (16, 32), (16, 32), (32, 16))


@pytest.fixture(params=["partial", "jax"])
def policy(request: pytest.FixtureRequest) -> Any:
    sh.set_mesh(sh.make_mesh(MESH))
    with sh.policy(request.param):
        yield request.param


def arrays() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in SHAPES]


def typed() -> list[Any]:
    return [sh.array(a, t) for a, t in zip(arrays(), (model.X, *model.WEIGHTS), strict=True)]


def reference(x: Any, w1: Any, w3: Any, w2: Any) -> Any:
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    return jnp.sum(x + (jax.nn.silu(y @ w1) * (y @ w3)) @ w2)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("run", [model.block, model.overlapped], ids=["block", "overlapped"])
def test_the_block_has_the_gradients_of_one_device(run: Any, policy: str) -> None:
    wanted = jax.jit(jax.grad(reference, argnums=(0, 1, 2, 3)))(*arrays())
    step = sh.jit(sh.grad(functools.partial(model.loss, run), argnums=(0, 1, 2, 3)), region="require")
    for found, value, want in zip(step(*typed()), typed(), wanted, strict=True):
        assert found.type == value.type.cotangent()
        assert_close(host(found), want)
    assert run(*typed()).type == typed()[0].type


def kinds_on_tp(f: Any) -> list[str]:
    """The collectives of the compiled program over groups of as many devices as ``tp`` has."""
    text = sh.jit(f).lower(*typed()).compile().as_text()
    calls = filter(None, map(CALL.search, text.splitlines()))
    return sorted(call[2] for call in calls if group_size(call[3]) == MESH["tp"])


def test_a_pending_gradient_goes_straight_to_a_reduce_scatter(policy: str) -> None:
    def back(run: Any) -> dict[str, int]:
        with sh.merge_reshards(False):
            found = sh.ledger(sh.grad(functools.partial(model.loss, run)), *typed()).backward()
        return {e.kind: e.bytes for e in found.select(lambda e: e.axes == ("tp",))}

    size = typed()[0].type.local_bytes * (MESH["tp"] - 1)  # what a gather of the input sends
    gradient = {"partial": {"reduce-scatter": size}, "jax": {"all-reduce": 2 * size}}[policy]
    assert back(model.branch) == gradient
    assert back(model.block) == gradient | {"all-gather": size}  # the gather is the scatter's transpose
    curved = sh.value_and_grad(lambda *args: sh.sum(sh.sin(model.block(*args))), argnums=(0, 1, 2, 3))
    assert kinds_on_tp(curved) == ["all-gather", "all-gather", "reduce-scatter", "reduce-scatter"]
    with sh.merge_reshards(False):
        assert ("all-reduce" in kinds_on_tp(curved)) == (policy == "jax")


def test_an_invariant_value_has_its_gradient_summed_once_before_it_fans_out(policy: str) -> None:
    rng = np.random.default_rng(1)
    counts: dict[model.State, int] = {"R": 2, "I": 1}  # of the two that are added, one value is summed
    for state, launches in counts.items():
        operands = model.fan_out_operands(state)
        found = sh.ledger(model.gradients(state), *operands).select(lambda e: e.axes == ("tp",))
        assert (found.launches, {e.kind for e in found}) == (launches, {"all-reduce"})
    values = [rng.uniform(-1, 1, t.type.shape).astype(np.float32) for t in model.fan_out_operands("R")]
    by_state = [
        sh.jit(model.gradients(state))(
            *(sh.array(v, t.type) for v, t in zip(values, model.fan_out_operands(state), strict=True))
        )
        for state in counts
    ]
    for one, other in zip(*by_state, strict=True):
        assert one.type.state("tp") is other.type.state("tp") is sh.State.INVARIANT
        assert_close(host(one), host(other))
