"""Sorting along a dim that every device holds whole."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import lift
from shtypes.ops.lookup import take_along_axis
from shtypes.ops.shape import ravel
from shtypes.ops.whole import apply_whole, apply_whole_tree, function, one_dim


@public
def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """The elements in order along a dim, as in `jax.numpy.sort`.

    Per axis: every state but unreduced is kept; the dim must be whole.

    Args:
        a (...): A value.
        axis: The dim; None takes the value as one dim.
        kind: Must be None, as in JAX.
        order: Must be None, as in JAX.
        stable: Keeps the order of equal elements.
        descending: The largest first.

    Raises:
        ShardingTypeError: the dim is sharded, or the value is unreduced.

    Transpose: the cotangent put back where the elements were. Communicates: nothing.
    """
    return _sorted("sort", jnp.sort, a, axis, kind=kind, order=order, stable=bool(stable), descending=bool(descending))


@public
def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
) -> Array:
    """The indices that put a dim in order, as in `jax.numpy.argsort`; typed as `sort`, without a gradient."""
    made = _sorted(
        "argsort", jnp.argsort, a, axis, kind=kind, order=order, stable=bool(stable), descending=bool(descending)
    )
    return made if dtype is None else made.astype(dtype)


def _sorted(name: str, native: Any, a: Any, axis: int | None, **params: Any) -> Array:
    if any(params.pop(k, None) is not None for k in ("kind", "order")):
        raise ShardingTypeError(f"`{name}` takes neither `kind` nor `order`", hints=["stable=True, descending=True"])
    ((x,), _) = lift([a])
    if axis is None:
        x, axis = ravel(x), 0
    dim = one_dim(name, x, axis)
    return apply_whole(name, function(name, native, axis=dim, **params), x, [dim])


@public
def top_k(operand: ArrayLike, k: int, *, axis: int = -1, is_stable: bool = True) -> list[Array]:
    """The ``k`` largest elements along a dim, and their indices, as in `jax.lax.top_k`; typed as `sort`.

    Args:
        operand (...): A value.
        k: How many.
        axis: The dim.
        is_stable: Accepted for compatibility: of equal elements the first ones come first.

    Returns:
        (...): The elements, the largest first, and their indices along the dim, which have no gradient.

    Raises:
        ShardingTypeError: the dim is sharded, or the value is unreduced.

    Communicates: nothing.
    """
    ((x,), _) = lift([operand])
    dim = one_dim("top_k", x, axis)
    ndim = jax.typeof(x).ndim
    found = apply_whole_tree("top_k", function("top_k", _top_k, k=_count(k), dim=dim), x, [dim], [range(ndim)] * 2)
    return list(found)


def _count(k: Any) -> int:
    return int(operator.index(k))


def _top_k(x: Any, k: int, dim: int) -> Any:
    values, indices = lax.top_k(jnp.moveaxis(x, dim, -1), k)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)


@public
def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """The elements with the ``kth`` in its place, as in `jax.numpy.partition`; typed as `sort`."""
    return _sorted("partition", jnp.partition, a, axis, kth=_count(kth))


@public
def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """The indices of `partition`, as in `jax.numpy.argpartition`; typed as `sort`, without a gradient."""
    return _sorted("argpartition", jnp.argpartition, a, axis, kth=_count(kth))


@public
def sort_complex(a: ArrayLike) -> Array:
    """`sort` along the last dim, as complex numbers."""
    y = sort(a)
    return y if jax.typeof(y).dtype_name[0] == "c" else y.astype("c64" if y.dtype.itemsize < 8 else "c128")


@public
def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Keys in order and values with them, as in `jax.lax.sort_key_val`.

    The keys are typed as in `sort`; the values as in `take_along_axis`, so they may be unreduced.

    Args:
        keys (...): What is put in order.
        values (...): What goes with it, of the same shape.
        dimension: The dim.
        is_stable: Keeps the order of equal keys.

    Communicates: nothing.
    """
    order = argsort(keys, dimension, stable=is_stable)
    taken = [take_along_axis(x, order, dimension, mode="clip") for x in (keys, values)]
    return taken[0], taken[1]


@public
def lexsort(keys: Any, axis: int = -1, *, batch_size: int = 16) -> Array:
    """The indices that put several keys in order, the last one first, as in `jax.numpy.lexsort`; typed as `argsort`.

    Args:
        keys: Values of one shape, or one value whose first dim they are stacked along.
        axis: The dim.
        batch_size: Accepted for compatibility; changes no value.

    Communicates: nothing.
    """
    columns = list(keys) if isinstance(keys, (list, tuple)) else [keys[i] for i in range(len(keys))]
    order = argsort(columns[0], axis)
    for column in columns[1:]:
        after = argsort(take_along_axis(column, order, axis, mode="clip"), axis)
        order = take_along_axis(order, after, axis, mode="clip")
    return order
