"""A whole training step with an optimizer and checkpoints of other libraries, against one device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shtypes as sh
from examples import training
from tests.tolerance import assert_close

ADAMW = optax.adamw(3e-2)
OPTIMIZER = training.typed(ADAMW)


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})) as found:
        yield found


@pytest.fixture
def in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in f32, so that it can be compared."""
    for name, t in training.COMPUTE.items():
        monkeypatch.setitem(training.COMPUTE, name, t.replace("bf16", "f32"))
    monkeypatch.setattr(training, "BATCH", training.BATCH.replace("bf16", "f32"))

    def gathered(masters: Any) -> Any:
        return {name: sh.reshard(w, training.COMPUTE[name]) for name, w in masters.items()}

    monkeypatch.setattr(training, "gathered", gathered)


def started() -> tuple[Any, Any, Any, Any]:
    weights, inputs, outputs = training.data()
    params = {name: sh.array(w, training.MASTER[name]) for name, w in weights.items()}
    x, wanted = (sh.array(a, training.BATCH) for a in (inputs, outputs))
    return params, OPTIMIZER.init(params), x, wanted


def on_one_device(steps: int) -> tuple[Any, list[float]]:
    params, x, wanted = jax.tree.map(jnp.asarray, training.data())
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAMW)

    def loss(w: Any) -> Any:
        h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w["scale"]
        y = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
        return jnp.mean(jnp.square(y - wanted))

    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses


@pytest.mark.usefixtures("in_f32")
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_training_is_that_of_one_device(policy: str) -> None:
    with sh.policy(policy):
        params, state, x, wanted = started()
        run, losses = sh.jit(training.step(OPTIMIZER)), []
        for _ in range(4):
            params, state, value = jax.block_until_ready(run(params, state, x, wanted))
            losses.append(float(np.asarray(value)))
    expected, expected_losses = on_one_device(4)
    assert_close(np.asarray(losses, np.float32), np.asarray(expected_losses, np.float32))
    for name, p in params.items():
        assert_close(np.asarray(p), expected[name])


def test_the_state_and_the_updates_keep_the_types_of_the_parameters() -> None:
    params, state, x, wanted = started()
    new, after, _ = sh.jit(training.step(OPTIMIZER))(params, state, x, wanted)
    assert {name: str(p.type) for name, p in new.items()} == training.MASTER
    assert sh.tree.types(after) == sh.tree.types(state)
    assert {str(t) for t in jax.tree.leaves(sh.tree.types(state))} == {"i32[]", *training.MASTER.values()}


def test_gradients_are_scattered_in_the_dtype_of_the_layers() -> None:
    params, state, x, wanted = started()
    found = sh.ledger(training.step(OPTIMIZER), params, state, x, wanted).backward()
    kinds = [(e.kind, e.axes, e.dtype) for e in found]
    assert kinds.count(("reduce-scatter", ("dp",), "bf16")) == 4
    assert not [kind for kind in kinds if kind[0] == "all-reduce" and "dp" in kind[1]]


@pytest.mark.filterwarnings("ignore")  # other people's
def test_a_checkpoint_gives_back_values_and_types(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    params, state, *_ = started()
    saved = {"params": params, "state": state}
    with ocp.StandardCheckpointer() as saver:
        saver.save(tmp_path / "step", saved)
        saver.wait_until_finished()
        back = saver.restore(tmp_path / "step", jax.tree.map(sh.abstract_array, sh.tree.types(saved)))
    assert sh.tree.types(back) == sh.tree.types(saved)
    for one, other in zip(jax.tree.leaves(back["params"]), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
