"""Gradients of an MLP, accumulated over microbatches: a scan over layers in a scan over microbatches.

Typed as in `examples/microbatch.py`: the gradient of a weight is a pending sum, accumulated as it is and reduced once.
In JAX's explicit mode, as it is mostly written, weights are replicated: each use of one reduces its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.models.common import Program, put


class Config(NamedTuple):
    """Sizes of the model, and of each of its microbatches."""

    layers: int = 4
    microbatches: int = 8
    batch: int = 64
    features: int = 256


TINY: Final = Config(layers=2, microbatches=3, batch=8, features=4)
ROWS: Final = P(None, "dp", None)


def data(config: Config) -> tuple[np.ndarray[Any, Any], ...]:
    """Weights, inputs and targets, on the host."""
    rng = np.random.default_rng(0)
    c = config
    weights = rng.standard_normal((c.layers, c.features, c.features)) / np.sqrt(c.features)
    xs, ys = rng.standard_normal((2, c.microbatches, c.batch, c.features))
    return tuple(x.astype(np.float32) for x in (weights, xs, ys))


def typed(config: Config, mesh: Any) -> Program:
    """With shtypes, under the policy in force."""

    def loss(weights: Any, x: Any, y: Any) -> Any:
        out, _ = sh.scan(lambda h, w: (sh.tanh(h @ w), None), x, weights)
        return sh.sum(sh.square(out - y))

    def step(weights: Any, xs: Any, ys: Any) -> Any:
        def accumulate(total: Any, batch: Any) -> Any:
            return total + sh.grad(loss)(weights, *batch), None

        total, _ = sh.scan(accumulate, sh.zeros_like(weights), (xs, ys))
        return weights - 1e-3 * sh.reshard(total, sh.typeof(weights))

    types = "f32[layers, _, _]", "f32[micro, batch@dp, _]", "f32[micro, batch@dp, _]"
    return Program(step, tuple(sh.array(x, t) for x, t in zip(data(config), types, strict=True)))


def _loss(weights: Any, x: Any, y: Any) -> Any:
    out, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
    return jnp.sum(jnp.square(out - y))


def _accumulated(weights: Any, xs: Any, ys: Any) -> Any:
    def accumulate(total: Any, batch: Any) -> Any:
        return total + jax.grad(_loss)(weights, *batch), None

    return lax.scan(accumulate, jnp.zeros_like(weights), (xs, ys))[0]


def plain_step() -> Callable[..., Any]:
    """A step in plain JAX, new to each `jax.jit`."""
    return lambda weights, xs, ys: weights - 1e-3 * _accumulated(weights, xs, ys)


def _placed(config: Config, mesh: Any) -> tuple[Any, ...]:
    return tuple(put(mesh, [P(), ROWS, ROWS], [*data(config)]))


def explicit(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode: replicated weights, sharded rows."""
    return Program(plain_step(), _placed(config, mesh))


def by_hand(config: Config, mesh: Any) -> Program:
    """One `jax.shard_map`: local gradients, and one psum at the end."""

    def step(weights: Any, xs: Any, ys: Any) -> Any:
        return weights - 1e-3 * lax.psum(_accumulated(weights, xs, ys), "dp")

    wrapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), ROWS, ROWS), out_specs=P(), check_vma=False)
    return Program(wrapped, _placed(config, mesh))
