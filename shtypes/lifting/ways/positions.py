"""Gathers from and scatters to a sharded dim by indices that are sharded too; bools, and slices, by any indices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.collective import vary
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.local_rows import clamped, reading
from shtypes.evaluation.table import ROWS
from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying, constant, extreme, product, shard_of, total
from shtypes.ops.shards import (
    Axes,
    all_gather_invariant,
    all_to_all,
    as_sharded,
    axes_of,
    axis_size,
    bound,
    full,
    in_parts,
    least_or_most,
    of_device,
    psum,
    psum_scatter,
    type_of,
)
from shtypes.rules.lookups import DimensionNumbers
from shtypes.types import State


def _alike(operands: Sequence[Any], numbers: DimensionNumbers) -> tuple[int, int, Axes] | None:
    """The indexed dim, the dim of the indices that is sharded alike, and their axes."""
    if not all(map(is_typed, operands)) or len(numbers.indexed) != 1:
        return None
    x, ids, (dim,) = type_of(operands[0]), type_of(operands[1]), numbers.indexed
    axes = x.dims[dim].axes
    shared = [k for k, d in enumerate(ids.dims) if not {*axes}.isdisjoint(d.axes)]
    alike = len(shared) == 1 and ids.dims[shared[0]].axes == axes and shared[0] not in numbers.ids_batch
    return (dim, shared[0], axes) if alike and x.size and ids.size else None


@of_device("owners")
def _of_owners(rows: Any, ids: Any, last: int, n: int, clips: bool, windows: tuple[int, ...], dim: int) -> Any:
    """Picks, among the rows from all devices for each index, those of the device that owns the row."""
    at = clamped(ids[..., 0], last)
    owner = at // ((last + 1) // n)
    if not clips:  # rows out of bounds come from the first device
        owner = jnp.where(at == ids[..., 0].astype(at.dtype), owner, 0)
    owner = jnp.expand_dims(jnp.expand_dims(owner, windows), dim)
    rows = rows.reshape(*rows.shape[:dim], n, -1, *rows.shape[dim + 1 :])
    return jnp.squeeze(jnp.take_along_axis(rows, owner, dim, mode="clip"), dim)


@way("gather")
def found_by_owners(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers the indices and sends rows by an all-to-all: ``devices - 1`` shards of the result; backward as many."""
    numbers = DimensionNumbers.of_gather(eqn.params["dimension_numbers"])
    found = _alike(operands, numbers)
    if found is None:
        return None
    (x, ids), (dim, k, axes) = operands, found
    ids = as_varying(ids, axes)
    pending = ROWS["gather"](eqn, [_as_number(x), all_gather_invariant(ids, axes, k)])[0]
    if any(type_of(pending).state(axis) is not State.UNREDUCED for axis in axes):
        return None
    rows = as_varying(pending, axes)
    d = [d for d in range(type_of(rows).ndim) if d not in numbers.window][k]
    t, clips = type_of(x), eqn.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP
    rows = all_to_all(rows, axes, d, d)
    rows = _of_owners(rows, ids, t.shape[dim] - 1, t.mesh.product(axes), clips, numbers.window, d)
    return [as_sharded(_cast(rows, np.bool_) if t.dtype_name == "bool" else rows, d, axes)]


_cast = of_device("astype")(lax.convert_element_type)


def _as_number(x: Any) -> Any:
    """Casts bools to uint8, which can be summed."""
    return _cast(x, np.uint8) if type_of(x).dtype_name == "bool" else x


@way("gather")
def summed_as_numbers(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends an all-reduce of the result as uint8: bools cannot be summed."""
    x, ids = operands
    if not is_typed(x) or not is_typed(ids) or type_of(x).dtype_name != "bool":
        return None
    (rows,) = ROWS["gather"](eqn, [_as_number(x), ids])
    axes = type_of(rows).axes(State.UNREDUCED)
    return [_cast(total(rows, axes, State.REDUCED), np.bool_)] if axes else None


@of_device("dynamic_slice")
def _looked_up(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Looks up the elements of a slice that starts at some indices, which are clamped as those of a slice."""
    for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size != x.shape[d]:
            x = jnp.take(x, clamped(jnp.asarray(start), x.shape[d] - size) + np.arange(size, dtype="i"), d, mode="clip")
    return x


@way("dynamic_slice")
def looked_up(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Looks up each position of at most half of the operand, to a pending sum: sends nothing; a row looks up one."""
    (x, *starts), sizes = operands, eqn.outvars[0].aval.shape
    if not is_typed(x) or 2 * eqn.outvars[0].aval.size > type_of(x).size:
        return None
    sliced = (d for d, (n, m) in enumerate(zip(sizes, type_of(x).shape, strict=True)) if 1 < n < m)
    return [_looked_up(x, starts, sizes)] if any(axes_of(x, d) for d in sliced) else None


#: The binary function of each scatter, and its reduction.
_JOINS: Final[Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "scatter-add": (lax.add, jnp.sum),
    "scatter-sub": (lax.add, jnp.sum),
    "scatter-mul": (lax.mul, jnp.prod),
    "scatter-max": (lax.max, jnp.max),
    "scatter-min": (lax.min, jnp.min),
}


def _nothing(name: str, dtype: Any) -> Any:
    """The identity of a scatter."""
    if name in ("scatter-max", "scatter-min"):
        return least_or_most(dtype, most=name == "scatter-min")
    return 1 if name == "scatter-mul" else -0.0 if jnp.issubdtype(dtype, np.inexact) else 0


class _Change(NamedTuple):
    """A scatter by sharded indices.

    Attributes:
        eqn: The equation.
        axes: The axes that shard the indices.
        dim: The dim of the operand that they shard too; None if there is none.
    """

    eqn: Any
    axes: Axes
    dim: int | None


_added = of_device("add")(lax.add)


@of_device("join")
def _joined(x: Any, parts: Any, name: str, dim: int) -> Any:
    """Reduces the parts along a dim, and combines them with ``x`` unless it is None."""
    two, some = _JOINS[name]
    joined = some(parts, dim).astype(parts.dtype)
    return joined if x is None else two(x, joined)


def _changed(x: Any, ids: Any, updates: Any, change: _Change) -> Any:
    """Scatters the updates of all devices: each device scatters its own to the identity, and these are reduced."""
    (eqn, axes, dim), name, n = change, change.eqn.primitive.name, axis_size(ids, change.axes)
    aval, d = eqn.invars[0].aval, dim or 0
    own = bound(eqn)(full(x, aval.shape[d], d, _nothing(name, aval.dtype)), ids, updates)
    if dim is not None and _JOINS[name][1] is jnp.sum:
        return _added(x, psum_scatter(own, axes, dim))
    if dim is not None:
        return _joined(x, all_to_all(in_parts(own, n, dim), axes, dim, dim), name, dim)
    each = as_sharded(in_parts(own, 1, 0), 0, axes)
    if name != "scatter-mul":
        return _joined(x, extreme(name.removeprefix("scatter-"), each, (0,)), name, 0)
    divided = [d for d, size in enumerate(type_of(own).local_shape) if size % n == 0]
    if not divided:
        return _joined(x, product(each, (0,)), name, 0)
    (d, *_) = divided  # an all-reduce of products, which JAX has not
    parts = all_to_all(in_parts(own, n, d), axes, d, d)
    return _joined(x, in_parts(all_gather_invariant(_joined(None, parts, name, d), axes, d), 1, d), name, d)


def _sum_of_all(x: Any, ids: Any, updates: Any, change: _Change) -> Any:
    """Scatter-adds the updates of all devices to zeros that are sharded as the operand."""
    eqn, axes, dim = change
    p = eqn.params
    zeros = full(x, eqn.invars[0].aval.shape[dim or 0], dim or 0, 0)
    sums = _added_at(zeros, ids, updates, p["dimension_numbers"], mode=p["mode"])
    return psum(sums, axes, State.INVARIANT) if dim is None else psum_scatter(sums, axes, dim)


_added_at = of_device("add")(lax.scatter_add)


@of_device("won")
def _won(y: Any, ids: Any, updates: Any, numbers: Any, mode: Any) -> Any:
    """Which updates equal the result at their indices, as ones; the second has ones where the result is NaN, too."""
    best = lax.gather(y, ids, *reading(numbers, y, updates), mode=mode)
    return [(updates == best).astype(y.dtype), ((updates == best) | (best != best)).astype(y.dtype)]


@of_device("share")
def _shares(x: Any, y: Any, count: Any) -> Any:
    """The share of the cotangent that the operand gets, and that of each update that is the result."""
    retained = (x == y).astype(x.dtype)
    share = jnp.where(y == y, 1 / (count + retained), 0)
    return [jnp.where(count == 0, 1, retained * share), share]


_of_winners = of_device("part")(lax.mul)


@of_device("tangent")
def _tangent(x: Any, of_x: Any, updates: Any, share: Any) -> Any:
    return x * of_x + updates * share


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _extremes(x: Any, ids: Any, updates: Any, change: _Change) -> Any:
    return _changed(x, ids, updates, change)


@_extremes.defjvp
def _shared_by_winners(change: _Change, primals: Any, tangents: Any) -> Any:
    """The JVP of JAX: the operand and all updates that equal the result have equal shares."""
    x, ids, updates = primals
    y = _extremes(x, ids, updates, change)
    p, best = change.eqn.params, constant(y)
    whole = best if change.dim is None else all_gather_invariant(best, change.axes, change.dim)
    won, counted = _won(vary(whole, change.axes), ids, constant(updates), p["dimension_numbers"], p["mode"])
    of_x, share = _shares(constant(x), best, _sum_of_all(best, ids, counted, change))
    sums = _sum_of_all(best, ids, _of_winners(tangents[2], won), change)
    dy = _tangent(tangents[0], of_x, sums, share)
    return y, move(dy, type_of(y), inserted=True)


@way(*_JOINS)
def joined_of_all(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Reduces the scatters of all devices: sends ``devices - 1`` shards, or of an unsharded operand an all-reduce."""
    numbers, name = DimensionNumbers.of_scatter(eqn.params["dimension_numbers"]), eqn.primitive.name
    found = _rows_of(operands, numbers)
    if found is None:
        return None
    (x, ids, updates), (k, axes) = operands, found
    t, sums = type_of(x), _JOINS[name][1] is jnp.sum
    shared = {d: dim.axes for d, dim in enumerate(t.dims) if not {*axes}.isdisjoint(dim.axes)}
    alike = len(numbers.indexed) == 1 and shared == {numbers.indexed[0]: axes}
    is_complex = not sums and jnp.issubdtype(t.dtype, np.complexfloating)
    if is_complex or not (alike or (not shared and not sums)) or not {*axes}.isdisjoint(t.axes(State.UNREDUCED)):
        return None
    row = [d for d in range(type_of(updates).ndim) if d not in numbers.window][k]
    ids, updates = shard_of(ids, k, axes), shard_of(updates, row, axes)
    change = _Change(eqn, axes, numbers.indexed[0] if alike else None)
    x = as_varying(x, axes) if alike else x
    is_extreme = name in ("scatter-max", "scatter-min") and t.differentiable
    y = (_extremes if is_extreme else _changed)(x, ids, updates, change)
    return [y if change.dim is None else as_sharded(y, change.dim, axes)]


def _rows_of(operands: Sequence[Any], numbers: DimensionNumbers) -> tuple[int, Axes] | None:
    """The only dim of the indices along which they or the updates are sharded, and its axes; None if there is none."""
    if not all(map(is_typed, operands)) or not all(type_of(x).size and type_of(x).ndim for x in operands):
        return None
    _, ids, updates = map(type_of, operands)
    rows = [d for d in range(updates.ndim) if d not in numbers.window]
    found = {(k, axes) for k, d in enumerate(rows) for axes in (ids.dims[k].axes, updates.dims[d].axes) if axes}
    if len(found) != 1:
        return None
    ((k, axes),) = found
    others = [dim.axes for d, dim in enumerate(updates.dims) if d != rows[k]]
    apart = all({*axes}.isdisjoint(each) for each in others) and k not in numbers.ids_batch
    return (k, axes) if apart else None
