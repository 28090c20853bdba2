"""Functions that only `jax.lax` has under these names: reductions over given dims, reversals, one position of a dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shtypes.context.user_line import public_op
from shtypes.core.array import Array, ArrayLike
from shtypes.ops import extremes, reduce, reduce_nonlinear
from shtypes.ops.arrange import flip
from shtypes.ops.dispatch import as_ints, lift
from shtypes.ops.shape import expand_dims
from shtypes.ops.slices import dynamic_update_slice_in_dim


def _dims(axes: Any) -> tuple[int, ...]:
    return as_ints(axes, "the axes of a reduction")


@public_op
def reduce_sum(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The sum over dims, as `jax.lax.reduce_sum`; see `sum`."""
    return reduce.sum(operand, _dims(axes), out=out)


@public_op
def reduce_max(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The maximum over dims, as `jax.lax.reduce_max`; see `max`."""
    return extremes.max(operand, _dims(axes), out=out)


@public_op
def reduce_min(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The minimum over dims, as `jax.lax.reduce_min`; see `min`."""
    return extremes.min(operand, _dims(axes), out=out)


@public_op
def reduce_prod(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """The product over dims, as `jax.lax.reduce_prod`; see `prod`."""
    return reduce_nonlinear.prod(operand, _dims(axes), out=out)


@public_op
def reduce_and(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """Whether all hold over dims, as `jax.lax.reduce_and` of bools; see `all`."""
    return extremes.all(operand, _dims(axes), out=out)


@public_op
def reduce_or(operand: ArrayLike, axes: Sequence[int], *, out: Any = None) -> Array:
    """Whether any holds over dims, as `jax.lax.reduce_or` of bools; see `any`."""
    return extremes.any(operand, _dims(axes), out=out)


@public_op
def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Dims backwards, as `jax.lax.rev`; see `flip`."""
    return flip(operand, as_ints(dimensions, "the dims of `rev`"))


@public_op
def dynamic_update_index_in_dim(operand: ArrayLike, update: ArrayLike, index: Any, axis: int) -> Array:
    """One position of a dim replaced, as `jax.lax.dynamic_update_index_in_dim`; see `dynamic_update_slice`."""
    (x, new), _ = lift([operand, update])
    if jax.typeof(new).ndim < jax.typeof(x).ndim:
        new = expand_dims(new, axis)
    return dynamic_update_slice_in_dim(x, new, index, axis)
