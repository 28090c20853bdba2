"""The functions of JAX that `OPS` makes. Written by `python generate/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax

from shtypes.core.array import Array as Array
from shtypes.core.array import ArrayLike
from shtypes.numerics.results import EighResult, EigResult, QRResult, SlogdetResult, SVDResult

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
def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out_sharding: Any = None, out: Any = None) -> Array: ...
def broadcast_arrays(*args: ArrayLike, out: Any = None) -> list[Array]: ...
def broadcast_in_dim(
    operand: ArrayLike, shape: Any, broadcast_dimensions: Sequence[int], *, out_sharding: Any = None, out: Any = None
) -> Array: ...
def broadcast_to(array: ArrayLike, shape: Any, *, out_sharding: Any = None, out: Any = None) -> Array: ...
def choose(a: ArrayLike, choices: Any, out: Any = None, mode: str = "raise") -> Array: ...
def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike, *, out: Any = None) -> Array: ...
def collapse(operand: Array, start_dimension: int, stop_dimension: int | None = None, *, out: Any = None) -> Array: ...
def column_stack(tup: Any, *, out: Any = None) -> Array: ...
def complex(x: ArrayLike, y: ArrayLike, *, out: Any = None) -> Array: ...
def compress(
    condition: Any, a: Any, axis: Any = None, *, size: Any = None, fill_value: Any = 0, out: Any = None
) -> Array: ...
def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0, out: Any = None) -> Array: ...
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None, *, out: Any = None) -> Array: ...
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
def expand_dims(a: ArrayLike, axis: int | Sequence[int], *, out: Any = None) -> Array: ...
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
def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: None | Array | Sequence[ArrayLike] = None,
    weights: ArrayLike | None = None,
    *,
    out: Any = None,
) -> Array: ...
def hsplit(ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, *, out: Any = None) -> list[Array]: ...
def hstack(tup: Any, dtype: Any = None, *, out: Any = None) -> Array: ...
def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True, *, out: Any = None) -> Array: ...
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
def linalg_cond(x: ArrayLike, p: Any = None, *, out: Any = None) -> Array: ...
def linalg_cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: Any = -1, out: Any = None) -> Array: ...
def linalg_det(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_diagonal(x: ArrayLike, /, *, offset: int = 0, out: Any = None) -> Array: ...
def linalg_eig(a: ArrayLike, *, out: Any = None) -> EigResult: ...
def linalg_eigh(
    a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True, *, out: Any = None
) -> EighResult: ...
def linalg_eigvals(a: ArrayLike, *, out: Any = None) -> Array: ...
def linalg_eigvalsh(
    a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True, out: Any = None
) -> Array: ...
def linalg_expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16, out: Any = None) -> Array: ...
def linalg_inv(a: ArrayLike, *, out: Any = None) -> Array: ...
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
def linalg_outer(x1: ArrayLike, x2: ArrayLike, /, *, out: Any = None) -> Array: ...
def linalg_pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
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
def linalg_slogdet(a: ArrayLike, *, method: str | None = None, out: Any = None) -> SlogdetResult: ...
def linalg_solve(a: ArrayLike, b: ArrayLike, *, out: Any = None) -> Array: ...
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
def linalg_tensorinv(a: ArrayLike, ind: int = 2, *, out: Any = None) -> Array: ...
def linalg_tensorsolve(
    a: ArrayLike, b: ArrayLike, axes: tuple[int, ...] | None = None, *, out: Any = None
) -> Array: ...
def linalg_toeplitz(c: ArrayLike, r: ArrayLike | None = None, *, out: Any = None) -> Array: ...
def linalg_trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None, out: Any = None) -> Array: ...
def linalg_vector_norm(
    x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: Any = 2, out: Any = None
) -> Array: ...
def logmeanexp(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    out: Any = None,
) -> Array: ...
def matrix_transpose(x: ArrayLike, /, *, out: Any = None) -> Array: ...
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
def nn_logmeanexp(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    where: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    out: Any = None,
) -> Array: ...
def nonzero(
    a: ArrayLike,
    *,
    size: int | None = None,
    fill_value: None | ArrayLike | tuple[ArrayLike, ...] = None,
    out: Any = None,
) -> tuple[Array, ...]: ...
def optimization_barrier(operand: Any, /, *, out: Any = None) -> Any: ...
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
def split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int] | ArrayLike, axis: int = 0, *, out: Any = None
) -> list[Array]: ...
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None, *, out: Any = None) -> Array: ...
def stack(arrays: Any, axis: int = 0, out: Any = None, dtype: Any = None) -> Array: ...
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
