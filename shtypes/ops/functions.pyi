"""The functions of JAX that `OPS` makes. Written by `python generate/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax

from shtypes.core.array import Array as Array
from shtypes.core.array import ArrayLike
from shtypes.numerics.results import (
    EighResult,
    EigResult,
    QRResult,
    SlogdetResult,
    SVDResult,
    UniqueAllResult,
    UniqueCountsResult,
    UniqueInverseResult,
)

def all(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array: ...
def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
    *,
    out: Any = None,
) -> Array: ...
def amax(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def amin(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def any(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array: ...
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None, *, out: Any = None) -> Array: ...
def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, out: Any = None, **kwargs: Any
) -> Array: ...
def apply_over_axes(
    func: Callable[[ArrayLike, int], Array], a: ArrayLike, axes: Sequence[int], *, out: Any = None
) -> Array: ...
def approx_max_k(
    operand: Array,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    *,
    out: Any = None,
) -> Array: ...
def approx_min_k(
    operand: Array,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    *,
    out: Any = None,
) -> Array: ...
def argmax(a: ArrayLike, axis: int | None = None, out: Any = None, keepdims: bool | None = None) -> Array: ...
def argmin(a: ArrayLike, axis: int | None = None, out: Any = None, keepdims: bool | None = None) -> Array: ...
def argpartition(a: Any, kth: int, axis: int = -1, *, out: Any = None) -> Array: ...
def argsort(
    a: Any,
    axis: Any = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
    out: Any = None,
) -> Array: ...
def argwhere(
    a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> Array: ...
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False, *, out: Any = None) -> Array: ...
def array_equiv(a1: ArrayLike, a2: ArrayLike, *, out: Any = None) -> Array: ...
def array_split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, axis: int = 0, *, out: Any = None
) -> list[Array]: ...
def associative_scan(
    fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0, *, out: Any = None
) -> Array: ...
@overload
def atleast_1d(*, out: Any = None) -> list[Array]: ...
@overload
def atleast_1d(x: ArrayLike, /, *, out: Any = None) -> Array: ...
@overload
def atleast_1d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike, out: Any = None) -> list[Array]: ...
@overload
def atleast_2d(*, out: Any = None) -> list[Array]: ...
@overload
def atleast_2d(x: ArrayLike, /, *, out: Any = None) -> Array: ...
@overload
def atleast_2d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike, out: Any = None) -> list[Array]: ...
@overload
def atleast_3d(*, out: Any = None) -> list[Array]: ...
@overload
def atleast_3d(x: ArrayLike, /, *, out: Any = None) -> Array: ...
@overload
def atleast_3d(x: ArrayLike, y: ArrayLike, /, *arys: ArrayLike, out: Any = None) -> list[Array]: ...
@overload
def average(
    a: ArrayLike,
    axis: Any = ...,
    weights: ArrayLike | None = ...,
    returned: Literal[False] = False,
    keepdims: Any = False,
    *,
    out: Any = None,
) -> Array: ...
@overload
def average(
    a: ArrayLike,
    axis: Any = ...,
    weights: ArrayLike | None = ...,
    *,
    returned: Literal[True],
    keepdims: Any = False,
    out: Any = None,
) -> tuple[Array, Array]: ...
@overload
def average(
    a: ArrayLike,
    axis: Any = ...,
    weights: ArrayLike | None = ...,
    returned: Any = False,
    keepdims: Any = False,
    *,
    out: Any = None,
) -> Array | tuple[Array, Array]: ...
def batch_matmul(lhs: Array, rhs: Array, precision: Any = None, *, out: Any = None) -> Array: ...
def bernoulli(n: int, *, out: Any = None) -> Array: ...
def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50, out: Any = None) -> Array: ...
def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def bitcast_convert_type(operand: ArrayLike, new_dtype: Any, *, out: Any = None) -> Array: ...
def block(arrays: ArrayLike | list[ArrayLike], *, out: Any = None) -> Array: ...
def boxcox(x: ArrayLike, lmbda: ArrayLike, *, out: Any = None) -> Array: ...
def boxcox1p(x: ArrayLike, lmbda: ArrayLike, *, out: Any = None) -> Array: ...
def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out_sharding: Any = None, out: Any = None) -> Array: ...
def broadcast_arrays(*args: ArrayLike, out: Any = None) -> list[Array]: ...
def broadcast_in_dim(
    operand: ArrayLike, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None, out: Any = None
) -> Array: ...
def broadcast_like(arr: ArrayLike, like_arr: ArrayLike, *, out: Any = None) -> Array: ...
def broadcast_to(array: ArrayLike, shape: Any, *, out_sharding: Any = None, out: Any = None) -> Array: ...
def broadcast_to_rank(x: ArrayLike, rank: int, *, out: Any = None) -> Array: ...
def choose(a: ArrayLike, choices: Any, out: Any = None, mode: str = "raise") -> Array: ...
def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike, *, out: Any = None) -> Array: ...
def collapse(operand: Array, start_dimension: int, stop_dimension: int | None = None, *, out: Any = None) -> Array: ...
def column_stack(tup: Any, *, out: Any = None) -> Array: ...
def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False, out: Any = None) -> Array: ...
def complex(x: ArrayLike, y: ArrayLike, *, out: Any = None) -> Array: ...
def compress(
    condition: Any, a: Any, axis: Any = None, *, size: Any = None, fill_value: Any = 0, out: Any = None
) -> Array: ...
def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0, out: Any = None) -> Array: ...
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None, *, out: Any = None) -> Array: ...
def conj(x: ArrayLike, /, *, out: Any = None) -> Array: ...
def conjugate(x: ArrayLike, /, *, out: Any = None) -> Array: ...
def conv(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: jax.lax.PrecisionLike = None,
    *,
    out: Any = None,
) -> Array: ...
def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: jax.lax.Precision | None = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def conv_transpose(
    lhs: Array,
    rhs: Array,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
    *,
    out: Any = None,
) -> Array: ...
def conv_with_general_padding(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def convert_element_type(operand: ArrayLike, new_dtype: Any, *, out: Any = None) -> Array: ...
def convolve(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "full",
    *,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out: Any = None,
) -> Array: ...
def corrcoef(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: Any = None, *, out: Any = None
) -> Array: ...
def correlate(
    a: ArrayLike,
    v: ArrayLike,
    mode: str = "valid",
    *,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out: Any = None,
) -> Array: ...
def count_nonzero(
    a: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False, *, out: Any = None
) -> Array: ...
def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None, *, out: Any = None
) -> Array: ...
def cumlogsumexp(operand: Array, axis: int = 0, reverse: bool = False, *, out: Any = None) -> Array: ...
def cummax(operand: Array, axis: int = 0, reverse: bool = False, *, out: Any = None) -> Array: ...
def cummin(operand: Array, axis: int = 0, reverse: bool = False, *, out: Any = None) -> Array: ...
def cumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array: ...
def cumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array: ...
def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False, out: Any = None
) -> Array: ...
def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False, out: Any = None
) -> Array: ...
def custom_linear_solve(
    matvec: Callable[..., Any],
    b: Any,
    solve: Any,
    transpose_solve: Any = None,
    symmetric: Any = False,
    has_aux: Any = False,
    *,
    out: Any = None,
) -> Array: ...
def custom_root(
    f: Callable[..., Any], initial_guess: Any, solve: Any, tangent_solve: Any, has_aux: Any = False, *, out: Any = None
) -> Array: ...
def dawsn(x: ArrayLike, *, out: Any = None) -> Array: ...
def delete(
    arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False, out: Any = None
) -> Array: ...
def diag(v: ArrayLike, k: int = 0, *, out: Any = None) -> Array: ...
def diagflat(v: ArrayLike, k: int = 0, *, out: Any = None) -> Array: ...
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, *, out: Any = None) -> Array: ...
def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
def digitize(
    x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None, out: Any = None
) -> Array: ...
def div(x: ArrayLike, y: ArrayLike, *, out: Any = None) -> Array: ...
def divmod(x1: ArrayLike, x2: ArrayLike, /, *, out: Any = None) -> tuple[Array, Array]: ...
def dot(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def dsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, *, out: Any = None) -> list[Array]: ...
def dstack(tup: Any, dtype: Any = None, *, out: Any = None) -> Array: ...
def dynamic_index_in_dim(
    operand: Any,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
    out: Any = None,
) -> Array: ...
def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
    out: Any = None,
) -> Array: ...
def dynamic_slice_in_dim(
    operand: Any,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
    out: Any = None,
) -> Array: ...
def dynamic_update_index_in_dim(
    operand: Any,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
    out: Any = None,
) -> Array: ...
def dynamic_update_slice(
    operand: Any,
    update: ArrayLike,
    start_indices: Array | Sequence[ArrayLike],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
    out: Any = None,
) -> Array: ...
def dynamic_update_slice_in_dim(
    operand: Any,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
    out: Any = None,
) -> Array: ...
def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None, *, out: Any = None
) -> Array: ...
def erfcinv(*args: Any, out: Any = None, **kwargs: Any) -> Array: ...
def erfcx(x: ArrayLike, *, out: Any = None) -> Array: ...
def expand_dims(a: ArrayLike, axis: int | Sequence[int], *, out: Any = None) -> Array: ...
def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0, out: Any = None
) -> Array: ...
def fft_fft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_fft2(
    a: ArrayLike, s: Any = None, axes: Sequence[int] = ..., norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_fftn(
    a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_fftshift(x: ArrayLike, axes: None | int | Sequence[int] = None, *, out: Any = None) -> Array: ...
def fft_hfft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_ifft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_ifft2(
    a: ArrayLike, s: Any = None, axes: Sequence[int] = ..., norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_ifftn(
    a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_ifftshift(x: ArrayLike, axes: None | int | Sequence[int] = None, *, out: Any = None) -> Array: ...
def fft_ihfft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_irfft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_irfft2(
    a: ArrayLike, s: Any = None, axes: Sequence[int] = ..., norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_irfftn(
    a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_rfft(
    a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_rfft2(
    a: ArrayLike, s: Any = None, axes: Sequence[int] = ..., norm: str | None = None, *, out: Any = None
) -> Array: ...
def fft_rfftn(
    a: ArrayLike, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None, *, out: Any = None
) -> Array: ...
def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = False, out: Any = None
) -> Array: ...
def flatnonzero(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = None,
    out: Any = None,
) -> Array: ...
def flip(m: ArrayLike, axis: int | Sequence[int] | None = None, *, out: Any = None) -> Array: ...
def fliplr(m: ArrayLike, *, out: Any = None) -> Array: ...
def flipud(m: ArrayLike, *, out: Any = None) -> Array: ...
def fresnel(x: ArrayLike, *, out: Any = None) -> tuple[Array, Array]: ...
def frexp(x: ArrayLike, /, *, out: Any = None) -> tuple[Array, Array]: ...
def fromfunction(
    function: Callable[..., Array], shape: Any, *, dtype: Any = ..., out: Any = None, **kwargs: Any
) -> Array: ...
def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: Any,
    slice_sizes: Any,
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
    out: Any = None,
) -> Array: ...
def gradient(
    f: ArrayLike,
    *varargs: ArrayLike,
    axis: int | Sequence[int] | None = None,
    edge_order: int | None = None,
    out: Any = None,
) -> Array | list[Array]: ...
def histogram(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
    *,
    out: Any = None,
) -> tuple[Array, Array]: ...
def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: ArrayLike | list[ArrayLike] = 10,
    range: Sequence[None | Array | Sequence[ArrayLike]] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
    *,
    out: Any = None,
) -> tuple[Array, Array, Array]: ...
def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: None | Array | Sequence[ArrayLike] = None,
    weights: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
def histogramdd(
    sample: ArrayLike,
    bins: ArrayLike | list[ArrayLike] = 10,
    range: Sequence[None | Array | Sequence[ArrayLike]] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
    *,
    out: Any = None,
) -> tuple[Array, list[Array]]: ...
def hsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, *, out: Any = None) -> list[Array]: ...
def hstack(tup: Any, dtype: Any = None, *, out: Any = None) -> Array: ...
def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike, *, out: Any = None) -> Array: ...
def imag(val: ArrayLike, /, *, out: Any = None) -> Array: ...
def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True, *, out: Any = None) -> Array: ...
def index_take(src: Array, idxs: Array, axes: Sequence[int], *, out: Any = None) -> Array: ...
def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out: Any = None) -> Array: ...
def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None, *, out: Any = None) -> Array: ...
def integer_pow(x: ArrayLike, y: int, *, out: Any = None) -> Array: ...
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | str | None = None,
    right: ArrayLike | str | None = None,
    period: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    out: Any = None,
) -> Array | tuple[Array, Array, Array]: ...
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: Any = "auto",
    out: Any = None,
) -> Array: ...
def ix_(*args: ArrayLike, out: Any = None) -> tuple[Array, ...]: ...
def kron(a: ArrayLike, b: ArrayLike, *, out: Any = None) -> Array: ...
def lexsort(keys: Any, axis: int = -1, *, out: Any = None) -> Array: ...
def linalg_block_diag(*arrs: ArrayLike, out: Any = None) -> Array: ...
def linalg_cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True, *, out: Any = None
) -> tuple[Array, bool]: ...
def linalg_cho_solve(
    c_and_lower: tuple[ArrayLike, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
) -> Array: ...
def linalg_cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True, out: Any = None) -> Array: ...
def linalg_cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_circulant(c: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_companion(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_cond(x: ArrayLike, p: Any = None, *, out: Any = None) -> Array: ...
def linalg_convolution_matrix(a: ArrayLike, n: int, mode: str = "full", *, out: Any = None) -> Array: ...
def linalg_cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: Any = -1, out: Any = None) -> Array: ...
def linalg_det(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_dft(n: int, scale: str | None = None, *, dtype: Any = None, out: Any = None) -> Array: ...
def linalg_diagonal(x: ArrayLike, /, *, offset: int = 0, out: Any = None) -> Array: ...
def linalg_eig(a: ArrayLike, *, out: Any = None) -> EigResult: ...
def linalg_eigh(
    a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True, *, out: Any = None
) -> EighResult: ...
def linalg_eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: Array | None = None,
    out: Any = None,
) -> Array | tuple[Array, Array]: ...
def linalg_eigvals(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_eigvalsh(
    a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True, out: Any = None
) -> Array: ...
def linalg_expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16, out: Any = None) -> Array: ...
@overload
def linalg_expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: Literal[True] = True, out: Any = None
) -> tuple[Array, Array]: ...
@overload
def linalg_expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: Literal[False], out: Any = None
) -> Array: ...
@overload
def linalg_expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True, out: Any = None
) -> Array | tuple[Array, Array]: ...
def linalg_fiedler(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_fiedler_companion(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_funm(
    A: ArrayLike, func: Callable[[Array], Array], disp: bool = True, *, out: Any = None
) -> Array | tuple[Array, Array]: ...
def linalg_hadamard(n: int, dtype: Any = ..., *, out: Any = None) -> Array: ...
def linalg_hankel(c: ArrayLike, r: ArrayLike | None = None, *, out: Any = None) -> Array: ...
def linalg_helmert(n: int, full: bool = False, *, out: Any = None) -> Array: ...
@overload
def linalg_hessenberg(
    a: ArrayLike, *, calc_q: Literal[False], overwrite_a: bool = False, check_finite: bool = True, out: Any = None
) -> Array: ...
@overload
def linalg_hessenberg(
    a: ArrayLike, *, calc_q: Literal[True], overwrite_a: bool = False, check_finite: bool = True, out: Any = None
) -> tuple[Array, Array]: ...
def linalg_hilbert(n: int, *, out: Any = None) -> Array: ...
def linalg_householder_product(a: ArrayLike, taus: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_inv(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_invhilbert(n: int, *, out: Any = None) -> Array: ...
def linalg_invpascal(n: int, kind: str | None = None, *, out: Any = None) -> Array: ...
def linalg_leslie(f: ArrayLike, s: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_lstsq(
    a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = False, out: Any = None
) -> tuple[Array, Array, Array, Array]: ...
@overload
def linalg_lu(
    a: ArrayLike,
    permute_l: Literal[False] = False,
    overwrite_a: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
) -> tuple[Array, Array, Array]: ...
@overload
def linalg_lu(
    a: ArrayLike, permute_l: Literal[True], overwrite_a: bool = False, check_finite: bool = True, *, out: Any = None
) -> tuple[Array, Array]: ...
@overload
def linalg_lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, *, out: Any = None
) -> tuple[Array, Array] | tuple[Array, Array, Array]: ...
def linalg_lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True, *, out: Any = None
) -> tuple[Array, Array]: ...
def linalg_lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int, *, out: Any = None) -> Array: ...
def linalg_lu_solve(
    lu_and_piv: tuple[Array, ArrayLike],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
    *,
    out: Any = None,
) -> Array: ...
def linalg_matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro", out: Any = None) -> Array: ...
def linalg_matrix_power(a: ArrayLike, n: int, *, out: Any = None) -> Array: ...
def linalg_matrix_rank(
    M: ArrayLike,
    rtol: ArrayLike | None = None,
    *,
    hermitian: bool = False,
    tol: ArrayLike | None = None,
    out: Any = None,
) -> Array: ...
def linalg_matrix_transpose(x: ArrayLike, /, *, out: Any = None) -> Array: ...
def linalg_multi_dot(
    arrays: Sequence[ArrayLike], *, precision: jax.lax.PrecisionLike = None, out: Any = None
) -> Array: ...
def linalg_norm(
    x: ArrayLike, ord: Any = None, axis: None | tuple[int, ...] | int = None, keepdims: bool = False, *, out: Any = None
) -> Array: ...
def linalg_ormqr(
    a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False, out: Any = None
) -> Array: ...
def linalg_outer(x1: ArrayLike, x2: ArrayLike, /, *, out: Any = None) -> Array: ...
def linalg_pascal(n: int, kind: str | None = None, *, out: Any = None) -> Array: ...
def linalg_pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
    out: Any = None,
) -> Array: ...
def linalg_polar(
    a: ArrayLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
    out: Any = None,
) -> tuple[Array, Array]: ...
def linalg_qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
    out: Any = None,
) -> Array: ...
@overload
def linalg_qr(
    a: ArrayLike, mode: Literal["reduced", "complete", "raw", "full"] = "reduced", *, out: Any = None
) -> QRResult: ...
@overload
def linalg_qr(a: ArrayLike, mode: Literal["r"], *, out: Any = None) -> Array: ...
@overload
def linalg_qr(a: ArrayLike, mode: str, *, out: Any = None) -> Array | QRResult: ...
@overload
def linalg_qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: Literal[False] = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: Any = None,
) -> tuple[Array, Array]: ...
@overload
def linalg_qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: Literal[True] = True,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: Any = None,
) -> tuple[Array, Array, Array]: ...
@overload
def linalg_qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
    *,
    out: Any = None,
) -> tuple[Array, Array] | tuple[Array, Array, Array]: ...
def linalg_rsf2csf(
    T: ArrayLike, Z: ArrayLike, check_finite: bool = True, *, out: Any = None
) -> tuple[Array, Array]: ...
def linalg_schur(a: ArrayLike, output: str = "real", *, out: Any = None) -> tuple[Array, Array]: ...
def linalg_slogdet(a: ArrayLike, *, method: str | None = None, out: Any = None) -> SlogdetResult: ...
def linalg_solve(a: ArrayLike, b: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_solve_sylvester(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-08, out: Any = None
) -> Array: ...
def linalg_solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
    *,
    out: Any = None,
) -> Array: ...
def linalg_sqrtm(A: ArrayLike, blocksize: int = 1, *, out: Any = None) -> Array: ...
@overload
def linalg_svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[True],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    out: Any = None,
) -> SVDResult: ...
@overload
def linalg_svd(
    a: ArrayLike,
    full_matrices: bool,
    compute_uv: Literal[True],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    out: Any = None,
) -> SVDResult: ...
@overload
def linalg_svd(
    a: ArrayLike,
    full_matrices: bool = True,
    *,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    out: Any = None,
) -> Array: ...
@overload
def linalg_svd(
    a: ArrayLike,
    full_matrices: bool,
    compute_uv: Literal[False],
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    out: Any = None,
) -> Array: ...
@overload
def linalg_svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    out: Any = None,
) -> Array | SVDResult: ...
def linalg_svdvals(x: ArrayLike, /, *, out: Any = None) -> Array: ...
def linalg_symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    symmetrize_output: bool = False,
    out: Any = None,
) -> Array: ...
def linalg_tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def linalg_tensorinv(a: ArrayLike, ind: int = 2, *, out: Any = None) -> Array: ...
def linalg_tensorsolve(
    a: ArrayLike, b: ArrayLike, axes: tuple[int, ...] | None = None, *, out: Any = None
) -> Array: ...
def linalg_toeplitz(c: ArrayLike, r: ArrayLike | None = None, *, out: Any = None) -> Array: ...
def linalg_trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None, out: Any = None) -> Array: ...
def linalg_triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
    out: Any = None,
) -> Array: ...
def linalg_tridiagonal(a: ArrayLike, *, lower: bool = True, out: Any = None) -> tuple[Array, Array, Array, Array]: ...
def linalg_tridiagonal_solve(
    dl: Array, d: Array, du: Array, b: Array, *, perturb_singular: bool = False, out: Any = None
) -> Array: ...
def linalg_vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out: Any = None,
) -> Array: ...
def linalg_vector_norm(
    x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: Any = 2, out: Any = None
) -> Array: ...
def log_softmax(
    x: ArrayLike, axis: int | Sequence[int] | None = -1, where: ArrayLike | None = None, *, out: Any = None
) -> Array: ...
def loggamma(x: ArrayLike, *, out: Any = None) -> Array: ...
def logmeanexp(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    out: Any = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: ArrayLike | None = None,
    out: Any = None,
) -> tuple[Array, Array]: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array | tuple[Array, Array]: ...
def mask_indices(
    n: int, mask_func: Callable[[ArrayLike, int], Array], k: int = 0, *, size: int | None = None, out: Any = None
) -> tuple[Array, Array]: ...
def matrix_transpose(x: ArrayLike, /, *, out: Any = None) -> Array: ...
def matvec(x1: Any, x2: Any, /, *, out: Any = None) -> Array: ...
def max(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def mean(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array: ...
def median(
    a: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array: ...
def min(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def minmax(*args: Any, out: Any = None, **kwargs: Any) -> Array: ...
def modf(x: ArrayLike, /, out: Any = None) -> tuple[Array, Array]: ...
def moveaxis(
    a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], *, out: Any = None
) -> Array: ...
def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: Any = None, out: Any = None) -> Array: ...
def nanargmax(a: ArrayLike, axis: int | None = None, out: Any = None, keepdims: bool | None = None) -> Array: ...
def nanargmin(a: ArrayLike, axis: int | None = None, out: Any = None, keepdims: bool | None = None) -> Array: ...
def nancumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array: ...
def nancumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array: ...
def nanmax(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def nanmean(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Array: ...
def nanmedian(
    a: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array: ...
def nanmin(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array: ...
def nanprod(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array: ...
def nanstd(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array: ...
def nansum(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array: ...
def nanvar(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array: ...
def nn_glu(x: ArrayLike, axis: int = -1, *, out: Any = None) -> Array: ...
def nn_log_softmax(
    x: ArrayLike, axis: int | Sequence[int] | None = -1, where: ArrayLike | None = None, *, out: Any = None
) -> Array: ...
def nn_logmeanexp(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    out: Any = None,
) -> Array: ...
@overload
def nn_logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
@overload
def nn_logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: ArrayLike | None = None,
    out: Any = None,
) -> tuple[Array, Array]: ...
@overload
def nn_logsumexp(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array | tuple[Array, Array]: ...
def nn_softmax(
    x: ArrayLike, axis: int | Sequence[int] | None = -1, where: ArrayLike | None = None, *, out: Any = None
) -> Array: ...
def nn_standardize(
    x: ArrayLike,
    axis: int | Sequence[int] | None = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-05,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
    out: Any = None,
) -> Array: ...
def nonzero(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = None,
    out: Any = None,
) -> tuple[Array, ...]: ...
def one_minus_square(*args: Any, out: Any = None, **kwargs: Any) -> Array: ...
def optimization_barrier(operand: Any, /, *, out: Any = None) -> Any: ...
def outer(a: Any, b: Any, out: Any = None) -> Array: ...
def owens_t(h: ArrayLike, a: ArrayLike, *, out: Any = None) -> Array: ...
def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big", *, out: Any = None) -> Array: ...
def pad(array: Any, pad_width: Any, mode: Any = "constant", *, out: Any = None, **kwargs: Any) -> Array: ...
def partition(a: Any, kth: int, axis: int = -1, *, out: Any = None) -> Array: ...
def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
    out_sharding: Any = None,
) -> Array: ...
def permute_dims(a: ArrayLike, /, axes: tuple[int, ...], *, out: Any = None) -> Array: ...
def piecewise(
    x: ArrayLike,
    condlist: Array | Sequence[ArrayLike],
    funclist: list[ArrayLike | Callable[..., Array]],
    *args: Any,
    out: Any = None,
    **kw: Any,
) -> Array: ...
def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = False, out: Any = None) -> Array: ...
def poly(seq_of_zeros: ArrayLike, *, out: Any = None) -> Array: ...
def polyadd(a1: ArrayLike, a2: ArrayLike, *, out: Any = None) -> Array: ...
def polyder(p: ArrayLike, m: int = 1, *, out: Any = None) -> Array: ...
def polydiv(
    u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False, out: Any = None
) -> tuple[Array, Array]: ...
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool = False,
    *,
    out: Any = None,
) -> Array | tuple[Array, ...]: ...
def polyint(p: ArrayLike, m: int = 1, k: int | ArrayLike | None = None, *, out: Any = None) -> Array: ...
def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False, out: Any = None) -> Array: ...
def polynomial(*args: Any, out: Any = None, **kwargs: Any) -> Array: ...
def polysub(a1: ArrayLike, a2: ArrayLike, *, out: Any = None) -> Array: ...
def polyval(p: Any, x: Any, *, unroll: int = 16, out: Any = None) -> Array: ...
def prod(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array: ...
def ptp(a: ArrayLike, axis: int | Sequence[int] | None = None, out: Any = None, keepdims: bool = False) -> Array: ...
def put(
    a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = False, out: Any = None
) -> Array: ...
def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = False,
    *,
    mode: str | None = None,
    out: Any = None,
) -> Array: ...
def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array: ...
def ragged_dot(
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Array | None = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def ragged_dot_general(
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    ragged_dot_dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Array | None = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def ravel(a: ArrayLike, order: str = "C", *, out_sharding: Any = None, out: Any = None) -> Array: ...
def ravel_multi_index(
    multi_index: Sequence[ArrayLike],
    dims: Sequence[int],
    mode: str = "clip",
    order: str = "C",
    *,
    dtype: Any = None,
    out: Any = None,
) -> Array: ...
def real(val: ArrayLike, /, *, out: Any = None) -> Array: ...
def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def reduce_and(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def reduce_max(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def reduce_min(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def reduce_or(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def reduce_prod(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out_sharding: Any = None, out: Any = None) -> Array: ...
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Any,
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
    *,
    out: Any = None,
) -> Array: ...
def reduce_xor(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array: ...
def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def reshape(
    a: ArrayLike, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None, out: Any = None
) -> Array: ...
def resize(a: ArrayLike, new_shape: Any, *, out: Any = None) -> Array: ...
def rev(operand: ArrayLike, dimensions: Sequence[int], *, out: Any = None) -> Array: ...
def roll(
    a: ArrayLike, shift: ArrayLike | Sequence[int], axis: int | Sequence[int] | None = None, *, out: Any = None
) -> Array: ...
def rollaxis(a: ArrayLike, axis: int, start: int = 0, *, out: Any = None) -> Array: ...
def roots(p: ArrayLike, *, strip_zeros: bool = True, out: Any = None) -> Array: ...
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = ..., *, out: Any = None) -> Array: ...
def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_apply(
    operand: Array,
    scatter_indices: Array,
    func: Callable[[Array], Array],
    dimension_numbers: Any,
    *,
    update_shape: Any = ...,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
    out: Any = None,
) -> Array: ...
def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str = "scan",
    out: Any = None,
) -> Array: ...
def segment_max(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def segment_min(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def segment_prod(
    data: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
    *,
    out: Any = None,
) -> Array: ...
def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0, *, out: Any = None
) -> Array: ...
def select_n(which: ArrayLike, *cases: ArrayLike, out: Any = None) -> Array: ...
def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    out: Any = None,
) -> Array: ...
def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    out: Any = None,
) -> Array: ...
def sici(x: ArrayLike, *, out: Any = None) -> tuple[Array, Array]: ...
def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
    *,
    out: Any = None,
) -> Array: ...
def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0, *, out: Any = None
) -> Array: ...
def softmax(
    x: ArrayLike, axis: int | Sequence[int] | None = -1, where: ArrayLike | None = None, *, out: Any = None
) -> Array: ...
def sort(
    a: Any,
    axis: Any = -1,
    *,
    kind: Any = None,
    order: Any = None,
    stable: bool = True,
    descending: bool = False,
    out: Any = None,
) -> Array: ...
def sort_complex(a: Any, *, out: Any = None) -> Array: ...
def sort_key_val(
    keys: Array, values: ArrayLike, dimension: int = -1, is_stable: bool = True, *, out: Any = None
) -> tuple[Array, Array]: ...
def sph_harm_y(
    n: Array,
    m: Array,
    theta: Array,
    phi: Array,
    diff_n: int | None = None,
    n_max: int | None = None,
    *,
    out: Any = None,
) -> Array: ...
def split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, axis: int = 0, *, out: Any = None
) -> list[Array]: ...
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None, *, out: Any = None) -> Array: ...
def stack(arrays: Any, axis: int = 0, out: Any = None, dtype: Any = None) -> Array: ...
def standardize(
    x: ArrayLike,
    axis: int | Sequence[int] | None = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-05,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
    out: Any = None,
) -> Array: ...
def std(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: int | float | None = None,
) -> Array: ...
def sum(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array: ...
def swapaxes(a: ArrayLike, axis1: int, axis2: int, *, out: Any = None) -> Array: ...
def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: Any = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array: ...
def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: Any = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool | None = None,
    out: Any = None,
) -> Array: ...
def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    out: Any = None,
) -> Array: ...
def tile(A: ArrayLike, reps: Any, *, out: Any = None) -> Array: ...
def top_k(operand: ArrayLike, k: int, *, axis: int = -1, out: Any = None) -> tuple[Array, Array]: ...
def trace(
    a: ArrayLike, offset: int | ArrayLike = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Array: ...
def transpose(a: ArrayLike, axes: Sequence[int] | None = None, *, out: Any = None) -> Array: ...
def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1, *, out: Any = None
) -> Array: ...
def tril(m: ArrayLike, k: int = 0, *, out: Any = None) -> Array: ...
def triu(m: ArrayLike, k: int = 0, *, out: Any = None) -> Array: ...
def union1d(
    ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> Array: ...
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
    out: Any = None,
) -> Array: ...
def unique_all(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> UniqueAllResult: ...
def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> UniqueCountsResult: ...
def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> UniqueInverseResult: ...
def unique_values(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None, out: Any = None
) -> Array: ...
def unpackbits(
    a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big", *, out: Any = None
) -> Array: ...
def unravel_index(indices: ArrayLike, shape: Any, *, out: Any = None) -> tuple[Array, ...]: ...
def unstack(x: ArrayLike, /, *, axis: int = 0, out: Any = None) -> tuple[Array, ...]: ...
def unwrap(
    p: ArrayLike,
    discont: ArrayLike | None = None,
    axis: int = -1,
    period: ArrayLike = 6.283185307179586,
    *,
    out: Any = None,
) -> Array: ...
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False, *, out: Any = None) -> Array: ...
def var(
    a: ArrayLike,
    axis: int | Sequence[int] | None = None,
    dtype: Any = None,
    out: Any = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: int | float | None = None,
) -> Array: ...
def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out: Any = None) -> Array: ...
def vecdot(
    x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None, out: Any = None
) -> Array: ...
def vecmat(x1: Any, x2: Any, /, *, out: Any = None) -> Array: ...
def vsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, *, out: Any = None) -> list[Array]: ...
def vstack(tup: Any, dtype: Any = None, *, out: Any = None) -> Array: ...
@overload
def where(
    condition: ArrayLike,
    /,
    *,
    size: int | None = ...,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = ...,
    out: Any = None,
) -> tuple[Array, ...]: ...
@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /, *, out: Any = None) -> Array: ...
def wofz(z: ArrayLike, *, out: Any = None) -> Array: ...
