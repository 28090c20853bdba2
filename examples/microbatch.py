"""Gradients of microbatches: one all-reduce for each step, or one for each layer and microbatch.

A scan over layers inside a scan over microbatches, as in JAX's documentation of autodiff and sharding. The program is
the same under both policies. Where "replicated" means *reduced*, the gradient of a weight is a pending sum,
``{U:dp}``: it is accumulated as it is and reduced once, after the loops. Where it means *invariant*, as in JAX, each
use of a weight reduces its gradient at once, inside both loops; no compiler pass moves that out.

Run ``python -m examples.microbatch``.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

from typing import Annotated, Any

import numpy as np

import shtypes as sh
from examples.hlo import collectives_run, compiled_text

LAYERS, MICROBATCHES, BATCH, FEATURES = 3, 5, 8, 4

WEIGHTS = f"f32[layers={LAYERS}, {FEATURES}, {FEATURES}]"
DATA = f"f32[micro={MICROBATCHES}, batch={BATCH}@dp, {FEATURES}]"

Weights = Annotated[sh.Array, WEIGHTS]
Data = Annotated[sh.Array, DATA]
#: One microbatch.
Batch = Annotated[sh.Array, f"f32[batch={BATCH}@dp, {FEATURES}]"]


def loss(weights: Weights, x: Batch, y: Batch) -> sh.Array:
    """The squared error of one microbatch: a pending sum over ``dp``, the losses of the devices."""
    out, _ = sh.scan(lambda h, w: (sh.tanh(h @ w), None), x, weights)
    return sh.sum((out - y) ** 2)


def step(weights: Weights, xs: Data, ys: Data) -> Weights:
    """One step of gradient descent over all microbatches."""

    def accumulate(total: Any, batch: Any) -> Any:
        return total + sh.grad(loss)(weights, *batch), None

    total, _ = sh.scan(accumulate, sh.zeros_like(weights), (xs, ys))
    return weights - 0.1 * sh.reshard(total, sh.typeof(weights))


def arguments() -> tuple[Any, Any, Any]:
    """Weights, inputs and targets, of the types that the policy in force gives them."""
    rng = np.random.default_rng(0)
    types = [sh.ShType.parse(t) for t in (WEIGHTS, DATA, DATA)]
    weights, xs, ys = (sh.array(rng.standard_normal(t.shape).astype(np.float32), t) for t in types)
    return weights, xs, ys


def main() -> None:
    """Prints, for both policies, the ledger and what the compiled program runs; checks that the results agree."""
    sh.set_mesh(sh.make_mesh({"dp": 8}))
    results = {}
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            args = arguments()
            run = sh.jit(step)
            print(f'policy "{policy}"\n{sh.ledger(run, *args)}')
            print(f"compiled: {dict(collectives_run(compiled_text(run, *args)))}\n")
            results[policy] = np.asarray(run(*args))
    np.testing.assert_allclose(results["partial"], results["jax"], rtol=1e-5)
    print("the new weights are equal")


if __name__ == "__main__":
    main()
