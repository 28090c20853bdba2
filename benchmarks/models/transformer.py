"""A stack of attention, gated MLP and RMS norms: heads and inner dims over `tp`, batch over `dp`.

Each variant has the same schedule under one policy: two sums over `tp` per layer forward and two backward, and a sum of
all gradients. Attention is neither causal nor shifted by its maximum: the scores are small.
"""

from __future__ import annotations

import functools
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
    batch: int = 8
    seq: int = 64
    hidden: int = 128
    heads: int = 8
    inter: int = 256


TINY: Final = Config(layers=1, batch=2, seq=4, hidden=16, heads=4, inter=16)
TYPES: Final = {
    "norm1": "f32[hidden]",
    "q": "f32[hidden, heads@tp, dim]",
    "k": "f32[hidden, heads@tp, dim]",
    "v": "f32[hidden, heads@tp, dim]",
    "o": "f32[heads@tp, dim, hidden]",
    "norm2": "f32[hidden]",
    "gate": "f32[hidden, inter@tp]",
    "up": "f32[hidden, inter@tp]",
    "down": "f32[inter@tp, hidden]",
}
SPECS: Final = {
    "norm1": P(None),
    "q": P(None, "tp", None),
    "k": P(None, "tp", None),
    "v": P(None, "tp", None),
    "o": P("tp", None, None),
    "norm2": P(None),
    "gate": P(None, "tp"),
    "up": P(None, "tp"),
    "down": P("tp", None),
}
STREAM: Final = P("dp", None, None)
STREAM_TYPE: Final = "f32[batch@dp, seq, hidden]"
EPS: Final = 1e-6


def data(config: Config) -> tuple[Tree, Any]:
    """Parameters and a batch, on the host."""
    rng = np.random.default_rng(0)
    c, dim = config, config.hidden // config.heads
    shapes: dict[str, tuple[int, ...]] = {
        "q": (c.hidden, c.heads, dim),
        "k": (c.hidden, c.heads, dim),
        "v": (c.hidden, c.heads, dim),
        "o": (c.heads, dim, c.hidden),
        "gate": (c.hidden, c.inter),
        "up": (c.hidden, c.inter),
        "down": (c.inter, c.hidden),
    }

    def layer() -> Tree:
        w = {name: (rng.standard_normal(s) / np.sqrt(c.hidden)).astype("float32") for name, s in shapes.items()}
        norms = {n: (1 + 0.1 * rng.standard_normal(c.hidden)).astype("float32") for n in ("norm1", "norm2")}
        return {name: {**w, **norms}[name] for name in SPECS}

    return [layer() for _ in range(c.layers)], rng.standard_normal((c.batch, c.seq, c.hidden)).astype("float32")


def typed_step(config: Config, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """A training step with shtypes, under the policy in force; scanned layers come stacked."""
    scale = (config.hidden // config.heads) ** -0.5

    def norm(x: Any, g: Any) -> Any:
        return x * sh.rsqrt(sh.mean(x * x, -1, keepdims=True) + EPS) * g

    def attention(x: Any, w: Tree) -> Any:
        q, k, v = (sh.einsum("bsh,hnd->bsnd", x, w[name]) for name in "qkv")
        weights = sh.exp(sh.einsum("bsnd,btnd->bnst", q, k) * scale)
        weights = weights / sh.sum(weights, -1, keepdims=True)
        return sh.einsum("bsnd,ndh->bsh", sh.einsum("bnst,btnd->bsnd", weights, v), w["o"])

    def mlp(x: Any, w: Tree) -> Any:
        h = sh.silu(sh.einsum("bsh,hi->bsi", x, w["gate"])) * sh.einsum("bsh,hi->bsi", x, w["up"])
        return sh.einsum("bsi,ih->bsh", h, w["down"])

    def layer(x: Any, w: Tree) -> Any:
        x = x + sh.all_reduce(attention(norm(x, w["norm1"]), w))
        return x + sh.all_reduce(mlp(norm(x, w["norm2"]), w))

    def loss(params: Tree, x: Any) -> Any:
        if scan:
            x, _ = sh.scan(lambda x, w: (layer(x, w), None), x, params)
        else:
            x = functools.reduce(layer, params, x)
        return sh.mean(x * x)

    def step(params: Tree, x: Any) -> Any:
        value, grads = sh.value_and_grad(loss)(params, x)
        return sh.all_reduce(value), jax.tree.map(sh.all_reduce, grads)

    return step


def typed(config: Config, mesh: Any) -> Program:
    """With shtypes, under the policy in force."""
    params, x = data(config)
    typed_params = [{name: sh.array(v, TYPES[name], mesh=mesh) for name, v in w.items()} for w in params]
    return Program(typed_step(config), (typed_params, sh.array(x, STREAM_TYPE, mesh=mesh)))


def only_types(config: Config, mesh: Any, *, scan: bool = False) -> Program:
    """The same without devices: its arguments have only types."""
    c, dim = config, config.hidden // config.heads
    sizes = {"hidden": c.hidden, "heads": c.heads, "dim": dim, "inter": c.inter, "batch": c.batch, "seq": c.seq}
    with sh.use_mesh(mesh), sh.dims(**sizes):
        x = sh.abstract_array(STREAM_TYPE)
        if scan:
            params: Tree = {n: sh.abstract_array(t.replace("[", f"[{c.layers}, ")) for n, t in TYPES.items()}
        else:
            params = [{n: sh.abstract_array(t) for n, t in TYPES.items()} for _ in range(c.layers)]
    return Program(typed_step(config, scan=scan), (params, x))


def _loss(config: Config, hooks: Hooks, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """The loss in plain JAX; scanned layers come stacked."""
    scale = (config.hidden // config.heads) ** -0.5

    def norm(x: Any, g: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * g

    def attention(x: Any, w: Tree) -> Any:
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, w[name]) for name in "qkv")
        weights = jnp.exp(jnp.einsum("bsnd,btnd->bnst", q, k) * scale)
        weights = weights / jnp.sum(weights, -1, keepdims=True)
        return hooks.leave("bsnd,ndh->bsh", jnp.einsum("bnst,btnd->bsnd", weights, v), w["o"])

    def mlp(x: Any, w: Tree) -> Any:
        h = jax.nn.silu(jnp.einsum("bsh,hi->bsi", x, w["gate"])) * jnp.einsum("bsh,hi->bsi", x, w["up"])
        return hooks.leave("bsi,ih->bsh", h, w["down"])

    def layer(x: Any, params: Tree) -> Any:
        w = {name: hooks.weight(v) for name, v in params.items()}
        x = x + attention(hooks.enter(norm(x, w["norm1"])), w)
        return x + mlp(hooks.enter(norm(x, w["norm2"])), w)

    def loss(params: Tree, x: Any) -> Any:
        if scan:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params)
        else:
            x = functools.reduce(layer, params, x)
        return hooks.loss(x)

    return loss


def plain_loss(config: Config, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """The loss in plain JAX, for one device."""
    return _loss(config, Hooks(common.same, common.same, jnp.einsum, common.mean_square), scan=scan)


def plain_step(config: Config, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """A training step of plain JAX, for one device."""
    return jax.value_and_grad(plain_loss(config, scan=scan))


def lifted_loss(config: Config, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """The loss in plain JAX, typed by `lift`; only its reductions are written."""
    return sh.lift(_loss(config, Hooks(common.same, common.same, _summed, common.mean_square), scan=scan))


def lifted_step(config: Config, *, scan: bool = False) -> Callable[[Tree, Any], Any]:
    """The step of `typed_step` in plain JAX, typed by `lift`; only its reductions are written."""
    loss = lifted_loss(config, scan=scan)

    def step(params: Tree, x: Any) -> Any:
        value, grads = sh.value_and_grad(loss)(params, x)
        return sh.all_reduce(value), jax.tree.map(sh.all_reduce, grads)

    return step


def _summed(equation: str, *operands: Any) -> Any:
    product: Any = jnp.einsum(equation, *operands)
    return sh.all_reduce(product)


def single_device(config: Config) -> Program:
    """Plain JAX, to compare numbers with."""
    return Program(plain_step(config), data(config))


def explicit(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode with replicated types: the policy "jax"."""
    params, x = data(config)
    args = common.put(mesh, [SPECS] * config.layers, params), common.put(mesh, STREAM, x)
    return Program(jax.value_and_grad(_loss(config, common.explicit_hooks(STREAM))), args)


def pending(config: Config, mesh: Any) -> Program:
    """JAX's explicit mode with reduced and unreduced types: the policy "partial"."""
    finish = common.replicate_gradients([SPECS] * config.layers)

    def step(params: Tree, x: Any) -> Any:
        value, grads = jax.value_and_grad(_loss(config, common.pending_hooks(STREAM)))(params, x)
        return value, finish(grads)

    params, x = data(config)
    # A product of an array sharded over dp with one reduced over dp has no type in JAX: the norms are summed at once.
    reduced = {name: {"tp"} if name.startswith("norm") else {"dp", "tp"} for name in SPECS}
    specs = [{name: common.with_reduced(s, reduced[name]) for name, s in SPECS.items()}] * config.layers
    return Program(step, (common.put(mesh, specs, params), common.put(mesh, common.with_reduced(STREAM, {"tp"}), x)))


def by_hand(config: Config, mesh: Any, policy: str) -> Program:
    """The same schedule in one `jax.shard_map`, with every sum written out."""
    params, x = data(config)
    specs = [SPECS] * config.layers
    loss = _loss(config, common.hand_hooks(policy, x.size))
    step = common.hand_step(loss, policy, mesh, specs, STREAM)
    return Program(step, (common.put(mesh, specs, params), common.put(mesh, STREAM, x)))
