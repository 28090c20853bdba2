"""The language model in every layout: loss and gradients are those of one device."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples.transformer import model
from examples.transformer.layouts import read
from tests.end_to_end import host
from tests.tolerance import assert_within, computed

pytestmark = pytest.mark.one_in(9)

BATCH, SEQ = 8, 16
SIZES = model.Sizes(vocab=32, layers=2, hidden=16, heads=8, key_heads=4, head=4, inner=16, dtype="f32")
TOKENS = np.random.default_rng(0).integers(0, SIZES.vocab, (BATCH, SEQ)).astype(np.int32)
TARGETS = np.roll(TOKENS, -1, 1)
#: Those with stages are in `test_pipeline`.
LAYOUTS = {name: layout for name, layout in read().items() if not layout.schedule}
#: One of each kind runs each time, the others at night.
DAILY = {("dp_cp_tp_sp", "jax")}


def plain_loss(weights: Any) -> Any:
    """The same model in plain JAX, written for one device."""

    def norm(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def rope(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = np.arange(SEQ)[:, None, None] * 10_000.0 ** (-np.arange(half, dtype=np.float32) / half)
        cos, sin, first, second = np.cos(angles), np.sin(angles), x[..., :half], x[..., half:]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        h = norm(x, w["attention_norm"])
        q, k, v = (jnp.einsum("bsh,hnd->bsnd", h, w[name]) for name in ("query", "key", "value"))
        mixed = jax.nn.dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + jnp.einsum("bsnd,ndh->bsh", mixed, w["output"])
        h = norm(x, w["mlp_norm"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None

    x, _ = jax.lax.scan(layer, weights["embedding"][TOKENS], weights["layers"])
    logits = jax.nn.log_softmax(norm(x, weights["norm"]) @ weights["embedding"].T)
    return -jnp.take_along_axis(logits, TARGETS[..., None], -1).mean()


def batch() -> tuple[Any, Any]:
    return sh.array(TOKENS, "i32[batch, seq]"), sh.array(TARGETS, "i32[batch, seq]")


def sampled(name: str) -> Any:
    """The weights of a layout, as they are trained; alike in all."""
    layout = LAYOUTS[name]
    with layout.use(), layout.as_weights():
        return model.init(sh.random.key(0), SIZES)


@pytest.fixture(scope="module")
def wanted() -> Any:
    weights = jax.tree.map(host, sampled("one"))
    return computed(jax.value_and_grad(plain_loss), weights)


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if (name, policy) in DAILY else pytest.mark.nightly)
        for name in LAYOUTS
        for policy in ("partial", "jax")
    ],
)
def test_loss_and_gradients_are_those_of_one_device(name: str, policy: str, wanted: Any) -> None:
    sizes = dataclasses.replace(SIZES, gather_again=LAYOUTS[name].zero != 2)
    with sh.policy(policy), LAYOUTS[name].use():
        weights = sampled(name)
        found = sh.jit(sh.value_and_grad(lambda w, x, y: model.loss(w, x, y, sizes)))(weights, *batch())
        for path, w in jax.tree.leaves_with_path(weights):
            at = found[1]
            for key in path:
                at = at[key.key]
            assert at.type == w.type.cotangent()
        (values, errors), paths = wanted, jax.tree.leaves_with_path(found)
        for (path, x), value, error in zip(paths, jax.tree.leaves(values), jax.tree.leaves(errors), strict=True):
            assert_within(host(x), value, error, jax.tree_util.keystr(path))
