"""Sorting along a dim that every device holds whole."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.lowering.replay import public
from shtypes.ops.dispatch import lift
from shtypes.ops.shape import ravel
from shtypes.ops.whole import apply_whole, function, one_dim


@public
def sort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    """The elements in order along a dim, as in `jax.numpy.sort`.

    Per axis: every state but unreduced is kept; the dim must be whole.

    Args:
        a (...): A value.
        axis: The dim; None takes the value as one dim.
        stable: Keeps the order of equal elements.
        descending: The largest first.

    Raises:
        ShardingTypeError: the dim is sharded, or the value is unreduced.

    Transpose: the cotangent put back where the elements were. Communicates: nothing.
    """
    return _sorted("sort", jnp.sort, a, axis, stable=stable, descending=descending)


@public
def argsort(a: Any, axis: int | None = -1, *, stable: bool = True, descending: bool = False) -> Any:
    """The indices that put a dim in order, as in `jax.numpy.argsort`; typed as `sort`, without a gradient."""
    return _sorted("argsort", jnp.argsort, a, axis, stable=stable, descending=descending)


def _sorted(name: str, native: Any, a: Any, axis: int | None, **params: Any) -> Any:
    ((x,), _) = lift([a])
    if axis is None:
        x, axis = ravel(x), 0
    dim = one_dim(name, x, axis)
    return apply_whole(name, function(name, native, axis=dim, **params), x, [dim])


@public
def top_k(operand: Any, k: int, *, axis: int = -1) -> list[Any]:
    """The ``k`` largest elements along a dim, and their indices, as in `jax.lax.top_k`; typed as `sort`.

    Args:
        operand (...): A value.
        k: How many.
        axis: The dim.

    Returns:
        (...): The elements, the largest first, and their indices along the dim, which have no gradient.

    Raises:
        ShardingTypeError: the dim is sharded, or the value is unreduced.

    Communicates: nothing.
    """
    ((x,), _) = lift([operand])
    dim = one_dim("top_k", x, axis)
    ndim = jax.typeof(x).ndim
    found = apply_whole("top_k", function("top_k", _top_k, k=_count(k), dim=dim), x, [dim], [range(ndim)] * 2)
    return list(found)


def _count(k: Any) -> int:
    return int(operator.index(k))


def _top_k(x: Any, k: int, dim: int) -> Any:
    values, indices = lax.top_k(jnp.moveaxis(x, dim, -1), k)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(indices, -1, dim)
