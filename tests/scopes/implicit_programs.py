"""Programs with the reductions that a person would write, and the same text without: for `implicit_comm`.

Each takes ``reduced``, ``whole`` and ``scattered``, which say where a person reduces, gathers and scatters; without
them it is what runs on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import shtypes as sh

Moves = dict[str, Callable[..., Any]]


def as_it_is(x: Any, *_: Any) -> Any:
    return x


class Case(NamedTuple):
    """A program on a mesh.

    Attributes:
        axes: The mesh.
        arguments: Types by name.
        f: The program.
        written: Where a person communicates.
    """

    axes: dict[str, int]
    arguments: tuple[str, ...]
    f: Callable[..., Any]
    written: Moves


def reduced(x: Any) -> Any:
    return sh.all_reduce(x) if jax.typeof(x).axes(sh.State.UNREDUCED) else x


def gathered(axis: str) -> Callable[[Any], Any]:
    return lambda x: sh.all_gather(x, axis) if axis in jax.typeof(x).axes(sh.State.SHARDED) else x


def scattered(axis: str, dim: int) -> Callable[[Any], Any]:
    return lambda x: sh.reduce_scatter(x, axis, dim)


def batch_norm(x: Any, scale: Any, bias: Any, reduced: Any = as_it_is) -> Any:
    mean = reduced(sh.mean(x, 0))
    variance = reduced(sh.mean((x - mean) ** 2, 0))
    return (x - mean) / sh.sqrt(variance + 1e-5) * scale + bias


def layer_norm(x: Any, scale: Any, bias: Any, reduced: Any = as_it_is) -> Any:
    mean = reduced(sh.mean(x, -1, keepdims=True))
    variance = reduced(sh.mean((x - mean) ** 2, -1, keepdims=True))
    return (x - mean) / sh.sqrt(variance + 1e-5) * scale + bias


def centred(x: Any, reduced: Any = as_it_is) -> Any:
    return x - reduced(sh.mean(x, 0))


def rms_norm(x: Any, reduced: Any = as_it_is, m: Any = sh) -> Any:
    return x / m.sqrt(reduced(m.mean(x * x, -1, keepdims=True)) + 1e-5)


def geglu(x: Any, gate: Any, up: Any, down: Any, reduced: Any = as_it_is, whole: Any = as_it_is, m: Any = sh) -> Any:
    x = whole(x)
    return reduced((m.gelu(x @ gate) * (x @ up)) @ down)


def mlps(x: Any, w_in: Any, w_out: Any, *, norm: bool, reduced: Any = as_it_is, whole: Any = as_it_is) -> Any:
    for _ in range(4):
        h = whole(rms_norm(x) if norm else x)
        x = x + reduced(sh.gelu(h @ w_in) @ w_out)
    return x


def plain_mlps(x: Any, w_in: Any, w_out: Any, **moves: Any) -> Any:
    return mlps(x, w_in, w_out, norm=False, **moves)


def normed_mlps(x: Any, w_in: Any, w_out: Any, **moves: Any) -> Any:
    return mlps(x, w_in, w_out, norm=True, **moves)


def attention(
    x: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    reduced: Any = as_it_is,
    whole: Any = as_it_is,
    keys: Any = as_it_is,
    m: Any = sh,
) -> Any:
    h = whole(rms_norm(x, m=m))
    queries, ks, vs = (m.einsum("bsd,dhk->bhsk", h, w) for w in (q, k, v))
    scores = m.softmax(m.einsum("bhsk,bhtk->bhst", queries, keys(ks)) / 4.0, -1)
    heads = m.einsum("bhst,bhtk->bhsk", scores, keys(vs))
    return x + reduced(m.einsum("bhsk,hkd->bsd", heads, o))


def block(x: Any, q: Any, k: Any, v: Any, o: Any, gate: Any, up: Any, down: Any, **moves: Any) -> Any:
    x = attention(x, q, k, v, o, **moves)
    moves.pop("keys", None)
    return x + geglu(rms_norm(x, m=moves.get("m", sh)), gate, up, down, **moves)


DP, TP, BOTH, SP = {"dp": 8}, {"tp": 8}, {"dp": 2, "tp": 4}, {"sp": 8}
_SUM: Moves = {"reduced": reduced}
_SEQUENCE: Moves = {"reduced": scattered("tp", 1), "whole": gathered("tp")}
_WIDE = ("f32[256, 1024@tp]", "f32[1024@tp, 256]")
_HEADS = ("f32[128, 8@tp, 16]",) * 3 + ("f32[8@tp, 16, 128]",)
_OWN_HEADS = ("f32[128, 8, 16]",) * 3 + ("f32[8, 16, 128]",)
_GATED = ("f32[128, 512@tp]",) * 2 + ("f32[512@tp, 128]",)

CASES: dict[str, Case] = {
    "batch norm, dp": Case(DP, ("f32[64@dp, 1024]", "f32[1024]", "f32[1024]"), batch_norm, _SUM),
    "batch norm, dp and tp": Case(BOTH, ("f32[64@dp, 1024@tp]", "f32[1024@tp]", "f32[1024@tp]"), batch_norm, _SUM),
    "a mean taken off, dp": Case(
        DP, ("f32[64@dp, 1024]",), lambda x, reduced=as_it_is: x - reduced(sh.mean(x, 0)), _SUM
    ),
    "layer norm, dp": Case(DP, ("f32[64@dp, 256]", "f32[256]", "f32[256]"), layer_norm, _SUM),
    "layer norm, hidden over tp": Case(TP, ("f32[64, 256@tp]", "f32[256@tp]", "f32[256@tp]"), layer_norm, _SUM),
    "layer norm, dp and tp": Case(BOTH, ("f32[64@dp, 256@tp]", "f32[256@tp]", "f32[256@tp]"), layer_norm, _SUM),
    "layer norm, sequence": Case(TP, ("f32[8, 64@tp, 256]", "f32[256]", "f32[256]"), layer_norm, _SUM),
    "GEGLU, tp": Case(TP, ("f32[64, 256]", _WIDE[0], *_WIDE), geglu, _SUM),
    "GEGLU, dp and tp": Case(BOTH, ("f32[64@dp, 256]", _WIDE[0], *_WIDE), geglu, _SUM),
    "GEGLU, sequence": Case(TP, ("f32[8, 64@tp, 256]", _WIDE[0], *_WIDE), geglu, _SEQUENCE),
    "residual MLPs, tp": Case(TP, ("f32[64, 256]", *_WIDE), plain_mlps, _SUM),
    "residual MLPs, dp and tp": Case(BOTH, ("f32[64@dp, 256]", *_WIDE), plain_mlps, _SUM),
    "residual MLPs, sequence": Case(TP, ("f32[8, 64@tp, 256]", *_WIDE), plain_mlps, _SEQUENCE),
    "residual MLPs with norms, tp": Case(TP, ("f32[64, 256]", *_WIDE), normed_mlps, _SUM),
    "residual MLPs with norms, dp and tp": Case(BOTH, ("f32[64@dp, 256]", *_WIDE), normed_mlps, _SUM),
    "residual MLPs with norms, sequence": Case(TP, ("f32[8, 64@tp, 256]", *_WIDE), normed_mlps, _SEQUENCE),
    "attention, dp": Case(DP, ("f32[8@dp, 64, 128]", *_OWN_HEADS), attention, _SUM),
    "attention, tp": Case(TP, ("f32[8, 64, 128]", *_HEADS), attention, _SUM),
    "attention, dp and tp": Case(BOTH, ("f32[8@dp, 64, 128]", *_HEADS), attention, _SUM),
    "attention, sequence and tp": Case(TP, ("f32[8, 64@tp, 128]", *_HEADS), attention, _SEQUENCE),
    "attention, keys gathered": Case(SP, ("f32[8, 64@sp, 128]", *_OWN_HEADS), attention, {"keys": gathered("sp")}),
    "block, tp": Case(TP, ("f32[8, 64, 128]", *_HEADS, *_GATED), block, _SUM),
    "block, dp and tp": Case(BOTH, ("f32[8@dp, 64, 128]", *_HEADS, *_GATED), block, _SUM),
    "block, sequence and tp": Case(TP, ("f32[8, 64@tp, 128]", *_HEADS, *_GATED), block, _SEQUENCE),
}


def loss_of(f: Callable[..., Any], **moves: Any) -> Callable[..., Any]:
    """A loss that is not linear in what the program makes; a person reduces its result, too."""

    def loss(*args: Any) -> Any:
        return sh.sum(sh.tanh(f(*args, **moves)))

    return loss
