"""Means: sums over the global number of elements, of those that a mask keeps, or over the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import beside, inexact, lift, located
from shtypes.dispatch.out_fixes import with_own_fixes
from shtypes.dispatch.reshard import finished, reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.across import total
from shtypes.ops.arithmetic import astype, divide, multiply, subtract
from shtypes.ops.asking import may_communicate
from shtypes.ops.elementwise import not_equal
from shtypes.ops.functions import expand_dims, squeeze
from shtypes.ops.reduce import Axis, dtype_to_sum_in, normalize_dims, only, sum_of
from shtypes.types import ShType, State, dtypes


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
) -> Array:
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
) -> Array:
    """A sum over another, which is reduced first, less ``taken``."""
    sharded = jax.typeof(divisor).axes(State.UNREDUCED)

    def divided(pending: Any, divisor: Any) -> Array:
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


def _count(where: Any, shape: tuple[int, ...], dims: tuple[int, ...]) -> Array:
    """How many elements of an array of this shape a mask keeps, for each row, with the dims kept."""
    mask = expand_dims(where, tuple(range(len(shape) - jax.typeof(where).ndim)))
    present = tuple(d for d in dims if jax.typeof(mask).shape[d] == shape[d])
    absent = math.prod(shape[d] for d in dims if d not in present)
    mask = mask if jax.typeof(mask).dtype_name == "bool" else not_equal(mask, 0)
    return multiply(sum_of("sum", mask, present, True), absent)


@public
def mean(
    a: ArrayLike, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Array:
    """The mean over dims: the sum over the *global* number of elements; typed as `sum`.

    Args:
        a (...): The operand.
        axis: Dims, as in `jax.numpy`; all by default.
        dtype: The dtype to sum in.
        out: A type to reshard the result to.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count. Where it is sharded along the dims, their number is a
            pending sum too, and must be reduced before it divides: only with ``out`` or in `implicit_comm`.

    Raises:
        ShardingTypeError: ``where`` is sharded along the dims, and nothing asks to communicate.

    Communicates: nothing but what ``out`` asks for, and with a sharded ``where`` an all-reduce of one integer for each
    row. Transpose: broadcast and division; moves nothing.
    """
    ((x,), _) = lift([a])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, "mean")
    wanted = dtype_to_sum_in("mean", t, dtype)
    if wanted is not None and not dtypes.differentiable(wanted):  # the parts of a mean are not whole numbers
        return astype(mean(x, dims, None, out, keepdims, where=where), wanted)
    if wanted is None and not t.differentiable:
        wanted = inexact(t.dtype)  # as JAX: before the sum, which could overflow
    if where is None:
        y = sum_of("mean", x, dims, keepdims, wanted, math.prod(t.shape[d] for d in dims))
        return y if out is None else reshard(y, out)
    return mean_of(x, where, dims, keepdims, wanted, out)
