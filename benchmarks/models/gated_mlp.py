"""A stack of gated MLPs with residuals: inner dims over `tp`, batch over `dp`.

Each variant has the same schedule under one policy: a sum over `tp` per layer forward and one backward, and a sum of
all gradients over `dp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.models import common
from benchmarks.models.common import Hooks, Program, Tree


class Config(NamedTuple):
    """Sizes of the model and its batch."""

    layers: int = 24
    batch: int = 64
    hidden: int = 256
    inter: int = 512


TINY: Final = Config(layers=2, batch=8, hidden=16, inter=32)
TYPES: Final = {"gate": "f32[hidden, inter@tp]", "up": "f32[hidden, inter@tp]", "down": "f32[inter@tp, hidden]"}
SPECS: Final = {"gate": P(None, "tp"), "up": P(None, "tp"), "down": P("tp", None)}
STREAM: Final = P("dp", None)


def data(config: Config) -> tuple[Tree, Any]:
    """Parameters and a batch, on the host."""
    rng = np.random.default_rng(0)
    shapes = {
        "gate": (config.hidden, config.inter),
        "up": (config.hidden, config.inter),
        "down": (config.inter, config.hidden),
    }

    # A gated layer is quadratic: without the smaller down projection a deep stack would overflow.
    scale = {"gate": 1.0, "up": 1.0, "down": 1.0 / config.layers}

    def layer() -> Tree:
        return {n: (scale[n] * rng.standard_normal(s) / np.sqrt(s[0])).astype("float32") for n, s in shapes.items()}

    return [layer() for _ in range(config.layers)], rng.standard_normal((config.batch, config.hidden)).astype("float32")


def typed(config: Config, mesh: Any) -> Program:
    """With shtypes, under the policy in force."""

    def loss(params: Tree, x: Any) -> Any:
        for w in params:
            h = sh.silu(sh.einsum("bh,hi->bi", x, w["gate"])) * sh.einsum("bh,hi->bi", x, w["up"])
            x = x + sh.all_reduce(sh.einsum("bi,ih->bh", h, w["down"]))
        return sh.mean(x * x)

    def step(params: Tree, x: Any) -> Any:
        value, grads = sh.value_and_grad(loss)(params, x)
        return sh.all_reduce(value), jax.tree.map(sh.all_reduce, grads)

    params, x = data(config)
    typed_params = [{name: sh.array(v, TYPES[name], mesh=mesh) for name, v in w.items()} for w in params]
    return Program(step, (typed_params, sh.array(x, "f32[batch@dp, hidden]", mesh=mesh)))


def _loss(hooks: Hooks) -> Callable[[Tree, Any], Any]:
    """The loss in plain JAX."""

    def loss(params: Tree, x: Any) -> Any:
        for layer in params:
            w = {name: hooks.weight(v) for name, v in layer.items()}
            y = hooks.enter(x)
            h = jax.nn.silu(jnp.einsum("bh,hi->bi", y, w["gate"])) * jnp.einsum("bh,hi->bi", y, w["up"])
            x = x + hooks.leave("bi,ih->bh", h, w["down"])
        return hooks.loss(x)

    return loss


def single_device(config: Config) -> Program:
    """Plain JAX, to compare numbers with."""
    hooks = Hooks(common.same, common.same, jnp.einsum, common.mean_square)
    return Program(jax.value_and_grad(_loss(hooks)), data(config))


def explicit(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode with replicated types: the policy "jax"."""
    params, x = data(config)
    args = common.put(mesh, [SPECS] * config.layers, params), common.put(mesh, STREAM, x)
    return Program(jax.value_and_grad(_loss(common.explicit_hooks(STREAM))), args)


def pending(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode with reduced and unreduced types: the policy "partial"."""
    finish = common.replicate_gradients([SPECS] * config.layers)

    def step(params: Tree, x: Any) -> Any:
        value, grads = jax.value_and_grad(_loss(common.pending_hooks(STREAM)))(params, x)
        return value, finish(grads)

    params, x = data(config)
    specs = [{name: common.with_reduced(s, {"dp", "tp"}) for name, s in SPECS.items()}] * config.layers
    return Program(step, (common.put(mesh, specs, params), common.put(mesh, common.with_reduced(STREAM, {"tp"}), x)))


def by_hand(config: Config, mesh: Any, policy: str) -> Program:
    """The same schedule in one `jax.shard_map`, with every sum written out."""
    params, x = data(config)
    specs = [SPECS] * config.layers
    loss = _loss(common.hand_hooks(policy, x.size))
    step = common.hand_step(loss, policy, mesh, specs, STREAM)
    return Program(step, (common.put(mesh, specs, params), common.put(mesh, STREAM, x)))
