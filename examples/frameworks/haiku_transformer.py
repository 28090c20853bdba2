"""A transformer of Haiku, as one is written for one device, and the table of types that spreads it over a mesh.

python examples/frameworks/haiku_transformer.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[2]))

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from examples.frameworks.training import VOCABULARY, data, train

RULES = [
    ("*/multi_head_attention/linear/w", "[heads@tp, model]"),
    ("*/multi_head_attention/linear/b", "[model]"),
    ("*/multi_head_attention/*/w", "[model, heads@tp]"),
    ("*/multi_head_attention/*/b", "[heads@tp]"),
    ("*/up/w", "[model, hidden@tp]"),
    ("*/up/b", "[hidden@tp]"),
    ("*/down/w", "[hidden@tp, model]"),
    ("*", "[...]"),
]


class Block(hk.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__(name="block")
        self.hidden = hidden

    def __call__(self, x: Any) -> Any:
        model, mask = x.shape[-1], jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1])))
        attention = hk.MultiHeadAttention(4, model // 4, w_init=hk.initializers.VarianceScaling())
        h = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        x = x + attention(h, h, h, mask)
        h = jax.nn.gelu(hk.Linear(self.hidden, name="up")(hk.RMSNorm(-1)(x)))
        return x + hk.Linear(model, name="down")(h)


def transformer(tokens: Any, model: int = 16, layers: int = 2) -> Any:
    """The logits of each next token."""
    x = hk.Embed(VOCABULARY, model)(tokens)
    for _ in range(layers):
        x = Block()(x)
    return hk.Linear(VOCABULARY, name="head")(x)


def main() -> dict[str, list[float]]:
    """Trains it."""
    pure = hk.without_apply_rng(hk.transform(transformer))

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(pure.apply(params, tokens), targets).mean()

    return train(loss, pure.init(jax.random.key(0), data()[0]), RULES)


if __name__ == "__main__":
    main()
