"""The bias of a row-parallel layer.

Each device has a term of the product and adds the whole bias to it, then the terms are summed: the bias counts once
for each device. Here the product is pending over ``tp`` and the bias is whole; a whole value is added to a pending
sum on one device, so it counts once. (In local mode it is the program that adds up: see `local_bias`.)
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Bias = A[sh.Array, "f32[16]"]
Weight = A[sh.Array, "f32[inter@tp, 16]"]
Inner = A[sh.Array, "f32[batch@dp, inter@tp]"]


def one_device(bias: Any, w: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda bias: jnp.mean(jnp.sin(x @ w + bias)))(bias)
    return {"loss": value, "gradient of the bias": grad}


def plain(bias: Any, w: Any, x: Any) -> Results:
    y = jax.lax.psum(x @ w + bias, "tp")
    grad = jax.lax.psum(jnp.sum(jnp.cos(y), 0), "dp") / (8 * 16)
    return {"loss": jax.lax.pmean(jnp.mean(jnp.sin(y)), "dp"), "gradient of the bias": grad}


def naive(bias: Bias, w: Weight, x: Inner) -> Results:
    value, grad = sh.value_and_grad(lambda bias: sh.mean(sh.sin(sh.all_reduce(x @ w + bias, "tp"))))(bias)
    return {"loss": value, "gradient of the bias": grad}


BUG = Bug(
    name="row_bias",
    wrong="the bias of a row-parallel layer is added on each device before the sum",
    source="huggingface/text-generation-inference#1036, When using models whose have bias, "
    "bias of `TensorParallelRowLinear` is multi-added by tp-degree",
    url="https://github.com/huggingface/text-generation-inference/issues/1036",
    types=("f32[16]", "f32[inter=32@tp, 16]", "f32[batch=8@dp, inter=32@tp]"),
    shown="loss",
    fix="none: a whole value is added once to a pending sum",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=naive,
)
