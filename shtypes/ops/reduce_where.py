"""Sums and means of some of the elements: those that a mask keeps, that are no NaN, or by their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops import reduce
from shtypes.ops.across import total
from shtypes.ops.asking import finished, may_communicate, with_own_fixes
from shtypes.ops.create import full_like
from shtypes.ops.dispatch import beside, dtype_name, lift, located
from shtypes.ops.elementwise import astype, divide, isnan, multiply, not_equal, subtract
from shtypes.ops.reduce import Axis, normalize_dims, only, sum_of
from shtypes.ops.select import where as _where
from shtypes.ops.shape import broadcast_to, expand_dims, squeeze
from shtypes.types import ShType, State


def mean_of(
    x: Any,
    where: Any,
    dims: tuple[int, ...],
    keepdims: Any,
    dtype: str | None,
    out: Any,
    *,
    taken: Any = 0,
    asked: bool = False,
) -> Any:
    """The sum over dims of what a mask keeps, over the number of elements kept, less ``taken``."""
    ((where,), _) = lift([where])
    types = jax.typeof(x), jax.typeof(where)
    kept = _count(where, types[0].shape, dims)
    pending = sum_of("mean", only("mean", x, where, 0), dims, True, dtype)
    what = "number of elements that `where` keeps"
    return _over_pending("mean", what, types, pending, kept, dims, keepdims, out, taken, asked)


def _over_pending(
    name: str,
    what: str,
    shown: Sequence[ShType],
    pending: Any,
    divisor: Any,
    dims: tuple[int, ...],
    keepdims: Any,
    out: Any,
    taken: Any = 0,
    asked: bool = False,
) -> Any:
    """A sum over another, which is reduced first, less ``taken``."""
    sharded = jax.typeof(divisor).axes(State.UNREDUCED)

    def divided(pending: Any, divisor: Any) -> Any:
        whole = astype(total(divisor, sharded, State.REDUCED), jax.typeof(pending).dtype_name)
        whole = whole if jax.typeof(divisor).differentiable else beside(whole, pending)
        y = divide(pending, subtract(whole, taken) if taken else whole)
        return y if keepdims else squeeze(y, dims)

    if sharded and not asked and not may_communicate(out):
        error = ShardingTypeError(
            f"`{name}` divides by the {what}, which is a pending sum over {', '.join(f'`{a}`' for a in sharded)}",
            why="each device adds up its own slice, and quotients by parts do not add up to the quotient by the whole",
            axes=sharded,
        )
        raise with_own_fixes(located(error, name, shown), name, divided, jax.typeof(pending), jax.typeof(divisor))
    return finished(divided(pending, divisor), out)


def _count(where: Any, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """How many elements of an array of this shape a mask keeps, for each row, with the dims kept."""
    mask = expand_dims(where, tuple(range(len(shape) - jax.typeof(where).ndim)))
    present = tuple(d for d in dims if jax.typeof(mask).shape[d] == shape[d])
    absent = math.prod(shape[d] for d in dims if d not in present)
    mask = mask if jax.typeof(mask).dtype_name == "bool" else not_equal(mask, 0)
    return multiply(sum_of("sum", mask, present, True), absent)


@public
def count_nonzero(a: Any, axis: Axis = None, keepdims: bool = False, *, out: Any = None) -> Any:
    """How many elements are not zero, as in `jax.numpy`; a sum, so over a sharded dim it is unreduced.

    Args:
        a (...): The operand, not unreduced.
        axis: The dims; all by default.
        keepdims: Keeps the dims with size 1.
        out: A type to reshard the result to.

    Communicates: nothing but what ``out`` asks for.
    """
    ((x,), _) = lift([a])
    found = not_equal(x, 0) if jax.typeof(x).dtype_name != "bool" else x
    return reduce.sum(found, axis, dtype_name(jnp.int_), out, keepdims)


@public
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum of the elements that are not NaN; typed as `sum` of a value that is not unreduced; arguments as there.

    Communicates: nothing but what ``out`` asks for. Transpose: the cotangent, zero at NaNs.
    """
    ((x,), _) = lift([a])
    return reduce.sum(_where(isnan(x), 0, x), axis, dtype, out, keepdims, initial, where)


@public
def average(
    a: Any,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    keepdims: bool = False,
    *,
    out: Any = None,
) -> Any:
    """The mean weighted by ``weights``, as in `jax.numpy`, over their sum; without weights it is `mean`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        weights (...): Of the operand's shape, or along one dim. Their sum over sharded dims is pending, and must be
            reduced before it divides: only with ``out`` or in `implicit_comm`.
        returned: Whether to return the sum of the weights too.
        keepdims: Keeps the dims with size 1.
        out: A type to reshard the result to.

    Raises:
        ShardingTypeError: the weights are sharded along the dims, and nothing asks to communicate.

    Communicates: nothing but what ``out`` asks for, and with sharded weights an all-reduce of one number for each row,
    forward and backward.
    """
    ((x,), _) = lift([a])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "average")
    shape = jax.typeof(x).shape
    if weights is None:
        y = reduce.mean(x, dims, None, out, keepdims)
        return (y, full_like(y, math.prod(shape[d] for d in dims))) if returned else y
    ((w,), held) = lift([weights])
    w = beside(w, x) if held else w
    if jax.typeof(w).ndim == 1 and len(dims) == 1 and len(shape) > 1:
        w = expand_dims(w, tuple(d for d in range(len(shape)) if d not in dims))
    if any(m not in (1, n) for m, n in zip(jax.typeof(w).shape, shape, strict=False)):
        raise ShardingTypeError(f"`average` of {jax.typeof(x)} cannot take weights {jax.typeof(w)}")
    scores = multiply(x, w)
    summed = sum_of("sum", broadcast_to(w, shape), dims, True)
    types = jax.typeof(x), jax.typeof(w)
    pending = sum_of("sum", scores, dims, True)
    y = _over_pending("average", "sum of the weights", types, pending, summed, dims, keepdims, out)
    if not returned:
        return y
    summed = total(summed, jax.typeof(summed).axes(State.UNREDUCED) if may_communicate(out) else (), State.REDUCED)
    return y, broadcast_to(summed if keepdims else squeeze(summed, dims), jax.typeof(y).shape)


__all__ = ["average", "count_nonzero", "mean_of", "nansum"]
