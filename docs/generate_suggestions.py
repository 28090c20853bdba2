"""Prints what `sh.suggest` finds for published models at their sizes: ``python docs/generate_suggestions.py llama3``.

Weights and data are shapes alone. Checkouts of the programs that are no packages are got by
``python -m tests.lifting.packages.checkouts``; ViT comes with ``pip install transformers``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

import shtypes as sh
from tests.lifting.packages.checkouts import FLAX, LLMS
from tests.solver import models

Struct = jax.ShapeDtypeStruct
#: A function, its arguments, and a mesh.
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, int]]
MESH: Final = {"dp": 16, "tp": 8}


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all rows."""
    scores = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, -1) - picked)


def llama3() -> Case:
    """Llama 3, 8B, of jax-llm-examples, as it is; its annotations give way to the plan."""
    model = LLMS.module("llama3_jax.model", "llama3")
    sizes = {"x": 16, "y": 8, "z": 1}
    cfg = model.Config(
        embed=4096, ffw_size=14336, q_heads=32, kv_heads=8, num_layers=32, head_dim=128, vocab_size=128256,
        max_seq_len=4096, causal=True, use_prefill_attn_kernel=False, use_decode_attn_kernel=False,
        mesh=AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Explicit,) * 3),
    )  # fmt: skip
    weights = jax.tree.map(
        lambda x: Struct(x.shape, x.dtype), model.Weights.abstract(cfg), is_leaf=lambda x: hasattr(x, "shape")
    )

    def loss(weights: Any, tokens: Any, segments: Any, labels: Any) -> Any:
        return cross_entropy(model.forward(tokens, segments, weights, cfg)[0], labels)

    return loss, (weights, *[Struct((128, 4096), jnp.int32)] * 3), sizes


def gemma() -> Case:
    """Gemma 2, 2B, of Flax's examples."""
    nnx = __import__("flax.nnx").nnx
    model, configs = FLAX.module("transformer", "examples/gemma"), FLAX.module("transformer_cfg", "examples/gemma")
    kinds = model.modules.AttentionType
    cfg = model.TransformerConfig(
        num_layers=26, num_embed=256128, embed_dim=2304, hidden_dim=9216, num_heads=8, head_dim=256, num_kv_heads=4,
        final_logit_softcap=30.0, use_post_attn_norm=True, use_post_ffw_norm=True, attn_logits_soft_cap=50.0,
        attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL) * 13, sliding_window_size=4096,
        shd_config=configs.ShardingConfig.no_sharding(),
    )  # fmt: skip
    shapes = nnx.eval_shape(lambda: model.Transformer(cfg, rngs=nnx.Rngs(0)))
    graph, params, rest = nnx.split(shapes, nnx.Param, ...)

    def loss(params: Any, tokens: Any) -> Any:
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), rest)
        mask = tokens > 0
        seen = model.build_positions_from_mask(mask), None, model.make_causal_attn_mask(mask)
        logits, _ = nnx.merge(graph, params, state)(tokens, *seen, rngs=None)
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return loss, (params, Struct((128, 2048), jnp.int32)), MESH


def experts() -> Case:
    """A layer of experts with places for so many tokens, as of GShard, by einsums."""
    p, x = models.capacity(1024, 1024, 4096, 16384, 64)
    return models.capacity_loss, (p, x), {"dp": 16, "ep": 8}


def vit() -> Case:
    """ViT-H/14 of transformers."""
    transformers = __import__("transformers")
    config = transformers.ViTConfig(
        hidden_size=1280, num_hidden_layers=32, num_attention_heads=16, intermediate_size=5120, patch_size=14,
        num_labels=1000,
    )  # fmt: skip
    model = transformers.FlaxViTForImageClassification(config, _do_init=False)
    params = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, 224, 224, 3)))

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return cross_entropy(model(images, params=params).logits, labels)

    return loss, (params, Struct((4096, 3, 224, 224), jnp.float32), Struct((4096,), jnp.int32)), MESH


def unet() -> Case:
    """A U-Net of convolutions with 128 to 1,024 channels, as denoises images of 64 by 64."""
    return models.unet_loss, models.unet(2048, 64, 128, levels=3), MESH


CASES: Final[dict[str, Callable[[], Case]]] = {each.__name__: each for each in (llama3, gemma, experts, vit, unet)}

if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        f, args, mesh = CASES[name]()
        slow = next(iter(mesh))
        found = sh.suggest(f, *args, mesh=mesh, links=sh.cost_model("h100-nvlink", **{slow: "infiniband-ndr"}))
        print(CASES[name].__doc__, found, sep="\n\n", end="\n\n", flush=True)
