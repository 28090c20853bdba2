"""Programs whose memory is planned and compared with the compiler's: layouts, checkpoints, scans, both policies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

import shtypes as sh
from examples.transformer import model
from examples.transformer.layouts import layout

HIDDEN, INNER, LAYERS = 256, 1024, 4
VOCAB, HEADS, HEAD = 1024, 8, 32


class Case(NamedTuple):
    """A jitted function with the types of its arguments, on a mesh."""

    name: str
    function: Any
    types: tuple[Any, ...]
    mesh: dict[str, int]
    policy: str = "partial"
    barriers: bool = True  # whether the compiler keeps those of checkpoints outside loops


def block(x: Any, w: Any) -> Any:
    """A gated MLP beside a residual stream; the sum over ``tp`` is finished."""
    h = sh.nn.swiglu(x @ w["gate"], x @ w["up"])
    return x + sh.reshard(h @ w["down"], "[batch@dp, hidden]")


def gathered(x: Any, w: Any) -> Any:
    """The same with weights that lie sharded over ``dp`` and are gathered where they are used."""
    return block(x, {name: sh.all_gather(v, "dp", to="R") for name, v in w.items()})


def scanned(layer: Callable[..., Any], x: Any, weights: Any) -> Any:
    """All blocks, in a scan."""
    return sh.scan(lambda h, w: (layer(h, w), None), x, weights)[0]


def unrolled(layer: Callable[..., Any], x: Any, weights: Any) -> Any:
    """Blocks one after the other."""
    for w in weights:
        x = layer(x, w)
    return x


def embedded(table: Any, tokens: Any) -> Any:
    """A step for the rows of a table that tokens choose."""
    gradient = sh.grad(lambda table: sh.sum(sh.square(sh.nn.embedding(table, tokens))))(table)
    return table - 1e-3 * gradient


in_turn = functools.partial(unrolled, block)


def sgd(model: Callable[..., Any], weights: Any, x: Any) -> Any:
    """A step of gradient descent on the sum of squares."""
    gradients = sh.grad(lambda w: sh.sum(sh.square(model(x, w))))(weights)
    return jax.tree.map(lambda w, g: w - 1e-3 * sh.reshard(g, w.type), weights, gradients)


def adam(model: Callable[..., Any], weights: Any, mean: Any, var: Any, x: Any) -> Any:
    """A step of Adam, without the corrections for its start."""
    gradients = sh.grad(lambda w: sh.sum(sh.square(model(x, w))))(weights)
    gradients = jax.tree.map(lambda w, g: sh.reshard(g, w.type), weights, gradients)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
    var = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, var, gradients)
    weights = jax.tree.map(lambda w, m, v: w - 1e-3 * m * sh.rsqrt(v + 1e-8), weights, mean, var)
    return weights, mean, var


def weights_of(rows: str = "", columns: str = "", layers: int = 0) -> dict[str, str]:
    """The types of the block's weights: how the hidden and the inner dims lie, and how many are stacked."""
    first = f"layer={layers}, " if layers else ""
    wide = f"f32[{first}hidden={HIDDEN}{rows}, inner={INNER}{columns}]"
    return {"gate": wide, "up": wide, "down": f"f32[{first}inner={INNER}{columns}, hidden={HIDDEN}{rows}]"}


def with_casts(weights: Any, x: Any) -> Any:
    """A step of the block under the policy of JAX: weights are cast where they meet what is split over ``dp``."""

    def loss(w: Any) -> Any:
        cast = {name: sh.reshard(v, dp="R") for name, v in w.items()}
        rx = sh.reshard(x, tp="R")
        h = sh.silu(rx @ cast["gate"]) * (rx @ cast["up"])
        y = x + sh.reshard(h @ cast["down"], tp="I")
        return sh.reshard(sh.sum(sh.square(y)), "[]")

    gradients = sh.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)


SIZES = model.Sizes(
    vocab=VOCAB, layers=LAYERS, hidden=HIDDEN, heads=HEADS, key_heads=HEADS, head=HEAD, inner=INNER, dtype="f32"
)


def transformer(f: Callable[..., Any], name: str, remat: Literal["none", "everything"] = "everything") -> Any:
    """A function of the language model in a layout."""

    def run(*args: Any) -> Any:
        with sh.dim_axes(layout(name).dims):
            return f(*args, dataclasses.replace(SIZES, remat=remat))

    return run


def logits(weights: Any, tokens: Any, sizes: model.Sizes) -> Any:
    """The scores of all tokens, of a model that is not trained."""
    return model.scores(weights, model.layers(model.embed(weights, tokens), weights["layers"], sizes)[0], sizes)


def of_transformer(seq: int, devices: int = 2, batch: int = 16, heads: int = HEADS) -> tuple[Any, ...]:
    """The types of the model's weights, and those of its tokens and targets, on so many devices each way."""
    with sh.use_mesh(sh.abstract_mesh({"dp": devices, "tp": devices})), sh.dim_axes(layout("dp_tp").dims):
        tokens = sh.ShType.parse(f"i32[batch={batch}, seq={seq}]")
        return model.types(dataclasses.replace(SIZES, heads=heads, key_heads=heads)), tokens, tokens


def descend(loss: Callable[..., Any], weights: Any, *batch: Any) -> Any:
    """A step of gradient descent on a loss."""
    gradients = sh.grad(loss)(weights, *batch)
    return jax.tree.map(lambda w, g: w - 1e-3 * sh.reshard(g, w.type), weights, gradients)


def cases(rows: int = 1024, seq: int = 128) -> list[Case]:
    """A dozen programs for eight devices or fewer: of so many rows, and with sequences of that length."""
    x = f"f32[batch={rows}@dp, hidden={HIDDEN}]"
    replicated = (weights_of(), weights_of())
    split = (weights_of(columns="@tp"),) * 2
    stacked = weights_of("@dp", layers=LAYERS)
    remat = functools.partial(sh.checkpoint, prevent_cse=False)
    keeping_dots = remat(gathered, policy=sh.checkpoint_policies.dots_saveable)
    two, four = {"dp": 4, "tp": 2}, {"dp": 2, "tp": 2}
    tensor, sequence = transformer(model.loss, "dp_tp"), transformer(model.loss, "dp_tp_sp")
    kept = transformer(model.loss, "dp_tp", "none")
    partial = functools.partial
    return [
        Case("mlp, data parallel", sh.jit(partial(sgd, in_turn)), (replicated, x), {"dp": 8}),
        Case("mlp, tensor parallel", sh.jit(partial(sgd, in_turn)), (split, x), two),
        Case(
            "mlp, FSDP, scan",
            sh.jit(partial(sgd, partial(scanned, gathered))),
            (stacked, x),
            {"dp": 8},
        ),
        Case(
            "mlp, FSDP, scan, remat", sh.jit(partial(sgd, partial(scanned, remat(gathered)))), (stacked, x), {"dp": 8}
        ),
        Case("mlp, FSDP, scan, dots", sh.jit(partial(sgd, partial(scanned, keeping_dots))), (stacked, x), {"dp": 8}),
        Case(
            "mlp, FSDP, Adam, donated",
            sh.jit(partial(adam, partial(scanned, remat(gathered))), donate_argnums=(0, 1, 2)),
            (stacked, stacked, stacked, x),
            {"dp": 8},
        ),
        Case(
            "mlp, unrolled, remat",
            sh.jit(partial(sgd, partial(unrolled, sh.checkpoint(block)))),
            ((weights_of(columns="@tp"),) * 6, x),
            two,
            barriers=jax.__version_info__ >= (0, 12),
        ),
        Case("embedding", sh.jit(embedded), ("f32[4096, 256]", f"i32[{rows // 16}, 128]"), {"dp": 8}),
        Case("mlp, inference", sh.jit(lambda w, x: in_turn(x, w)), (split, x), two),
        Case("transformer, tensor parallel", sh.jit(partial(descend, tensor)), of_transformer(seq), four),
        Case("transformer, sequence parallel", sh.jit(partial(descend, sequence)), of_transformer(seq), four),
        Case("transformer, all kept", sh.jit(partial(descend, kept)), of_transformer(seq), four),
        Case("mlp, policy of JAX", sh.jit(with_casts), (weights_of(columns="@tp"), x), two, "jax"),
        Case("transformer, inference", sh.jit(transformer(logits, "dp_tp")), of_transformer(seq)[:2], four),
    ]
