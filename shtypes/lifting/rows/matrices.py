"""Rows of products, convolutions, transforms, and primitives of whole matrices."""

from __future__ import annotations

from typing import Any, Final

import jax

from shtypes.errors import ShardingTypeError
from shtypes.lifting.registry import equation_row, op, row
from shtypes.lifting.rows.annotations import annotated
from shtypes.lifting.rows.generic import batched
from shtypes.lifting.rows.shapes import ints


@row("dot_general")
def _dot_general(
    a: Any,
    b: Any,
    *,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    made = op("dot_general")(
        a, b, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type
    )
    return annotated(made, out_sharding)


@row("conv_general_dilated")
def _conv_general_dilated(
    x: Any,
    w: Any,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    made = op("conv_general_dilated")(
        x,
        w,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    return annotated(made, out_sharding)


_TRANSFORMS: Final = {"FFT": "fft.fftn", "IFFT": "fft.ifftn", "RFFT": "fft.rfftn", "IRFFT": "fft.irfftn"}


@row("fft")
def _fft(x: Any, *, fft_type: Any, fft_lengths: Any) -> Any:
    called = _TRANSFORMS[str(getattr(fft_type, "name", fft_type)).rpartition(".")[2]]
    dims = range(x.type.ndim - len(fft_lengths), x.type.ndim)
    return op(called)(x, ints(fft_lengths), tuple(dims))


@row("triangular_solve")
def _triangular_solve(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    if conjugate_a and not transpose_a:
        a, conjugate_a = op("conj")(a) if hasattr(a, "type") else jax.numpy.conj(a), False
    trans = (2 if conjugate_a else 1) if transpose_a else 0
    solve = op("linalg.solve_triangular")
    if left_side:
        return solve(a, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal)
    if trans == 2:
        a, trans = op("conj")(a) if hasattr(a, "type") else jax.numpy.conj(a), 1
    turned = op("swapaxes")(b, -1, -2)
    return op("swapaxes")(solve(a, turned, trans=1 - trans, lower=lower, unit_diagonal=unit_diagonal), -1, -2)


@row("ragged_dot_general")
def _ragged_dot_general(
    lhs: Any,
    rhs: Any,
    sizes: Any,
    *,
    ragged_dot_dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:
    given = {"precision": precision, "preferred_element_type": preferred_element_type, "group_offset": group_offset}
    (lhs_dims, rhs_dims), batch = ragged_dot_dimension_numbers.dot_dimension_numbers
    numbers = (ints(lhs_dims), ints(rhs_dims)), tuple(map(ints, batch))
    ragged = ragged_dot_dimension_numbers
    groups = ints(ragged.lhs_ragged_dimensions), ints(ragged.rhs_group_dimensions)
    if (numbers, groups) != ((((1,), (1,)), ((), ())), ((0,), (0,))):
        raise ShardingTypeError(
            "`lift` types `ragged_dot`, and no other form of `ragged_dot_general`", hints=["sh.local_map of it"]
        )
    return annotated(op("ragged_dot")(lhs, rhs, sizes, **given), out_sharding)


#: Those of whole matrices, batched over what is before them: how many dims, from the back, the first operand's are.
_WHOLE: Final = {
    "cholesky": 2,
    "cholesky_update": 2,
    "eig": 2,
    "eigh": 2,
    "geqp3": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "symmetric_product": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
}


@equation_row(*_WHOLE)
def _of_matrices(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    return batched(name, eqn, operands, _WHOLE[name])
