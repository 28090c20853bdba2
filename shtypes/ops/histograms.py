"""Counts of elements: bincount and histograms. Of sharded elements they are pending; nothing here communicates."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import astype
from shtypes.ops.create import ones_like
from shtypes.ops.dispatch import is_number, lift
from shtypes.ops.elementwise import equal, maximum
from shtypes.ops.extremes import max as max_
from shtypes.ops.extremes import min as min_
from shtypes.ops.index import getitem
from shtypes.ops.labelled import all_whole
from shtypes.ops.lookup import segment_sum
from shtypes.ops.search import searchsorted, vector
from shtypes.ops.select import where as chosen
from shtypes.ops.whole import function


@public
def bincount(x: ArrayLike, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often each number occurs, as `jax.numpy.bincount`; of sharded numbers the counts are unreduced.

    Args:
        x (n): Integers; negative ones count as 0, those of ``length`` or more are dropped.
        weights (n): What each counts; 1 by default. They may be unreduced.
        minlength: The least length.
        length: The length, which must be known.

    Returns:
        (length): The counts.

    Communicates: nothing. Transpose: the cotangent at the numbers.
    """
    if length is None:
        why = "the greatest number is not known when types are checked"
        raise ShardingTypeError("`bincount` needs `length`", why=why)
    ids = maximum(vector("bincount", x, "numbers"), 0)
    counted = ones_like(ids, np.int64) if weights is None else weights
    return segment_sum(counted, ids, max(operator.index(length), operator.index(minlength)))


@public
def histogram_bin_edges(a: ArrayLike, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:
    """The edges of a histogram's bins, as `jax.numpy.histogram_bin_edges`.

    Args:
        a (...): A value.
        bins: How many, or the edges.
        range: The first and the last edge; by default the least and the greatest element of a whole ``a``.
        weights: Accepted for compatibility; ignored.

    Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if not isinstance(bins, (int, np.integer)):
        return astype(vector("histogram_bin_edges", bins, "edges"), _float_like(x))
    low, high = (min_(x), max_(x)) if range is None else range
    if range is not None and all(map(is_number, range)):
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        (edges,), _ = lift([np.linspace(low, high, bins + 1).astype(_float_like(x))])
        return edges
    (low, high), _ = lift([low, high])
    fn = function("edges", _edges, bins=int(bins), dtype=_float_like(x))
    return all_whole("histogram_bin_edges", fn, [low, high])


def _float_like(x: Any) -> Any:
    return jnp.result_type(jax.typeof(x).dtype, 1.0)


def _edges(low: Any, high: Any, bins: int, dtype: Any) -> Any:
    same = low == high
    return jnp.linspace(jnp.where(same, low - 0.5, low), jnp.where(same, high + 0.5, high), bins + 1, dtype=dtype)


@public
def histogram(
    a: ArrayLike, bins: Any = 10, range: Any = None, weights: Any = None, density: Any = None
) -> tuple[Array, Array]:
    """How many elements are in each bin, and the bins' edges, as `jax.numpy.histogram`.

    Per axis: of sharded elements the counts are unreduced; the edges are whole.

    Args:
        a (...): A value.
        bins: How many, or the edges.
        range: The first and the last edge; by default the least and the greatest element of a whole ``a``.
        weights (...): What each element counts; 1 by default. They, the elements and the edges become floats of one
            dtype.
        density: Divides by the sum and the widths, which pending counts cannot be.

    Communicates: nothing.
    """
    (x, *given), _ = lift([a] if weights is None else [a, weights])
    dtype = jnp.result_type(*[jax.typeof(v).dtype for v in (x, *given)], 1.0)
    x, *given = (astype(v, dtype) for v in (x, *given))
    edges = histogram_bin_edges(x, bins, range)
    count = jax.typeof(edges).shape[0]
    found = searchsorted(edges, x, side="right")
    found = chosen(equal(x, getitem(edges, -1)), count - 1, found)
    counted = given[0] if given else ones_like(x)
    counts = getitem(segment_sum(counted, found, count), slice(1, None))
    if density:
        widths = getitem(edges, slice(1, None)) - getitem(edges, slice(None, -1))
        counts = counts / widths / counts.sum()
    return counts, edges
