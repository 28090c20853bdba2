"""Sums and means. A sum over a sharded dim is unreduced: the pending sum is in the type, nothing is communicated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.dim_fns import Sum
from shtypes.core.eager_cache import public
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import apply, as_ints, beside, dtype_name, is_number, lift, typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.arithmetic import add, astype
from shtypes.ops.functions import where as select
from shtypes.types import ShType, State

Axis = int | Sequence[int] | None


def normalize_dims(axis: Axis, ndim: int, what: str) -> tuple[int, ...]:
    """``axis=`` as sorted dims from the front."""
    given = tuple(range(ndim)) if axis is None else as_ints(axis, f"the axis of `{what}`")
    dims = tuple(d + ndim if d < 0 else d for d in given)
    if any(not 0 <= d < ndim for d in dims) or len(set(dims)) != len(dims):
        raise ShardingTypeError(f"`{what}` over axis={axis} does not fit an array of {ndim} dims")
    return tuple(sorted(dims))


def only(name: str, x: Any, where: Any, instead: Any) -> Array:
    """The elements that a mask keeps; the others are ``instead``.

    Raises:
        ShardingTypeError: the mask does not broadcast to the operand, or is not one of booleans.
    """
    kind = jax.typeof(where).dtype if hasattr(where, "dtype") else np.asarray(where).dtype
    if not np.issubdtype(kind, np.bool_):
        raise ShardingTypeError(f"the mask of `{name}` is one of booleans, not of {kind}", hints=["where != 0"])
    mask = tuple(jax.typeof(where).shape) if hasattr(where, "dtype") else np.shape(where)
    shape = jax.typeof(x).shape
    if len(mask) > len(shape) or any(m not in (1, n) for m, n in zip(mask[::-1], shape[::-1], strict=False)):
        raise ShardingTypeError(f"`{name}` of {jax.typeof(x)} cannot take a mask of shape {list(mask)}")
    flag = is_number(instead) and instead in (0, 1) and jax.typeof(x).dtype_name == "bool"
    return select(where, x, bool(instead) if flag else instead)


def sum_of(
    name: str, x: Any, dims: tuple[int, ...], keepdims: Any = False, dtype: str | None = None, count: int = 1
) -> Array:
    """The sum over dims of a typed value, over ``count``."""
    fn = Sum(dims, bool(keepdims), dtype, count)
    found = local_dtype(fn, (jax.typeof(x).dtype_name,), jax.typeof(x).ndim)
    return apply(name, fn, lambda types: rules.reduce_sum(types[0], dims, bool(keepdims), found, name), x)


def dtype_to_sum_in(name: str, t: ShType, dtype: Any) -> str | None:
    """The dtype to sum in, where it is given."""
    if dtype is None:
        return None
    if t.axes(State.UNREDUCED):  # each term would be rounded
        typed(name, lambda types: rules.cast(types[0], dtype_name(dtype), name=name), (t,))
    return dtype_name(dtype)


@public
def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Array:
    """The sum over dims, as `jax.numpy.sum`; over a sharded dim it is unreduced on the axes that sharded it.

    Args:
        a (...): Summand.
        axis: Dims to sum over; all by default.
        dtype: The dtype to sum in.
        out: A type to reshard the result to.
        keepdims: Keeps the summed dims with size 1.
        initial: A number to add, once: to an unreduced sum it is added on index 0.
        where: A bool array that says which elements count; linear in ``a``, so that it may be unreduced.
        promote_integers: Whether narrow integers are summed in JAX's default ones.

    Returns:
        (...): The sum. Per axis: sharded on a summed dim becomes unreduced, any other state is kept.

    Communicates: nothing but what ``out`` asks for. Transpose: broadcast along the dims; moves nothing.
    """
    ((x,), _) = lift([a])
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, "sum")
    wanted = dtype_to_sum_in("sum", t, dtype)
    if wanted is None and not promote_integers and not t.differentiable:
        wanted = t.dtype_name
    y = sum_of("sum", x if where is None else only("sum", x, where, 0), dims, keepdims, wanted)
    if initial is not None:
        y = add(y, scalar("sum", initial, y))
    return y if out is None else reshard(y, out)


def scalar(name: str, initial: Any, y: Any) -> Array:
    """An ``initial=`` in the dtype of a result.

    Raises:
        ShardingTypeError: it is no scalar.
    """
    (_, value), held = lift([y, np.asarray(initial) if is_number(initial) else initial])
    if jax.typeof(value).ndim:
        raise ShardingTypeError(f"the `initial` of `{name}` is a scalar, not {jax.typeof(value)}")
    value = astype(value, jax.typeof(y).dtype_name)
    return beside(value, y) if 1 in held else value
