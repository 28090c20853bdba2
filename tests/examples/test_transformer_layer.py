"""The 2D weight-gathered transformer layer of the shard_map design: values, gradients, and what it sends."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples import jep_14273 as model
from tests.core.hlo import collectives
from tests.end_to_end import host
from tests.tolerance import assert_close

MESH, SIZES = {"X": 2, "Y": 2, "Z": 2}, {"batch": 2, "time": 4, "embed": 8, "heads": 8}
QKV, FF = model.QKV, model.FF


def operands() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    with sh.dims(**SIZES):
        types = {name: sh.abstract_array(text).type for name, text in model.LAYER.items()}
    made = {name: sh.array(rng.uniform(-1, 1, t.shape).astype(np.float32), t) for name, t in types.items()}
    angles = np.arange(4, dtype=np.float32)[:, None]
    return made.pop("x"), made, sh.array(np.sin(angles), "f32[4, 1]"), sh.array(np.cos(angles), "f32[4, 1]")


def rope(x: Any, sin: Any, cos: Any) -> Any:
    one, two = x[..., :1], x[..., 1:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def reference(params: Any, x: Any, sin: Any, cos: Any) -> Any:
    """The layer on one device."""
    xnorm = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    q_wi = jnp.einsum("bte,hed->bthd", xnorm, params["q_wi"])
    kv = xnorm @ params["kv"]
    q, k, v = rope(q_wi[..., :QKV], sin[:, None], cos[:, None]), rope(kv[..., :QKV], sin, cos), kv[..., QKV:]
    scores = jnp.einsum("bthd,bsd->bhts", q, k) / QKV**0.5
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4))) > 0, scores, -1e9), -1)
    mlp = jax.nn.silu(q_wi[..., QKV : QKV + FF]) * q_wi[..., QKV + FF :]
    fused = jnp.concatenate([jnp.einsum("bhts,bsd->bthd", weights, v), mlp], -1)
    return jnp.einsum("bthd,hde->bte", fused, params["o_wo"]) + x, k, v


@pytest.mark.parametrize(
    ("policy", "overlap"), [pytest.param("partial", False, marks=pytest.mark.nightly), ("jax", True)]
)
def test_the_layer_has_the_values_and_gradients_of_one_device(policy: str, overlap: bool) -> None:
    sh.set_mesh(sh.make_mesh(MESH))
    with sh.policy(policy):
        x, params, sin, cos = operands()

        def loss(m: Any, layer: Any, params: Any, x: Any, sin: Any, cos: Any) -> Any:
            y, *cache = layer(params, x, sin, cos)
            return m.sum(m.sin(y)), (y, *cache)

        layer = functools.partial(model.transformer_layer, overlap=overlap)
        step = sh.value_and_grad(functools.partial(loss, sh, layer), (0, 1), has_aux=True)
        compiled = sh.jit(step, region="require").lower(params, x, sin, cos).compile()
        (_, outs), grads = jax.block_until_ready(compiled(params, x, sin, cos))
        assert [str(y.type) for y in outs] == [
            "f32[batch@Z, time, embed@(X,Y)]",
            "f32[batch, time, 2]",
            "f32[batch, time, 2]",
        ]
        plain = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), (params, x, sin, cos))
        wanted_step = jax.value_and_grad(functools.partial(loss, jnp, reference), (0, 1), has_aux=True)
        (_, wanted), wanted_grads = jax.jit(wanted_step)(*plain)
        for found, want in zip(jax.tree.leaves((outs, grads)), jax.tree.leaves((wanted, wanted_grads)), strict=True):
            assert_close(host(found), want)
        for grad, value in zip(jax.tree.leaves(grads), jax.tree.leaves((params, x)), strict=True):
            assert grad.type == value.type.cotangent()
        kinds = {kind.value for kind, _ in collectives(compiled.as_text())}
        assert ("permute" in kinds) == overlap
