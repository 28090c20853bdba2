"""The weight of a norm under sequence parallelism.

Each device of ``tp`` has its part of the sequence, so it has its part of the gradient of the norm's weight. Whoever
sums gradients over data parallelism alone, as for other replicated weights, steps each copy by a part, and the
copies drift. Under ``"partial"`` the gradient's type says what is pending, and the optimizer refuses it. Under
``"jax"`` it has been summed over both axes already, and summing it by hand is what is refused.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results, step

Scale = A[sh.Array, "f32[hidden]"]
Batch = A[sh.Array, "f32[batch@dp, seq@tp, hidden]"]


def loss(scale: Any, x: Any, m: Any = jnp) -> Any:
    """The same expression in `jax.numpy` and in types."""
    y = x * m.sqrt(1.0 / m.mean(m.square(x), -1))[..., None] * scale
    return m.mean(m.sin(y))


def one_device(scale: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(scale, x)
    return {"loss": value, "step": step(scale, grad)}


def plain(scale: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(scale, x)
    return {"loss": jax.lax.pmean(value, ("dp", "tp")), "step": step(scale, jax.lax.pmean(grad, "dp"))}


def naive(scale: Scale, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda scale: loss(scale, x, sh))(scale)
    return {"loss": value, "step": step(scale, sh.all_reduce(grad, "dp"))}


def fixed(scale: Scale, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda scale: loss(scale, x, sh))(scale)
    return {"loss": value, "step": step(scale, sh.all_reduce(grad))}


BUG = Bug(
    name="norm_weight",
    wrong="the gradient of a norm's weight is not summed over the sequence parallel axis",
    source="NVIDIA/Megatron-LM#1446, [BUG] final_layernorm gradient mismatch when TP+SP enabled",
    url="https://github.com/NVIDIA/Megatron-LM/issues/1446",
    types=("f32[hidden=16]", "f32[batch=8@dp, seq=16@tp, hidden=16]"),
    shown="step",
    fix="`sh.all_reduce(grad)` sums over all axes that are pending, and over none that is not",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
