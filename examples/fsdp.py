"""Fully sharded data parallel: weights are gathered where they are used, their gradients reduced to shards.

Each device keeps one slice of every weight. A layer gathers its weights, ``S -> R``; the transpose of that is the
reduce-scatter of their gradients, ``U -> S``, which nobody has to write. `checkpoint` keeps the activations and not the
gathered weights, so the backward pass gathers them again.

Run ``python -m examples.fsdp``.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

from typing import Any

import numpy as np

import shtypes as sh
from examples.hlo import collectives_run, compiled_text

LAYERS, BATCH, HIDDEN, INNER, DEVICES = 4, 16, 32, 64, 8

W_IN = f"f32[layers={LAYERS}, hidden={HIDDEN}@dp, inner={INNER}]"
W_OUT = f"f32[layers={LAYERS}, inner={INNER}@dp, hidden={HIDDEN}]"
DATA = f"f32[batch={BATCH}@dp, hidden={HIDDEN}]"


def layer(x: Any, weights: Any) -> Any:
    """A block of two products, from slices of its weights."""
    w_in, w_out = (sh.all_gather(w, "dp", to="R") for w in weights)
    return x + sh.silu(x @ w_in) @ w_out


def loss(weights: Any, x: Any, y: Any) -> Any:
    """The squared error: a pending sum over ``dp``."""
    recomputed = sh.checkpoint(layer, policy=sh.checkpoint_policies.dots_saveable, prevent_cse=False)
    out, _ = sh.scan(lambda h, w: (recomputed(h, w), None), x, weights)
    return sh.sum((out - y) ** 2)


def step(weights: Any, x: Any, y: Any) -> Any:
    """One step of gradient descent; weights and gradients stay slices."""
    gradients = sh.grad(loss)(weights, x, y)
    return tuple(w - 1e-4 * g for w, g in zip(weights, gradients, strict=True))


def arguments() -> tuple[Any, Any, Any]:
    """Weights, inputs and targets."""
    rng = np.random.default_rng(0)
    types = [sh.ShType.parse(t) for t in (W_IN, W_OUT, DATA, DATA)]
    w_in, w_out, x, y = (sh.array(rng.standard_normal(t.shape).astype(np.float32) / 8, t) for t in types)
    return (w_in, w_out), x, y


def bytes_of_weights() -> int:
    """What each device sends to gather all weights once: a ring sends all of them but the own slice."""
    return 2 * LAYERS * HIDDEN * INNER * 4 * (DEVICES - 1) // DEVICES


def main() -> None:
    """Prints the ledger and what the compiled program runs."""
    sh.set_mesh(sh.make_mesh({"dp": DEVICES}))
    args = arguments()
    ledger = sh.ledger(step, *args)
    print(ledger)
    for direction, total in ledger.by_direction().items():
        print(f"{direction}: {total.bytes} B/device; the formula says {bytes_of_weights()}")
    print(f"compiled: {dict(collectives_run(compiled_text(sh.jit(step), *args)))}")


if __name__ == "__main__":
    main()
