"""Rows of gathers and scatters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.local_axes import struct
from shtypes._compat.plain_programs import without_mesh
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.bound_primitive import LINEAR, Linearity
from shtypes.evaluation.interpreter import evaluate_closed
from shtypes.evaluation.local_rows import Component, LocalUpdates, LocalWindows, clamped
from shtypes.evaluation.positions import counted
from shtypes.evaluation.rows.families import Call, Row, Types, ints
from shtypes.evaluation.table import row
from shtypes.rules import Typing
from shtypes.rules.lookups import DimensionNumbers
from shtypes.rules.lookups import gather as _gather_rule
from shtypes.rules.lookups import scatter as _scatter_rule
from shtypes.types import ShType, State

#: The modes for indices out of bounds.
_CLIP, _DROP = jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.FILL_OR_DROP
#: The scatters, with the method of ``x.at[...]`` by which they are typed.
_CHANGES: Final = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter-sub": "subtract",
    "scatter-mul": "multiply",
    "scatter-min": "min",
    "scatter-max": "max",
}


# indices that count along a dim


def _batch(x: Any, ids: Any, numbers: DimensionNumbers, update: Any = None) -> dict[int, int]:
    """For the index components that become batch dims, the dim of the indices along which they count; not for all.

    Only if the indexed dim is sharded, and the indices are unsharded or sharded alike; with an ``update`` also if it is
    unsharded, since the update may be sharded, but not over axes over which the array is a pending sum.
    """
    batch: dict[int, int] = {}
    if not is_typed(x) or not is_typed(ids):
        return batch
    counts, taken = counted(ids), set(map(int, numbers.ids_batch))

    def changes(k: int) -> bool:
        if update is None:
            return False
        rows = [d for d in range(len(update.shape)) if d not in numbers.window]
        axes = ids.type.dims[k].axes + (update.type.dims[rows[k]].axes if is_typed(update) else ())
        return not set(axes).intersection(x.type.axes(State.UNREDUCED))

    by_need = sorted(counts.items(), key=lambda jk: not x.type.dims[int(numbers.indexed[jk[0]])].axes)
    for j, k in by_need:
        dim, axes = x.type.dims[int(numbers.indexed[j])], ids.type.dims[k].axes
        fits = dim.size == ids.shape[k] and numbers.indexed[j] in numbers.collapsed and k not in taken
        if fits and (axes in ((), dim.axes) if dim.axes else changes(k)) and len(batch) + 1 < len(numbers.indexed):
            batch[j] = k
            taken.add(k)
    return batch


def _with_batch_dims(numbers: DimensionNumbers, batch: dict[int, int]) -> DimensionNumbers:
    """The dimension numbers with some indexed dims as batch dims, in order."""
    dims = [numbers.indexed[j] for j in batch]
    pairs = sorted([*zip(numbers.batch, numbers.ids_batch, strict=True), *zip(dims, batch.values(), strict=True)])
    return numbers._replace(
        collapsed=tuple(d for d in numbers.collapsed if d not in dims),
        indexed=tuple(d for j, d in enumerate(numbers.indexed) if j not in batch),
        batch=tuple(d for d, _ in pairs),
        ids_batch=tuple(k for _, k in pairs),
    )


def _components(t: ShType, numbers: DimensionNumbers, sizes: Sequence[int]) -> tuple[Component, ...]:
    """The index components, with the mesh axes of sharded dims that are not taken in full."""
    components = []
    for j, d in enumerate(numbers.indexed):
        last, axes = t.shape[d] - sizes[d], t.dims[d].axes
        components.append(Component(j, last, d, axes) if axes and last else Component(j, last))
    return tuple(components)


# lookups


@row("gather")
def _gather(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    numbers, sizes = DimensionNumbers.of_gather(eqn.params["dimension_numbers"]), ints(eqn.params["slice_sizes"])
    batch = _batch(operands[0], operands[1], numbers)

    def rule(call: Call, types: Types) -> Typing:
        return _gather_rule("gather", types, _with_batch_dims(numbers, batch), sizes, call.constants)

    def on_shard(call: Call, types: Types, results: Types) -> ShardFn:
        return _local_windows(call, types, results, numbers, batch)

    return Row(rule, function=on_shard)(eqn, operands)


def _local_windows(
    call: Call, types: Types, results: Types, numbers: DimensionNumbers, batch: dict[int, int]
) -> ShardFn:
    """The gather on a shard: the primitive, unless a sharded dim is indexed, a sum is filled or indices are narrow."""
    (t, ids), p = types, call.params
    sizes = ints(p["slice_sizes"])
    local_sizes = tuple(n if size == m else size for size, m, n in zip(sizes, t.shape, t.local_shape, strict=True))
    fill = None if p["mode"] is not _DROP or not _fills_sum(p["fill_value"]) else p["fill_value"]
    fill_axes = tuple(results[0].axes(State.UNREDUCED)) if fill is not None else ()
    runs_together = {j: k for j, k in batch.items() if t.dims[numbers.indexed[j]].axes or ids.dims[k].axes}
    components = _components(t, numbers, sizes)
    looked_up = [c for c in components if c.axes and c.place not in runs_together]
    if not (looked_up or runs_together or fill_axes or _are_narrow(ids)):
        return call.bound(slice_sizes=local_sizes)
    lookup = _with_batch_dims(numbers, runs_together)
    remaining = tuple(j for j in range(len(numbers.indexed)) if j not in runs_together)
    fn = call.bound(
        slice_sizes=local_sizes,
        dimension_numbers=jax.lax.GatherDimensionNumbers(*lookup),
        fill_value=p["fill_value"] if fill is None else 0,
        indices_are_sorted=False,
        unique_indices=p["unique_indices"] and not looked_up,
    )
    return LocalWindows(
        fn, tuple(c for c in components if c.place in remaining), remaining, p["mode"] is not _DROP, fill, fill_axes
    )


def _are_narrow(ids: ShType) -> bool:
    """Whether indices have fewer than 32 bits, in which XLA loses updates if a device has one (jaxlib 0.10).

    It compares the index with the last one as a number of these bits, in scatters, as gradients of gathers are.
    """
    return bool(ids.dtype.itemsize < 4)


def _fills_sum(fill: Any) -> bool:
    """Whether the fill value changes a sum: it is not zero, or is negative zero."""
    return fill is None or bool(np.asarray(fill) != 0) or bool(np.signbit(np.asarray(fill).real))


# scatters


def _is_single(eqn: Any) -> bool:
    return bool(math.prod(eqn.invars[1].aval.shape[:-1]) == 1)


def applies(eqn: Any) -> bool:
    """Whether a scatter applies the user's function (`x.at[...].apply`)."""
    return bool(eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None)


def _linearity(eqn: Any) -> Linearity:
    """The linearity of a scatter; ``set`` is linear only with unique indices."""
    if eqn.primitive.name != "scatter":
        return LINEAR.get(eqn.primitive.name, Linearity())
    unique = eqn.params["unique_indices"] or _is_single(eqn)
    return Linearity(Linear.IN_DIFFERENTIABLE, slice(1, 2)) if unique and not applies(eqn) else Linearity()


@row(*_CHANGES)
def _scatter(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    numbers, name, how = DimensionNumbers.of_scatter(eqn.params["dimension_numbers"]), "scatter_apply", "max"
    if not applies(eqn):
        name, how = eqn.primitive.name.replace("-", "_"), _CHANGES[eqn.primitive.name]
    batch = _batch(operands[0], operands[1], numbers, operands[2])
    x, _, update = (v.aval for v in eqn.invars)
    windows = iter([update.shape[d] for d in numbers.window])
    sizes = tuple(int(next(windows)) if d in numbers.windowed(x.ndim) else 1 for d in range(x.ndim))
    cut = [d for d in numbers.indexed if d not in numbers.collapsed and sizes[d] < x.shape[d]]
    if not numbers.batch and is_typed(operands[0]) and any(operands[0].type.dims[d].axes for d in cut):
        by_elements = functools.partial(_by_elements, eqn, numbers, sizes, tuple(cut))
        with without_mesh():
            program = jax.make_jaxpr(by_elements)(*[struct(v.aval.shape, v.aval.dtype) for v in eqn.invars])
        return evaluate_closed(program, operands)

    def rule(call: Call, types: Types) -> Typing:
        return _scatter_rule(name, how, types, _with_batch_dims(numbers, batch), sizes, call.constants)

    def on_shard(call: Call, types: Types, results: Types) -> ShardFn:
        return _local_updates(call, types, numbers, batch, sizes)

    return Row(rule, name, function=on_shard, linearity=_linearity)(eqn, operands)


def _local_updates(
    call: Call, types: Types, numbers: DimensionNumbers, batch: dict[int, int], sizes: Sequence[int]
) -> ShardFn:
    """The scatter on a shard: the primitive, unless a sharded dim is indexed or indices are narrow."""
    (t, ids, update), p = types, call.params
    rows = [d for d in range(update.ndim) if d not in numbers.window]
    runs_together = {
        j: k
        for j, k in batch.items()
        if t.dims[numbers.indexed[j]].axes or ids.dims[k].axes or update.dims[rows[k]].axes
    }
    components = _components(t, numbers, sizes)
    looked_up = [c for c in components if c.axes and c.place not in runs_together]
    unique = p["unique_indices"] or _is_single(call.eqn)
    if not (looked_up or runs_together or _are_narrow(ids)):
        return call.bound(unique_indices=unique)
    remaining = tuple(j for j in range(len(numbers.indexed)) if j not in runs_together)
    fn = call.bound(
        dimension_numbers=jax.lax.ScatterDimensionNumbers(*_with_batch_dims(numbers, runs_together)),
        mode=_DROP,
        indices_are_sorted=False,
        unique_indices=unique,
    )
    remaining_components = tuple(c for c in components if c.place in remaining)
    return LocalUpdates(fn, remaining_components, remaining, p["mode"] is _CLIP, _is_single(call.eqn))


def _by_elements(
    eqn: Any, numbers: DimensionNumbers, sizes: Sequence[int], cut: tuple[int, ...], x: Any, at: Any, y: Any
) -> Any:
    """A scatter of windows as a scatter of their elements along the ``cut`` dims, which are sharded."""
    params, rows = eqn.params, at.ndim - 1
    counts, offsets = tuple(sizes[d] for d in cut), range(rows, rows + len(cut))
    of_windows = numbers.windowed(x.ndim)
    front = [d for d in range(y.ndim) if d not in numbers.window]
    front += [numbers.window[of_windows.index(d)] for d in cut]
    y = jnp.moveaxis(y, front, range(len(front)))
    components: list[Any] = []
    for j, d in enumerate(numbers.indexed):
        start = jnp.expand_dims(at[..., j], offsets)
        first = clamped(start, x.shape[d] - sizes[d])
        positions = first
        if d in cut:
            positions = first + lax.broadcasted_iota(first.dtype, (1,) * rows + counts, rows + cut.index(d))
        if params["mode"] is not _CLIP:  # a window that does not fit is dropped
            positions = jnp.where(first == start.astype(first.dtype), positions, -1)
        components.append(jnp.broadcast_to(positions, (*at.shape[:-1], *counts)))
    dims = jax.lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(front), y.ndim)),
        inserted_window_dims=tuple(sorted((*numbers.collapsed, *cut))),
        scatter_dims_to_operand_dims=numbers.indexed,
    )
    unique = params["unique_indices"] or _is_single(eqn)
    changed = {"dimension_numbers": dims, "unique_indices": unique, "indices_are_sorted": False}
    return eqn.primitive.bind(x, jnp.stack(components, -1), y, **{**params, **changed})
