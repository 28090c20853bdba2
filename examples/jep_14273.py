"""The programs of JAX's design of shard_map (JEP 14273), on sharding types.

python -m examples.jep_14273
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
from typing import Annotated as A
from typing import Any

import jax
import numpy as np

import shtypes as sh

# Mesh i=4, j=2.

Left = A[sh.Array, "f32[n, k]{V:(i,j)}"]
Right = A[sh.Array, "f32[k, m]{V:j}"]
Product = A[sh.Array, "f32[n, m]{V:i}"]


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _]")
def matmul_basic(a_block: Left, b_block: Right) -> Product:
    """Partial sums, added on all devices along ``j``."""
    return sh.lax.psum(a_block @ b_block, "j")


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _@j]")
def matmul_reduce_scatter(a_block: Left, b_block: Right) -> Any:
    """Partial sums, of which each device along ``j`` keeps its part."""
    return sh.lax.psum_scatter(a_block @ b_block, "j", scatter_dimension=1, tiled=True)


@sh.shard_map(in_specs=("[_@i, _@j]", "[_@j, _]"), out_specs="[_@i, _]{U:j}")
def matmul_pending(a_block: Left, b_block: Right) -> Any:
    """What the design could not say: the sum is left pending, and its type tells."""
    return a_block @ b_block


# Mesh i=8.


@sh.shard_map(in_specs=("[_@i, _]", "[_, _]"), out_specs="[_@i, ...]")
def collective_matmul(lhs: Any, rhs: Any) -> Any:
    """The left side goes round the ring, so that sending and multiplying overlap; every device gets all of the product.

    The rows arrive in another order on each device, so no type can tell that the products are equal: they leave
    concatenated.
    """
    size, index = sh.lax.axis_size("i"), sh.lax.axis_index("i")
    rows = lhs.shape[0]
    accumulated = sh.lax.pvary(sh.zeros((rows * size, rhs.shape[1]), lhs.dtype), "i")

    def step(i: Any, carry: Any) -> Any:
        accumulated, lhs = carry
        update = lhs @ rhs
        lhs = sh.lax.ppermute(lhs, "i", [(j, (j - 1) % size) for j in range(size)])
        start = ((index + i) % size) * rows
        return sh.dynamic_update_slice_in_dim(accumulated, update, start, 0), lhs

    accumulated, _ = sh.fori_loop(0, size, step, (accumulated, lhs))
    return accumulated


# Mesh i=4, j=2: what specs say. f1 names fewer axes than f2, whose caller repeats the argument instead.

f1 = sh.shard_map(lambda x_block: x_block, in_specs="[_@i, _]", out_specs="[_@i, _@j]")
f2 = sh.shard_map(lambda x_block: x_block, in_specs="[_@i, _@j]", out_specs="[_@i, _@j]")
f3 = sh.shard_map(lambda x_block: sh.lax.psum(x_block, "j"), in_specs="[_@i, _@j]", out_specs="[_@i, _]")
f4 = sh.shard_map(lambda x_block: sh.lax.psum(x_block, "i"), in_specs="[_@i, _@j]", out_specs="[_, _@j]")
f5 = sh.shard_map(lambda x_block: sh.lax.psum(x_block, ("i", "j")), in_specs="[_@i, _@j]", out_specs="[_, _]")

#: The specs of z: each axis that one names repeats what the function closes over.
Z_SPECS = ("[_@i, _@j]", "[_@i, _]", "[_, _]")


def z(x: Any, spec: str) -> Any:
    """A function of nothing that closes over a value."""
    return sh.shard_map(lambda: x, in_specs=(), out_specs=spec)()


# Mesh X=2, Y=2, Z=2: a transformer layer in the 2D weight-gathered layout, with multi-query attention and an MLP beside
# it. The design jumps into manual mode for its first product, to scatter the sum while it multiplies: here one word.

LAYER = {
    "x": "f32[batch@Z, time, embed@(X,Y)]",
    "q_wi": "f32[heads@(Y,Z), embed@X, 6]",  # for each head: queries, and the two halves of the MLP's inner dim
    "kv": "f32[embed@X, 4]",  # one key and one value for all heads
    "o_wo": "f32[heads@(Y,Z), 4, embed@X]",  # for each head: the attention's output, and the MLP's
}
QKV, FF = 2, 2


Stream = A[sh.Array, "f32[batch@Z, time, embed@(X,Y)]"]


def rms_norm(x: Stream) -> Stream:
    """The mean is over a sharded dim: a pending sum, which is added."""
    return x * sh.rsqrt(sh.all_reduce(sh.mean(x * x, -1, keepdims=True), "X", "Y") + 1e-6)


def rope(x: Any, sin: Any, cos: Any) -> Any:
    """Rotary positions, along the last dim."""
    one, two = x[..., : QKV // 2], x[..., QKV // 2 :]
    return sh.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of many query heads on one head of keys and values."""
    scores = sh.einsum("bthd,bsd->bhts", q, k) / QKV**0.5
    time = q.shape[1]
    causal = sh.tril(sh.ones((time, time)))
    weights = sh.softmax(sh.where(causal > 0, scores, -1e9), axis=-1)
    return sh.einsum("bhts,bsd->bthd", weights, v)


def transformer_layer(params: Any, x: Stream, sin: Any, cos: Any, *, overlap: Any = True) -> Any:
    """The layer's output, and its keys and values; attention and MLP run side by side."""
    xnorm = sh.reshard(rms_norm(x), "[batch, time, embed@X]")
    # [batch, time, embed@X] @ [heads@(Y,Z), embed@X, ...]: pending over X, and scattered into heads.
    q_wi = sh.einsum("bte,hed->bthd", xnorm, params["q_wi"], out="[_, _, _@(Y,Z,X), _]", overlap=overlap)
    q = rope(q_wi[..., :QKV], sin[:, None], cos[:, None])
    wi0, wi1 = q_wi[..., QKV : QKV + FF], q_wi[..., QKV + FF :]
    kv = sh.einsum("bte,ed->btd", xnorm, params["kv"], out="[_, _, _]")
    k, v = rope(kv[..., :QKV], sin, cos), kv[..., QKV:]
    fused = sh.concatenate([attend(q, k, v), sh.silu(wi0) * wi1], -1)
    # The other half: heads are gathered over X, the sum is pending over Y and Z, and scattered to the residual stream.
    whole = sh.all_gather(fused, "X")
    out = sh.einsum("bthd,hde->bte", whole, params["o_wo"], out="[_@Z, _, _@(X,Y)]", overlap=overlap)
    return out + x, k, v


def main() -> None:
    """Prints each product's type, what it sends and whether numpy agrees; and what the layer sends, as rings or not."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 4)))
    sh.set_mesh(sh.make_mesh({"i": 4, "j": 2}))
    for f in (matmul_basic, matmul_reduce_scatter, matmul_pending):
        shown(f, sh.array(a, "f32[8@i, 16@j]"), sh.array(b, "f32[16@j, 4]"), wanted=a @ b)
    sh.set_mesh(sh.make_mesh({"i": 8}))
    shown(collective_matmul, sh.array(a, "f32[8@i, 16]"), sh.array(b, "f32[16, 4]"), wanted=np.tile(a @ b, (8, 1)))
    sh.set_mesh(sh.make_mesh({"X": 2, "Y": 2, "Z": 2}))
    with sh.dims(batch=2, time=4, embed=8, heads=8):
        params = {name: sh.abstract_array(text) for name, text in LAYER.items()}
    x, angles = params.pop("x"), sh.abstract_array("f32[4, 1]")
    for overlap in (False, True):
        run = functools.partial(transformer_layer, overlap=overlap)
        y, *_ = jax.eval_shape(run, params, x, angles, angles)
        print(f"transformer_layer, overlap={overlap}: {y}")
        for kind, total in sh.ledger(run, params, x, angles, angles).by_kind().items():
            print(f"  {kind}: {total.launches} times, {total.bytes} B/device")


def shown(f: Any, *operands: Any, wanted: Any) -> None:
    """Prints what a product is, and sends."""
    y = f(*operands)
    each = (f"{e}, {e.bytes} B/device{f', {e.times} times' if e.times != 1 else ''}" for e in sh.ledger(f, *operands))
    sent = "; ".join(each) or "nothing"
    close = np.allclose(np.asarray(sh.reshard(y, "[...]")), wanted, rtol=1e-3, atol=1e-3)
    print(f"{f.__name__}: {y.type}\n  sends {sent}\n  as numpy: {close}")


if __name__ == "__main__":
    main()
