"""A decoder-only transformer on sharding types: data, tensor and sequence parallel, with a sharded vocabulary.

The batch is split over ``dp``; heads, inner dims and the vocabulary over ``tp``. Each block ends in a product over a
split dim, so its result is a pending sum. `RESIDUAL` says how the residual stream lies, and with that what ends a
block: an all-reduce where it is replicated, a reduce-scatter where its positions are split, which are then gathered
where the next block starts.

    python -m examples.decoder
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
from typing import Any

import jax
import numpy as np

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
    """Weights, sampled alike on every mesh."""
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


BATCH, SEQ = 4, 8


def main() -> None:
    """Prints the loss on one device and on four, and what a step sends with each residual stream."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (BATCH, SEQ)).astype(np.int32)
    sh.set_mesh(sh.make_mesh({"dp": 1, "tp": 1}))
    arrays = jax.tree.map(functools.partial(_sampled, rng), TYPES)
    four = {"dp": 2, "tp": 2}
    for name, mesh, residual in (
        ("one device", {"dp": 1, "tp": 1}, WHOLE),
        ("tensor parallel", four, RESIDUAL["tensor"]),
        ("sequence parallel", four, RESIDUAL["sequence"]),
    ):
        sh.set_mesh(sh.make_mesh(mesh))
        weights = jax.tree.map(sh.array, arrays, TYPES)
        batch = [sh.array(t, "i32[batch@dp, seq]") for t in (tokens, np.roll(tokens, -1, 1))]
        run = functools.partial(loss, residual=residual)
        value = sh.reshard(sh.jit(run)(weights, *batch), "[]")
        print(f"{name}: residual stream {residual}, loss {float(value):.3f}")
        sent = [e for e in sh.ledger(sh.value_and_grad(run), weights, *batch) if e.launches]
        for direction in dict.fromkeys(e.direction for e in sent):
            part = sh.Ledger(e for e in sent if e.direction == direction)
            kinds = (f"{total.launches} {kind} ({total.bytes} B/device)" for kind, total in part.by_kind().items())
            print(f"  {direction}: {', '.join(kinds)}")


def _sampled(rng: np.random.Generator, text: str) -> np.ndarray[Any, Any]:
    return rng.standard_normal(sh.ShType.parse(text).shape).astype(np.float32) / 4


if __name__ == "__main__":
    main()
