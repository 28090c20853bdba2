"""Finding elements: searchsorted, interp, unique, nonzero. Nothing here communicates.

What is searched must be whole on every device; what is looked for may be sharded.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.calls import bound, signature_of
from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.dispatch import is_number, lift
from shtypes.ops.elementwise import greater, less, logical_not
from shtypes.ops.index import getitem
from shtypes.ops.labelled import all_whole_tree, labelled, multilinear, product
from shtypes.ops.lookup import take
from shtypes.ops.select import where as chosen
from shtypes.ops.shape import ravel
from shtypes.ops.whole import apply_whole, function
from shtypes.rules.labelled import ProductDims


def _searched(places: int, looked_for: int) -> Callable[[tuple[int, ...]], ProductDims]:
    """A plan: the operand in this place is looked for, element by element, in the other ones, which are whole."""

    def plan(shape: tuple[int, ...]) -> ProductDims:
        own = tuple(("element", d) for d in range(len(shape)))
        labels = tuple(own if i == looked_for else (("searched", 0),) for i in range(places))
        return ProductDims(labels, tuple(zip(own, shape, strict=True)), frozenset({("searched", 0)}))

    return plan


def vector(name: str, x: Any, what: str) -> Array:
    """The operand as a typed value, which must have one dim."""
    (value,) = lift([x])[0]
    if value.ndim != 1:
        raise ShardingTypeError(f"`{name}` needs {what} with one dim, not {value.type}")
    return value


@public
def searchsorted(a: ArrayLike, v: ArrayLike, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Array:
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
    a = vector("searchsorted", a, "a vector")
    if sorter is not None:
        a = take(a, sorter, 0, mode="clip")
    fn = function("searchsorted", jnp.searchsorted, side=side, method=method)
    return labelled("searchsorted", fn, [a, v], _searched(2, 1))


@public
def digitize(x: ArrayLike, bins: Any, right: bool = False, *, method: str | None = None) -> Array:
    """The bin of each element, as `jax.numpy.digitize`; typed as `searchsorted`."""
    edges = vector("digitize", bins, "edges")
    fn = function("digitize", jnp.digitize, right=bool(right), method=method)
    return labelled("digitize", fn, [x, edges], _searched(2, 0))


@public
def interp(x: ArrayLike, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Array:
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
    xp, fp = vector("interp", xp, "places"), vector("interp", fp, "values")
    ends = {side: end if isinstance(end, str) else None for side, end in (("left", left), ("right", right))}
    fn = multilinear("interp", jnp.interp, frozenset({0, 1}), **ends, period=period)
    y = product("interp", fn, [x, xp, fp], _interpolated)
    if period is None:
        for end, outside, which in ((left, less, 0), (right, greater, -1)):
            if end is not None and not isinstance(end, str):
                y = chosen(outside(x, getitem(xp, which)), end, y)
    return y


def _interpolated(shape: tuple[int, ...]) -> ProductDims:
    return _searched(3, 0)(shape)._replace(ids=frozenset({0, 1}))


@public
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Whether elements are among others, as `jax.numpy.isin`.

    Args:
        element (...): The elements; every state but unreduced is kept.
        test_elements (...): The others; whole.
        assume_unique: Accepted for compatibility; ignored.
        invert: Whether they are not among them.
        method: As in JAX.

    Communicates: nothing.
    """
    others = ravel(test_elements)
    fn = function("isin", jnp.isin)
    found = labelled("isin", fn, [element, others], _searched(2, 0))
    return logical_not(found) if invert else found


# how many are found must be said


def _sized(name: str, size: Any) -> int:
    if size is None:
        raise ShardingTypeError(
            f"`{name}` needs `size`",
            why="how many elements it would find is not known when types are checked",
            hints=[f"sh.{name}(x, size=n) pads to n", "sh.where(mask, x, 0) keeps the shape"],
        )
    return operator.index(size)


def _of_all(name: str, native: Callable[..., Any], x: Any, **params: Any) -> Array:
    """A function of all elements, of which every dim must be whole."""
    ((x,), _) = lift([x])
    ndim = jax.typeof(x).ndim
    fn = function(name, native, **params)
    outs = jax.eval_shape(fn, jax.ShapeDtypeStruct(jax.typeof(x).shape, jax.typeof(x).dtype))
    sources = [(None,) * len(out.shape) for out in jax.tree.leaves(outs)]
    return apply_whole(name, fn, x, range(ndim), sources)


@public
def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
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
def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """The positions, in the value as one dim, of the elements that are not zero; see `nonzero`."""
    return _of_all("flatnonzero", jnp.flatnonzero, a, size=_sized("flatnonzero", size), fill_value=fill_value)


@public
def argwhere(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
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
    sorted: bool = True,
) -> Array:
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
        sorted: Accepted for compatibility; they are in order, as JAX's are.

    Raises:
        ShardingTypeError: ``size`` is missing; ``ar`` is sharded or unreduced.

    Communicates: nothing.
    """
    chosen = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    given = {**chosen, "axis": axis, "equal_nan": equal_nan, "fill_value": fill_value}
    return _of_all("unique", jnp.unique, ar, size=_sized("unique", size), **given)


def _set_op(name: str) -> Callable[..., Any]:
    native = getattr(jnp, name)

    own = [n for n in ("assume_unique", "return_indices") if n in inspect.signature(native).parameters]
    shown = ["ar1", "ar2", *(f"{n}=False" for n in own), "*", "size=None", "fill_value=None"]
    signature = signature_of(", ".join(shown), "Any" if "return_indices" in own else "Array", operands=2)

    def op(*args: Any, **kwargs: Any) -> Any:
        given = bound(name, signature, args, kwargs)
        values = [given.pop("ar1"), given.pop("ar2")]
        fn = function(name, native, **{**given, "size": _sized(name, given["size"])})
        return all_whole_tree(name, fn, values)

    said = {"assume_unique": "Whether no element of a value is there twice.", "return_indices": "Gives positions too."}
    listed = "".join(f"\n        {n}: {said[n]}" for n in own)
    return published(
        op,
        name,
        f"""`jax.numpy.{name}` with a known ``size``; typed as `unique`.

    Args:
        ar1 (...): A value; whole, not unreduced.
        ar2 (...): Another.{listed}
        size: How many elements.
        fill_value: What stands for missing ones.

    Communicates: nothing.
    """,
        signature,
    )


intersect1d, setdiff1d, setxor1d, union1d = map(_set_op, ("intersect1d", "setdiff1d", "setxor1d", "union1d"))


@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Array: ...
@overload
def where(condition: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]: ...
@public
def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Array | tuple[Array, ...]:
    """``x`` where the condition holds, ``y`` elsewhere, as `jax.numpy.where` of three operands.

    Per axis: the branches meet as in `add` (an unreduced branch makes a replicated one unreduced), and the condition is
    a factor: where it is sharded, replicated branches are sharded too. A non-zero number beside an unreduced branch is
    masked, so that it counts once; zero needs no mask.

    Args:
        condition (...): A bool array, or one that counts as true where it is not zero. It has no gradient.
        x (...): The value where it holds; shapes broadcast.
        y (...): The value elsewhere.
        size: Without branches: how many positions to give, as `nonzero`.
        fill_value: Without branches: what stands for missing positions.

    Returns:
        (...): The chosen elements.

    Raises:
        ShardingTypeError: the condition is sharded or varying where a branch is unreduced, or the condition is
            unreduced; the branches do not meet.

    Transpose: the cotangent where each branch was chosen, zero elsewhere. Communicates: nothing; the cast of an
    invariant branch communicates backward.
    """
    if x is None and y is None and size is not None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        raise ShardingTypeError(
            "`where` needs both branches, or `size`",
            why="how many elements it would find is not known when types are checked",
        )
    return chosen(condition, x, y)
