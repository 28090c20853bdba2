"""Weights that each device draws for itself.

With a seed of its own on each device, or none, the copies of a replicated weight differ from the start; summed
gradients move all alike, and they never meet. Numbers that depend on the device vary by type, and what varies
cannot leave as one value. (Numbers that a function of shards makes are a claim: there `sh.debug_checks` compares
the copies.)
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Weight = A[sh.Array, "f32[16]"]
Batch = A[sh.Array, "f32[batch@dp, 16]"]

SEED, SHAPE = 3, (16,)


def one_device(x: Any) -> Results:
    w = jax.random.normal(jax.random.key(SEED), SHAPE)
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.sin(x @ w)))(w)
    return {"loss": value, "gradient": grad}


def plain(x: Any) -> Results:
    w = jax.random.normal(jax.random.fold_in(jax.random.key(SEED), jax.lax.axis_index("dp")), SHAPE)
    value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.sin(x @ w)))(w)
    return {"loss": jax.lax.pmean(value, "dp"), "gradient": jax.lax.pmean(grad, "dp")}


@sh.shard_map(out_specs="[_]")
def drawn(key: A[sh.Array, "key[]"]) -> A[sh.Array, "f32[16]{V:dp}"]:
    return sh.random.normal(sh.random.fold_in(key, sh.lax.axis_index("dp")), SHAPE)


def of(w: Weight, x: Batch) -> Results:
    value, grad = sh.value_and_grad(lambda w: sh.mean(sh.sin(x @ w)))(w)
    return {"loss": value, "gradient": grad}


def naive(x: Batch) -> Results:
    return of(drawn(sh.random.key(SEED)), x)


def fixed(x: Batch) -> Results:
    return of(sh.random.normal(sh.random.key(SEED), "f32[16]"), x)


BUG = Bug(
    name="random_copies",
    wrong="each device draws its own copy of a replicated weight",
    source="pytorch/torchtitan#166, Starting off with different models across ranks and FSDP doesn't synchronise",
    url="https://github.com/pytorch/torchtitan/issues/166",
    types=("f32[batch=8@dp, 16]",),
    shown="gradient",
    fix="`sh.random.normal(key, type)`: one array of one key, of which each device has its part",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
