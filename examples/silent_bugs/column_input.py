"""The input of a column-parallel layer: Megatron's *f*, whose backward pass is an all-reduce.

A replicated value meets weights that are split over ``tp``, so each device has a part of the gradient of that
value, and of all weights before it. Without the all-reduce at the entry they stay parts. Gradients over ``dp`` are
summed as always, which hides it. Here the type of the gradient follows from that of the weight: pending over ``tp``
under ``"partial"``, and the optimizer refuses it; summed under ``"jax"``, where summing by hand is refused.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results, step

First = A[sh.Array, "f32[16, 16]"]
Second = A[sh.Array, "f32[16, inter@tp]"]
Batch = A[sh.Array, "f32[batch@dp, 16]"]


def loss(w0: Any, w1: Any, x: Any, m: Any = jnp) -> Any:
    """A replicated layer, then a column-parallel one."""
    return m.mean(m.sin(m.tanh(x @ w0) @ w1))


def one_device(w0: Any, w1: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w0, w1, x)
    return {"loss": value, "step": step(w0, grad)}


def plain(w0: Any, w1: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w0, w1, x)
    return {"loss": jax.lax.pmean(value, ("dp", "tp")), "step": step(w0, jax.lax.pmean(grad, "dp"))}


def naive(w0: First, w1: Second, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w0: loss(w0, w1, x, sh))(w0)
    return {"loss": value, "step": step(w0, sh.all_reduce(grad, "dp"))}


def fixed(w0: First, w1: Second, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w0: loss(w0, w1, x, sh))(w0)
    return {"loss": value, "step": step(w0, sh.all_reduce(grad))}


BUG = Bug(
    name="column_input",
    wrong="the gradient of a column-parallel layer's input is not summed over tp",
    source="pytorch/torchtitan#1805, TP gradient update is wrong during MoE backward",
    url="https://github.com/pytorch/torchtitan/issues/1805",
    types=("f32[16, 16]", "f32[16, inter=32@tp]", "f32[batch=8@dp, 16]"),
    shown="step",
    fix="`sh.all_reduce(grad)`, or an input that is `{I:tp}`, which sums where it enters",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
