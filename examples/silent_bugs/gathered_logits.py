"""A loss for sharded logits, given logits that were gathered.

The sum of exponentials goes over ``tp``, but every device has all of them: it is multiplied by the number of
devices, and the loss is too large by its logarithm. A `psum` needs a value that varies over its axis, and the type
says that this one does not.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Logits = A[sh.Array, "f32[batch@dp, vocab]"]


def one_device(logits: Any) -> Results:
    value, grad = jax.value_and_grad(lambda x: jnp.sum(jax.nn.logsumexp(x, -1)))(logits)
    return {"loss": value, "gradient": grad}


def plain(logits: Any) -> Results:
    total = jax.lax.psum(jnp.sum(jnp.exp(logits), -1), "tp")
    grad = jax.lax.all_gather(jnp.exp(logits) / total[:, None], "dp", tiled=True)
    return {"loss": jax.lax.psum(jnp.sum(jnp.log(total)), "dp"), "gradient": grad}


@sh.shard_map(out_specs="[_@dp]")
def naive_loss(logits: A[sh.Array, "f32[batch, vocab]{V:dp}"]) -> A[sh.Array, "f32[batch]{V:dp}"]:
    return sh.log(sh.lax.psum(sh.sum(sh.exp(logits), -1), "tp"))  # type: ignore[sharding]


def naive(logits: Logits) -> Results:
    value, grad = sh.value_and_grad(lambda x: sh.sum(naive_loss(x)))(logits)
    return {"loss": value, "gradient": grad}


def fixed(logits: Logits) -> Results:
    value, grad = sh.value_and_grad(lambda x: sh.sum(sh.logsumexp(x, -1)))(logits)
    return {"loss": value, "gradient": grad}


BUG = Bug(
    name="gathered_logits",
    wrong="a loss for sharded logits sums the exponentials of gathered ones over tp",
    source="NVIDIA/Megatron-LM#7452, Silent numerical-correctness bugs in Megatron Core parallelism composition",
    url="https://github.com/NVIDIA/Megatron-LM/issues/7452",
    types=("f32[batch=8@dp, vocab=32]",),
    shown="loss",
    fix="`sh.logsumexp`, which sends where the type says that the dim is sharded, and only there",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
