"""Functions that only `jax.lax` has under these names: reductions over given dims, reversals, one position of a dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.lowering.replay import public
from shtypes.ops import extremes, reduce, reduce_nonlinear
from shtypes.ops.arithmetic import astype, multiply
from shtypes.ops.arrange import flip
from shtypes.ops.dispatch import as_ints, is_number, lift
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.reshard import finished
from shtypes.ops.shape import expand_dims
from shtypes.ops.slices import dynamic_update_slice_in_dim
from shtypes.ops.whole import function, reduced_by


def _dims(axes: Any) -> tuple[int, ...]:
    return as_ints(axes, "the axes of a reduction")


@public
def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The sum over dims, as `jax.lax.reduce_sum`; see `sum`."""
    return reduce.sum(operand, _dims(axes), out=out)


@public
def reduce_max(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The maximum over dims, as `jax.lax.reduce_max`; see `max`."""
    return extremes.max(operand, _dims(axes), out=out)


@public
def reduce_min(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The minimum over dims, as `jax.lax.reduce_min`; see `min`."""
    return extremes.min(operand, _dims(axes), out=out)


@public
def reduce_prod(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The product over dims, as `jax.lax.reduce_prod`; see `prod`."""
    return reduce_nonlinear.prod(operand, _dims(axes), out=out)


@public
def reduce_and(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """Whether all hold over dims, as `jax.lax.reduce_and`; see `all`. Of integers, the bits that all have."""
    return _of_bits("reduce_and", lax.reduce_and, extremes.all, operand, axes, out)


@public
def reduce_or(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """Whether any holds over dims, as `jax.lax.reduce_or`; see `any`. Of integers, the bits that any has."""
    return _of_bits("reduce_or", lax.reduce_or, extremes.any, operand, axes, out)


def _of_bits(name: str, native: Any, of_bools: Callable[..., Array], operand: Any, axes: Any, out: Any) -> Array:
    ((x,), _) = lift([operand])
    dims = normalize_dims(_dims(axes), jax.typeof(x).ndim, name)
    if jax.typeof(x).dtype_name == "bool":
        return of_bools(x, dims, out=out)
    return finished(reduced_by(name, function(name, native, axes=dims), x, dims, False), out)


@public
def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Dims backwards, as `jax.lax.rev`; see `flip`."""
    return flip(operand, as_ints(dimensions, "the dims of `rev`"))


@public
def dynamic_update_index_in_dim(
    operand: ArrayLike, update: ArrayLike, index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Array:
    """One position of a dim replaced, as `jax.lax.dynamic_update_index_in_dim`; see `dynamic_update_slice`."""
    (x, new), _ = lift([operand, update])
    if jax.typeof(new).ndim < jax.typeof(x).ndim:
        new = expand_dims(new, axis)
    return dynamic_update_slice_in_dim(x, new, index, axis, allow_negative_indices=allow_negative_indices)


@public
def convert_element_type(operand: ArrayLike, new_dtype: Any) -> Array:
    """Another dtype, as `jax.lax.convert_element_type`; see `astype`."""
    return astype(operand, new_dtype)


@public
def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: Any = None) -> Array:
    """``x * y``, as `jax.lax.mul`, of operands in ``out_dtype`` where that is given; see `multiply`."""
    if out_dtype is not None:
        x, y = (v if is_number(v) else astype(v, out_dtype) for v in (x, y))
    return multiply(x, y)
