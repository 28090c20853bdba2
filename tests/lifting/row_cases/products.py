"""Cases of products, convolutions, transforms, and primitives of whole matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.lifting.row_cases.case import Case, case, primitive

_DOTS: Final = {
    "matrices": ("8,4", "4,8", (((1,), (0,)), ((), ()))),
    "turned": ("4,8", "8,4", (((0,), (1,)), ((), ()))),
    "batch": ("8,4,2", "8,2,4", (((2,), (1,)), ((0,), (0,)))),
    "batch behind": ("4,8,2", "2,4,8", (((0,), (1,)), ((1,), (2,)))),
    "two batches, two sums": ("2,8,4,2", "8,2,4,2", (((2, 3), (2, 3)), ((0, 1), (1, 0)))),
    "sums out of order": ("8,4,2", "2,4,8", (((2, 1), (0, 1)), ((), ()))),
    "nothing summed": ("8,2", "4,2", (((), ()), ((), ()))),
    "scalars": ("", "", (((), ()), ((), ()))),
    "vectors": ("8", "8", (((0,), (0,)), ((), ()))),
    "no elements": ("8,0", "0,4", (((1,), (0,)), ((), ()))),
    "no rows": ("0,4", "4,8", (((1,), (0,)), ((), ()))),
    "only batch": ("8,4", "8,4", (((), ()), ((0, 1), (0, 1)))),
}


def _dots() -> Iterator[Case]:
    def dot(a: Any, b: Any, numbers: Any, precision: Any = None, dtype: Any = None) -> Any:
        return lax.dot_general(a, b, numbers, precision, dtype)

    for label, (a, b, numbers) in _DOTS.items():
        yield case(
            "dot_general", label, functools.partial(dot, numbers=numbers), f"f32[{a}]", f"f32[{b}]", close="sums"
        )
    numbers = _DOTS["matrices"][2]
    for precision in ("highest", "default", (lax.Precision.HIGH, lax.Precision.DEFAULT)):
        f = functools.partial(dot, numbers=numbers, precision=precision)
        yield case("dot_general", f"precision {precision}", f, "f32[8,4]", "f32[4,8]", close="sums", orders=1)
    for src, dst in (
        *(("bf16", "f32"), ("f16", "f32"), ("i8", "i32"), ("u8", "i32"), ("bf16", "bf16"), ("f32", "f32")),
        *(("i8", "i8"), ("i32", "f32")),
    ):
        f = functools.partial(
            dot,
            numbers=numbers,
            dtype=jnp.dtype(
                {"bf16": "bfloat16", "f16": "float16"}.get(dst, dst.replace("f", "float").replace("i", "int"))
            ),
        )
        yield case(
            "dot_general", f"{src} to {dst}", f, f"{src}[8,4]", f"{src}[4,8]", close="sums", orders=int(src[0] in "bf")
        )
    for dtype in ("bf16", "f16", "i8", "u8", "i32", "bool", "c64", "f64"):
        f = functools.partial(dot, numbers=numbers)
        yield case(
            "dot_general", dtype, f, f"{dtype}[8,4]", f"{dtype}[4,8]", close="sums", orders=int(dtype in ("c64", "f64"))
        )
    yield case("dot_general", "two dtypes", functools.partial(dot, numbers=numbers, dtype=np.dtype("float32")), "bf16[8,4]", "f32[4,8]",
               close="sums", orders=1)  # fmt: skip
    yield case("dot_general", "f8", functools.partial(dot, numbers=numbers, dtype=np.dtype("float32")), "f8[8,4]", "f8_e5m2[4,8]",
               close="sums", orders=0)  # fmt: skip
    yield case("dot_general", "i8 wraps", functools.partial(dot, numbers=numbers), "i8[8,4]!", "i8[4,8]!")
    yield case(
        "dot_general",
        "infinities",
        functools.partial(dot, numbers=(((), ()), ((), ()))),
        "f32[8]!",
        "f32[4]!",
        orders=1,
    )
    yield case(
        "dot_general", "a constant", lambda a: dot(a, np.eye(4, 8, dtype=np.float32), numbers), "f32[8,4]", close="sums"
    )
    yield case("ragged_dot_general", "groups", lambda a, b: lax.ragged_dot(a, b, jnp.asarray([3, 5], np.int32)), "f32[8,4]", "f32[2,4,8]",
               close="sums", orders=1, whole="groups may end anywhere among the rows")  # fmt: skip
    yield case("ragged_dot_general", "traced groups", lax.ragged_dot, "f32[8,4]", "f32[2,4,8]", np.asarray([3, 4], np.int32),
               close="sums", orders=1, whole="groups may end anywhere among the rows")  # fmt: skip
    ragged = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    yield case("ragged_dot_general", "ragged sums", lambda a, b, n: lax.ragged_dot_general(a, b, n, ragged), "f32[8,4]", "f32[8,2]",
               np.asarray([3, 4], np.int32), close="sums", orders=1, whole="groups may end anywhere among the rows")  # fmt: skip
    yield case("ragged_dot_general", "bf16 to f32", lambda a, b, n: lax.ragged_dot(a, b, n, preferred_element_type=np.dtype("float32")),
               "bf16[8,4]", "bf16[2,4,8]", np.asarray([3, 4], np.int32), close="sums", orders=0,
               whole="groups may end anywhere among the rows")  # fmt: skip


def _convolutions() -> Iterator[Case]:
    shapes: dict[str, tuple[str, str, dict[str, Any]]] = {
        "valid": ("2,4,6,5", "4,4,2,3", {}),
        "same": ("2,4,6,5", "4,4,2,3", {"padding": "SAME"}),
        "strides": ("2,4,6,5", "4,4,2,3", {"window_strides": (2, 1)}),
        "dilated": (
            "2,4,6,5",
            "4,4,2,3",
            {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "padding": ((1, 0), (2, 2))},
        ),
        "negative padding": ("2,4,6,5", "4,4,2,3", {"padding": ((-1, 0), (0, -1))}),
        "features last": ("2,6,5,4", "2,3,4,8", {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
        "feature groups": ("2,8,6", "8,2,3", {"feature_group_count": 4, "window_strides": (1,), "padding": ((1, 1),)}),
        "depthwise": ("2,8,6", "8,1,3", {"feature_group_count": 8, "window_strides": (1,), "padding": ((0, 0),)}),
        "batch groups": ("8,4,6", "8,4,3", {"batch_group_count": 4, "window_strides": (1,), "padding": ((1, 1),)}),
        "pointwise": ("2,4,6,5", "8,4,1,1", {}),
        "no batch": ("0,4,6", "4,4,3", {"window_strides": (1,), "padding": ((0, 0),)}),
        "no space": ("2,4", "8,4", {"window_strides": (), "padding": ()}),
    }
    for label, (x, w, given) in shapes.items():
        params = {"window_strides": (1, 1), "padding": "VALID", **given}
        f = functools.partial(lax.conv_general_dilated, **params)
        yield case(
            "conv_general_dilated", label, f, f"f32[{x}]", f"f32[{w}]", close="sums", orders=1 + (label == "valid")
        )
    for src, dst in (("bf16", None), ("bf16", "float32"), ("i8", "int32"), ("f16", None)):
        f = functools.partial(lax.conv_general_dilated, window_strides=(1,), padding=((1, 1),),
                              preferred_element_type=None if dst is None else np.dtype(dst))  # fmt: skip
        yield case(
            "conv_general_dilated", f"{src} to {dst}", f, f"{src}[2,4,6]", f"{src}[4,4,3]", close="sums", orders=0
        )
    f = functools.partial(
        lax.conv_general_dilated, window_strides=(1,), padding=((1, 1),), precision=lax.Precision.HIGHEST
    )
    yield case("conv_general_dilated", "precision", f, "f32[2,4,6]", "f32[4,4,3]", close="sums", orders=1)
    f = functools.partial(lax.conv_general_dilated, window_strides=(1,), padding=((1, 1),))
    yield case("conv_general_dilated", "c64", f, "c64[2,4,6]", "c64[4,4,3]", close="sums", orders=0)


def _transforms() -> Iterator[Case]:
    for kind in ("FFT", "IFFT"):
        for lengths in ((4,), (8, 4)):
            f = functools.partial(lax.fft, fft_type=kind, fft_lengths=lengths)
            yield case("fft", f"{kind} {lengths}", f, "c64[2,8,4]", close="sums", orders=1)
    yield case("fft", "RFFT", lambda a: lax.fft(a, "RFFT", (6,)), "f32[8,6]", close="sums", orders=2)
    yield case("fft", "RFFT odd", lambda a: lax.fft(a, "RFFT", (8, 5)), "f32[2,8,5]", close="sums", orders=1)
    yield case("fft", "IRFFT", lambda a: lax.fft(a, "IRFFT", (6,)), "c64[8,4]", close="sums", orders=1)
    yield case("fft", "IRFFT odd", lambda a: lax.fft(a, "IRFFT", (5,)), "c64[8,3]", close="sums", orders=1)
    yield case("fft", "c128", lambda a: lax.fft(a, "FFT", (4,)), "c128[8,4]", close="sums", orders=1)


def _symmetric(a: Any) -> Any:
    return (a + jnp.swapaxes(a, -1, -2)) / 2 + 4 * jnp.eye(a.shape[-1], dtype=a.dtype)


def _matrices() -> Iterator[Case]:
    params: Any
    f: Any
    la = lax.linalg
    t, g = "f32[8,4,4]", "f32[8,4,4]"
    for side in (True, False):
        for lower in (True, False):
            for turned in (False, True):
                params = {"left_side": side, "lower": lower, "transpose_a": turned}
                f = lambda a, b, p=params: la.triangular_solve(a + 5 * jnp.eye(4), b, **p)
                yield case("triangular_solve", f"{params}", f, t, "f32[8,4,2]" if side else "f32[8,2,4]", close="sums",
                           orders=1 + (lower and not turned))  # fmt: skip
    for params in (
        {"conjugate_a": True, "transpose_a": True},
        {"conjugate_a": True},
        {"unit_diagonal": True, "lower": True},
    ):
        f = lambda a, b, p=params: la.triangular_solve(a + 5 * jnp.eye(4, dtype=a.dtype), b, left_side=True, **p)
        yield case("triangular_solve", f"{params}, c64", f, "c64[8,4,4]", "c64[8,4,2]", close="sums", orders=1)
        f = lambda a, b, p=params: la.triangular_solve(a + 5 * jnp.eye(4, dtype=a.dtype), b, left_side=False, **p)
        yield case("triangular_solve", f"{params}, c64, right", f, "c64[8,4,4]", "c64[8,2,4]", close="sums", orders=0)
    yield case("triangular_solve", "singular", lambda a, b: la.triangular_solve(a, b, left_side=True), np.zeros((8, 2, 2), np.float32),
               np.ones((8, 2, 4), np.float32), close="sums", orders=0)  # fmt: skip
    yield case("triangular_solve", "one matrix", lambda a, b: la.triangular_solve(a + 5 * jnp.eye(4), b, left_side=True), "f32[4,4]",
               "f32[4,8]", close="sums")  # fmt: skip
    yield case("triangular_solve", "f64", lambda a, b: la.triangular_solve(a + 5 * jnp.eye(4), b, left_side=True), "f64[8,4,4]",
               "f64[8,4,2]", close="sums", orders=1)  # fmt: skip
    for sym in (True, False):
        yield case(
            "cholesky",
            f"symmetrized {sym}",
            lambda a, s=sym: la.cholesky(_symmetric(a), symmetrize_input=s),
            t,
            close="sums",
            orders=1,
        )
    yield case(
        "cholesky",
        "not definite",
        lambda a: la.cholesky(a, symmetrize_input=False),
        -np.ones((8, 2, 2), np.float32),
        close="sums",
        orders=0,
    )
    yield case("cholesky_update", "f32", la.cholesky_update, np.eye(4, dtype=np.float32) * 3, "f32[4]", close="sums", orders=0,
               whole="a whole matrix, and there is no batch of them")  # fmt: skip
    yield case("eig", "f32", lambda a: jnp.abs(jnp.sum(la.eig(a)[0], -1)), t, close="sums", orders=0)
    yield case("eig", "no vectors", lambda a: jnp.sum(la.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0], -1),
               t, close="sums", orders=0)  # fmt: skip
    for params in ({"lower": True}, {"lower": False}, {"symmetrize_input": False}, {"subset_by_index": None}):
        yield case("eigh", f"{params}", lambda a, p=params: la.eigh(_symmetric(a), **p)[1], t, close="sums", orders=1)
    yield case("geqrf", "f32", lambda a: jnp.linalg.qr(a, mode="raw"), "f32[8,4,3]", close="sums", orders=0)
    geqp3, ormqr = primitive("geqp3"), primitive("ormqr")
    if geqp3 is not None:
        f = lambda a: geqp3.bind(a, jnp.zeros((8, 3), np.int32), use_magma=None)
        yield case("geqp3", "f32", f, "f32[8,4,3]", close="sums", orders=0)
    yield case("hessenberg", "f32", la.hessenberg, t, close="sums", orders=0)
    yield case(
        "householder_product",
        "f32",
        lambda a, u: la.householder_product(a, u),
        "f32[8,4,3]",
        "f32[8,3]",
        close="sums",
        orders=1,
    )
    yield case("lu", "f32", la.lu, t, close="sums", orders=1)
    yield case("lu", "wide", la.lu, "f32[8,2,4]", close="sums", orders=1)
    yield case("lu", "singular", la.lu, np.zeros((8, 2, 2), np.float32), close="sums", orders=0)
    yield case(
        "lu_pivots_to_permutation",
        "i32",
        lambda p: la.lu_pivots_to_permutation(p, 6),
        np.asarray([[1, 2, 2]] * 8, np.int32),
    )
    if ormqr is not None:
        f = lambda a, u, c: ormqr.bind(a, u, c, left=True, transpose=False)
        yield case("ormqr", "f32", f, "f32[8,4,3]", "f32[8,3]", "f32[8,4,2]", close="sums", orders=0)
    for full in (True, False):
        yield case(
            "qr",
            f"full {full}",
            lambda a, f=full: la.qr(a, full_matrices=f),
            "f32[8,4,3]",
            close="sums",
            orders=int(not full),
        )
    yield case("schur", "f32", lambda a: la.schur(_symmetric(a))[0], t, close="sums", orders=0)
    yield case("svd", "values", lambda a: la.svd(a, compute_uv=False), "f32[8,4,3]", close="sums", orders=1)
    yield case("svd", "vectors", lambda a: la.svd(a, full_matrices=False)[1], "f32[8,4,3]", close="sums", orders=1)
    for sym in (True, False):
        yield case("symmetric_product", f"symmetrized {sym}", lambda a, c, s=sym: la.symmetric_product(a, c, alpha=0.5, beta=-2.0,
                   symmetrize_output=s), t, g, close="sums", orders=0)  # fmt: skip
    yield case("tridiagonal", "f32", lambda a: la.tridiagonal(_symmetric(a))[1], t, close="sums", orders=0)
    yield case("tridiagonal_solve", "alone", la.tridiagonal_solve, "f32[8,4]", "f32[8,4]+", "f32[8,4]", "f32[8,4,2]",
               close="sums", orders=0)  # fmt: skip
    yield case("tridiagonal_solve", "f32", lambda a, b, c, x: la.tridiagonal_solve(a, b + 6, c, x), "f32[8,4]", "f32[8,4]", "f32[8,4]",
               "f32[8,4,2]", close="sums", orders=1)  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for part in (_dots, _convolutions, _transforms, _matrices):
        yield from part()
