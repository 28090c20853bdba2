"""A decoder-only transformer on sharding types: data, tensor and sequence parallel, with a sharded vocabulary.

The batch is split over ``dp``; heads, inner dims and the vocabulary over ``tp``. Each block ends in a product over a
split dim, so its result is a pending sum. `RESIDUAL` says how the residual stream lies, and with that what ends a
block: an all-reduce where it is replicated, a reduce-scatter where its positions are split, which are then gathered
where the next block starts.

    shtypes explain examples.transformer:loss
"""

from __future__ import annotations

from typing import Any

import jax

import shtypes as sh

VOCAB, LAYERS, HIDDEN, HEADS, KEY_HEADS, HEAD, INNER = 64, 3, 16, 4, 2, 4, 32

#: How the residual stream lies: replicated over `tp`, or its positions split (sequence parallel).
RESIDUAL = {"tensor": "[batch@dp, seq, hidden]", "sequence": "[batch@dp, seq@tp, hidden]"}
WHOLE = RESIDUAL["tensor"]

TYPES = {
    "embedding": f"f32[vocab={VOCAB}@tp, hidden={HIDDEN}]",
    "layers": {
        "attention_norm": f"f32[layer={LAYERS}, hidden={HIDDEN}]",
        "query": f"f32[layer={LAYERS}, hidden={HIDDEN}, heads={HEADS}@tp, head={HEAD}]",
        "key": f"f32[layer={LAYERS}, hidden={HIDDEN}, heads={KEY_HEADS}@tp, head={HEAD}]",
        "value": f"f32[layer={LAYERS}, hidden={HIDDEN}, heads={KEY_HEADS}@tp, head={HEAD}]",
        "output": f"f32[layer={LAYERS}, heads={HEADS}@tp, head={HEAD}, hidden={HIDDEN}]",
        "mlp_norm": f"f32[layer={LAYERS}, hidden={HIDDEN}]",
        "gate": f"f32[layer={LAYERS}, hidden={HIDDEN}, inner={INNER}@tp]",
        "up": f"f32[layer={LAYERS}, hidden={HIDDEN}, inner={INNER}@tp]",
        "down": f"f32[layer={LAYERS}, inner={INNER}@tp, hidden={HIDDEN}]",
    },
    "norm": f"f32[hidden={HIDDEN}]",
}


def init(key: Any) -> Any:
    """Weights, drawn alike on every mesh."""
    types, tree = jax.tree.flatten(TYPES)
    keys = sh.random.split(key, len(types))
    return jax.tree.unflatten(tree, [sh.random.normal(keys[i], t) / HIDDEN**0.5 for i, t in enumerate(types)])


def attention(x: Any, w: Any) -> Any:
    """Causal attention with grouped heads; a pending sum over ``tp``."""
    query = sh.nn.rotary_embedding(sh.nn.linear(x, w["query"]))
    key = sh.nn.rotary_embedding(sh.nn.linear(x, w["key"]))
    value = sh.nn.linear(x, w["value"])
    mixed = sh.nn.dot_product_attention(query, key, value, is_causal=True)
    return sh.nn.linear(mixed, w["output"], dims=2)


def mlp(x: Any, w: Any) -> Any:
    """A gated MLP; a pending sum over ``tp``."""
    return sh.nn.linear(sh.nn.swiglu(sh.nn.linear(x, w["gate"]), sh.nn.linear(x, w["up"])), w["down"])


def layer(x: Any, w: Any, residual: str) -> Any:
    """Both blocks, each behind a norm and beside the residual stream."""
    h = sh.reshard(sh.nn.rms_norm(x, w["attention_norm"]), WHOLE)
    x = x + sh.reshard(attention(h, w), residual)
    h = sh.reshard(sh.nn.rms_norm(x, w["mlp_norm"]), WHOLE)
    return x + sh.reshard(mlp(h, w), residual)


def logits(weights: Any, tokens: Any, residual: str = WHOLE) -> Any:
    """Scores of the next token, the vocabulary split over ``tp``."""
    x = sh.reshard(sh.nn.embedding(weights["embedding"], tokens), residual)
    step = sh.checkpoint(lambda x, w: (layer(x, w, residual), None), prevent_cse=False)
    x, _ = sh.scan(step, x, weights["layers"])
    x = sh.reshard(sh.nn.rms_norm(x, weights["norm"]), WHOLE)
    return sh.einsum("bsh,vh->bsv", x, weights["embedding"])


def loss(weights: Any, tokens: Any, targets: Any, residual: str = WHOLE) -> Any:
    """The mean cross entropy; a pending sum over ``dp``."""
    return sh.mean(sh.nn.cross_entropy(logits(weights, tokens, residual), targets, out="[batch@dp, seq]{I:tp}"))
