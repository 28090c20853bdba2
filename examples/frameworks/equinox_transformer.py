"""A transformer of Equinox, as one is written for one device, and the table of types that spreads it over a mesh.

Equinox keeps the weight of a linear layer as ``[out, in]``, and attention's with its heads in one dim, side by side.

    python examples/frameworks/equinox_transformer.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[2]))

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from examples.frameworks.training import VOCABULARY, train

RULES = [
    ("blocks/*/attention/output_proj/weight", "[model, heads@tp]"),
    ("blocks/*/attention/*/weight", "[heads@tp, model]"),
    ("blocks/*/up/weight", "[hidden@tp, model]"),
    ("blocks/*/up/bias", "[hidden@tp]"),
    ("blocks/*/down/weight", "[model, hidden@tp]"),
    ("*", "[...]"),
]


class Block(eqx.Module):
    before: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    between: eqx.nn.RMSNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, model: int, hidden: int, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.before, self.between = eqx.nn.LayerNorm(model), eqx.nn.RMSNorm(model)
        self.attention = eqx.nn.MultiheadAttention(4, model, key=keys[0])
        self.up = eqx.nn.Linear(model, hidden, key=keys[1])
        self.down = eqx.nn.Linear(hidden, model, key=keys[2])

    def __call__(self, x: Any) -> Any:
        h = jax.vmap(self.before)(x)
        x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(lambda x: self.down(jax.nn.gelu(self.up(self.between(x)))))(x)


class Transformer(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key: Any, model: int = 16, hidden: int = 32, layers: int = 2) -> None:
        keys = jax.random.split(key, layers + 2)
        self.embed = eqx.nn.Embedding(VOCABULARY, model, key=keys[0])
        self.head = eqx.nn.Linear(model, VOCABULARY, key=keys[1])
        self.blocks = [Block(model, hidden, k) for k in keys[2:]]

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(x)


def main() -> dict[str, list[float]]:
    """Trains it."""
    params, static = eqx.partition(Transformer(jax.random.key(0)), eqx.is_array)

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        logits = jax.vmap(eqx.combine(params, static))(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return train(loss, params, RULES)


if __name__ == "__main__":
    main()
