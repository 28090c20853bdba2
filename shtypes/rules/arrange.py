"""Typing of ops that put elements elsewhere and know where each device's elements are: repeat, diag, diagonal. Pure."""

from __future__ import annotations

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.reduce import normal_dims
from shtypes.rules.typing import Typing, linear, rule
from shtypes.types import Dim, ShType


@rule
def repeat(operand: ShType, dim: int, count: int) -> Typing:
    """Each element ``count`` times in a row: the copies of a device's slice are its slice of the copies."""
    (place,) = normal_dims("repeat", operand, dim)
    if count < 0:
        raise ShardingTypeError(f"`repeat` needs a count of at least 0, not {count}")
    old = operand.dims[place]
    if not count and old.axes:  # a dim of size 0 has no slices
        raise reasons.along("repeat", operand, old.axes[0])
    new = old if count == 1 else Dim(old.size * count, old.axes)
    dims = [new if d == place else dim for d, dim in enumerate(operand.dims)]
    return linear(operand, operand.dtype_name, dims)


@rule
def diag(operand: ShType) -> Typing:
    """The matrix with a vector on its diagonal. Where the vector is sharded the rows are: a device makes its own.

    The columns could be, or the result UNREDUCED, just as well.
    """
    (dim,) = operand.dims
    return linear(operand, operand.dtype_name, [dim, Dim(dim.size)])


@rule
def diagonal(operand: ShType, rows: int, columns: int, count: int) -> Typing:
    """A diagonal of ``count`` elements of two dims, as one last dim; where it is sharded it lies like one of them.

    A dim may be sharded if the diagonal has an element at each of its indices: a device has those of its own slice.
    """
    both = (rows, columns)
    for d in both:
        for axis in operand.dims[d].axes:
            if operand.shape[d] != count or any(operand.dims[other].axes for other in both if other != d):
                raise reasons.along("diagonal", operand, axis, dims=both)
    axes = next((operand.dims[d].axes for d in both if operand.dims[d].axes), ())
    dims = [*(dim for d, dim in enumerate(operand.dims) if d not in both), Dim(count, axes)]
    return linear(operand, operand.dtype_name, dims)
