"""Rows of lookups and of changes at positions."""

from __future__ import annotations

from typing import Any

import jax

from shtypes.lifting.places import counted
from shtypes.lifting.registry import op, row
from shtypes.lifting.rows.shapes import ints
from shtypes.ops.dispatch import is_typed
from shtypes.rules.gather import Numbers


def _together(x: Any, ids: Any, numbers: Numbers, *, changes: bool) -> tuple[Any, Numbers]:
    """Positions without the components that count along a dim, and the numbers with that dim as a batch dim.

    Only where that helps: the dim is sharded, and the positions are not, or alike. ``changes``: also where it is not
    sharded, since updates may be.
    """
    batch = _batch(x, ids, numbers, changes)
    if not batch or not is_typed(ids):
        return ids, numbers
    left = [j for j in range(len(numbers.indexed)) if j not in batch]
    dims = [int(numbers.indexed[j]) for j in batch]
    made = numbers._replace(
        collapsed=tuple(d for d in numbers.collapsed if d not in dims),
        indexed=tuple(numbers.indexed[j] for j in left),
        batch=(*numbers.batch, *dims),
        ids_batch=(*numbers.ids_batch, *batch.values()),
    )
    last = ids.type.ndim - 1
    parts = [op("index_in_dim")(ids, j, last, keepdims=True) for j in left]
    return (op("concatenate")(parts, last) if len(parts) > 1 else parts[0]), _sorted(made)


def _sorted(numbers: Numbers) -> Numbers:
    """With the batch dims in order, as JAX wants them."""
    pairs = sorted(zip(map(int, numbers.batch), map(int, numbers.ids_batch), strict=True))
    return numbers._replace(batch=tuple(d for d, _ in pairs), ids_batch=tuple(k for _, k in pairs))


def _batch(x: Any, ids: Any, numbers: Numbers, changes: bool) -> dict[int, int]:
    """By component, the dims of the positions that are to run together with what it indexes; never all of them."""
    counts, taken = counted(ids), set(map(int, numbers.ids_batch))
    found: dict[int, int] = {}
    if not is_typed(x):
        return found
    by_need = sorted(counts.items(), key=lambda jk: not x.type.dims[int(numbers.indexed[jk[0]])].axes)
    for j, k in by_need:
        dim, own = x.type.dims[int(numbers.indexed[j])], ids.type.dims[k].axes if is_typed(ids) else ()
        alike = dim.size == ids.shape[k] and numbers.indexed[j] in numbers.collapsed and k not in taken
        if alike and (own in ((), dim.axes) if dim.axes else changes) and len(found) + 1 < len(numbers.indexed):
            found[j] = k
            taken.add(k)
    return found


@row("gather")
def _gather(
    x: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    unique_indices: bool,
    indices_are_sorted: bool,
) -> Any:
    numbers = Numbers(
        dimension_numbers.offset_dims,
        dimension_numbers.collapsed_slice_dims,
        dimension_numbers.start_index_map,
        dimension_numbers.operand_batching_dims,
        dimension_numbers.start_indices_batching_dims,
    )
    indices, numbers = _together(x, indices, numbers, changes=False)
    return op("gather")(
        x,
        indices,
        jax.lax.GatherDimensionNumbers(*map(ints, numbers)),
        ints(slice_sizes),
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
        mode=mode,
        fill_value=fill_value,
    )


def _scatter(how: str) -> Any:
    def scatter(
        x: Any,
        indices: Any,
        updates: Any,
        *,
        dimension_numbers: Any,
        mode: Any,
        indices_are_sorted: bool,
        unique_indices: bool,
        update_jaxpr: Any = None,
        update_consts: Any = (),
    ) -> Any:
        numbers = Numbers(
            dimension_numbers.update_window_dims,
            dimension_numbers.inserted_window_dims,
            dimension_numbers.scatter_dims_to_operand_dims,
            dimension_numbers.operand_batching_dims,
            dimension_numbers.scatter_indices_batching_dims,
        )
        indices, numbers = _together(x, indices, numbers, changes=True)
        return op(f"scatter{how}")(
            x,
            indices,
            updates,
            jax.lax.ScatterDimensionNumbers(*map(ints, numbers)),
            mode=mode,
            unique_indices=unique_indices,
            indices_are_sorted=indices_are_sorted,
        )

    return scatter


for _how in ("", "_add", "_sub", "_max", "_min", "_mul"):
    row(f"scatter{_how}".replace("_", "-"))(_scatter(_how))
