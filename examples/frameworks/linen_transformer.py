"""A transformer of Flax linen, as one is written for one device, and the table of types that spreads it over a mesh.

python examples/frameworks/linen_transformer.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[2]))

import flax.linen as nn
import jax
import optax

from examples.frameworks.training import VOCABULARY, data, train

RULES = [
    ("params/*/MultiHeadDotProductAttention_0/out/kernel", "[heads@tp, head, model]"),
    ("params/*/MultiHeadDotProductAttention_0/out/bias", "[model]"),
    ("params/*/MultiHeadDotProductAttention_0/*/kernel", "[model, heads@tp, head]"),
    ("params/*/MultiHeadDotProductAttention_0/*/bias", "[heads@tp, head]"),
    ("params/*/up/kernel", "[model, hidden@tp]"),
    ("params/*/up/bias", "[hidden@tp]"),
    ("params/*/down/kernel", "[hidden@tp, model]"),
    ("*", "[...]"),
]


class Block(nn.Module):
    hidden: int = 32

    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(jax.numpy.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
        h = nn.gelu(nn.Dense(self.hidden, name="up")(nn.RMSNorm()(x)))
        return x + nn.Dense(x.shape[-1], name="down")(h)


class Transformer(nn.Module):
    model: int = 16
    layers: int = 2

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(VOCABULARY, self.model)(tokens)
        for _ in range(self.layers):
            x = Block()(x)
        return nn.Dense(VOCABULARY)(x)


def main() -> dict[str, list[float]]:
    """Trains it."""
    model = Transformer()

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, tokens), targets).mean()

    return train(loss, model.init(jax.random.key(0), data()[0]), RULES)


if __name__ == "__main__":
    main()
