"""Transformers and diffusion models as hubs publish them, made from their configurations with random weights."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.lifting.frameworks.judging import Module, array, whole
from tests.lifting.packages.programs import Program, cases, check

transformers: Any = pytest.importorskip("transformers")
diffusers: Any = pytest.importorskip("diffusers")

pytestmark = [
    pytest.mark.nightly,
    # The packages' own, of other packages and of JAX.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _gpt2() -> Module:
    """The loss of a language model: the cross entropy of the next token."""
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.FlaxGPT2LMHeadModel(config, input_shape=(4, 8))

    def loss(params: Any, tokens: Any) -> Any:
        logits = model(tokens, params=params, train=True, dropout_rng=jax.random.key(0)).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    return Module(loss, model.params, (whole(32, 4, 8),))


def _bert() -> Module:
    """The loss of a classifier of sentences, some of whose words are padding."""
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=8, num_labels=4,
    )  # fmt: skip
    model = transformers.FlaxBertForSequenceClassification(config, input_shape=(4, 8))

    def loss(params: Any, tokens: Any, mask: Any, labels: Any) -> Any:
        logits = model(tokens, mask, params=params).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return Module(loss, model.params, (whole(32, 4, 8), whole(2, 4, 8), whole(4, 4)))


def _vit() -> Module:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=8, patch_size=4
    )
    model = transformers.FlaxViTModel(config, input_shape=(1, 8, 8, 3))
    return Module(lambda params, x: model(x, params=params).last_hidden_state, model.params, (array(4, 3, 8, 8),))


def _unet() -> Module:
    """The loss of a denoising step of a latent diffusion model that is conditioned on a text."""
    model = diffusers.FlaxUNet2DConditionModel(
        sample_size=4, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4, cross_attention_dim=16,
    )  # fmt: skip
    params = model.init_weights(jax.random.key(0))

    def loss(params: Any, latents: Any, noise: Any, times: Any, text: Any) -> Any:
        found = model.apply({"params": params}, latents + noise, times, text).sample
        return jnp.mean((found - noise) ** 2)

    inputs = (array(2, 4, 4, 4), array(2, 4, 4, 4), whole(1000, 2), array(2, 6, 16))
    return Module(loss, params, inputs)


def _vae() -> Module:
    """The reconstruction of images by an autoencoder."""
    model = diffusers.FlaxAutoencoderKL(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(16, 32), layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4, norm_num_groups=4,
    )  # fmt: skip
    params = model.init_weights(jax.random.key(0))

    def loss(params: Any, images: Any) -> Any:
        found = model.apply({"params": params}, images, sample_posterior=False).sample
        return jnp.mean((found - images) ** 2)

    return Module(loss, params, (array(2, 3, 8, 8),))


#: Over data alone only the loss is sent: gradients stay pending. Over ``tp`` the UNet and the VAE type in minutes:
#: `implicit_comm` looks for what sends least.
PROGRAMS: Final = {
    "GPT-2": Program(_gpt2, {"data": 4, "tensor": 25830, "both": 17620}),
    "BERT": Program(_bert, {"data": 4, "tensor": 8876, "both": 8556}),
    "ViT": Program(_vit, {"data": 4, "tensor": 13399, "both": 9559}),
    "UNet": Program(_unet, {"data": 4}),
    "VAE": Program(_vae, {"data": 4}),
}


@pytest.mark.parametrize(("name", "layout"), cases(PROGRAMS))
def test_a_model_of_a_hub_is_that_of_one_device(name: str, layout: str) -> None:
    check(PROGRAMS[name], layout)
