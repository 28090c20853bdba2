"""Types ops that only move elements: transpose, reshape, broadcast, concatenate, pad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.along_dims import normal_dims
from shtypes.rules.tables import ADDITIVE, TERM
from shtypes.rules.typing import NO_CONSTANTS, JointTyping, Typing, linear, rule
from shtypes.types import Dim, ShType


@rule
def transpose(operand: ShType, perm: Sequence[int] | None = None) -> Typing:
    """Permutes dims; None reverses them. Each dim keeps its axes."""
    perm = tuple(reversed(range(operand.ndim))) if perm is None else tuple(perm)
    if len(normal_dims("transpose", operand, perm)) != operand.ndim:
        raise ShardingTypeError(f"`transpose` needs each of the {operand.ndim} dims once, not {perm}")
    return linear(operand, operand.dtype_name, [operand.dims[d] for d in perm])


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
                f"`{name}` cannot stretch {messages.dim_word(operand, i)} of size {dim.size} to size {shape[d]}"
            )
        elif dim.axes:
            raise messages.broadcasts_sharded(name, operand, i)
    return linear(operand, operand.dtype_name, new)


@rule
def squeeze(operand: ShType, dims: int | Sequence[int] | None = None) -> Typing:
    """Drops dims of size 1; None drops all of them."""
    if dims is None:
        dims = [i for i, d in enumerate(operand.dims) if d.size == 1]
    places = normal_dims("squeeze", operand, dims)
    for i in places:
        if operand.dims[i].size != 1:
            raise ShardingTypeError(f"`squeeze` cannot drop {messages.dim_word(operand, i)} of size {operand.shape[i]}")
        if operand.dims[i].axes:
            raise messages.broadcasts_sharded("squeeze", operand, i)
    return linear(operand, operand.dtype_name, [d for i, d in enumerate(operand.dims) if i not in places])


# joins


def _joint_terms(
    name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int], joined: int | None
) -> JointTyping:
    """Types operands as terms of a sum, each padded with zeros; their sizes are equal except for the joined dim."""
    first = operands[0]
    for i, t in enumerate(operands[1:], 1):
        if t.ndim != first.ndim:
            raise ShardingTypeError(
                f"`{name}` cannot join arrays of {first.ndim} and of {t.ndim} dims",
                why=f"operand 0 is {first} and operand {i} is {t}",
            )
        for d in range(first.ndim):
            if d != joined and t.shape[d] != first.shape[d]:
                raise ShardingTypeError(
                    f"`{name}` cannot join {messages.dim_word(first, d)} of operand 0, of size {first.shape[d]}, with "
                    f"{messages.dim_word(t, d)} of operand {i}, of size {t.shape[d]}"
                )
    labels = [tuple(range(first.ndim))] * len(operands)
    return JointTyping(name, operands, labels, dtype, constants, join=ADDITIVE, casts=[TERM] * len(operands))


@rule
def concatenate(operands: Sequence[ShType], dim: int, dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Concatenates along ``dim``, which must not be sharded."""
    name = "concatenate"
    (joined,) = normal_dims(name, operands[0], dim)
    for t in operands:
        if len(operands) > 1 and joined < t.ndim and t.dims[joined].axes:
            raise messages.along(name, t, t.dims[joined].axes[0])
    joint = _joint_terms(name, operands, dtype, constants, joined)
    total = sum(t.shape[joined] for t in operands)
    # With several operands the dim is a new one, without a name.
    is_several = len(operands) > 1
    return joint.typing(
        (None, total) if d == joined and is_several else (d, n) for d, n in enumerate(operands[0].shape)
    )


@rule
def stack(operands: Sequence[ShType], dim: int, dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Stacks operands along a new dim, which is not sharded."""
    ndim = operands[0].ndim + 1
    if not -ndim <= dim < ndim:
        raise ShardingTypeError(f"`stack` has no dim {dim}: the result has {ndim} dims")
    joint = _joint_terms("stack", operands, dtype, constants, None)
    dims: list[tuple[int | None, int]] = list(enumerate(operands[0].shape))
    dims.insert(dim % ndim, (None, len(operands)))
    return joint.typing(dims)


@rule
def pad(
    operands: Sequence[ShType],
    along: Sequence[int],
    shape: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "pad",
) -> Typing:
    """Pads an array by a scalar ``along`` unsharded dims: terms of a sum, each with zeros where the other is."""
    operand = operands[0]
    messages.check_unsharded(name, operand, along)
    labels = [tuple(range(operand.ndim)), ()]
    joint = JointTyping(name, operands, labels, operand.dtype_name, constants, join=ADDITIVE, casts=[TERM] * 2)
    return joint.typing((d if n == operand.shape[d] else None, n) for d, n in enumerate(shape))


# reshape


@rule
def reshape(operand: ShType, new_shape: Sequence[int]) -> Typing:
    """Reshapes without communication; one size may be -1.

    Dims other than those of size 1 form groups of equal product. In a group a dim may be sharded only if each dim
    before it has local size 1: then each device holds one contiguous run of the group. The new dims take the axes,
    major to minor: a dim takes axes while they divide it, and the next dim only if that has local size 1. So the local
    function is ``reshape`` to the local shape.
    """
    shape = _full_shape(operand, tuple(new_shape))
    if shape == operand.shape:
        return linear(operand, operand.dtype_name, operand.dims)
    for i, dim in enumerate(operand.dims):
        if dim.size == 1 and dim.axes:
            raise messages.broadcasts_sharded("reshape", operand, i)
    new = [Dim(size) for size in shape]
    for olds, news in _groups(operand.shape, shape):
        if len(olds) == len(news) == 1 and operand.shape[olds[0]] == shape[news[0]]:
            new[news[0]] = operand.dims[olds[0]]
        else:
            axes = _major_axes(operand, shape, olds)
            _assign_axes(operand, axes, new, news)
    return linear(operand, operand.dtype_name, new)


def _full_shape(operand: ShType, shape: tuple[int, ...]) -> tuple[int, ...]:
    rest = math.prod(s for s in shape if s != -1)
    full = shape
    if shape.count(-1) == 1 and rest > 0:
        full = tuple(operand.size // rest if s == -1 else s for s in shape)
    if any(s < 0 for s in full) or math.prod(full) != operand.size:
        raise ShardingTypeError(
            f"`reshape` cannot turn {operand.size} elements of shape {operand.shape} into shape {shape}"
        )
    return full


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest groups of old and new dims of equal product, without dims of size 1."""
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
    """The axes of a group, major to minor."""
    axes: list[str] = []
    merged: int | None = None  # an earlier dim with local size above 1
    for d in olds:
        dim = operand.dims[d]
        if dim.axes and merged is not None:
            raise ShardingTypeError(
                f"`reshape` from {operand.shape} to {shape} merges {messages.dim_word(operand, d)}, sharded on "
                f"{messages.on(dim.axes)}, behind {messages.dim_word(operand, merged)}",
                why=f"each device holds a slice of dim {d} for each of its {operand.local_shape[merged]} indices of "
                f"dim {merged}: merged, these are not one contiguous slice",
                axes=dim.axes,
            )
        axes += dim.axes
        if operand.local_shape[d] != 1 and merged is None:
            merged = d
    return axes


def _assign_axes(operand: ShType, axes: Sequence[str], new: list[Dim], news: Sequence[int]) -> None:
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
            f"`reshape` from {operand.shape} to {shape} cannot keep {messages.on(rest[:1])} whole",
            why=f"the slices along `{rest[0]}` (size {sizes[rest[0]]}) are contiguous runs of the elements, and they "
            "are not equal slices of one new dim",
            axes=rest,
        )
