"""Finding and counting elements: searchsorted, interp, unique, histograms. Nothing here communicates.

What is searched must be whole on every device; what is looked for may be sharded. Counts of sharded elements are
pending.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.create import ones_like
from shtypes.ops.dispatch import is_number, lift
from shtypes.ops.elementwise import astype, equal, greater, less, logical_not, maximum
from shtypes.ops.extremes import max as max_
from shtypes.ops.extremes import min as min_
from shtypes.ops.index import getitem
from shtypes.ops.labelled import Product, all_whole, labelled, product
from shtypes.ops.lookup import segment_sum, take
from shtypes.ops.rules.labelled import Plan
from shtypes.ops.select import where
from shtypes.ops.shape import ravel
from shtypes.ops.whole import apply_whole, function


def _searched(places: int, looked_for: int) -> Callable[[tuple[int, ...]], Plan]:
    """A plan: the operand in this place is looked for, element by element, in the other ones, which are whole."""

    def plan(shape: tuple[int, ...]) -> Plan:
        own = tuple(("element", d) for d in range(len(shape)))
        labels = tuple(own if i == looked_for else (("searched", 0),) for i in range(places))
        return Plan(labels, tuple(zip(own, shape, strict=True)), frozenset({("searched", 0)}))

    return plan


def _vector(name: str, x: Any, what: str) -> Any:
    ((x,), _) = lift([x])
    if jax.typeof(x).ndim != 1:
        raise ShardingTypeError(f"`{name}` needs {what} with one dim, not {jax.typeof(x)}")
    return x


@public
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
    """Where elements fit into a sorted vector, as `jax.numpy.searchsorted`.

    Args:
        a (n): The sorted vector; whole and not unreduced.
        v (...): The elements; every state but unreduced is kept.
        side: ``"left"`` or ``"right"`` of equal elements.
        sorter: Positions that put ``a`` in order.
        method: As in JAX.

    Returns:
        (...): Positions, without a gradient.

    Raises:
        ShardingTypeError: ``a`` is sharded, or one of the values is unreduced.

    Communicates: nothing.
    """
    if is_number(v):
        v = np.asarray(v)
    a = _vector("searchsorted", a, "a vector")
    if sorter is not None:
        a = take(a, sorter, 0, mode="clip")
    fn = function("searchsorted", jnp.searchsorted, side=side, method=method)
    return labelled("searchsorted", fn, [a, v], _searched(2, 1))


@public
def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """The bin of each element, as `jax.numpy.digitize`; typed as `searchsorted`."""
    edges = _vector("digitize", bins, "edges")
    fn = function("digitize", jnp.digitize, right=bool(right), method=method)
    return labelled("digitize", fn, [x, edges], _searched(2, 0))


@public
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Linear interpolation between points, as `jax.numpy.interp`: linear in the values ``fp``.

    Per axis: ``fp`` may be unreduced where the others are replicated; ``x`` keeps its dims' axes.

    Args:
        x (...): Where to interpolate.
        xp (n): The points' places; whole.
        fp (n): The points' values; whole.
        left: A number for places before the first point; the first value by default.
        right: A number for places after the last point.
        period: After which distance the places repeat.

    Returns:
        (...): The values.

    Raises:
        ShardingTypeError: the points are sharded; ``x`` or ``xp`` is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """
    x = np.asarray(x) if is_number(x) else x
    xp, fp = _vector("interp", xp, "places"), _vector("interp", fp, "values")
    ends = {side: end if isinstance(end, str) else None for side, end in (("left", left), ("right", right))}
    fn = Product("interp", jnp.interp, tuple(sorted({**ends, "period": period}.items())), frozenset({0, 1}))
    y = product("interp", fn, [x, xp, fp], _interpolated)
    if period is None:
        for end, outside, which in ((left, less, 0), (right, greater, -1)):
            if end is not None and not isinstance(end, str):
                y = where(outside(x, getitem(xp, which)), end, y)
    return y


def _interpolated(shape: tuple[int, ...]) -> Plan:
    return _searched(3, 0)(shape)._replace(ids=frozenset({0, 1}))


@public
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Any:
    """Whether elements are among others, as `jax.numpy.isin`.

    Args:
        element (...): The elements; every state but unreduced is kept.
        test_elements (...): The others; whole.
        assume_unique: For JAX's sake.
        invert: Whether they are not among them.
        method: As in JAX.

    Communicates: nothing.
    """
    others = ravel(test_elements)
    fn = function("isin", jnp.isin)
    found = labelled("isin", fn, [element, others], _searched(2, 0))
    return logical_not(found) if invert else found


# counting


@public
def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
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
    ids = maximum(_vector("bincount", x, "numbers"), 0)
    counted = ones_like(ids, np.int64) if weights is None else weights
    return segment_sum(counted, ids, max(operator.index(length), operator.index(minlength)))


@public
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of a histogram's bins, as `jax.numpy.histogram_bin_edges`.

    Args:
        a (...): A value.
        bins: How many, or the edges.
        range: The first and the last edge; by default the least and the greatest element of a whole ``a``.
        weights: For JAX's sake.

    Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if not isinstance(bins, (int, np.integer)):
        return astype(_vector("histogram_bin_edges", bins, "edges"), _float_like(x))
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
def histogram(a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: Any = None) -> tuple[Any, Any]:
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
    found = where(equal(x, getitem(edges, -1)), count - 1, found)
    counted = given[0] if given else ones_like(x)
    counts = getitem(segment_sum(counted, found, count), slice(1, None))
    if density:
        widths = getitem(edges, slice(1, None)) - getitem(edges, slice(None, -1))
        counts = counts / widths / counts.sum()
    return counts, edges


# how many are found must be said


def _sized(name: str, size: Any) -> int:
    if size is None:
        raise ShardingTypeError(
            f"`{name}` needs `size`",
            why="how many elements it would find is not known when types are checked",
            hints=[f"sh.{name}(x, size=n) pads to n", "sh.where(mask, x, 0) keeps the shape"],
        )
    return operator.index(size)


def _of_all(name: str, native: Callable[..., Any], x: Any, **params: Any) -> Any:
    """A function of all elements, of which every dim must be whole."""
    ((x,), _) = lift([x])
    ndim = jax.typeof(x).ndim
    fn = function(name, native, **params)
    outs = jax.eval_shape(fn, jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype))
    sources = [(None,) * len(out.shape) for out in jax.tree.leaves(outs)]
    return apply_whole(name, fn, x, range(ndim), sources)


@public
def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """The positions of the elements that are not zero, as `jax.numpy.nonzero` with a known ``size``.

    Args:
        a (...): A value; whole, not unreduced.
        size: How many positions; missing ones are ``fill_value``, further ones are left out.
        fill_value: A number; 0 by default.

    Returns:
        (size): The positions in each dim.

    Raises:
        ShardingTypeError: ``size`` is missing; ``a`` is sharded or unreduced.

    Communicates: nothing.
    """
    return tuple(_of_all("nonzero", jnp.nonzero, a, size=_sized("nonzero", size), fill_value=fill_value))


@public
def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions, in the value as one dim, of the elements that are not zero; see `nonzero`."""
    return _of_all("flatnonzero", jnp.flatnonzero, a, size=_sized("flatnonzero", size), fill_value=fill_value)


@public
def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of the elements that are not zero, one in each row; see `nonzero`."""
    return _of_all("argwhere", jnp.argwhere, a, size=_sized("argwhere", size), fill_value=fill_value)


@public
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The different elements in order, as `jax.numpy.unique` with a known ``size``.

    Args:
        ar (...): A value; whole, not unreduced.
        return_index: Gives the position of each.
        return_inverse: Gives for each element of ``ar`` which one it is.
        return_counts: Gives how often each occurs.
        axis: Compares slices along this dim.
        equal_nan: Whether NaNs are equal.
        size: How many; missing ones are ``fill_value``, by default the least.
        fill_value: A number.

    Raises:
        ShardingTypeError: ``size`` is missing; ``ar`` is sharded or unreduced.

    Communicates: nothing.
    """
    chosen = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    given = {**chosen, "axis": axis, "equal_nan": equal_nan, "fill_value": fill_value}
    return _of_all("unique", jnp.unique, ar, size=_sized("unique", size), **given)


def _set_op(name: str) -> Callable[..., Any]:
    native = getattr(jnp, name)

    def op(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
        fn = function(name, native, size=_sized(name, size), fill_value=fill_value)
        return all_whole(name, fn, [ar1, ar2])

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""`jax.numpy.{name}` with a known ``size``; typed as `unique`.

    Args:
        ar1 (...): A value; whole, not unreduced.
        ar2 (...): Another.
        size: How many elements.
        fill_value: What stands for missing ones.

    Communicates: nothing.
    """
    return public(op)


intersect1d, setdiff1d, setxor1d, union1d = map(_set_op, ("intersect1d", "setdiff1d", "setxor1d", "union1d"))

__all__ = [
    "argwhere", "bincount", "digitize", "flatnonzero", "histogram", "histogram_bin_edges", "interp", "intersect1d",
    "isin", "nonzero", "searchsorted", "setdiff1d", "setxor1d", "union1d", "unique",
]  # fmt: skip
