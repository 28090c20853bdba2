"""Cross entropy with label smoothing, and a vocabulary that is split over ``tp``.

The smoothing term is the mean of the log probabilities over the vocabulary. Taken over each device's slice it
differs from device to device, and so does the loss. Whatever reduces the vocabulary must say so here: the log of
the sum of exponentials is refused without ``out=``, and a mean over the slices divides by the whole vocabulary and
is pending.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Logits = A[sh.Array, "f32[batch@dp, vocab@tp]"]
Loss = A[sh.Array, "f32[]{U:(dp,tp)}"]


def one_device(logits: Any) -> Results:
    def loss(logits: Any) -> Any:
        return -jnp.mean(jnp.mean(logits, -1) - jax.nn.logsumexp(logits, -1))

    value, grad = jax.value_and_grad(loss)(logits)
    return {"loss": value, "gradient": grad}


def plain(logits: Any) -> Results:
    def smoothed(logits: Any) -> Any:
        total = jax.lax.psum(jnp.sum(jnp.exp(logits), -1), "tp")
        return -jnp.mean(jnp.mean(logits, -1) - jnp.log(total))  # the mean of a slice

    value = jax.lax.pmean(smoothed(logits), "dp")
    own = jnp.exp(logits) / jax.lax.psum(jnp.sum(jnp.exp(logits), -1, keepdims=True), "tp")
    grad = (own - 1 / logits.shape[-1]) / 8  # and its size
    grad = jax.lax.all_gather(jax.lax.all_gather(grad, "tp", axis=1, tiled=True), "dp", tiled=True)
    return {"loss": value, "gradient": grad}


def naive(logits: Logits) -> Results:
    def loss(x: Logits) -> Loss:
        return -sh.mean(sh.mean(x, -1) - sh.logsumexp(x, -1))  # type: ignore[sharding]

    value, grad = sh.value_and_grad(loss)(logits)
    return {"loss": value, "gradient": grad}


def fixed(logits: Logits) -> Results:
    def loss(x: Logits) -> Loss:
        return -sh.mean(sh.mean(x, -1) - sh.logsumexp(x, -1, out="[_@...]{I:tp}"))

    value, grad = sh.value_and_grad(loss)(logits)
    return {"loss": value, "gradient": grad}


BUG = Bug(
    name="vocabulary_loss",
    wrong="a reduction over the vocabulary is one over each device's slice",
    source="NVIDIA/Megatron-LM#737, [BUG] cross-entropy loss not computed correctly when label_smoothing is enabled",
    url="https://github.com/NVIDIA/Megatron-LM/issues/737",
    types=("f32[batch=8@dp, vocab=32@tp]",),
    shown="loss",
    fix='`sh.logsumexp(..., out="[_@...]{I:tp}")`; the mean is right as it is',
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
