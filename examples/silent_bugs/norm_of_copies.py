"""The norm of a tree of gradients, of which some are sharded over ``tp`` and some replicated.

Each device adds the squares of its shards and of its copies, and the sum goes over ``tp``: what is replicated
counts once for each device. The norm in the logs is too large, and clipping too strong. Here the sum of squares of
shards is pending, that of copies is whole, and adding the two adds the whole one once.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results


def squares(shards: Any, copies: Any, m: Any = jnp) -> Any:
    """The sum of squares of a tree."""
    return m.sum(shards * shards) + m.sum(copies * copies)


def one_device(shards: Any, copies: Any) -> Results:
    value, grad = jax.value_and_grad(lambda c: jnp.sqrt(squares(shards, c)))(copies)
    return {"norm": value, "gradient": grad}


def plain(shards: Any, copies: Any) -> Results:
    value = jnp.sqrt(jax.lax.psum(squares(shards, copies), "tp"))
    return {"norm": value, "gradient": copies / value}


def naive(shards: A[sh.Array, "f32[16, 32@tp]"], copies: A[sh.Array, "f32[16]"]) -> Results:
    value, grad = sh.value_and_grad(lambda c: sh.sqrt(sh.all_reduce(squares(shards, c, sh), "tp")))(copies)
    return {"norm": value, "gradient": grad}


BUG = Bug(
    name="norm_of_copies",
    wrong="replicated gradients count once for each device in the norm",
    source="NVIDIA-NeMo/RL#3788, fix(dtensor): count TP-replicated gradients once in get_grad_norm",
    url="https://github.com/NVIDIA-NeMo/RL/pull/3788",
    types=("f32[16, 32@tp]", "f32[16]"),
    shown="norm",
    fix="none: a whole number is added once to a pending sum",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=naive,
)
