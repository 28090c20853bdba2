"""Ops that move elements without computing: linear, so every state is kept, and never communicating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.functions.basics import Permute
from shtypes.core.functions.shapes import Broadcast, Reshape
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.dispatch import Rule, apply, as_ints, is_number, lift
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.reshard import finished
from shtypes.types import ShType


@public
def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Dims in another order (reversed by default); each keeps its axes.

    Args:
        a (...): A value.
        axes: The dims in their new order, as in `jax.numpy.transpose`.

    Communicates: nothing. Transpose: the inverse permutation.
    """
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    given = tuple(range(n))[::-1] if axes is None else as_ints(axes, "the axes of `transpose`")
    perm = tuple(d + n if -n <= d < 0 else d for d in given)
    if perm == tuple(range(n)):
        return a
    return apply("transpose", Permute(perm), lambda types: rules.transpose(types[0], perm), a)


permute_dims = transpose


@public
def matrix_transpose(x: ArrayLike) -> Array:
    """The last two dims swapped."""
    return swapaxes(x, -1, -2)


@public
def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Two dims swapped. Communicates: nothing."""
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    (first,), (second,) = normalize_dims(axis1, n, "swapaxes"), normalize_dims(axis2, n, "swapaxes")
    perm = list(range(n))
    perm[first], perm[second] = second, first
    return transpose(a, perm)


@public
def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Dims moved to other places, as in `jax.numpy.moveaxis`. Communicates: nothing."""
    ((a,), _) = lift([a])
    n = jax.typeof(a).ndim
    src, dst = (as_ints(v, "the dims of `moveaxis`") for v in (source, destination))
    if len(src) != len(dst):
        raise ShardingTypeError(f"`moveaxis` was given {len(src)} dims to move and {len(dst)} places")
    for given in (src, dst):
        normalize_dims(given, n, "moveaxis")
    src, dst = (tuple(d % n for d in v) for v in (src, dst))
    perm = [d for d in range(n) if d not in src]
    for place, dim in sorted(zip(dst, src, strict=True)):
        perm.insert(place, dim)
    return transpose(a, perm)


@public
def reshape(
    a: ArrayLike, *sizes: Any, shape: Any = None, order: str = "C", copy: bool | None = None, out: Any = None
) -> Array:
    """The elements in order, in another shape.

    Dims of size 1 aside, old and new dims match in groups of equal product. Within a group only the first dim of local
    size above 1 may be sharded; its axes are dealt to the new dims from the major one.

    Args:
        a (...): A value.
        *sizes: The new shape, as ints or one sequence; one size may be -1.
        shape: The same by name.
        order: Must be ``"C"``: the last dim runs fastest.
        copy: Accepted for compatibility; ignored.
        out: A type to reshard the result to.

    Raises:
        ShardingTypeError: the sizes do not match, or an axis cannot be dealt whole.

    Communicates: nothing but what ``out`` asks for. Transpose: the reshape back.
    """
    ((a,), _) = lift([a])
    if sizes and isinstance(sizes[-1], str):  # as `jax.numpy.reshape` takes it
        sizes, order = sizes[:-1], sizes[-1]
    _in_order("reshape", order)
    given = sizes[0] if len(sizes) == 1 else sizes
    new = as_ints(given if shape is None else shape, "the shape of `reshape`")

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.reshape(types[0], new)

    return finished(a if _is_shape(new, jax.typeof(a)) else _reshaped("reshape", rule, a), out)


def _is_shape(new: tuple[int, ...], t: ShType) -> bool:
    """Whether a new shape, which may leave one size open, is that of a type."""
    same = len(new) == t.ndim and all(n in (m, -1) for n, m in zip(new, t.shape, strict=True))
    return same and (-1 not in new or (new.count(-1) == 1 and t.size > 0))


def _reshaped(name: str, rule: Rule, x: Any) -> Array:
    """The elements in the local shape of the result: that of the operand as it is typed, which may not be as given."""
    return apply(name, lambda types: Reshape(rule(types).results[0].local_shape), rule, x)


def _in_order(name: str, order: str) -> None:
    if order not in ("C", "K", "A"):
        raise ShardingTypeError(
            f"`{name}` reads the last dim first, not in order {order!r}", hints=["sh.transpose first"]
        )


@public
def ravel(a: ArrayLike, order: str = "C", *, out: Any = None) -> Array:
    """All dims as one; see `reshape`."""
    _in_order("ravel", order)
    return reshape(a, (-1,), out=out)


@public
def broadcast_to(array: ArrayLike, shape: Sequence[int], *, out: Any = None) -> Array:
    """The value repeated to ``shape``, as in `jax.numpy`; new and stretched dims are not sharded.

    Args:
        array (...): A value; an unreduced one stays unreduced.
        shape: The new shape.
        out: A type to reshard the result to.

    Communicates: nothing but what ``out`` asks for. Transpose: the sum over the new and stretched dims.
    """
    ((array,), _) = lift([array])
    new = as_ints(shape, "the shape of `broadcast_to`")
    lead = len(new) - jax.typeof(array).ndim
    if lead < 0:
        raise ShardingTypeError(f"{jax.typeof(array)} cannot be broadcast to {new}, which has fewer dims")
    return finished(_broadcast(array, new, tuple(range(lead, len(new))), "broadcast_to"), out)


@public
def broadcast_in_dim(
    operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out: Any = None
) -> Array:
    """Dim ``i`` at ``broadcast_dimensions[i]`` of ``shape``, as in `jax.lax`; ``out`` as for `broadcast_to`."""
    ((operand,), _) = lift([operand])
    dims = as_ints(broadcast_dimensions, "the dims of `broadcast_in_dim`")
    new = as_ints(shape, "the shape of `broadcast_in_dim`")
    return finished(_broadcast(operand, new, dims, "broadcast_in_dim"), out)


def _broadcast(x: Any, shape: tuple[int, ...], dims: tuple[int, ...], name: str) -> Any:
    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.broadcast(types[0], shape, dims, name)

    if shape == jax.typeof(x).shape and dims == tuple(range(len(shape))):
        return x
    return apply(name, lambda types: Broadcast(rule(types).results[0].local_shape, dims), rule, x)


@public
def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """New dims of size 1, as in `jax.numpy.expand_dims`. Communicates: nothing."""
    ((a,), _) = lift([a])
    dims = as_ints(axis, "the axis of `expand_dims`")
    return _reshaped("expand_dims", lambda types: rules.expand(types[0], dims), a)


@public
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Dims of size 1 dropped, as in `jax.numpy.squeeze`. Communicates: nothing."""
    ((a,), _) = lift([a])
    dims = None if axis is None else as_ints(axis, "the axis of `squeeze`")
    if dims == () or (dims is None and 1 not in jax.typeof(a).shape):
        return a
    return _reshaped("squeeze", lambda types: rules.squeeze(types[0], dims), a)


# by name


def _at_least(name: str, count: int, dims: Any) -> Any:
    def op(*arys: Any) -> Any:
        made = []
        for x in lift([np.asarray(a) if is_number(a) else a for a in arys])[0]:
            ndim = jax.typeof(x).ndim
            made.append(expand_dims(x, dims(ndim)) if ndim < count else x)
        return made[0] if len(made) == 1 else made

    return published(
        op, name, f"""Values with at least {count} dims, as in `jax.numpy.{name}`. Communicates: nothing."""
    )


atleast_1d = _at_least("atleast_1d", 1, lambda n: (0,))
atleast_2d = _at_least("atleast_2d", 2, lambda n: (0, 1) if n == 0 else (0,))
atleast_3d = _at_least("atleast_3d", 3, lambda n: {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[n])


@public
def broadcast_arrays(*args: Any) -> list[Array]:
    """Values broadcast to one shape, as in `jax.numpy.broadcast_arrays`; each keeps its axes. Communicates: nothing."""
    values, _ = lift([np.asarray(a) if is_number(a) else a for a in args])
    shape = np.broadcast_shapes(*(jax.typeof(x).shape for x in values))
    return [broadcast_to(x, shape) for x in values]


@public
def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """A dim moved to before another, as in `jax.numpy.rollaxis`. Communicates: nothing."""
    ((x,), _) = lift([a])
    n = jax.typeof(x).ndim
    (dim,) = normalize_dims(axis, n, "rollaxis")
    before = start + n if start < 0 else start
    return moveaxis(x, dim, before - 1 if dim < before else before)


@public
def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Neighbouring dims as one, as in `jax.lax.collapse`; see `reshape`."""
    ((x,), _) = lift([operand])
    sizes = jax.typeof(x).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(sizes))
    return reshape(x, (*sizes[:start], math.prod(sizes[start:stop]), *sizes[stop:]))


@public
def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out: Any = None) -> Array:
    """New leading dims along which the value is repeated, as in `jax.lax.broadcast`; ``out`` as for `broadcast_to`."""
    ((x,), _) = lift([operand])
    return broadcast_to(x, (*as_ints(sizes, "the sizes of `broadcast`"), *jax.typeof(x).shape), out=out)
