"""The gradients of experts, beside those of all other weights.

Each device averages the loss over its own tokens, and gradients are averaged over the devices; those of experts are
not, since each device has its own experts. But the tokens of all devices came to them, so their gradient is a sum
of means: as many times too large as there are devices. Here a mean divides by the size of the whole array, so no
factor is due later.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Experts = A[sh.Array, "f32[experts@ep, 16, 4]"]
Tokens = A[sh.Array, "f32[experts, tokens@ep, 16]"]


def one_device(experts: Any, x: Any) -> Results:
    def loss(experts: Any) -> Any:
        return jnp.mean(jnp.tanh(jnp.einsum("etd,edf->etf", x, experts)))

    value, grad = jax.value_and_grad(loss)(experts)
    return {"loss": value, "gradient of the experts": grad}


def plain(experts: Any, x: Any) -> Results:
    def loss(experts: Any) -> Any:
        here = jax.lax.all_to_all(x, "ep", 0, 1, tiled=True)  # all tokens of the own experts
        y = jnp.tanh(jnp.einsum("etd,edf->etf", here, experts))
        return jnp.mean(jax.lax.all_to_all(y, "ep", 1, 0, tiled=True))  # and back

    value, grad = jax.value_and_grad(loss)(experts)
    return {"loss": jax.lax.pmean(value, "ep"), "gradient of the experts": jax.lax.all_gather(grad, "ep", tiled=True)}


def naive(experts: Experts, x: Tokens) -> Results:
    def loss(experts: Experts) -> A[sh.Array, "f32[]{U:ep}"]:
        here = sh.all_to_all(x, "ep", 0)
        y = sh.tanh(sh.einsum("etd,edf->etf", here, experts))
        return sh.mean(sh.all_to_all(y, "ep", 1))

    value, grad = sh.value_and_grad(loss)(experts)
    return {"loss": value, "gradient of the experts": grad}


BUG = Bug(
    name="expert_mean",
    wrong="gradients of experts are not divided by the number of devices",
    source="NVIDIA/Megatron-LM#5956, Divide expert gradients by the expert-parallel size",
    url="https://github.com/NVIDIA/Megatron-LM/pull/5956",
    types=("f32[experts=8@ep, 16, 4]", "f32[experts=8, tokens=16@ep, 16]"),
    shown="gradient of the experts",
    fix="none: `sh.mean` divides by the size of the whole",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=naive,
    mesh={"ep": 4},
)
