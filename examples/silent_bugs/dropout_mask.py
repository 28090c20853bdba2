"""Dropout of what is split over the devices of ``tp``.

Every device has the same key and makes a mask of its own shape, so all slices are dropped alike: the mask repeats.
Random numbers of a type stand for one array, of which each device makes its slice; the mask is that of one device.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

SEED = 7


def dropped(x: Any, key: Any) -> Any:
    """Plain dropout of one half."""
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2.0, 0.0)


def one_device(x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(dropped(x, jax.random.key(SEED)))))(x)
    return {"loss": value, "gradient": grad}


def plain(x: Any) -> Results:
    value, grad = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(dropped(x, jax.random.key(SEED)))))(x)
    return {"loss": jax.lax.psum(value, "tp"), "gradient": jax.lax.all_gather(grad, "tp", axis=1, tiled=True)}


def naive(x: A[sh.Array, "f32[batch, hidden@tp]"]) -> Results:
    key = sh.random.key(SEED)
    value, grad = sh.value_and_grad(lambda x: sh.sum(sh.sin(sh.nn.dropout(x, 0.5, key))))(x)
    return {"loss": value, "gradient": grad}


BUG = Bug(
    name="dropout_mask",
    wrong="all slices of a sharded value get the same dropout mask",
    source="tenstorrent/tt-metal#16823, [TT-Train] Add multidevice support to dropout",
    url="https://github.com/tenstorrent/tt-metal/pull/16823",
    types=("f32[batch=8, hidden=32@tp]",),
    shown="loss",
    fix="none: a key and a type make one array, whatever the mesh",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=naive,
)
