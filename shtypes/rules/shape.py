"""Typing of ops that move elements and compute nothing: transpose, reshape, broadcast, expand, squeeze. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.reduce import normal_dims
from shtypes.rules.typing import Typing, linear, rule
from shtypes.types import Dim, ShType


def _moved(operand: ShType, dims: Sequence[Dim]) -> Typing:
    """The typing of a linear op that puts the operand's axes on ``dims``."""
    return linear(operand, operand.dtype_name, dims)


@rule
def transpose(operand: ShType, perm: Sequence[int] | None = None) -> Typing:
    """Permutes dims; None reverses them. Each dim keeps its axes."""
    given = tuple(reversed(range(operand.ndim))) if perm is None else tuple(perm)
    if len(normal_dims("transpose", operand, given)) != operand.ndim:
        raise ShardingTypeError(f"`transpose` needs each of the {operand.ndim} dims once, not {given}")
    return _moved(operand, [operand.dims[d] for d in given])


@rule
def broadcast(operand: ShType, shape: Sequence[int], dims: Sequence[int], name: str = "broadcast") -> Typing:
    """Puts dim ``i`` of the operand at ``dims[i]`` of ``shape``; dims of size 1 stretch, the other dims are new."""
    if len(dims) != operand.ndim or list(dims) != sorted(set(dims)) or not all(0 <= d < len(shape) for d in dims):
        raise ShardingTypeError(f"`{name}` needs {operand.ndim} increasing dims of {len(shape)}, not {tuple(dims)}")
    new = [Dim(size) for size in shape]
    for i, (d, dim) in enumerate(zip(dims, operand.dims, strict=True)):
        if dim.size == shape[d]:
            new[d] = dim
        elif dim.size != 1:
            raise ShardingTypeError(
                f"`{name}` cannot stretch {reasons.dim_word(operand, i)} of size {dim.size} to size {shape[d]}"
            )
        elif dim.axes:
            raise reasons.broadcasts_sharded(name, operand, i)
    return _moved(operand, new)


@rule
def expand(operand: ShType, dims: int | Sequence[int]) -> Typing:
    """Inserts dims of size 1 at these places of the result."""
    given = (dims,) if isinstance(dims, int) else tuple(dims)
    ndim = operand.ndim + len(given)
    places = {d % ndim for d in given if -ndim <= d < ndim}
    if len(places) != len(given):
        raise ShardingTypeError(f"`expand_dims` needs different dims of a result with {ndim} dims, not {given}")
    old = iter(operand.dims)
    return _moved(operand, [Dim(1) if d in places else next(old) for d in range(ndim)])


@rule
def squeeze(operand: ShType, dims: int | Sequence[int] | None = None) -> Typing:
    """Drops dims of size 1; None drops all of them."""
    if dims is None:
        dims = [i for i, d in enumerate(operand.dims) if d.size == 1]
    places = normal_dims("squeeze", operand, dims)
    for i in places:
        if operand.dims[i].size != 1:
            raise ShardingTypeError(f"`squeeze` cannot drop {reasons.dim_word(operand, i)} of size {operand.shape[i]}")
        if operand.dims[i].axes:
            raise reasons.broadcasts_sharded("squeeze", operand, i)
    return _moved(operand, [d for i, d in enumerate(operand.dims) if i not in places])


# reshape


@rule
def reshape(operand: ShType, new_shape: Sequence[int]) -> Typing:
    """Reads the elements in order into another shape, each device its own ones; one size may be -1.

    The dims of size 1 aside, the dims run together in groups of equal product. Within a group a dim may be sharded
    only if each dim before it has local size 1: then each device holds one contiguous run of the group. The axes are
    dealt to the new dims, major to minor: a dim takes axes while they divide what is left of it, and the next dim
    starts only where the one before has local size 1. So the local function is ``reshape`` to the local shape.
    """
    shape = _full_shape(operand, tuple(new_shape))
    if shape == operand.shape:
        return _moved(operand, operand.dims)
    for i, dim in enumerate(operand.dims):
        if dim.size == 1 and dim.axes:
            raise reasons.broadcasts_sharded("reshape", operand, i)
    new = [Dim(size) for size in shape]
    for olds, news in _groups(operand.shape, shape):
        if len(olds) == len(news) == 1 and operand.shape[olds[0]] == shape[news[0]]:
            new[news[0]] = operand.dims[olds[0]]
        else:
            axes = _major_axes(operand, shape, olds)
            _deal(operand, axes, new, news)
    return _moved(operand, new)


def _full_shape(operand: ShType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with -1 replaced by what is left."""
    known = math.prod(s for s in shape if s != -1)
    full = shape
    if shape.count(-1) == 1 and known > 0:
        full = tuple(operand.size // known if s == -1 else s for s in shape)
    if any(s < 0 for s in full) or math.prod(full) != operand.size:
        raise ShardingTypeError(
            f"`reshape` cannot turn {operand.size} elements of shape {operand.shape} into shape {shape}"
        )
    return full


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The dims, size 1 aside, in the smallest runs of equal product."""
    a, b = ([i for i, size in enumerate(shape) if size != 1] for shape in (old, new))
    if math.prod(old) == 0:  # any grouping is right: there are no elements to move
        while a and b and old[a[0]] == new[b[0]]:
            yield [a.pop(0)], [b.pop(0)]
        yield a, b
        return
    while a:
        i = j = 1
        while (p := math.prod(old[k] for k in a[:i])) != (q := math.prod(new[k] for k in b[:j])):
            i, j = (i + 1, j) if p < q else (i, j + 1)
        yield a[:i], b[:j]
        a, b = a[i:], b[j:]


def _major_axes(operand: ShType, shape: tuple[int, ...], olds: Sequence[int]) -> list[str]:
    """The axes of a group, major to minor.

    Raises:
        ShardingTypeError: the elements of a device are not one contiguous run of the group.
    """
    axes: list[str] = []
    whole: int | None = None  # a dim before with more than one element on each device
    for d in olds:
        dim = operand.dims[d]
        if dim.axes and whole is not None:
            raise ShardingTypeError(
                f"`reshape` from {operand.shape} to {shape} merges {reasons.dim_word(operand, d)}, sharded on "
                f"{reasons.on(dim.axes)}, behind {reasons.dim_word(operand, whole)}",
                why=f"each device holds a slice of dim {d} for each of its {operand.local_shape[whole]} indices of "
                f"dim {whole}: merged, these are not one contiguous slice",
                axes=dim.axes,
            )
        axes += dim.axes
        if operand.local_shape[d] != 1 and whole is None:
            whole = d
    return axes


def _deal(operand: ShType, axes: Sequence[str], new: list[Dim], news: Sequence[int]) -> None:
    """Deals the axes of a group to its new dims."""
    sizes = operand.mesh.shape
    rest = list(axes)
    for d in news:
        left = new[d].size
        taken: list[str] = []
        while rest and left % sizes[rest[0]] == 0:
            left //= sizes[rest[0]]
            taken.append(rest.pop(0))
        new[d] = new[d]._replace(axes=tuple(taken))
        if left != 1:
            break
    if rest:
        shape = tuple(d.size for d in new)
        raise ShardingTypeError(
            f"`reshape` from {operand.shape} to {shape} cannot keep {reasons.on(rest[:1])} whole",
            why=f"the slices along `{rest[0]}` (size {sizes[rest[0]]}) are contiguous runs of the elements, and they "
            "are not equal slices of one new dim",
            axes=rest,
        )
