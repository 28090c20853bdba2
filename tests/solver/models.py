"""Plain models of the solver's tests: nothing of shtypes is in them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

Struct = jax.ShapeDtypeStruct


def f32(*shape: int) -> Any:
    return Struct(shape, jnp.float32)


def i32(*shape: int) -> Any:
    return Struct(shape, jnp.int32)


def mlp_loss(params: Any, x: Any) -> Any:
    h = jax.nn.gelu(x @ params["up"])
    return jnp.mean(jnp.square(h @ params["down"] - x))


def mlp(batch: int, d: int, f: int) -> Any:
    return {"up": f32(d, f), "down": f32(f, d)}, f32(batch, d)


def norm(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * g


def attention(p: Any, x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / math.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), scores, -1e30)
    mixed = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, -1), v)
    return jnp.einsum("bshk,hkd->bsd", mixed, p["o"])


def block(p: Any, x: Any) -> Any:
    x = x + attention(p["attn"], norm(x, p["ln1"]))
    h = norm(x, p["ln2"])
    return x + jax.nn.gelu(h @ p["up"]) @ p["down"]


def block_loss(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(block(p, x)))


def block_params(d: int, heads: int, k: int, f: int) -> Any:
    attn = {"q": f32(d, heads, k), "k": f32(d, heads, k), "v": f32(d, heads, k), "o": f32(heads, k, d)}
    return {"attn": attn, "up": f32(d, f), "down": f32(f, d), "ln1": f32(d), "ln2": f32(d)}


def gpt_loss(p: Any, tokens: Any, targets: Any) -> Any:
    x = p["embed"][tokens]
    if isinstance(p["layers"], dict):
        x, _ = jax.lax.scan(lambda x, q: (block(q, x), None), x, p["layers"])
    else:
        for q in p["layers"]:
            x = block(q, x)
    logits = norm(x, p["ln"]) @ p["head"]
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def checkpointed_loss(p: Any, x: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, q: (jax.checkpoint(block)(q, x), None), x, p["layers"])
    return jnp.mean(jnp.square(x))


def stacked(layers: int, tree: Any) -> Any:
    return jax.tree.map(lambda x: Struct((layers, *x.shape), x.dtype), tree)


def gpt(
    layers: int, batch: int, seq: int, d: int, heads: int, k: int, f: int, vocab: int, *, scanned: bool = True
) -> Any:
    one = block_params(d, heads, k, f)
    p = {"embed": f32(vocab, d), "head": f32(d, vocab), "ln": f32(d)}
    p["layers"] = stacked(layers, one) if scanned else [one] * layers
    return p, i32(batch, seq), i32(batch, seq)


def experts_loss(p: Any, x: Any) -> Any:
    weights = jax.nn.softmax(x @ p["router"], -1)
    h = jax.nn.relu(jnp.einsum("td,edf->tef", x, p["up"]))
    return jnp.mean(jnp.square(jnp.einsum("tef,efd,te->td", h, p["down"], weights)))


def experts(tokens: int, d: int, f: int, e: int) -> Any:
    return {"router": f32(d, e), "up": f32(e, d, f), "down": f32(e, f, d)}, f32(tokens, d)


def convolutions_loss(p: Any, x: Any) -> Any:
    for k in p["kernels"]:
        x = jax.nn.relu(jax.lax.conv(x, k, (1, 1), "SAME"))
    x = x.reshape(x.shape[0], -1)
    for w in p["dense"]:
        x = jnp.tanh(x @ w)
    return jnp.mean(jnp.square(x))


def convolutions(batch: int, side: int, channels: int, dense: int) -> Any:
    kernels = [f32(channels, channels, 3, 3), f32(channels, channels, 3, 3)]
    return {"kernels": kernels, "dense": [f32(channels * side * side, dense), f32(dense, dense)]}, f32(
        batch, channels, side, side
    )


def convolved(x: Any, kernel: Any) -> Any:
    return jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))


def unet_loss(p: Any, x: Any, y: Any) -> Any:
    skips = []
    for a, b in p["down"]:
        x = convolved(convolved(x, a), b)
        skips.append(x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    a, b = p["middle"]
    x = convolved(convolved(x, a), b)
    for a, b in p["up"]:
        x = jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 2), 2, 3), skips.pop()], 1)
        x = convolved(convolved(x, a), b)
    return jnp.mean(jnp.square(jax.lax.conv(x, p["out"], (1, 1), "SAME") - y))


def unet(batch: int, side: int, channels: int, levels: int = 2) -> Any:
    """Two convolutions at each level, each level with twice the channels of the one above it."""
    c = [channels * 2**i for i in range(levels + 1)]
    p = {
        "down": [(f32(c[i], c[i - 1] if i else 8, 3, 3), f32(c[i], c[i], 3, 3)) for i in range(levels)],
        "middle": (f32(c[-1], c[-2], 3, 3), f32(c[-1], c[-1], 3, 3)),
        "up": [(f32(c[i], c[i + 1] + c[i], 3, 3), f32(c[i], c[i], 3, 3)) for i in reversed(range(levels))],
        "out": f32(8, channels, 1, 1),
    }
    return p, f32(batch, 8, side, side), f32(batch, 8, side, side)


def graph_loss(p: Any, nodes: Any, edges: Any, senders: Any, receivers: Any, y: Any) -> Any:
    for q in p:
        messages = jax.nn.relu(jnp.concatenate([nodes[senders], nodes[receivers], edges], -1) @ q["edge"])
        sums = jax.ops.segment_sum(messages, receivers, nodes.shape[0])
        nodes = jnp.tanh(jnp.concatenate([nodes, sums], -1) @ q["node"])
    return jnp.mean(jnp.square(nodes - y))


def graph(nodes: int, edges: int, d: int, layers: int = 2) -> Any:
    p = [{"edge": f32(3 * d, d), "node": f32(2 * d, d)}] * layers
    return p, f32(nodes, d), f32(edges, d), i32(edges), i32(edges), f32(nodes, d)


def capacity_loss(p: Any, x: Any) -> Any:
    """Each token to one expert of its group's, which has places for so many (Lepikhin et al. 2020)."""
    e, places = p["up"].shape[0], 2 * x.shape[1] // p["up"].shape[0]
    weights = jax.nn.softmax(jnp.einsum("gsd,de->gse", x, p["router"]), -1)
    one = jax.nn.one_hot(jnp.argmax(weights, -1), e)
    place = jnp.max(jnp.cumsum(one, 1) * one, -1).astype(jnp.int32) - 1
    dispatch = one[..., None] * jax.nn.one_hot(place, places)[:, :, None, :]
    combine = dispatch * jnp.sum(weights * one, -1)[..., None, None]
    h = jax.nn.relu(jnp.einsum("egcd,edf->egcf", jnp.einsum("gsec,gsd->egcd", dispatch, x), p["up"]))
    y = jnp.einsum("gsec,egcd->gsd", combine, jnp.einsum("egcf,efd->egcd", h, p["down"]))
    return jnp.mean(jnp.square(x + y))


def capacity(groups: int, tokens: int, d: int, f: int, e: int) -> Any:
    return {"router": f32(d, e), "up": f32(e, d, f), "down": f32(e, f, d)}, f32(groups, tokens, d)


def pipeline_loss(p: Any, x: Any) -> Any:
    """Stages of layers, mapped over; microbatches go from each to the next."""
    stages, wait = p.shape[0], jnp.zeros((p.shape[0] - 1, *x.shape[1:]))

    def step(at: Any, x: Any) -> Any:
        at = jax.vmap(lambda w, h: jnp.tanh(h @ w))(p, jnp.concatenate([x[None], at[:-1]]))
        return at, at[-1]

    _, y = jax.lax.scan(step, jnp.zeros((stages, *x.shape[1:])), jnp.concatenate([x, wait]))
    return jnp.mean(jnp.square(y[stages - 1 :]))


def arrays(tree: Any, seed: int = 0, most: int = 8) -> Any:
    """Arrays of these shapes: small numbers, or positions below ``most``."""
    leaves, form = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def one(key: Any, x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return jax.random.randint(key, x.shape, 0, most, x.dtype)
        return jax.random.normal(key, x.shape, x.dtype) / math.sqrt(x.shape[0] if x.shape else 1)

    return jax.tree.unflatten(form, [one(k, x) for k, x in zip(keys, leaves, strict=True)])
