"""A gated MLP, data and tensor parallel, on sharding types.

The program is that of the post "Replicate forwards, partial backwards" (ezyang's blog, February 2026): four einsums
over a mesh with axes ``dp`` and ``tp``. ``shtypes demo`` prints its types, forward and backward, and what it sends.
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
    """The same block from invariant operands, with the casts that JAX's policy asks for."""
    rx = sh.reshard(x, tp="R")
    rw1 = sh.reshard(w1, dp="R")
    rw3 = sh.reshard(w3, dp="R")
    rw2 = sh.reshard(w2, dp="R")
    return mlp(rx, rw1, rw3, rw2)


def loss(rx: A[sh.Array, X], rw1: A[sh.Array, W1], rw3: A[sh.Array, W3], rw2: A[sh.Array, W2]) -> Any:
    """The sum of the results: linear, so it stays a pending sum over ``dp`` and ``tp`` (the local losses)."""
    return sh.sum(mlp(rx, rw1, rw3, rw2))


def loss_with_casts(x: A[sh.Array, X], w1: A[sh.Array, W1], w3: A[sh.Array, W3], w2: A[sh.Array, W2]) -> Any:
    """The same loss from invariant operands."""
    return sh.sum(mlp_with_casts(x, w1, w3, w2))
