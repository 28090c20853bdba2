"""The programs of JAX's shard_map tutorial, on sharding types: what one device does, checked before it runs.

Each function is written for the mesh that its comment names. Outside, types are global; inside, the mapped axes vary
and every collective is written.

    python -m examples.shard_map_tutorial
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
from typing import Annotated as A
from typing import Any

import numpy as np

import shtypes as sh

# Mesh x=4, y=2: the first program.


@sh.shard_map(in_specs=("[_@x, _@y]", "[_@y, _]"), out_specs="[_@x, _]")
def matmul_basic(
    a_block: A[sh.Array, "f32[n, k]{V:(x,y)}"], b_block: A[sh.Array, "f32[k, m]{V:y}"]
) -> A[sh.Array, "f32[n, m]{V:x}"]:
    """Blocks are multiplied, and the partial sums added."""
    c_partialsum = a_block @ b_block  # f32[2,4]{V:(x,y)}
    return sh.lax.psum(c_partialsum, "y")  # f32[2,4]{V:x}


# Mesh i=4, j=2: what specs say.

map_of_blocks = sh.shard_map(lambda x: x.T @ x, in_specs="[_@i, _]", out_specs="[_@i, _]")
tiled_over_j = sh.shard_map(lambda x: x, in_specs="[_@i, _]", out_specs="[_@i, _@j]")
sum_over_j = sh.shard_map(lambda x: sh.lax.psum(x, "j"), in_specs="[_@i, _@j]", out_specs="[_@i, _]")
sum_over_i = sh.shard_map(lambda x: sh.lax.psum(x, "i"), in_specs="[_@i, _@j]", out_specs="[_, _@j]")
sum_over_both = sh.shard_map(lambda x: sh.lax.psum(x, ("i", "j")), in_specs="[_@i, _@j]", out_specs="[_, _]")


def tile(x: Any, spec: str) -> Any:
    """A function of nothing that closes over a value; each axis that the spec names repeats it."""
    return sh.shard_map(lambda: x, in_specs=(), out_specs=spec)()


# Mesh i=4: one collective each.

gathered = sh.shard_map(lambda x: sh.lax.all_gather(x, "i", tiled=True), in_specs="[_@i]", out_specs="[_@i]")
stacked = sh.shard_map(lambda x: sh.lax.all_gather(x, "i"), in_specs="[_@i]", out_specs="[_@i, _]")
scattered = sh.shard_map(lambda x: sh.lax.psum_scatter(x, "i", tiled=True), in_specs="[_@i]", out_specs="[_@i]")
exchanged = sh.shard_map(lambda x: sh.lax.all_to_all(x, "i", 0, 0, tiled=True), in_specs="[_@i]", out_specs="[_@i]")


def shift(x: Any, axis: str, by: int) -> Any:
    """Values sent round the ring."""
    size = sh.lax.axis_size(axis)
    return sh.lax.ppermute(x, axis, [(i, (i + by) % size) for i in range(size)])


permuted = sh.shard_map(lambda x: shift(x, "i", 1), in_specs="[_@i]", out_specs="[_@i]")


@sh.shard_map(in_specs="[_@i]", out_specs="[_@i]")
def scattered_by_hand(x: Any) -> Any:
    """A reduce-scatter as a ring of permutations and additions."""
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    x = x.reshape(size, -1)
    for i in range(1, size):
        update = shift(x[(index + i) % size], "i", -1)
        x = x.at[(index + i + 1) % size].add(update)
    return x[index]


# Mesh i=4: matrix products that gather one side.

ROWS = ("[_@i, _]", "[_@i, _]")


@sh.shard_map(in_specs=ROWS, out_specs="[_@i, _]")
def matmul_allgather(lhs_block: Any, rhs_block: Any) -> Any:
    """All of the right side, then one product."""
    return lhs_block @ sh.lax.all_gather(rhs_block, "i", tiled=True)


@sh.shard_map(in_specs=ROWS, out_specs="[_@i, _]")
def matmul_allgather_overlapped(lhs_block: Any, rhs_block: Any) -> Any:
    """The right side goes round the ring, and meets its columns of the left side."""
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    width = lhs_block.shape[1] // size

    def columns(i: Any) -> Any:
        return sh.dynamic_slice_in_dim(lhs_block, i * width, width, 1)

    out_block = columns(index) @ rhs_block
    for i in range(1, size):
        rhs_block = shift(rhs_block, "i", 1)
        out_block += columns((index - i) % size) @ rhs_block
    return out_block


@sh.shard_map(in_specs=ROWS, out_specs="[_@i, _]")
def matmul_allgather_overlapped_bidi(lhs_block: Any, rhs_block: Any) -> Any:
    """Half of the right side goes round in each direction."""
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    width = lhs_block.shape[1] // size // 2

    def columns(i: Any, high: int) -> Any:
        return sh.dynamic_slice_in_dim(lhs_block, (2 * i + high) * width, width, 1)

    low, high = sh.split(rhs_block, 2, axis=0)
    out_block = columns(index, 0) @ low + columns(index, 1) @ high
    for i in range(1, size):
        low, high = shift(low, "i", 1), shift(high, "i", -1)
        out_block += columns((index - i) % size, 0) @ low
        out_block += columns((index + i) % size, 1) @ high
    return out_block


# Mesh i=4: matrix products that scatter the result.

CONTRACTED = ("[_, _@i]", "[_@i, _]")


@sh.shard_map(in_specs=CONTRACTED, out_specs="[_@i, _]")
def matmul_psumscatter(lhs_block: A[sh.Array, "f32[n, k]{V:i}"], rhs_block: A[sh.Array, "f32[k, m]{V:i}"]) -> Any:
    """One product, then a reduce-scatter."""
    return sh.lax.psum_scatter(lhs_block @ rhs_block, "i", tiled=True)


@sh.shard_map(in_specs=CONTRACTED, out_specs="[_@i, _]")
def matmul_psumscatter_overlapped(lhs_block: Any, rhs_block: Any) -> Any:
    """The sum goes round the ring, and each device adds its term."""
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    lhs_block = lhs_block.reshape(size, -1, lhs_block.shape[1])
    out_summand = lhs_block[(index + 1) % size] @ rhs_block
    for i in range(1, size):
        out_summand = shift(out_summand, "i", -1)
        out_summand += lhs_block[(index + i + 1) % size] @ rhs_block
    return out_summand


@sh.shard_map(in_specs=CONTRACTED, out_specs="[_@i, _]")
def matmul_psumscatter_overlapped_bidi(lhs_block: Any, rhs_block: Any) -> Any:
    """Half of the sum goes round in each direction."""
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    height = lhs_block.shape[0] // size // 2

    def rows(i: Any, high: int) -> Any:
        return sh.dynamic_slice_in_dim(lhs_block, (2 * i + high) * height, height, 0)

    low = rows((index - 1) % size, 0) @ rhs_block
    high = rows((index + 1) % size, 1) @ rhs_block
    for i in range(1, size):
        low, high = shift(low, "i", 1), shift(high, "i", -1)
        low += rows((index - i - 1) % size, 0) @ rhs_block
        high += rows((index + i + 1) % size, 1) @ rhs_block
    return sh.concatenate([low, high])


# Neural networks.

Params = list[tuple[Any, Any]]


def predict(params: Params, inputs: Any) -> Any:
    """A multilayer perceptron: it does not know how it is parallel."""
    outputs = inputs
    for weights, bias in params:
        outputs = inputs @ weights + bias
        inputs = sh.relu(outputs)
    return outputs


def square_error(predictions: Any, targets: Any) -> Any:
    """The mean over the batch of the squared error."""
    return sh.mean(sh.sum((predictions - targets) ** 2, -1))


def loss_dp(params: Params, batch: Any) -> Any:
    """Mesh batch=8: data parallel. The weights are closed over, and stay replicated inside."""

    @sh.shard_map(in_specs="[_@batch, _]", out_specs="[]")
    def loss_spmd(inputs: Any, targets: Any) -> Any:
        return sh.lax.pmean(square_error(predict(params, inputs), targets), "batch")

    return loss_spmd(*batch)


@functools.partial(sh.checkpoint, policy=lambda prim, *_, **__: not str(prim).startswith("all_gather"))
def predict_fsdp(params_frag: Params, inputs: Any) -> Any:
    """Weights are gathered just before their use, and again in the backward pass."""
    outputs = inputs
    for weights_frag, bias_frag in params_frag:
        weights = sh.lax.all_gather(weights_frag, "batch", tiled=True)
        bias = sh.lax.all_gather(bias_frag, "batch", tiled=True)
        outputs = inputs @ weights + bias
        inputs = sh.relu(outputs)
    return outputs


@sh.shard_map(in_specs="[_@batch, ...]", out_specs="[]")
def loss_fsdp(params: Params, batch: Any) -> Any:
    """Mesh batch=8: fully sharded data parallel."""
    inputs, targets = batch
    return sh.lax.pmean(square_error(predict_fsdp(params, inputs), targets), "batch")


@sh.shard_map(in_specs=("[_, _@feats]", "[_@feats, _]", "[_@feats]"), out_specs="[_, _@feats]")
def gemm_tp(inputs: Any, weights: Any, bias: Any) -> Any:
    """One layer, tensor parallel over the features."""
    return sh.lax.psum_scatter(inputs @ weights, "feats", scatter_dimension=1, tiled=True) + bias


def loss_tp(params: Params, batch: Any) -> Any:
    """Mesh feats=8: tensor parallel; only the layer is in local mode. The sum over the features stays pending."""
    inputs, targets = batch
    outputs = inputs
    for weights, bias in params:
        outputs = gemm_tp(inputs, weights, bias)
        inputs = sh.relu(outputs)
    return square_error(outputs, targets)


@functools.partial(sh.checkpoint, policy=lambda prim, *_, **__: not str(prim).startswith("all_gather"))
def predict_fsdp_tp(params_frag: Params, inputs: Any) -> Any:
    """Weights are gathered over the batch axis, and products scattered over the features."""
    outputs = inputs
    for weights_frag, bias_frag in params_frag:
        weights = sh.lax.all_gather(weights_frag, "batch", tiled=True)
        bias = sh.lax.all_gather(bias_frag, "batch", tiled=True)
        outputs = sh.lax.psum_scatter(inputs @ weights, "feats", scatter_dimension=1, tiled=True) + bias
        inputs = sh.relu(outputs)
    return outputs


@sh.shard_map(in_specs=("[_@(feats,batch), ...]", "[_@batch, _@feats]"), out_specs="[]")
def loss_fsdp_tp(params: Params, batch: Any) -> Any:
    """Mesh batch=4, feats=2: both, in local mode from top to bottom."""
    inputs, targets = batch
    predictions = predict_fsdp_tp(params, inputs)
    squared = sh.lax.psum(sh.sum((predictions - targets) ** 2, -1), "feats")
    return sh.lax.pmean(sh.mean(squared), "batch")


# Mesh stages=2: a pipeline. Device s has the inner layers of stage s, and a part of the batch.

MICROBATCH = 8


@sh.shard_map(in_specs=(("[...]", "[_@stages, ...]", "[...]"), "[_@stages, _]"), out_specs="[]")
def loss_pp(params: Any, batch: Any) -> Any:
    """The first and the last layer run everywhere; the inner ones in stages."""
    (first, first_bias), inner, (last, last_bias) = params
    inputs, targets = batch
    inputs = sh.relu(inputs.reshape(-1, MICROBATCH, inputs.shape[-1]) @ first + first_bias)
    inner_outputs = spmd_pipeline(lambda wb, x: sh.relu(x @ wb[0] + wb[1]), inner, inputs)
    predictions = (inner_outputs @ last + last_bias).reshape(targets.shape[0], -1)
    return sh.lax.pmean(square_error(predictions, targets), "stages")


def spmd_pipeline(layer: Any, stage_params: Any, inputs: Any) -> Any:
    """Microbatches through layers that run at the same time, each on the result of the one before."""
    stages, stage = sh.lax.axis_size("stages"), sh.lax.axis_index("stages")
    of_stage = stage_params[0].shape[0]
    layers, parts = stages * of_stage, inputs.shape[0]
    outputs = sh.zeros_like(inputs)
    state = sh.zeros_like(sh.stack([inputs[0]] * of_stage))
    for i in range(stages * parts + layers - 1):
        state = state.at[0].set(sh.where(stage == 0, inputs[i % parts], state[0]))
        state = sh.vmap(layer)(stage_params, state)
        done = (i - layers + 1) % parts
        outputs = outputs.at[done].set(sh.where(stage == stages - 1, state[-1], outputs[done]))
        received = shift(state[-1], "stages", 1)
        state = sh.concatenate([received[None], state[:-1]])
        if i % parts == parts - 1:
            inputs = shift(inputs, "stages", 1)
        if done == parts - 1:
            outputs = shift(outputs, "stages", 1)
    return shift(outputs, "stages", 1)


NETWORKS = (
    # loss, mesh, types of the weights and of the biases (of rows and columns), of the inputs and of the targets
    (loss_dp, {"batch": 8}, "f32[{},{}]", "f32[{}]", "f32[16@batch,16]", "f32[16@batch,8]"),
    (loss_fsdp, {"batch": 8}, "f32[{}@batch,{}]", "f32[{}@batch]", "f32[16@batch,16]", "f32[16@batch,8]"),
    (loss_tp, {"feats": 8}, "f32[{}@feats,{}]", "f32[{}@feats]", "f32[16,16@feats]", "f32[16,8@feats]"),
    (loss_fsdp_tp, {"batch": 4, "feats": 2}, "f32[{}@(feats,batch),{}]", "f32[{}@(feats,batch)]",
     "f32[16@batch,16@feats]", "f32[16@batch,8@feats]"),
)  # fmt: skip
SIZES = ((16, 16), (16, 16), (16, 8))


def main() -> None:
    """Prints what each product sends and whether numpy agrees, and for each network its loss and what a step sends."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (8, 4)))
    sh.set_mesh(sh.make_mesh({"i": 4}))
    gathering = (matmul_allgather, matmul_allgather_overlapped, matmul_allgather_overlapped_bidi)
    scattering = (matmul_psumscatter, matmul_psumscatter_overlapped, matmul_psumscatter_overlapped_bidi)
    for f, lhs in [*((f, "[_@i, _]") for f in gathering), *((f, "[_, _@i]") for f in scattering)]:
        x, y = sh.array(a, lhs), sh.array(b, "[_@i, _]")
        product = f(x, y)
        close = np.allclose(np.asarray(product), a @ b, rtol=1e-3, atol=1e-3)
        print(f"{f.__name__}: {product.type}, sends {_sent(sh.ledger(f, x, y))}; as numpy: {close}")
    arrays = [[rng.standard_normal(n).astype(np.float32) / 4 for n in (size, size[1])] for size in SIZES]
    batch = rng.standard_normal((16, 16)).astype(np.float32), rng.standard_normal((16, 8)).astype(np.float32)
    print(f"on one device: loss {_on_one_device(arrays, *batch):.3f}")
    for loss, mesh, weight, bias, *data in NETWORKS:
        sh.set_mesh(sh.make_mesh(mesh))

        def arguments(weight: str = weight, bias: str = bias, data: Any = data) -> Any:
            params = [(sh.array(w, weight.format(*w.shape)), sh.array(v, bias.format(*v.shape))) for w, v in arrays]
            return params, tuple(sh.array(x, t) for x, t in zip(batch, data, strict=True))

        value = sh.reshard(sh.jit(loss)(*arguments()), "[]")
        print(f"{loss.__name__} on {sh.typeof(value).mesh}: loss {float(value):.3f}")
        for policy in ("partial", "jax"):
            with sh.policy(policy):
                print(f'  a step under "{policy}" sends {_sent(sh.ledger(sh.value_and_grad(loss), *arguments()))}')


def _sent(ledger: Any) -> str:
    kinds = ledger.by_kind().items()
    return ", ".join(f"{kind} {total.launches}x ({total.bytes} B/device)" for kind, total in kinds) or "nothing"


def _on_one_device(params: Any, inputs: Any, targets: Any) -> float:
    outputs = inputs
    for weights, bias in params:
        outputs = inputs @ weights + bias
        inputs = np.maximum(outputs, 0)
    return float(((outputs - targets) ** 2).sum(-1).mean())


if __name__ == "__main__":
    main()
