"""A language model of Haliax comes in as it is: named arrays, layers stacked in a checkpointed scan, its shardings."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shtypes as sh
from tests.lifting.packages.checkouts import HALIAX
from tests.lifting.packages.published import check, lifted

eqx: Any = pytest.importorskip("equinox")
pytest.importorskip("jmp")
pytest.importorskip("aqt")
hax: Any = HALIAX.module("haliax", "src")  # its newest release is older than JAX 0.10

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the package's own
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # on one device no dim has a mapping
]

BATCH, POSITION, EMBED, HEADS, SIZE, MLP, VOCABULARY, LAYERS = (
    hax.Axis(name, size)
    for name, size in (
        *(("batch", 4), ("position", 8), ("embed", 16), ("heads", 4)),
        *(("head_size", 4), ("mlp", 32), ("vocabulary", 64), ("layers", 2)),
    )
)
KEYS: Final = POSITION.alias("key_position")
MAPPING: Final = {"batch": "dp", "heads": "tp", "mlp": "tp", "vocabulary": "tp"}


class Block(eqx.Module):  # type: ignore[misc]  # of a package without types
    """A layer of a transformer."""

    q: Any
    k: Any
    v: Any
    out: Any
    up: Any
    down: Any
    norms: tuple[Any, Any]

    @staticmethod
    def init(key: Any) -> Block:
        """A layer of random weights."""
        inputs = (*[EMBED] * 3, (HEADS, SIZE), EMBED, MLP)
        outputs = (*[(HEADS, SIZE)] * 3, EMBED, MLP, EMBED)
        keys = jax.random.split(key, 6)
        made = [hax.nn.Linear.init(a, b, key=k, use_bias=False) for a, b, k in zip(inputs, outputs, keys, strict=True)]
        return Block(*made, (hax.nn.LayerNorm.init(EMBED), hax.nn.LayerNorm.init(EMBED)))

    def __call__(self, x: Any) -> Any:
        """What the next layer is given."""
        h = self.norms[0](x)
        k, v = (of(h).rename({"position": "key_position"}) for of in (self.k, self.v))
        mask = hax.nn.attention.causal_mask(POSITION, KEYS)
        x = x + self.out(hax.nn.attention.dot_product_attention(KEYS, SIZE, self.q(h), k, v, mask=mask))
        x = hax.shard(x)
        return x + self.down(hax.nn.gelu(self.up(self.norms[1](x))))


class Model(eqx.Module):  # type: ignore[misc]  # as above
    """A transformer."""

    embed: Any
    blocks: Any
    norm: Any
    head: Any

    @staticmethod
    def init(key: Any) -> Model:
        """A model of random weights."""
        a, b, c = jax.random.split(key, 3)
        stacked = hax.nn.Stacked.init(LAYERS, Block, gradient_checkpointing=True)
        head = hax.nn.Linear.init(EMBED, VOCABULARY, key=c, use_bias=False)
        norm = hax.nn.LayerNorm.init(EMBED)
        return Model(
            hax.nn.Embedding.init(VOCABULARY, EMBED, key=a), stacked(key=jax.random.split(b, LAYERS.size)), norm, head
        )

    def __call__(self, tokens: Any) -> Any:
        """The logits."""
        return self.head(self.norm(self.blocks.fold(hax.shard(self.embed(tokens)))))


def loss(model: Any, tokens: Any, labels: Any) -> Any:
    """The mean cross entropy."""
    hot = hax.nn.one_hot(labels, VOCABULARY, dtype=jnp.float32)
    return hax.nn.cross_entropy_loss(model(tokens), VOCABULARY, hot, reduction=hax.mean).scalar()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_language_model_of_haliax_trains(policy: Any, kind: AxisType) -> None:
    model = Model.init(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 64, (4, 8)).astype(np.int32)
    batch = [hax.named(x, (BATCH, POSITION)) for x in (tokens, np.roll(tokens, -1, 1))]

    def squared(*operands: Any) -> Any:  # so that the cotangent is no constant, whose gather XLA drops
        return jnp.square(loss(*operands))

    wanted = eqx.filter_value_and_grad(squared)(model, *batch)

    def is_named(x: Any) -> bool:
        return isinstance(x, hax.NamedArray)

    def placed(x: Any) -> Any:
        if not is_named(x):
            return x
        return hax.NamedArray(sh.array(np.asarray(x.array), P(*[MAPPING.get(a.name) for a in x.axes])), x.axes)

    def in_its_mapping(*operands: Any) -> Any:
        with hax.axis_mapping(MAPPING):
            return squared(*operands)

    with sh.use_mesh(jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(kind,) * 2)), sh.policy(policy):
        check(lifted(in_its_mapping), jax.tree.map(placed, (model, *batch), is_leaf=is_named), wanted)
