"""A transformer of Flax NNX, as one is written for one device, and the table of types that spreads it over a mesh.

python examples/frameworks/nnx_transformer.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[2]))

import jax.numpy as jnp
import optax
from flax import nnx

from examples.frameworks.training import VOCABULARY, train

RULES = [
    ("blocks/*/attention/out/kernel", "[heads@tp, head, model]"),
    ("blocks/*/attention/out/bias", "[model]"),
    ("blocks/*/attention/*/kernel", "[model, heads@tp, head]"),
    ("blocks/*/attention/*/bias", "[heads@tp, head]"),
    ("blocks/*/up/kernel", "[model, hidden@tp]"),
    ("blocks/*/up/bias", "[hidden@tp]"),
    ("blocks/*/down/kernel", "[hidden@tp, model]"),
    ("*", "[...]"),
]


class Block(nnx.Module):
    def __init__(self, model: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.before = nnx.LayerNorm(model, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=model, decode=False, rngs=rngs)
        self.between = nnx.RMSNorm(model, rngs=rngs)
        self.up = nnx.Linear(model, hidden, rngs=rngs)
        self.down = nnx.Linear(hidden, model, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.before(x), mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))
        return x + self.down(nnx.gelu(self.up(self.between(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, model: int = 16, hidden: int = 32, layers: int = 2) -> None:
        self.embed = nnx.Embed(VOCABULARY, model, rngs=rngs)
        self.blocks = nnx.List([Block(model, hidden, rngs) for _ in range(layers)])
        self.head = nnx.Linear(model, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> dict[str, list[float]]:
    """Trains it."""
    graph, params = nnx.split(Transformer(nnx.Rngs(0)))

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        logits = nnx.merge(graph, params)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return train(loss, params, RULES)


if __name__ == "__main__":
    main()
