"""A Pallas attention kernel with a backward kernel of its own, as a typed op.

Each device runs the kernels on its own batch and heads. `sh.local_map` gives them types: that of the result is that of
the queries, and gradients follow by the cotangent map. On CPU the kernels are interpreted.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import shtypes as sh

QKV = "f32[batch@dp, heads@tp, seq, features]"
Heads = Annotated[sh.Array, QKV]


def forward_kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, lse_ref: Any) -> None:
    """One head: the weighted values, and the logarithm of each row's sum, which the backward pass needs."""
    q, k, v = q_ref[...], k_ref[...], v_ref[...]
    scores = q @ k.T / q.shape[-1] ** 0.5
    lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    out_ref[...] = jnp.exp(scores - lse) @ v
    lse_ref[...] = lse


def backward_kernel(*refs: Any) -> None:
    """One head: the weights again from the logarithms of their sums, and the gradients of queries, keys and values."""
    q, k, v, out, lse, ct = (ref[...] for ref in refs[:6])
    dq_ref, dk_ref, dv_ref = refs[6:]
    scale = q.shape[-1] ** -0.5
    weights = jnp.exp(q @ k.T * scale - lse)
    rows = (ct * out).sum(-1, keepdims=True)
    d_scores = weights * (ct @ v.T - rows) * scale
    dq_ref[...], dk_ref[...], dv_ref[...] = d_scores @ k, d_scores.T @ q, weights.T @ ct


def by_head(kernel: Callable[..., None], features: tuple[int, ...]) -> Callable[..., Any]:
    """A kernel run for each head of each example; its results have so many features."""

    def call(*arrays: Any) -> Any:
        batch, heads, seq, _ = arrays[0].shape

        def block(width: int) -> Any:
            return pl.BlockSpec((None, None, seq, width), lambda b, h: (b, h, 0, 0))

        return pl.pallas_call(
            kernel,
            grid=(batch, heads),
            in_specs=[block(x.shape[-1]) for x in arrays],
            out_specs=[block(n) for n in features],
            out_shape=[jax.ShapeDtypeStruct((batch, heads, seq, n), arrays[0].dtype) for n in features],
            interpret=jax.default_backend() == "cpu",
        )(*arrays)

    return call


@jax.custom_vjp
def attention_of_shards(q: Any, k: Any, v: Any) -> Any:
    """Attention on plain arrays: what one device does."""
    return saving(q, k, v)[0]


def saving(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """The forward pass and its residuals."""
    out, lse = by_head(forward_kernel, (v.shape[-1], 1))(q, k, v)
    return out, (q, k, v, out, lse)


def gradients(residuals: Any, ct: Any) -> tuple[Any, ...]:
    """The backward pass."""
    q, k, v, *_ = residuals
    return tuple(by_head(backward_kernel, (q.shape[-1], k.shape[-1], v.shape[-1]))(*residuals, ct))


attention_of_shards.defvjp(saving, gradients)

#: The kernel as a typed op: wherever queries, keys and values lie alike, and in local mode.
attention = sh.local_map(attention_of_shards, out=lambda q, k, v: q, name="attention")


@sh.shard_map(in_specs="[_@dp, _@tp, _, _]", out_specs="[_@dp, _@tp, _, _]")
def attention_in_local_mode(q: Any, k: Any, v: Any) -> Any:
    """The same inside local mode, where the arrays are those of one device."""
    return attention(q, k, v)


def block(
    run: Callable[..., Heads],
    x: Annotated[sh.Array, "f32[batch@dp, seq, embed]"],
    w_qkv: Sequence[Annotated[sh.Array, "f32[embed, heads@tp, features]"]],
    w_out: Annotated[sh.Array, "f32[heads@tp, features, embed]"],
) -> Annotated[sh.Array, "f32[batch@dp, seq, embed]{U:tp}"]:
    """A tensor parallel attention block; the sum over the heads is left pending."""
    q, k, v = (sh.einsum("bse,ehd->bhsd", x, w) for w in w_qkv)
    return sh.einsum("bhsd,hde->bse", run(q, k, v), w_out)


def loss(run: Callable[..., Heads], *args: Any) -> Annotated[sh.Array, "f32[]{U:(dp,tp)}"]:
    """A loss that is a pending sum."""
    return sh.sum(block(run, *args))


def reference(q: Heads, k: Heads, v: Heads) -> Heads:
    """Attention in ordinary array code."""
    weights = sh.softmax(sh.einsum("bhsd,bhtd->bhst", q, k) / q.shape[-1] ** 0.5, axis=-1)
    return sh.einsum("bhst,bhtd->bhsd", weights, v)


def main() -> None:
    """Prints the typed block, its gradients' types, and how far they are from the reference."""
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    keys = iter(jax.random.split(jax.random.key(0), 5))
    x = sh.array(jax.random.normal(next(keys), (2, 8, 16)), "f32[batch@dp, seq, embed]")
    w_qkv = [sh.array(jax.random.normal(next(keys), (16, 4, 8)) / 4, "f32[embed, heads@tp, features]") for _ in "qkv"]
    w_out = sh.array(jax.random.normal(next(keys), (4, 8, 16)), "f32[heads@tp, features, embed]")
    only_types = jax.tree.map(lambda x: sh.abstract_array(x.type), (x, w_qkv, w_out))
    q, k, v = (sh.einsum("bse,ehd->bhsd", only_types[0], w) for w in only_types[1])
    print(f"attention: {q.type}, {k.type}, {v.type} -> {sh.typeof(attention(q, k, v))}")
    print(f"block: {x.type}, ... -> {sh.typeof(block(attention, *only_types))}")
    found, wanted = (
        sh.jit(sh.grad(functools.partial(loss, run), argnums=(0, 1, 2)))(x, w_qkv, w_out)
        for run in (attention, reference)
    )
    names = ("x", "w_q", "w_k", "w_v", "w_out")
    for name, a, b in zip(names, jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        close = np.allclose(np.asarray(sh.reshard(a, "[...]")), np.asarray(sh.reshard(b, "[...]")), atol=1e-4)
        print(f"gradient of {name}: {a.type},", "as the reference's" if close else "not as the reference's")


if __name__ == "__main__":
    main()
