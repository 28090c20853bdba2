"""A metric that is summed over all devices, when the examples are split over ``dp`` and the same all along ``tp``.

Each example counts once for each device of ``tp``. A ratio of two such sums hides it, a count shows it. Summing
over an axis over which nothing varies is refused.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Scores = A[sh.Array, "f32[examples@dp]"]
#: What one device has of them.
Part = A[sh.Array, "f32[examples]{V:dp}"]
Count = A[sh.Array, "f32[]"]


def one_device(scores: Any) -> Results:
    value, grad = jax.value_and_grad(lambda scores: jnp.sum(jax.nn.sigmoid(scores)))(scores)
    return {"count": value, "gradient": grad}


def plain(scores: Any) -> Results:
    value, grad = jax.value_and_grad(lambda scores: jnp.sum(jax.nn.sigmoid(scores)))(scores)
    return {"count": jax.lax.psum(value, ("dp", "tp")), "gradient": jax.lax.all_gather(grad, "dp", tiled=True)}


@sh.shard_map(out_specs="[]")
def naive_count(scores: Part) -> Count:
    return sh.lax.psum(sh.sum(sh.sigmoid(scores)), ("dp", "tp"))  # type: ignore[sharding]


@sh.shard_map(out_specs="[]")
def count(scores: Part) -> Count:
    return sh.lax.psum(sh.sum(sh.sigmoid(scores)), "dp")


def naive(scores: Scores) -> Results:
    value, grad = sh.value_and_grad(naive_count)(scores)
    return {"count": value, "gradient": grad}


def fixed(scores: Scores) -> Results:
    value, grad = sh.value_and_grad(count)(scores)
    return {"count": value, "gradient": grad}


BUG = Bug(
    name="counted_copies",
    wrong="a metric of examples that are the same along tp is summed over tp",
    source="huggingface/trl#7100, `num_tokens` overcounted under TP",
    url="https://github.com/huggingface/trl/issues/7100",
    types=("f32[examples=16@dp]",),
    shown="count",
    fix="sum over the axes that the type names; `sh.all_reduce(x)` names them itself",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
