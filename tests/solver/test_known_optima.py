"""Layouts of papers: what they send by their formulas, and that what is found sends no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from tests.solver import models
from tests.solver.models import f32, i32

#: Nothing but bytes counts: all links are alike, and computing takes no time.
BYTES: dict[str, Any] = {"links": sh.Link(1e9), "compute": sh.Device({"f32": 1e30}, 1e30)}
N = 8


def reduced(count: int) -> float:
    """An all-reduce of so many floats over the devices, in bytes that each sends."""
    return 8 * count * (N - 1) / N


def gathered(count: int) -> float:
    """An all-gather to, a reduce-scatter of, or an all-to-all within the part of a device: ``count`` floats in all."""
    return reduced(count) / 2


def count(tree: Any) -> int:
    """The floats of a tree."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


class Known(NamedTuple):
    """A layout that a paper describes: the model, what arrives how, and what a step sends."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    sent: float


def attention_loss(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(models.attention(p, x)))


def mlp_only(p: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(jax.nn.gelu(x @ p["up"]) @ p["down"]))


def vocabulary_loss(p: Any, x: Any, targets: Any) -> Any:
    logits = x @ p["head"]
    picked = jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def tables_loss(p: Any, ids: Any, dense: Any) -> Any:
    rows = jnp.concatenate([t[ids[:, i]] for i, t in enumerate(p["tables"])], -1)
    return jnp.mean(jnp.square(jnp.tanh(jnp.concatenate([rows, dense], -1) @ p["mlp"])))


def megatron_convolutions(p: Any, batch: int, side: int) -> float:
    """An all-reduce behind each second convolution, and of the gradient of what each first one but the data takes."""
    levels = [*p["down"], p["middle"], *p["up"]]
    sides = [side >> min(i, len(levels) - 1 - i) for i in range(len(levels))]
    behind = sum(reduced(batch * b.shape[0] * n * n) for (_, b), n in zip(levels, sides, strict=True))
    before = sum(reduced(batch * a.shape[1] * n * n) for (a, _), n in zip(levels[1:], sides[1:], strict=True))
    return behind + before


def known() -> dict[str, Known]:
    b, d, f = 512, 256, 1024
    whole = {"x": "[_, _]"}
    weights = 2 * d * f
    tokens, seq, heads, k = 16, 64, 16, 16
    vocab = 16384
    conv = models.convolutions(256, 8, 32, 512)
    kernels = 2 * 32 * 32 * 9
    wide = models.unet(8, 8, 128)
    nodes, edges, features = 1024, 65536, 64
    groups, size, experts = 32, 256, N
    places = groups * 2 * size * d
    long, narrow = 4096, {name: f32(64, 1, 64) for name in "qkv"} | {"o": f32(1, 64, 64)}
    several = {name: f32(64, 64, 8) for name in "qkv"} | {"o": f32(64, 8, 64)}
    stage = 32 * d
    return {
        # Shoeybi et al. 2019: one all-reduce forward and one backward
        "Megatron MLP": Known(
            mlp_only, models.mlp(b, d, 32 * f), {"inputs": whole, "grad": (0, 1)}, 2 * reduced(b * d)
        ),
        # and none backward, where nothing before it has a gradient
        "Megatron MLP that is first": Known(mlp_only, models.mlp(b, d, 32 * f), {"inputs": whole}, reduced(b * d)),
        "Megatron attention": Known(
            attention_loss,
            (models.block_params(d, heads, 64 * k, f)["attn"], f32(tokens, seq, d)),
            {"inputs": {"x": "[_, _, _]"}, "grad": (0, 1)},
            2 * reduced(tokens * seq * d),
        ),
        "data parallel": Known(mlp_only, models.mlp(64 * b, d, f), {"inputs": {"x": "[_@n, _]"}}, reduced(weights)),
        # Megatron's loss: logits are never gathered; a maximum, a sum and a target's logit for each token, and the
        # gradient of what the head takes
        "vocabulary parallel": Known(
            vocabulary_loss,
            ({"head": f32(d, vocab)}, f32(b, d), i32(b)),
            {"inputs": {"x": "[_, _]", "targets": "[_]"}, "grad": (0, 1)},
            3 * reduced(b) + reduced(b * d),
        ),
        # Lepikhin et al. 2020: tokens go to their experts and back, forward and backward (here dense: to all of them)
        "expert parallel": Known(
            models.experts_loss,
            models.experts(b, d, 32 * f, N),
            {"inputs": {"x": "[_@n, _]"}},
            2 * gathered(b * d) + 2 * gathered(b * N) + reduced(d * N) + gathered(b * d),
        ),
        # Krizhevsky 2014: convolutions by batch, dense layers by features
        "one weird trick": Known(
            models.convolutions_loss,
            conv,
            {"inputs": {"x": "[_@n, _, _, _]"}},
            reduced(kernels) + 2 * gathered(256 * 32 * 64) + 2 * gathered(256 * 512) + gathered(256 * 512),
        ),
        # Naumov et al. 2019: tables by table or row, the rest by batch
        "embedding tables": Known(
            tables_loss,
            ({"tables": [f32(65536, 32)] * 4, "mlp": f32(4 * 32 + 64, 256)}, i32(4096, 4), f32(4096, 64)),
            {"inputs": {"ids": "[_@n, _]", "dense": "[_@n, _]"}},
            reduced(192 * 256) + 2 * gathered(4096 * 128) + gathered(4096 * 4),
        ),
        "data parallel U-Net": Known(
            models.unet_loss,
            models.unet(256, 32, 16),
            {"inputs": {"[xy]": "[_@n, _, _, _]"}},
            reduced(count(models.unet(256, 32, 16)[0])),
        ),
        # Shoeybi et al., of pairs of convolutions
        "Megatron U-Net": Known(
            models.unet_loss, wide, {"inputs": {"[xy]": "[_, _, _, _]"}}, megatron_convolutions(wide[0], 8, 8)
        ),
        # jraph's sharded graph networks: edges are sharded, nodes are not; weights as in data parallelism
        "graph network": Known(
            models.graph_loss,
            models.graph(nodes, edges, features),
            {"inputs": {"nodes": "[_, _]", "y": "[_, _]", "edges": "[_@n, _]", "*e[nc]*ers": "[_@n]"}},
            3 * reduced(nodes * features) + reduced(2 * 5 * features * features),
        ),
        # Lepikhin et al. 2020, with places for so many tokens: they go to the experts and back, forward and backward
        "experts with capacity": Known(
            models.capacity_loss,
            models.capacity(groups, size, d, 8 * f, experts),
            {"inputs": {"x": "[_@n, _, _]"}, "grad": (0, 1)},
            4 * gathered(places // N) + reduced(d * experts),
        ),
        # Liu et al. 2023: keys and values go round, and in the backward pass with their gradients; here: gathered
        "ring attention": Known(
            attention_loss,
            (narrow, f32(1, long, 64)),
            {"inputs": {"x": "[_, _@n, _]"}, "grad": (0, 1)},
            6 * gathered(long * 64) + 4 * reduced(64 * 64),
        ),
        # Jacobs et al. 2023: all-to-alls of queries, keys, values and what comes of them, forward and backward
        "Ulysses": Known(
            attention_loss,
            (several, f32(1, long, 64)),
            {"inputs": {"x": "[_, _@n, _]"}, "grad": (0, 1)},
            8 * gathered(long * 64 * 8 // N) + 4 * reduced(64 * 64 * 8),
        ),
        # Huang et al. 2019: each stage hands on its microbatch; of types two all-to-alls do that, and not a permute
        "pipeline": Known(
            models.pipeline_loss,
            (f32(N, d, d), f32(16, 32, d)),
            {"inputs": {"x": "[_, _, _]"}},
            (16 + N - 1) * 2 * 2 * gathered(stage),
        ),
    }


@pytest.mark.one_in(19)
@pytest.mark.parametrize("name", list(known()))
def test_what_is_found_sends_no_more_than_the_layout_of_the_paper(name: str) -> None:
    case = known()[name]
    plan = sh.suggest(case.f, *case.args, mesh={"n": N}, **case.options, **BYTES)[0]
    sent = plan.ledger.total.bytes
    assert abs(sent / plan.bytes - 1) < 2e-3
    small = 64  # the loss itself
    assert sent <= case.sent + small, f"{sent} B, and {case.sent:.0f} B by the formula"
