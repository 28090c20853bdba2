"""A gated MLP, data and tensor parallel, on sharding types.

The program is from the post "Replicate forwards, partial backwards" (ezyang's blog, February 2026): four einsums over a
mesh with axes ``dp`` and ``tp``. ``shtypes demo`` prints its types and communication, forward and backward.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import shtypes as sh

SEQ, BATCH, HIDDEN, INTERMEDIATE = 4, 8, 16, 32

X = f"f32[seq={SEQ}, batch={BATCH}@dp, hidden={HIDDEN}]"
W1 = W3 = f"f32[hidden={HIDDEN}, intermediate={INTERMEDIATE}@tp]"
W2 = f"f32[intermediate={INTERMEDIATE}@tp, hidden={HIDDEN}]"


def mlp(rx: A[sh.Array, X], rw1: A[sh.Array, W1], rw3: A[sh.Array, W3], rw2: A[sh.Array, W2]) -> Any:
    """The block: ``w2 (silu(w1 x) * w3 x)``; its result is a pending sum over ``tp``."""
    h1 = sh.einsum("sbh,hi->sbi", rx, rw1)
    h3 = sh.einsum("sbh,hi->sbi", rx, rw3)
    h = sh.einsum("sbi,sbi->sbi", sh.silu(h1), h3)
    out = sh.einsum("sbi,ih->sbh", h, rw2)
    return out  # noqa: RET504  # the name is what listings print


def mlp_with_casts(x: A[sh.Array, X], w1: A[sh.Array, W1], w3: A[sh.Array, W3], w2: A[sh.Array, W2]) -> Any:
    """The same block on invariant operands, with the casts that policy "jax" needs."""
    rx = sh.reshard(x, tp="R")
    rw1 = sh.reshard(w1, dp="R")
    rw3 = sh.reshard(w3, dp="R")
    rw2 = sh.reshard(w2, dp="R")
    return mlp(rx, rw1, rw3, rw2)


def loss(rx: A[sh.Array, X], rw1: A[sh.Array, W1], rw3: A[sh.Array, W3], rw2: A[sh.Array, W2]) -> Any:
    """The sum of the results: linear, so it stays a pending sum over ``dp`` and ``tp`` (the local losses)."""
    return sh.sum(mlp(rx, rw1, rw3, rw2))


def loss_with_casts(x: A[sh.Array, X], w1: A[sh.Array, W1], w3: A[sh.Array, W3], w2: A[sh.Array, W2]) -> Any:
    """The same loss of invariant operands."""
    return sh.sum(mlp_with_casts(x, w1, w3, w2))


def main() -> None:
    """Prints, under both policies, the result types, the communication of the gradients, and a check on one device."""
    import os

    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = ((SEQ, BATCH, HIDDEN), (HIDDEN, INTERMEDIATE), (HIDDEN, INTERMEDIATE), (INTERMEDIATE, HIDDEN))
    host = [rng.standard_normal(size).astype(np.float32) for size in sizes]

    def on_one_device(x: Any, w1: Any, w3: Any, w2: Any) -> Any:
        return ((jax.nn.silu(x @ w1) * (x @ w3)) @ w2).sum()

    expected = jax.grad(on_one_device, argnums=(0, 1, 2, 3))(*host)
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            args = [sh.array(a, t) for a, t in zip(host, (X, W1, W3, W2), strict=True)]
            step = sh.jit(sh.grad(loss, argnums=(0, 1, 2, 3)))
            grads, sent = step(*args), sh.ledger(step, *args)
            print(f'policy "{policy}"\n  result: {mlp(*args).type}')
            for name, g in zip(("x", "w1", "w3", "w2"), grads, strict=True):
                print(f"  gradient of {name}: {g.type}")
            print(f"  sent for the gradients: {sent.bytes} B/device in {sent.launches} collectives")
            gradients = [np.asarray(sh.reshard(g, "[...]")) for g in grads]  # finishes pending sums
            close = all(np.allclose(g, w, rtol=1e-3, atol=1e-3) for g, w in zip(gradients, expected, strict=True))
            print(f"  as on one device: {close}")


if __name__ == "__main__":
    main()
