"""A metric that each device divides by its own count, averaged by `pmean` in local mode: not caught.

This is `token_mean` written in local mode. There each device's quotient is a number of its own, of type varying,
and the mean of numbers that vary is a meaningful thing to ask for: no type tells it from the mean over all
examples. In global ops the same program is refused. So write losses and metrics in global ops, and in local mode
only what needs it.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Scores = A[sh.Array, "f32[batch@dp, 8]"]
Mask = A[sh.Array, "bool[batch@dp, 8]"]


def one_device(scores: Any, mask: Any) -> Results:
    value, grad = jax.value_and_grad(lambda x: jnp.mean(jnp.sin(x), where=mask))(scores)
    return {"metric": value, "gradient": grad}


def plain(scores: Any, mask: Any) -> Results:
    value, grad = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x) * mask) / jnp.sum(mask))(scores)
    return {"metric": jax.lax.pmean(value, "dp"), "gradient": jax.lax.all_gather(grad / 2, "dp", tiled=True)}


@sh.shard_map(out_specs="[]")
def ratio(
    scores: A[sh.Array, "f32[batch, 8]{V:dp}"], mask: A[sh.Array, "bool[batch, 8]{V:dp}"]
) -> A[sh.Array, "f32[]"]:
    return sh.lax.pmean(sh.sum(sh.sin(scores) * mask) / sh.sum(mask), "dp")


def naive(scores: Scores, mask: Mask) -> Results:
    value, grad = sh.value_and_grad(ratio)(scores, mask)
    return {"metric": value, "gradient": grad}


def fixed(scores: Scores, mask: Mask) -> Results:
    count = sh.all_reduce(sh.sum(mask))
    value, grad = sh.value_and_grad(lambda x: sh.sum(sh.sin(x) * mask) / count)(scores)
    return {"metric": value, "gradient": grad}


BUG = Bug(
    name="mean_of_ratios",
    wrong="in local mode, ratios of each device are averaged where a ratio of sums is meant",
    source="google/flax#527, Correctly compute metrics over entire evalset/testset",
    url="https://github.com/google/flax/issues/527",
    types=("f32[batch=8@dp, 8]", "bool[batch=8@dp, 8]"),
    shown="metric",
    fix="global ops, where `token_mean` is refused",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
