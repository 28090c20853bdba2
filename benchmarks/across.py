"""Ops along sharded dims: by what neighbours need, by a gather, and as XLA partitions the same: bytes and memory.

    python benchmarks/across.py                   # all cases, some minutes
    python benchmarks/across.py --only conv

Each case is a function of plain JAX on eight CPU devices. *way* is the lifted function where communication is allowed;
*gather* makes its operands complete first, and shards the results afterwards; *XLA* is `jax.jit` in auto mode with the
same shardings of operands and results; *wrong* where that is not what one device computes. Bytes are what each device
sends by the compiled programs, in the ring model; memory is XLA's count of temporaries, beside the size of the shards
of the operands.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shtypes as sh
from benchmarks.measure import hlo
from shtypes.types.tables import aligned

LINE: Final = {"x": 8}
PLANE: Final = {"x": 4, "y": 2}
IMAGES: Final = ("NHWC", "HWIO", "NHWC")
WIDE: Final = ("NWC", "WIO", "NWC")
TOLERANCE: Final = 1e-4
#: The cases in which a gather sends least: they need all of their operands, as the rules of JAX for a gradient may.
GATHERED: Final = frozenset({"cholesky: gradient", "partition"})


class Case(NamedTuple):
    """A function, the types of its operands, and the mesh axes whose dims are gathered; dtypes are f32 without one."""

    name: str
    f: Callable[..., Any]
    types: Sequence[str]
    mesh: dict[str, int] = LINE
    axes: Sequence[str] = ("x",)


class Compiled(NamedTuple):
    """What each device sends and holds meanwhile, and the results."""

    sent: int
    held: int
    results: list[np.ndarray[Any, Any]]


class Measured(NamedTuple):
    """A case, the bytes of the shards of its operands, its three programs, and whether XLA's is right."""

    name: str
    shard: int
    way: Compiled
    gather: Compiled
    xla: Compiled
    is_right: bool


def conv(x: Any, k: Any, **options: Any) -> Any:
    """A convolution, channels last."""
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME"} | options
    return lax.conv_general_dilated(x, k, dimension_numbers=IMAGES if x.ndim == 4 else WIDE, **options)


def conv_of_pad(x: Any, k: Any) -> Any:
    """The same as `conv` does."""
    return conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), k, padding="VALID")


def conv_of_reflection(x: Any, k: Any) -> Any:
    """A convolution of an image that is reflected at its ends."""
    return conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect"), k, padding="VALID")


def loss_of_valid_conv(x: Any, k: Any) -> Any:
    return jnp.mean(jnp.tanh(conv(x, k, padding="VALID")) ** 2)


def structural_similarity(x: Any, y: Any) -> Any:
    """Of two images, by their means and variances in windows of seven by seven."""

    def mean(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 7, 7, 1), (1, 1, 1, 1), "VALID") / 49

    a, b = mean(x), mean(y)
    varies, alike = mean(x * x) + mean(y * y) - a**2 - b**2, mean(x * y) - a * b
    return jnp.mean((2 * a * b + 0.01) * (2 * alike + 0.03) / ((a**2 + b**2 + 0.01) * (varies + 0.03)))


def edges(x: Any) -> Any:
    """The mean strength of the edges of an image, by Sobel's kernels."""
    k = jnp.array([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
    across, along = (jax.scipy.signal.convolve2d(x, each, mode="valid") for each in (k, k.T))
    return jnp.mean(jnp.sqrt(across**2 + along**2 + 1e-3))


def conv_of_edges(x: Any, k: Any) -> Any:
    """A convolution of an image whose ends are repeated."""
    return conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge"), k, padding="VALID")


def conv_and_state(x: Any, state: Any, k: Any) -> Any:
    """A causal convolution of a sequence and what was before it."""
    return conv(jnp.concatenate([state, x], 1), k, padding="VALID", feature_group_count=16)


def conv_and_crop(x: Any, k: Any) -> Any:
    """A causal convolution, padded at both ends."""
    return conv(x, k, padding=[(3, 3)], feature_group_count=16)[:, :-3]


def pool(x: Any, kind: str, size: int = 3, stride: int = 1) -> Any:
    """A pool of the two dims of images."""
    init, operator = {"max": (-np.inf, lax.max), "min": (np.inf, lax.min), "add": (0.0, lax.add)}[kind]
    return lax.reduce_window(x, init, operator, (1, size, size, 1), (1, stride, stride, 1), "SAME")


def to_neighbours(x: Any) -> Any:
    """Attention to the block of each position and those beside it."""
    (b, n, d), size = x.shape, 64
    blocks = jnp.pad(x, ((0, 0), (size, size), (0, 0))).reshape(b, -1, size, d)
    near = jnp.concatenate([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], 2)
    weights = jax.nn.softmax(jnp.einsum("bnqd,bnkd->bnqk", x.reshape(b, -1, size, d), near) / 4, -1)
    return jnp.einsum("bnqk,bnkd->bnqd", weights, near).reshape(b, n, d)


def scan_of_matrices(x: Any) -> Any:
    """Running products of matrices."""
    return lax.associative_scan(jnp.matmul, jnp.eye(x.shape[-1]) + x / 64)


def mean_pool(x: Any) -> Any:
    """Means of 3 x 3 elements, zeros beyond the ends among them."""
    return pool(x, "add") / 9


def weighted(x: Any, w: Any) -> Any:
    """A quantile of numbers with weights."""
    return jnp.quantile(x, 0.3, weights=w * w, method="inverted_cdf")  # type: ignore[call-arg]


def gradient(f: Callable[..., Any], *places: int) -> Callable[..., Any]:
    """The gradients of the sum of the sines of what a function returns."""
    return jax.grad(lambda *args: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*args))), places or (0,))


def real(f: Callable[..., Any]) -> Callable[..., Any]:
    """The parts of a spectrum."""

    def parts(x: Any) -> Any:
        y = f(x)
        return y.real, y.imag

    return parts


def definite(x: Any) -> Any:
    """A matrix that is positive definite, and so is its lower triangle invertible."""
    return x / 8 + 16 * jnp.eye(x.shape[-1])


def cross_entropy(logits: Any, tokens: Any) -> Any:
    """The mean loss of the next token."""
    scores = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], -1))


def projected(w: Any, x: Any, tokens: Any) -> Any:
    """The same of a projection."""
    return cross_entropy(x @ w, tokens)


def total_variation(x: Any) -> Any:
    """The mean steps along both dims."""
    return jnp.mean(jnp.abs(jnp.diff(x, axis=0))) + jnp.mean(jnp.abs(jnp.diff(x, axis=1)))


def laplacian(x: Any) -> Any:
    """By slices."""
    return jnp.pad(x[1:-1, 2:] + x[1:-1, :-2] + x[2:, 1:-1] + x[:-2, 1:-1] - 4 * x[1:-1, 1:-1], 1)


def _cases() -> Iterator[Case]:
    rows, columns, both = "[4,256@x,32,16]", "[4,32,256@x,16]", "[4,128@x,64@y,16]"
    kernel, seq, four = "[3,3,16,16]", "[4,4096@x,16]", "[4,1,16]"
    strided = functools.partial(conv, window_strides=(2, 2))
    dilated = functools.partial(conv, rhs_dilation=(2, 2))
    causal = functools.partial(conv, padding=[(3, 0)], feature_group_count=16)
    yield Case("conv 3x3", conv, (rows, kernel))
    yield Case("conv 3x3, columns", conv, (columns, kernel))
    yield Case("conv 3x3, both dims", conv, (both, kernel), PLANE, ("x", "y"))
    yield Case("conv 3x3, batch on y", conv, ("[4@y,256@x,32,16]", kernel), PLANE)
    yield Case("conv 3x3, channels out on y", conv, (rows, "[3,3,16,16@y]"), PLANE)
    yield Case("conv 3x3, two axes", conv, ("[4,256@(x,y),32,16]", kernel), PLANE, ("x", "y"))
    yield Case("conv 5x5", conv, (rows, "[5,5,16,16]"))
    yield Case("conv 7x7, stride 2", strided, (rows, "[7,7,16,16]"))
    yield Case("conv 3x3, stride 2", strided, (rows, kernel))
    yield Case("conv 3x3, dilation 2", dilated, (rows, kernel))
    yield Case("conv 3x3, dilation 8", functools.partial(conv, rhs_dilation=(8, 8)), (rows, kernel))
    yield Case("conv 3x3, 4 groups", functools.partial(conv, feature_group_count=4), (rows, "[3,3,4,16]"))
    yield Case("conv 3x3, depthwise", functools.partial(conv, feature_group_count=16), (rows, "[3,3,1,16]"))
    yield Case(
        "conv 3x3x3",
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1, 1), "SAME"),
        ("[2,8,64@x,16,16]", "[8,8,3,3,3]"),
    )
    yield Case(
        "transposed conv, stride 2",
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=IMAGES),
        (rows, "[4,4,16,16]"),
    )
    yield Case("causal conv, width 4", causal, (seq, four))
    yield Case("causal conv, batch on y", causal, ("[4@y,4096@x,16]", four), PLANE)
    yield Case(
        "causal conv, channels on y",
        functools.partial(conv, padding=[(3, 0)]),
        ("[4,4096@x,16@y]", "[4,16@y,16]"),
        PLANE,
    )
    yield Case(
        "causal conv, dilation 64", functools.partial(conv, padding=[(192, 0)], rhs_dilation=(64,)), (seq, "[4,16,16]")
    )
    yield Case("conv wider than a shard", conv, ("[4,256@x,16]", "[65,16,16]"))
    yield Case("conv of a pad", conv_of_pad, (rows, kernel))
    yield Case("conv of a pad: gradients", gradient(conv_of_pad, 0, 1), (rows, kernel))
    yield Case("conv of a reflection", conv_of_reflection, (rows, kernel))
    yield Case("conv of a reflection: gradients", gradient(conv_of_reflection, 0, 1), (rows, kernel))
    yield Case("conv of an edge: gradients", gradient(conv_of_edges, 0, 1), (rows, kernel))
    yield Case("loss of a valid conv", loss_of_valid_conv, (rows, kernel))
    yield Case("loss of a valid conv: gradients", gradient(loss_of_valid_conv, 0, 1), (rows, kernel))
    yield Case("structural similarity: gradients", gradient(structural_similarity, 0, 1), (rows, rows))
    yield Case("edges of an image: gradient", jax.grad(edges), ("[512@x,512]",))
    yield Case("causal conv with a state", conv_and_state, (seq, "[4,3,16]", four))
    yield Case("causal conv by a crop", conv_and_crop, (seq, four))
    yield Case("causal conv by a crop: gradients", gradient(conv_and_crop, 0, 1), (seq, four))
    yield Case("jnp.convolve", lambda x, k: jnp.convolve(x, k, "same"), ("[65536@x]", "[33]"))
    others = {"conv 3x3, stride 2": strided, "conv 3x3, dilation 2": dilated, "causal conv, width 4": causal}
    for name in ("conv 3x3", "conv 3x3, both dims", *others):
        f = others.get(name, conv)
        types = (seq, four) if name.startswith("causal") else (both if "both" in name else rows, kernel)
        more = (PLANE, ("x", "y")) if "both" in name else ()
        yield Case(f"{name}: gradient of x", gradient(f, 0), types, *more)
        yield Case(f"{name}: gradients", gradient(f, 0, 1), types, *more)
    for kind in ("max", "min", "add"):
        yield Case(f"{kind} pool 3x3", functools.partial(pool, kind=kind), (rows,))
    yield Case("max pool 3x3, stride 2", functools.partial(pool, kind="max", stride=2), (rows,))
    yield Case("max pool 5x5", functools.partial(pool, kind="max", size=5), (rows,))
    yield Case("max pool 3x3, both dims", functools.partial(pool, kind="max"), (both,), PLANE, ("x", "y"))
    yield Case("max pool 3x3, batch on y", functools.partial(pool, kind="max"), ("[4@y,256@x,32,16]",), PLANE)
    yield Case("mean pool 3x3", mean_pool, (rows,))
    yield Case("max pool 3x3: gradient", gradient(functools.partial(pool, kind="max")), (rows,))
    yield Case("max pool 3x3, stride 2: gradient", gradient(functools.partial(pool, kind="max", stride=2)), (rows,))
    of_both = gradient(functools.partial(pool, kind="max", stride=2))
    yield Case("max pool 3x3, stride 2, both dims: gradient", of_both, (both,), PLANE, ("x", "y"))
    yield Case("mean pool 3x3: gradient", gradient(mean_pool), (rows,))
    line, halves, beside = "[16,16384@x]", "[16,16384@(x,y)]", "[16@y,16384@x]"
    for kind in ("sum", "prod", "max", "min", "logsumexp"):
        yield Case(f"cum{kind}", functools.partial(getattr(lax, f"cum{kind}"), axis=1), (line,))
    yield Case("cumsum, reverse", functools.partial(lax.cumsum, axis=1, reverse=True), (line,))
    yield Case("cumsum, two axes", functools.partial(lax.cumsum, axis=1), (halves,), PLANE, ("x", "y"))
    yield Case("cumsum, another dim on y", functools.partial(lax.cumsum, axis=1), (beside,), PLANE)
    yield Case("cumsum of one row", jnp.cumsum, ("[262144@x]",))
    yield Case("cumsum: gradient", gradient(functools.partial(lax.cumsum, axis=1)), (line,))
    yield Case("cummax: gradient", gradient(functools.partial(lax.cummax, axis=1)), (line,))
    yield Case("cumlogsumexp: gradient", gradient(functools.partial(lax.cumlogsumexp, axis=1)), (line,))
    for k in (1, 8, 64):
        yield Case(f"top_k, {k}", functools.partial(lax.top_k, k=k), (line,))
    yield Case("top_k, 8, two axes", lambda x: lax.top_k(x, 8), (halves,), PLANE, ("x", "y"))
    yield Case("top_k, 8, another dim on y", lambda x: lax.top_k(x, 8), (beside,), PLANE)
    yield Case("top_k, 8: gradient", gradient(lambda x: lax.top_k(x, 8)[0]), (line,))
    table = "[65536@x]"
    yield Case("searchsorted", lambda a, v: jnp.searchsorted(jnp.cumsum(a * a), v), (table, "[1024]"))
    yield Case("searchsorted, queries alike", lambda a, v: jnp.searchsorted(jnp.cumsum(a * a), v), (table, "[1024@x]"))
    yield Case("digitize", lambda v, a: jnp.digitize(v, jnp.cumsum(a * a)), ("[1024]", table))
    yield Case("interp", lambda v, a, b: jnp.interp(v, jnp.cumsum(a * a), b), ("[1024]", table, table))
    rows = "[16384@x,16]"
    yield Case("median", jnp.median, (table,))
    yield Case("median of columns", lambda x: jnp.median(x, 0), (rows,))
    yield Case("median: gradient", gradient(lambda x: jnp.median(x, 0)), (rows,))
    yield Case("quantiles", lambda x: jnp.quantile(x, jnp.array([0.1, 0.5, 0.9])), (table,))
    yield Case("percentile, two axes", lambda x: jnp.percentile(x, 30), ("[65536@(x,y)]",), PLANE, ("x", "y"))
    yield Case("nanmedian", jnp.nanmedian, (table,))
    yield Case("nanquantile of columns", lambda x: jnp.nanquantile(x, 0.3, 0), (rows,))
    yield Case("weighted quantile", weighted, (table, table))
    yield Case("places of a sort", lambda x: jnp.sort(x)[-8:], (table,))
    yield Case("partition", lambda x: jnp.partition(x, 8), (table,))
    yield Case("argpartition", lambda x: jnp.argpartition(x, 8), (table,))
    yield Case("lexsort", lambda a, b: jnp.lexsort((a, b)), ("i32[65536@x]", table))
    yield Case("unique", lambda x: jnp.unique(x, size=64), ("i32[65536@x]",))
    yield Case("sort", lax.sort, ("i32[16,16384@x]",))
    yield Case("sort, another dim on y", lax.sort, ("i32[16@y,16384@x]",), PLANE)
    yield Case("sort of keys and values", lambda a, b: lax.sort((a, b), num_keys=1), ("i32[16,16384@x]",) * 2)
    yield Case("sort of floats", lax.sort, (line,))
    yield Case("argsort", jnp.argsort, ("i32[16,16384@x]",))
    for name, sorts in (("sort", jnp.sort), ("argsort", jnp.argsort)):
        yield Case(f"{name} of one row", sorts, ("i32[262144@x]",))
        yield Case(f"{name} of one row of floats", sorts, ("[262144@x]",))
    yield Case("sort on six devices", jnp.sort, ("[98304@x]",), {"x": 6})
    yield Case("sort of one row: gradient", gradient(lambda x: jnp.sort(x) * jnp.arange(262144)), ("[262144@x]",))
    logits, tokens, image = "[4,512@x,1024]", "i32[4,512@x]", "[512@x,512@y]"
    yield Case("next-token loss", cross_entropy, (logits, tokens))
    yield Case("next-token loss: gradient", jax.grad(cross_entropy), (logits, tokens))
    split = ("[4,512@x,1024@y]", tokens)
    yield Case("next-token loss, vocabulary on y: gradient", jax.grad(cross_entropy), split, PLANE, ("x", "y"))
    of_both = jax.grad(projected, (0, 1))
    yield Case("projected next-token loss: gradients", of_both, ("[64,1024]", "[4,512@x,64]", tokens))
    yield Case("total variation", total_variation, (image,), PLANE, ("x", "y"))
    yield Case("total variation: gradient", jax.grad(total_variation), (image,), PLANE, ("x", "y"))
    yield Case("Laplacian by slices", laplacian, (image,), PLANE, ("x", "y"))
    yield Case("Laplacian by slices: gradient", gradient(laplacian), (image,), PLANE, ("x", "y"))
    yield Case("jnp.gradient", jnp.gradient, (image,), PLANE, ("x", "y"))
    yield Case("blocks of a diagonal", jax.scipy.linalg.block_diag, ("[64@x,64]", "[64@x,64]"))
    yield Case("scan of matrices", scan_of_matrices, ("[512@x,8,8]",))
    table, ids = "[8192@x,64]", "i32[4096@x]"
    yield Case("attention to blocks beside", to_neighbours, (seq,))
    yield Case("attention to blocks beside: gradient", gradient(to_neighbours), (seq,))
    yield Case("lookup", lambda x, i: jnp.take(x, i, axis=0), (table, ids))
    yield Case("lookup in a large table", lambda x, i: jnp.take(x, i, axis=0), ("[65536@x,64]", ids))
    yield Case("lookup, batch on y", lambda x, i: x[i], (table, "i32[8@y,512@x]"), PLANE)
    yield Case("lookup, width on y", lambda x, i: x[i], ("[8192@x,64@y]", ids), PLANE)
    yield Case("lookup along", lambda x, i: jnp.take_along_axis(x, i, 0), ("[8192@x,64]", "i32[1024@x,64]"))
    yield Case("lookup: gradient", gradient(lambda x, i: x[i]), (table, ids))
    yield Case("sums at positions", lambda x, i, v: x.at[i].add(v), ("[1024@x,64]", ids, "[4096@x,64]"))
    yield Case("greatest at positions", lambda x, i, v: x.at[i].max(v), ("[1024@x,64]", ids, "[4096@x,64]"))
    yield Case("segment_max: gradient", gradient(lambda v, i: jax.ops.segment_max(v, i, 1000)), ("[4096@x,64]", ids))
    yield Case("histogram", lambda x, i, v: x.at[i].add(v), ("[1024@x]", ids, "[4096@x]"))
    yield Case("sums at few positions", lambda x, i, v: x.at[i].add(v), (table, ids, "[4096@x,64]"))
    square, plane = "[512@x,512]", "[512@x,256@y]"
    yield Case("fft of one dim", jnp.fft.fft, ("c64[262144@x]",))
    yield Case("ifft of one dim", jnp.fft.ifft, ("c64[262144@x]",))
    yield Case("fft of a batch", jnp.fft.fft, ("c64[64,4096@x]",))
    yield Case("fft, batch on y", jnp.fft.fft, ("c64[64@y,4096@x]",), PLANE)
    yield Case("fft2", jnp.fft.fft2, (f"c64{square}",))
    yield Case("fft2, columns", jnp.fft.fft2, ("c64[512,512@x]",))
    yield Case("fft2, both dims", jnp.fft.fft2, (f"c64{plane}",), PLANE, ("x", "y"))
    yield Case("fft2 of a batch, both dims", jnp.fft.fft2, ("c64[8,128@x,128@y]",), PLANE, ("x", "y"))
    yield Case("fftn of three dims", jnp.fft.fftn, ("c64[64@x,64@y,64]",), PLANE, ("x", "y"))
    yield Case("rfft2", real(jnp.fft.rfft2), (square,))
    yield Case("rfft2 and back", lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2), (square,))
    yield Case("fft2: gradient", gradient(real(jnp.fft.fft2)), (square,))
    tall = "[8192@x,16]"
    yield Case("qr", jnp.linalg.qr, (tall,))
    yield Case("qr of a batch on y", jnp.linalg.qr, ("[4@y,4096@x,16]",), PLANE)
    yield Case("singular values", functools.partial(jnp.linalg.svd, compute_uv=False), (tall,))
    yield Case("least squares", lambda a, b: jnp.linalg.lstsq(a, b)[0], (tall, "[8192@x]"))
    rows, right = "[512@x,512]", "[512@x,16]"
    solve = functools.partial(jax.scipy.linalg.solve_triangular, lower=True)
    yield Case("cholesky", lambda a: jnp.linalg.cholesky(definite(a)), (rows,))
    yield Case("cholesky of a batch on y", lambda a: jnp.linalg.cholesky(definite(a)), ("[4@y,256@x,256]",), PLANE)
    yield Case("cholesky: gradient", gradient(lambda a: jnp.linalg.cholesky(definite(a))), (rows,))
    for trans, name in enumerate(("", ", transposed")):
        solves = functools.partial(solve, trans=trans)
        yield Case(f"triangular solve{name}", lambda a, b, f=solves: f(definite(a), b), (rows, right))
    yield Case("triangular solve of columns", lambda a, b: solve(definite(a), b), ("[512,512@x]", right))
    yield Case("triangular solve: gradients", gradient(lambda a, b: solve(definite(a), b), 0, 1), (rows, right))
    solved = lambda a, b: jax.scipy.linalg.cho_solve((definite(a), True), b)  # noqa: E731
    yield Case("cho_solve", solved, (rows, right))


CASES: Final = tuple(_cases())


def values(case: Case) -> list[Any]:
    """The operands, the same each time."""
    rng = np.random.default_rng(0)
    types = [t if t[0] != "[" else f"f32{t}" for t in case.types]
    parsed = [sh.abstract_array(t, mesh=sh.abstract_mesh(case.mesh)).type for t in types]
    return [
        rng.integers(0, 1000, t.shape).astype(np.int32)
        if t.dtype_name == "i32"
        else rng.normal(size=t.shape).astype("F" if t.dtype_name == "c64" else "f")
        for t in parsed
    ]


def measured(case: Case) -> Measured:
    """The three programs of a case, compiled and run."""
    plain, axes = values(case), set(case.axes)
    mesh = sh.make_mesh(case.mesh)
    with sh.use_mesh(mesh):
        args = [sh.array(x, t) for x, t in zip(plain, case.types, strict=True)]
        lifted = sh.implicit_comm(sh.lift(case.f))

        def finished(*args: Any) -> Any:
            return [sh.reshard(y, _finished(y.type)) for y in jax.tree.leaves(lifted(*args))]

        way = _compiled(jax.jit(finished), args)
        types = [y.type for y in jax.jit(finished)(*args)]

        @jax.jit
        def gather(*args: Any) -> Any:
            results = jax.tree.leaves(sh.lift(case.f)(*[_without(x, axes) for x in args]))
            return [sh.reshard(y, t) for y, t in zip(results, types, strict=True)]

        gathered = _compiled(gather, args)
    auto = jax.make_mesh(tuple(case.mesh.values()), tuple(case.mesh), axis_types=(AxisType.Auto,) * len(case.mesh))
    inputs = tuple(NamedSharding(auto, _spec(x.type)) for x in args)
    outputs = [NamedSharding(auto, _spec(t)) for t in types]
    jitted = jax.jit(lambda *args: jax.tree.leaves(case.f(*args)), in_shardings=inputs, out_shardings=outputs)
    xla = _compiled(jitted, jax.tree.map(jax.device_put, plain, list(inputs)))
    alone = list(map(np.asarray, jax.tree.leaves(jax.jit(case.f)(*plain))))
    if max(_difference(way, alone), _difference(gathered, alone)) > TOLERANCE:
        raise SystemExit(f"{case.name}: not what one device computes")
    is_right = _difference(xla, alone) <= TOLERANCE
    return Measured(case.name, sum(x.type.local_bytes for x in args), way, gathered, xla, is_right)


def _without(x: Any, axes: set[str]) -> Any:
    """A value whose dims are not sharded on some axes."""
    dims = [
        f"{d.size}" + (f"@({','.join(left)})" if (left := [a for a in d.axes if a not in axes]) else "")
        for d in x.type.dims
    ]
    return sh.reshard(x, f"[{', '.join(dims)}]")


def _finished(t: Any) -> Any:
    """The type of a value whose pending sums are finished."""
    return t.replace(states={a: sh.State.REDUCED if s is sh.State.UNREDUCED else s for a, s in t.beside_dims.items()})


def _spec(t: Any) -> P:
    return P(*(dim.axes or None for dim in t.dims))


def _compiled(jitted: Any, args: Sequence[Any]) -> Compiled:
    compiled = jitted.lower(*args).compile()
    results = jax.block_until_ready(compiled(*args))
    arrays = [
        np.asarray(sh.reshard(y, _complete(y)).to_jax() if isinstance(y, sh.Array) else y)
        for y in jax.tree.leaves(results)
    ]
    sent = sum(row["bytes"] for row in hlo.executed(compiled.as_text()).values())
    return Compiled(sent, int(compiled.memory_analysis().temp_size_in_bytes), arrays)


def _complete(x: Any) -> Any:
    return sh.ShType(
        x.type.mesh,
        x.type.dtype_name,
        [sh.Dim(d.size) for d in x.type.dims],
        dict.fromkeys(x.type.mesh.axis_names, sh.State.INVARIANT),
    )


def _difference(found: Compiled, alone: Sequence[Any]) -> float:
    """The largest difference, relative to the largest element of each array."""
    pairs = zip(found.results, alone, strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)) for a, b in pairs)


def line(m: Measured) -> tuple[str, ...]:
    """A line of the table."""
    ratio = "wrong" if not m.is_right else f"{m.way.sent / m.xla.sent:.2f}" if m.xla.sent else "-"
    held = [f"{each.held / m.shard:.1f}" for each in (m.way, m.gather, m.xla)]
    return (m.name, f"{m.shard:,}", f"{m.way.sent:,}", f"{m.gather.sent:,}", f"{m.xla.sent:,}", ratio, *held)


HEADINGS: Final = ("case", "shard", "way", "gather", "XLA", "way/XLA", "way holds", "gather holds", "XLA holds")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    options = parser.parse_args()
    every = []
    for case in CASES:
        if options.only in case.name:
            every.append(measured(case))
            print(*line(every[-1]), sep="\t", file=sys.stderr, flush=True)
    print(*aligned(HEADINGS, map(line, every), HEADINGS[1:]), sep="\n")
    more = [m.name for m in every if m.way.sent > m.xla.sent]
    print(
        f"at most XLA's bytes: {len(every) - len(more)} of {len(every)}" + "".join(f"\n  more: {name}" for name in more)
    )


if __name__ == "__main__":
    main()
