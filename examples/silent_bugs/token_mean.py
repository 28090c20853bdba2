"""A mean over tokens, where devices have different numbers of them.

Each device divides its sum by its own count of valid tokens, and the quotients are averaged: a token in a short
part of the batch weighs more than one in a long part. Here both sums are pending over ``dp``, and a quotient by a
pending sum is refused: the count must be whole first. (The source has it for microbatches instead of devices.)
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Weight = A[sh.Array, "f32[16]"]
Batch = A[sh.Array, "f32[batch@dp, seq, 16]"]
Mask = A[sh.Array, "bool[batch@dp, seq]"]
Loss = A[sh.Array, "f32[]{U:dp}"]


def one_device(w: Any, x: Any, mask: Any) -> Results:
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w), where=mask))(w)
    return {"loss": value, "gradient": grad}


def plain(w: Any, x: Any, mask: Any) -> Results:
    value, grad = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) * mask) / jnp.sum(mask))(w)
    return {"loss": jax.lax.pmean(value, "dp"), "gradient": jax.lax.pmean(grad, "dp")}


def naive(w: Weight, x: Batch, mask: Mask) -> Results:
    def loss(w: Weight) -> Loss:
        return sh.sum(sh.tanh(x @ w) * mask) / sh.sum(mask)  # type: ignore[sharding]

    value, grad = sh.value_and_grad(loss)(w)
    return {"loss": value, "gradient": grad}


def fixed(w: Weight, x: Batch, mask: Mask) -> Results:
    count = sh.all_reduce(sh.sum(mask))

    def loss(w: Weight) -> Loss:
        return sh.sum(sh.tanh(x @ w) * mask) / count

    value, grad = sh.value_and_grad(loss)(w)
    return {"loss": value, "gradient": grad}


BUG = Bug(
    name="token_mean",
    wrong="a loss is averaged by the number of tokens of each device, not of all",
    source="meta-pytorch/torchtune#1875, Normalize CE loss by total number of (non-padding) tokens",
    url="https://github.com/meta-pytorch/torchtune/pull/1875",
    types=("f32[16]", "f32[batch=8@dp, seq=8, 16]", "bool[batch=8@dp, seq=8]"),
    shown="gradient",
    fix="`sh.all_reduce` the count before dividing, or `sh.mean(..., where=mask, out=...)`",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
