"""Ring attention: keys and values go round the devices that share the positions, and meet all queries.

Liu, Zaharia and Abbeel 2023, arXiv:2310.01889. Positions are cut into P blocks, one for each of the P devices along the
axes of their dim. In step i the queries of block r meet the keys of block r - i; between steps keys and values move on
to the next device. The softmax is kept up as keys come in, by its largest score and its sum, in f32 (Milakov and
Gimelshein 2018, arXiv:1805.02867).

Each device sends, for K bytes of keys and values that it has: forward ``(P - 1) K`` in 2 (P - 1) permutes, and backward
as many, which are the permutes of the gradients back: those are summed, and sent, in f32. A forward pass that a
checkpoint runs again sends again. An
all-gather of keys and values sends the same, and a reduce-scatter of their gradients: a ring has no more than two
blocks on a device while a step runs, and all of them only while the backward pass of one layer does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import shtypes as sh

#: Less than any score, and with a difference to itself, which -inf lacks.
NEVER = -1e30


def passed_on(x: Any, axes: tuple[str, ...], dtype: Any) -> Any:
    """The block of each device at the next one, which is sent in ``dtype``.

    Communicates: one permute; its transpose is the permute back, of gradients as they are summed.
    """
    devices = sh.typeof(x).mesh.product(axes)
    pairs = [(i, (i + 1) % devices) for i in range(devices)]

    def sent(x: Any, pairs: Any) -> Any:
        return sh.shard_map(lambda x: sh.lax.ppermute(x, axes, pairs), out_specs=sh.typeof(x), axis_names=axes)(x)

    @sh.custom_vjp
    def passed(x: Any) -> Any:
        return sent(x.astype(dtype), pairs).astype(x.dtype)

    passed.defvjp(lambda x: (passed(x), None), lambda _, ct: (sent(ct, [(j, i) for i, j in pairs]),))
    return passed(x)


def ring_attention(query: Any, key: Any, value: Any) -> Any:
    """Causal attention of positions that are sharded alike in queries, keys and values.

    Args:
        query: [batch, seq, heads, head].
        key: [batch, seq, key_heads, head], each shared by ``heads // key_heads`` query heads.
        value: As ``key``.

    Returns:
        [batch, seq, heads, head], of the type of ``query``.
    """
    axes = sh.typeof(key).dims[1].axes
    (batch, length, heads, head), key_heads = query.shape, key.shape[2]
    blocks = sh.typeof(key).mesh.product(axes)
    cut = batch, blocks, length // blocks, key_heads
    query = sh.reshape(query * head**-0.5, (*cut, heads // key_heads, head))
    key, value = (sh.reshape(x, (*cut, head)).astype("f32") for x in (key, value))
    block = sh.reshard(sh.arange(blocks), f"[_@({','.join(axes)})]")[:, None, None, None, None]
    place = sh.arange(length // blocks)
    causal = place[:, None] >= place

    def met(state: Any, key: Any, value: Any, i: Any) -> Any:
        """The softmax once the keys of the block that is ``i`` behind are in it."""
        most, total, mixed = state
        key, value = key.astype(query.dtype), value.astype(query.dtype)
        scores = sh.einsum("bpsmgh,bptmh->bpmgst", query, key).astype("f32")
        scores = sh.where((block >= i) & ((i > 0) | causal), scores, NEVER)
        new = sh.maximum(most, sh.max(scores, -1))
        weights, old = sh.exp(scores - new[..., None]), sh.exp(most - new)
        terms = sh.einsum("bpmgst,bptmh->bpmgsh", weights.astype(query.dtype), value).astype("f32")
        return new, total * old + sh.sum(weights, -1), mixed * old[..., None] + terms

    def step(carry: Any, i: Any) -> Any:
        state, key, value = carry
        key, value = passed_on(key, axes, query.dtype), passed_on(value, axes, query.dtype)
        return (met(state, key, value, i), key, value), None

    zeros = sh.zeros_like(sh.moveaxis(query, 2, 4), "f32")
    state = met((zeros[..., 0] + NEVER, zeros[..., 0], zeros), key, value, 0)
    ((_, total, mixed), _, _), _ = sh.scan(step, (state, key, value), np.arange(1, blocks))
    found = sh.moveaxis(mixed / total[..., None], 4, 2).astype(query.dtype)
    return sh.reshape(found, (batch, length, heads, head))
