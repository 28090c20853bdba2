"""Fourier transforms, which act along whole dims. Pure."""

from __future__ import annotations

from typing import Final

from shtypes import rules
from shtypes.editor.call import Call
from shtypes.editor.ops.reductions import sized, whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints, one_dim
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.reduce import normal_dims
from shtypes.types import ShType

_COMPLEX: Final = {"f32": "c64", "c64": "c64"}


def _complex(x: ShType) -> str:
    if x.dtype_name not in _COMPLEX:
        raise Unknown
    return _COMPLEX[x.dtype_name]


@op("fft.fft", "fft.ifft", "fft.rfft", "fft.irfft", "fft.hfft", "fft.ihfft")
def _along_one(call: Call) -> ShType:
    x, name = call.array("a"), call.name.removeprefix("fft.")
    call.only("a", "axis")
    dim, dtype = one_dim(name, x, call.static("axis", -1)), _complex(x)
    size = x.shape[dim]
    if name in ("fft", "ifft"):
        return whole(call, name, x, [dim], linear=True, dtype=dtype)
    if stands_for_a_name(size) or size < 2:
        raise Unknown
    if name in ("irfft", "hfft"):
        return sized(call, name, x, dim, 2 * (size - 1), linear=True, dtype="f32")
    if x.dtype_name != "f32":
        raise Unknown
    return sized(call, name, x, dim, size // 2 + 1, linear=True, dtype=dtype)


@op("fft.fft2", "fft.ifft2", "fft.fftn", "fft.ifftn", "fft.fftshift", "fft.ifftshift")
def _along_several(call: Call) -> ShType:
    x, name = call.array("a", "x"), call.name.removeprefix("fft.")
    call.only("a", "x", "axes")
    axes = call.static("axes", (-2, -1) if name.endswith("2") else None)
    dims = range(x.ndim) if axes is None else [one_dim(name, x, d) for d in ints(axes)]
    return whole(call, name, x, dims, linear=True, dtype=x.dtype_name if name.endswith("shift") else _complex(x))


@op("fft.rfft2", "fft.rfftn", "fft.irfft2", "fft.irfftn")
def _along_several_of_reals(call: Call) -> ShType:
    x, name = call.array("a"), call.name.removeprefix("fft.")
    call.only("a", "axes")
    axes = call.static("axes", (-2, -1) if name.endswith("2") else None)
    dims = list(range(x.ndim)) if axes is None else [one_dim(name, x, d) for d in ints(axes)]
    normal_dims(name, x, dims)
    if not dims or x.dtype_name != ("c64" if name[0] == "i" else "f32"):
        raise Unknown
    last = dims[-1]  # which is halved
    if stands_for_a_name(x.shape[last]) or not all(x.shape[d] for d in dims) or x.shape[last] < 2:
        raise Unknown
    size = 2 * (x.shape[last] - 1) if name[0] == "i" else x.shape[last] // 2 + 1
    sizes = tuple((size if d == last else n, d) for d, n in enumerate(x.shape))
    result = rules.WholeResult("f32" if name[0] == "i" else "c64", sizes)
    return call.typed(name, lambda ts: rules.whole(name, ts[0], tuple(sorted(dims)), (result,), True), x)
