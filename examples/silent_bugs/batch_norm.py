"""The statistics of a batch that is split over ``dp``.

Each device normalizes by the mean and the variance of its own part of the batch, and keeps them as running
statistics: a copy for each device, and the checkpoint has the first. Here the mean over the batch is a pending sum,
and what is sharded cannot meet it.
"""

from __future__ import annotations

from typing import Annotated as A
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from examples.silent_bugs.bug import Bug, Results

Scale = A[sh.Array, "f32[16]"]
Batch = A[sh.Array, "f32[batch@dp, 16]"]


def loss(scale: Any, x: Any, m: Any = jnp, whole: Any = lambda x: x) -> Any:
    """The loss, and the mean to keep; ``whole`` makes a statistic of the batch one of all of it."""
    mean = whole(m.mean(x, 0))
    variance = whole(m.mean(m.square(x - mean), 0))
    return m.mean(m.tanh((x - mean) * scale / m.sqrt(variance + 1e-5))), mean


def of(run: Any) -> Results:
    (value, mean), grad = run
    return {"loss": value, "gradient": grad, "running mean": mean}


def one_device(scale: Any, x: Any) -> Results:
    return of(jax.value_and_grad(lambda s: loss(s, x), has_aux=True)(scale))


def plain(scale: Any, x: Any) -> Results:
    (value, mean), grad = jax.value_and_grad(lambda s: loss(s, x), has_aux=True)(scale)
    return {"loss": jax.lax.pmean(value, "dp"), "gradient": jax.lax.pmean(grad, "dp"), "running mean": mean}


def naive(scale: Scale, x: Batch) -> Results:
    return of(sh.value_and_grad(lambda s: loss(s, x, sh), has_aux=True)(scale))


def fixed(scale: Scale, x: Batch) -> Results:
    return of(sh.value_and_grad(lambda s: loss(s, x, sh, sh.all_reduce), has_aux=True)(scale))


BUG = Bug(
    name="batch_norm",
    wrong="batch statistics are those of each device's part of the batch",
    source="google/flax#877, Add HOWTO: BatchNorm in a multi-device setup",
    url="https://github.com/google/flax/issues/877",
    types=("f32[16]", "f32[batch=8@dp, 16]"),
    shown="running mean",
    fix="`sh.all_reduce` the mean, then the variance",
    one_device=one_device,
    plain=plain,
    naive=naive,
    fixed=fixed,
)
