"""The transformer of the examples: loss and all gradients against one device, what it sends, and its types."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples import decoder as model
from shtypes.core.operation import applied_by
from tests.end_to_end import close, host

BATCH, SEQ = 4, 8
TOKENS = np.random.default_rng(0).integers(0, model.VOCAB, (BATCH, SEQ)).astype(np.int32)
TARGETS = np.roll(TOKENS, -1, 1)
variant = pytest.mark.parametrize("residual", model.RESIDUAL.values(), ids=model.RESIDUAL.keys())


def batch() -> tuple[Any, Any]:
    return sh.array(TOKENS, "i32[batch@dp, seq]"), sh.array(TARGETS, "i32[batch@dp, seq]")


def one_device_loss(weights: Any) -> Any:
    """The same model in plain JAX, written for one device."""

    def norm(x: Any, scale: Any) -> Any:
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def rope(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = np.arange(SEQ)[:, None, None] * 10_000.0 ** (-np.arange(half) / half)
        y = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return jnp.concatenate([y.real, y.imag], -1).astype(x.dtype)

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


@pytest.mark.core
@pytest.mark.parametrize(
    ("residual", "mesh", "policy"),
    [
        (model.RESIDUAL["sequence"], (2, 2), "partial"),
        pytest.param(model.RESIDUAL["tensor"], (4, 2), "partial", marks=pytest.mark.nightly),
        pytest.param(model.RESIDUAL["sequence"], (2, 2), "jax", marks=pytest.mark.nightly),
        pytest.param(model.RESIDUAL["tensor"], (2, 2), "jax", marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_loss_and_all_gradients_are_those_of_one_device(residual: str, mesh: tuple[int, int], policy: str) -> None:
    with sh.policy(policy):
        sh.set_mesh(sh.make_mesh({"dp": mesh[0], "tp": mesh[1]}))
        weights = model.init(sh.random.key(0))
        loss, grads = sh.jit(sh.value_and_grad(lambda w, x, y: model.loss(w, x, y, residual)))(weights, *batch())
        wanted, slopes = jax.jit(jax.value_and_grad(one_device_loss))(jax.tree.map(host, weights))
        close(host(loss), wanted, "loss")
        for (path, grad), slope, w in zip(
            jax.tree.leaves_with_path(grads), jax.tree.leaves(slopes), jax.tree.leaves(weights), strict=True
        ):
            assert grad.type == w.type.cotangent()
            close(host(grad), slope, jax.tree_util.keystr(path))


@pytest.mark.nightly
def test_it_runs_eagerly_with_debug_checks() -> None:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    weights = model.init(sh.random.key(0))
    layer = jax.tree.map(lambda w: w[0], weights["layers"])
    x = sh.random.normal(sh.random.key(1), f"f32[batch={BATCH}@dp, seq={SEQ}, hidden={model.HIDDEN}]")
    with sh.debug_checks():
        y = model.layer(x, layer, model.WHOLE)
    close(host(y), host(sh.jit(lambda x, w: model.layer(x, w, model.WHOLE))(x, layer)), "layer")


def abstract(types: Any) -> Any:
    return jax.tree.map(sh.abstract_array, types)


@variant
def test_nothing_but_the_ends_of_blocks_and_the_loss_communicates(residual: str) -> None:
    with sh.use_mesh(sh.abstract_mesh({"dp": 64, "tp": 2})), sh.dims(batch=256, seq=SEQ):
        tokens = sh.abstract_array("i32[batch@dp, seq]")
        found = sh.ledger(
            sh.value_and_grad(lambda w, x, y: model.loss(w, x, y, residual)), abstract(model.TYPES), tokens, tokens
        )
    times = Counter((e.direction, e.kind, e.axes) for e in found.entries for _ in range(e.times or 0))
    ends, tp = 2 * model.LAYERS + 1, ("tp",)  # of the blocks and of the embedding
    loss = {("forward", "all-reduce", tp): 2}
    again = model.LAYERS
    if residual == model.WHOLE:
        wanted = Counter(loss)
        wanted += Counter({("forward", "all-reduce", tp): ends, ("backward", "all-reduce", tp): ends})
        wanted += Counter({("recomputed", "all-reduce", tp): again})
    else:
        wanted = Counter(loss)
        for direction in ("forward", "backward"):
            wanted += Counter({(direction, "reduce-scatter", tp): ends, (direction, "all-gather", tp): ends})
        wanted += Counter({("recomputed", "reduce-scatter", tp): again, ("recomputed", "all-gather", tp): 2 * again})
    assert times == wanted


LAYER = """\
f32[batch@dp, seq@tp, hidden]               rms_norm[axis=(2,), epsilon=1e-06]
f32[batch@dp, seq@tp, hidden]               mul
f32[batch@dp, seq, hidden]                  reshard[tp: S(1)->R]
f32[batch@dp, seq, inner@tp]                einsum[abc,cd->abd]
f32[batch@dp, seq, inner@tp]                einsum[abc,cd->abd]
f32[batch@dp, seq, inner@tp]                silu
f32[batch@dp, seq, inner@tp]                mul
f32[batch@dp, seq, hidden]{U:tp}            einsum[abc,cd->abd]
f32[batch@dp, seq@tp, hidden]               reshard[tp: U->S(1)]
f32[batch@dp, seq@tp, hidden]               add"""


def test_the_types_of_a_sequence_parallel_layer_read_as_its_design() -> None:
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 2})), sh.dims(batch=BATCH, seq=SEQ):
        weights = jax.tree.map(
            lambda t: sh.abstract_array(t.replace(f"layer={model.LAYERS}, ", "")), model.TYPES["layers"]
        )
        x = sh.abstract_array(f"f32[batch@dp, seq@tp, hidden={model.HIDDEN}]")
        jaxpr = jax.make_jaxpr(lambda x, w: model.layer(x, w, model.RESIDUAL["sequence"]))(x, weights)
    lines = [f"{e.outvars[0].aval!s:<43} {applied_by(e).name}" for e in jaxpr.jaxpr.eqns]
    assert "\n".join(lines[-10:]) == LAYER
