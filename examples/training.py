"""A training step as large models have it: bf16 compute, f32 masters and Adam state sharded over data, clipping.

The masters lie sharded over ``dp`` as well (ZeRO). The loss casts and gathers them, so each gradient comes back by the
transpose of that gather: a reduce-scatter, to the shard that its owner updates. The optimizer is `optax`, as it is, on
typed trees: it needs nothing from other devices but the norm of the whole tree, at one all-reduce of a number.

    python examples/training.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import numpy as np
import optax

import shtypes as sh

Tree = Any

#: How the masters lie, and how the layers want them.
MASTER = {
    "scale": "f32[hidden@dp]",
    "gate": "f32[hidden@dp, inter@tp]",
    "up": "f32[hidden@dp, inter@tp]",
    "down": "f32[inter@tp, hidden@dp]",
}
COMPUTE = {
    "scale": "bf16[hidden]",
    "gate": "bf16[hidden, inter@tp]",
    "up": "bf16[hidden, inter@tp]",
    "down": "bf16[inter@tp, hidden]",
}
BATCH = "bf16[batch@dp, hidden]"


def gathered(masters: Tree) -> Tree:
    """The weights as the layers want them: cast first, so that the gathers and their transposes send bf16."""
    return {name: sh.reshard(w.astype("bf16"), COMPUTE[name]) for name, w in masters.items()}


def loss(masters: Tree, x: Any, wanted: Any) -> Any:
    """The mean squared error of a gated MLP with an RMS norm."""
    w = gathered(masters)
    h = x * sh.rsqrt(sh.mean(x * x, -1, keepdims=True) + 1e-6) * w["scale"]
    h = sh.silu(h @ w["gate"]) * (h @ w["up"])
    y = x + sh.all_reduce(h @ w["down"], "tp")
    return sh.mean(sh.square((y - wanted).astype("f32")))


def typed(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer of typed trees, after clipping by the norm of the whole tree.

    Weights that are not sharded over tp have a gradient that is a pending sum over it, which is finished first.
    """
    return sh.optim.lift(optax.chain(optax.clip_by_global_norm(1.0), optimizer), pending="finish")


def step(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """One training step: ``(params, state, x, wanted) -> (params, state, loss)``."""

    def run(params: Tree, state: Tree, x: Any, wanted: Any) -> Any:
        value, grads = sh.value_and_grad(loss)(params, x, wanted)
        updates, state = optimizer.update(grads, state, params)
        return sh.optim.apply_updates(params, updates), state, sh.all_reduce(value)

    return run


def data(hidden: int = 16, inter: int = 32, batch: int = 8) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Weights and a batch, on the host."""
    rng = np.random.default_rng(0)
    sizes = {"scale": (hidden,), "gate": (hidden, inter), "up": (hidden, inter), "down": (inter, hidden)}
    weights = {name: rng.normal(size=s).astype(np.float32) / 4 for name, s in sizes.items()}
    x = rng.normal(size=(batch, hidden)).astype(np.float32)
    return weights, x, np.roll(x, 1, axis=1)


def main() -> None:
    """Trains for a few steps and prints the types, the losses and the communication of a step."""
    weights, inputs, outputs = data()
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        params = {name: sh.array(w, MASTER[name]) for name, w in weights.items()}
        x, wanted = (sh.array(a, BATCH) for a in (inputs, outputs))
        optimizer = typed(optax.adam(3e-2))
        state, train = optimizer.init(params), sh.jit(step(optimizer), donate_argnums=(0, 1))
        for name, t in sh.tree.types(state[1][0].mu).items():
            print(f"momentum of {name}: {t}")
        for i in range(8):
            params, state, value = train(params, state, x, wanted)
            print(f"step {i}: loss {float(np.asarray(value)):.3f}")
        print(sh.ledger(step(optimizer), params, state, x, wanted))


if __name__ == "__main__":
    main()
