"""Clipping by the norm of all gradients, when each device has only a part of them.

Each device takes the norm of its own shards, so each scales by a factor of its own, and most of them clip less than
they should. Here the sum of squares is pending over the axes that shard the gradients, and a root of a pending sum
is refused.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Weight = A[sh.Array, "f32[16, 32@tp]"]
Batch = A[sh.Array, "f32[batch@dp, 16]"]


def loss(w: Any, x: Any, m: Any = jnp) -> Any:
    """The weight is sharded over ``tp`` by columns."""
    return m.sum(m.sin(x @ w))


def one_device(w: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w, x)
    return {"loss": value, "clipped": grad / jnp.sqrt(jnp.sum(grad * grad))}


def plain(w: Any, x: Any) -> Results:
    value, grad = jax.value_and_grad(loss)(w, x)
    value, grad = jax.lax.psum(value, ("dp", "tp")), jax.lax.psum(grad, "dp")
    clipped = grad / jnp.sqrt(jnp.sum(grad * grad))
    return {"loss": value, "clipped": jax.lax.all_gather(clipped, "tp", axis=1, tiled=True)}


def naive(w: Weight, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w: loss(w, x, sh))(w)
    whole: Weight = sh.all_reduce(grad)
    return {"loss": value, "clipped": whole / sh.sqrt(sh.sum(whole * whole))}  # type: ignore[sharding]


def fixed(w: Weight, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w: loss(w, x, sh))(w)
    whole: Weight = sh.all_reduce(grad)
    return {"loss": value, "clipped": whole / sh.sqrt(sh.all_reduce(sh.sum(whole * whole)))}


BUG = Bug(
    name="clip_local_norm",
    wrong="gradients are clipped by the norm of each device's shards",
    source="pytorch/pytorch#72548, Implement clip_grad_norm for FSDP models",
    url="https://github.com/pytorch/pytorch/issues/72548",
    types=("f32[16, 32@tp]", "f32[batch=8@dp, 16]"),
    shown="clipped",
    fix="`sh.all_reduce` the sum of squares: one number",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
