"""Runs a plan on one device's shard, inside a `jax.shard_map`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.resharding.device_permutation import Offset, Pieces
from shtypes.resharding.moves import Kind
from shtypes.resharding.steps import Plan, Step
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, part_of, whole_axes


def run_plan(plan: Plan, x: Any) -> Any:
    """Converts this device's shard of ``plan.src`` to its shard of ``plan.dst``, where all mesh axes are manual.

    Linear in the shard ``x``, whose dtype differs from the plan's if that is the dtype sent.
    """
    if not any(s.live for s in plan.steps):
        return x
    if x.dtype != plan.src.dtype:
        return _run_narrow(plan, x)
    if dtypes.is_key(plan.src.dtype_name):
        # collectives take no extended dtypes; no step changes the trailing dim of a key's words
        return jax.random.wrap_key_data(_run_steps(plan, jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return _run_steps(plan, x)


def _run_narrow(plan: Plan, x: Any) -> Any:
    """Runs a plan of a narrower dtype, to which the shard is cast from the first communicating step to the last."""
    dtype, sends = x.dtype, [k for k, step in enumerate(plan.steps) if step.launches]
    narrow = range(sends[0], sends[-1] + 1) if sends else range(0)
    for k, step in enumerate(plan.steps):
        x = x.reshape(step.src.local_shape).astype(plan.src.dtype if k in narrow else dtype)
        x = _run_steps(Plan(step.src, step.dst, (step,)), x)
    return x.astype(dtype).reshape(plan.dst.local_shape)


def _run_steps(plan: Plan, x: Any) -> Any:
    """Runs the steps on a local shard, which may have more trailing dims.

    A step may be of a reshaped view of the array; each device holds the same elements in the same order.
    """
    rest = x.shape[plan.src.ndim :]
    for step in plan.steps:
        if step.live:
            x = _RUN[step.kind](step, x.reshape(*step.src.local_shape, *rest))
    return x.reshape(*plan.dst.local_shape, *rest)


def run_together(steps: Sequence[Step], shards: Sequence[Any]) -> list[Any]:
    """Runs one step on each of several shards in one collective: all-reduces, reduce-scatters or all-gathers.

    The steps have one kind, and the same axes in the same order; the shards have one dtype.
    """
    first = steps[0]
    if not first.live:
        return list(shards)
    if first.kind is Kind.REDUCE_SCATTER:
        cut = [_split(x, _counts(s.src, s.gained)) for s, x in zip(steps, shards, strict=True)]
        rows = jnp.concatenate([x.reshape(x.shape[0], -1) for x in cut], axis=1)
        local = lax.psum_scatter(rows, _flat(first.gained), scatter_dimension=0, tiled=False)
        return _cut(local, [s.dst.local_shape for s in steps])
    flat = jnp.concatenate([x.reshape(-1) for x in shards])
    if first.kind is Kind.ALL_REDUCE:
        return _cut(lax.psum(flat, first.live), [s.dst.local_shape for s in steps])
    rows = lax.all_gather(flat, _flat(first.lost), axis=0, tiled=False)
    pieces = _cut(rows, [(rows.shape[0], *s.src.local_shape) for s in steps])
    return [_join(x, _counts(s.src, s.lost)) for s, x in zip(steps, pieces, strict=True)]


def _cut(x: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Splits contiguous arrays of some shapes along the last dim."""
    before = math.prod(x.shape[:-1])
    ends = list(itertools.accumulate(math.prod(shape) // before for shape in shapes))
    return [part.reshape(shape) for part, shape in zip(jnp.split(x, ends[:-1], axis=-1), shapes, strict=True)]


def _axes_and_groups(mesh: Mesh, axes: tuple[str, ...]) -> tuple[tuple[str, ...], list[list[int]] | None]:
    """The arguments of JAX's collectives: axes, and the groups of indices if only parts of axes take part."""
    names = whole_axes(axes)
    if names == axes:
        return axes, None
    parts = [axis for axis in mesh.axis_names if part_of(axis)[0] in names]
    names = whole_axes(parts)
    sizes = [mesh.shape[axis] for axis in parts]
    order = [parts.index(axis) for axis in parts if axis not in axes] + [parts.index(axis) for axis in axes]
    indices = np.arange(math.prod(sizes)).reshape(sizes).transpose(order)
    groups: list[list[int]] = indices.reshape(-1, mesh.product(axes)).tolist()
    return names, groups


def _index(mesh: Mesh, axes: tuple[str, ...]) -> Any:
    """The index of a device along axes or parts of axes."""
    names, groups = _axes_and_groups(mesh, axes)
    if groups is None:
        return lax.axis_index(names)
    index: Any = 0
    for axis in axes:
        name, before = part_of(axis)
        n = mesh.shape[axis]
        total = math.prod(size for part, size in mesh.shape.items() if part_of(part)[0] == name)
        index = index * n + lax.axis_index(name) // (total // (before * n)) % n
    return index


def _permute(step: Step, x: Any) -> Any:
    if step.pieces is not None:
        return _pieces(step, step.pieces, x)
    return _ppermute(step, step.exchange, x) if step.exchange else x


def _pieces(step: Step, pieces: Pieces, x: Any) -> Any:
    """Builds shards from pieces of shards: each device joins the pieces that it has or receives, in its order."""
    rest = x.shape[step.src.ndim :]
    device = _index(step.src.mesh, step.live)
    serial = jax.default_backend() in _SERIAL

    def at(offsets: tuple[Offset, ...]) -> list[Any]:
        starts = [d[0] if len(set(d)) == 1 else jnp.asarray(d, jnp.int32)[device] for d in zip(*offsets, strict=True)]
        return [*starts, *(0 for _ in rest)]

    received: list[Any] = []
    for pairs, cut, _ in pieces.rounds:
        starts = at(cut)
        if serial and len(received) > 1:
            starts = [start if isinstance(start, int) else start + _zero_after(received[-1]) for start in starts]
        piece = lax.dynamic_slice(x, _indices(starts), (*pieces.shape, *rest))
        received.append(_ppermute(step, pairs, piece) if pairs else piece)
    if serial:
        return _joined(step, pieces, device, received)
    out = jnp.zeros((*step.dst.local_shape, *rest), x.dtype)
    for piece, r in zip(received, pieces.rounds, strict=True):
        out = lax.dynamic_update_slice(out, piece, _indices(at(r.put)))
    return out


def _indices(starts: Sequence[Any]) -> list[Any]:
    """Starts of a slice in one dtype, since with x64 enabled Python's integers differ from device values."""
    return [jnp.asarray(start, jnp.int32) for start in starts]


#: Backends on which XLA cuts all pieces before it sends the first, which needs memory for two more shards, and on which
#: branches are cheap.
_SERIAL: Final = frozenset({"cpu"})


def _zero_after(x: Any) -> Any:
    """A zero that depends on an array, to order computations in XLA."""
    first = lax.squeeze(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), range(x.ndim))
    return lax.shift_right_logical((first == 0).astype(jnp.int32), 1)


def _joined(step: Step, pieces: Pieces, device: Any, received: list[Any]) -> Any:
    """The pieces in this device's order, by a branch that writes each of them once at its final place."""
    puts = zip(*(r.put for r in pieces.rounds), strict=True)
    orders = [tuple(sorted(range(len(put)), key=put.__getitem__)) for put in puts]
    distinct = list(dict.fromkeys(orders))
    counts = [n // size for n, size in zip(step.dst.local_shape, pieces.shape, strict=True)]

    def join(order: tuple[int, ...], shards: list[Any]) -> Any:
        parts = [shards[k] for k in order]
        for d in reversed(range(len(counts))):
            parts = [lax.concatenate(row, d) for row in zip(*[iter(parts)] * counts[d], strict=True)]
        return parts[0]

    order_index = jnp.asarray([distinct.index(order) for order in orders], jnp.int32)[device]
    return lax.switch(order_index, [functools.partial(join, order) for order in distinct], received)


def _ppermute(step: Step, pairs: Sequence[tuple[int, int]], x: Any) -> Any:
    """The piece that a device receives by a permute; the pairs are indices along the step's axes."""
    names, groups = _axes_and_groups(step.src.mesh, step.live)
    if groups is None:
        return lax.ppermute(x, names, pairs)
    return lax.ppermute(x, names, [(group[a], group[b]) for group in groups for a, b in pairs])


def _all_reduce(step: Step, x: Any) -> Any:
    names, groups = _axes_and_groups(step.src.mesh, step.live)
    return lax.psum(x, names, axis_index_groups=groups)


def _mask(step: Step, x: Any) -> Any:
    # a select and not a product, since 0 * inf is not 0
    return jnp.where(_index(step.src.mesh, step.live) == 0, x, jnp.zeros_like(x))


def _slice(step: Step, x: Any) -> Any:
    sizes = step.dst.local_shape
    for d, axes in enumerate(step.gained):
        if axes:
            x = lax.dynamic_slice_in_dim(x, _index(step.src.mesh, axes) * sizes[d], sizes[d], axis=d)
    return x


def _place(step: Step, x: Any) -> Any:
    sizes, wide = step.src.local_shape, step.dst.local_shape
    starts = [_index(step.src.mesh, axes) * sizes[d] if axes else 0 for d, axes in enumerate(step.lost)]
    rest = x.shape[len(sizes) :]
    return lax.dynamic_update_slice(jnp.zeros((*wide, *rest), x.dtype), x, _indices([*starts, *(0 for _ in rest)]))


# The next three put the pieces of a shard, one per device of the group, along a new major dim for the collective. An
# untiled collective and a local transpose move the same data as a tiled one, but XLA's CPU backend gathers along a
# minor dim many times slower than it transposes.


def _all_gather(step: Step, x: Any) -> Any:
    names, groups = _axes_and_groups(step.src.mesh, _flat(step.lost))
    return _join(lax.all_gather(x, names, axis_index_groups=groups, axis=0, tiled=False), _counts(step.src, step.lost))


def _reduce_scatter(step: Step, x: Any) -> Any:
    pieces = _split(x, _counts(step.src, step.gained))
    names, groups = _axes_and_groups(step.src.mesh, _flat(step.gained))
    return lax.psum_scatter(pieces, names, scatter_dimension=0, axis_index_groups=groups, tiled=False)


def exchange_pieces(pieces: Any, names: Any, groups: Any = None) -> Any:
    """Sends the piece of each index along the first dim to that device; the received pieces are in its place.

    The collective is of a vector: XLA's CPU backend sends each piece as a separate operand. While it simplifies, as
    after the transposes of another all-to-all, it lets their layouts differ, and then refuses.
    """
    vector = lax.all_to_all(pieces.reshape(-1), names, 0, 0, axis_index_groups=groups, tiled=True)
    return vector.reshape(pieces.shape)


def _all_to_all(step: Step, x: Any) -> Any:
    group, origin = _flat(step.gained), _flat(step.lost)
    pieces = _split(x, _counts(step.src, step.gained))
    names, groups = _axes_and_groups(step.src.mesh, group)
    pieces = exchange_pieces(pieces, names, groups)
    if group != origin:  # devices are numbered in the order of the gained axes, pieces in that of the lost ones
        shape = step.src.mesh.shape
        unflattened = pieces.reshape(*(shape[a] for a in group), *pieces.shape[1:])
        order = [group.index(a) for a in origin]
        pieces = unflattened.transpose(*order, *range(len(order), unflattened.ndim)).reshape(pieces.shape)
    return _join(pieces, _counts(step.src, step.lost))


_RUN: Final[dict[Kind, Callable[[Step, Any], Any]]] = {
    Kind.RELABEL: lambda step, x: x,
    Kind.MASK: _mask,
    Kind.SLICE: _slice,
    Kind.PLACE: _place,
    Kind.ALL_GATHER: _all_gather,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.PERMUTE: _permute,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_REDUCE: _all_reduce,
}


def _flat(axes: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(axes))


def _counts(t: ShType, axes: tuple[tuple[str, ...], ...]) -> list[int]:
    """The number of pieces in each dim."""
    return [t.mesh.product(a) for a in axes]


def _split(x: Any, counts: list[int]) -> Any:
    """Splits dims into these numbers of pieces, and puts all pieces along a new first dim."""
    cut: list[int] = []
    pieces: list[int] = []  # the dims of piece indices after the split
    for n, size in zip(counts, x.shape, strict=False):
        if n > 1:
            pieces.append(len(cut))
            cut.append(n)
        cut.append(size // n)
    cut += x.shape[len(counts) :]
    moved = x.reshape(cut).transpose(*pieces, *(d for d in range(len(cut)) if d not in pieces))
    return moved.reshape(math.prod(counts), *moved.shape[len(pieces) :])


def _join(pieces: Any, counts: list[int]) -> Any:
    """Joins the pieces along the first dim: the inverse of `_split`."""
    cut_counts = [n for n in counts if n > 1]
    unflattened = pieces.reshape(*cut_counts, *pieces.shape[1:])
    order: list[int] = []
    for n in counts:
        if n > 1:
            order.append(sum(d < len(cut_counts) for d in order))
        order.append(len(cut_counts) + sum(d >= len(cut_counts) for d in order))
    order += range(len(order), unflattened.ndim)
    shape = (n * size for n, size in zip(counts, pieces.shape[1:], strict=False))
    return unflattened.transpose(order).reshape(*shape, *pieces.shape[1 + len(counts) :])
