"""Lookups and sums at positions that are sharded as the dim that they are in, and lookups of bools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.local_rows import clamped
from shtypes.evaluation.table import ROWS
from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying, total
from shtypes.ops.shards import (
    Axes,
    axes_of,
    bound,
    full,
    gathered,
    of_device,
    placed,
    scattered,
    sharded,
    turned,
    type_of,
)
from shtypes.rules.lookups import Numbers
from shtypes.types import State


def _alike(operands: Sequence[Any], numbers: Numbers) -> tuple[int, int, Axes] | None:
    """The dim that is indexed, the dim of the positions that is sharded as it is, and their axes."""
    if not all(map(is_typed, operands)) or len(numbers.indexed) != 1:
        return None
    x, ids, (dim,) = type_of(operands[0]), type_of(operands[1]), numbers.indexed
    axes = x.dims[dim].axes
    shared = [k for k, d in enumerate(ids.dims) if not {*axes}.isdisjoint(d.axes)]
    alike = len(shared) == 1 and ids.dims[shared[0]].axes == axes and shared[0] not in numbers.ids_batch
    return (dim, shared[0], axes) if alike and x.size and ids.size else None


@of_device("owners")
def _of_owners(rows: Any, ids: Any, last: int, n: int, clips: bool, windows: tuple[int, ...], dim: int) -> Any:
    """Of the rows that each device found for a device's positions, those of the devices that have them."""
    at = clamped(ids[..., 0], last)
    owner = at // ((last + 1) // n)
    if not clips:  # what is nowhere, the first device fills
        owner = jnp.where(at == ids[..., 0].astype(at.dtype), owner, 0)
    owner = jnp.expand_dims(jnp.expand_dims(owner, windows), dim)
    rows = rows.reshape(*rows.shape[:dim], n, -1, *rows.shape[dim + 1 :])
    return jnp.squeeze(jnp.take_along_axis(rows, owner, dim, mode="clip"), dim)


@way("gather")
def found_by_owners(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends the positions and ``devices - 1`` shards of the result; backward as many."""
    numbers = Numbers.of_gather(eqn.params["dimension_numbers"])
    found = _alike(operands, numbers)
    if found is None:
        return None
    (x, ids), (dim, k, axes) = operands, found
    ids = as_varying(ids, axes)
    pending = ROWS["gather"](eqn, [_as_number(x), gathered(ids, axes, k)])[0]
    if any(type_of(pending).state(axis) is not State.UNREDUCED for axis in axes):
        return None
    rows = as_varying(pending, axes)
    d = [d for d in range(type_of(rows).ndim) if d not in numbers.window][k]
    t, clips = type_of(x), eqn.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP
    rows = turned(rows, axes, d, d)
    rows = _of_owners(rows, ids, t.shape[dim] - 1, t.mesh.product(axes), clips, numbers.window, d)
    return [placed(_cast(rows, np.bool_) if t.dtype_name == "bool" else rows, d, axes)]


@of_device("astype")
def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def _as_number(x: Any) -> Any:
    """The value, a bool one as uint8, which can be summed."""
    return _cast(x, np.uint8) if type_of(x).dtype_name == "bool" else x


@way("gather")
def summed_as_numbers(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends an all-reduce of the result as uint8: there are no sums of bools."""
    x, ids = operands
    if not is_typed(x) or not is_typed(ids) or type_of(x).dtype_name != "bool":
        return None
    (rows,) = ROWS["gather"](eqn, [_as_number(x), ids])
    axes = type_of(rows).axes(State.UNREDUCED)
    return [_cast(total(rows, axes, State.REDUCED), np.bool_)] if axes else None


_added = of_device("add")(lax.add)


@way("scatter-add", "scatter-sub")
def summed_by_all(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends ``devices - 1`` shards of what is changed; backward as many."""
    numbers = Numbers.of_scatter(eqn.params["dimension_numbers"])
    found = _alike(operands, numbers)
    if found is None:
        return None
    (x, ids, updates), (dim, k, axes) = operands, found
    rows = [d for d in range(type_of(updates).ndim) if d not in numbers.window]
    lies = {d: axes_of(updates, d) for d in range(type_of(updates).ndim) if not {*axes}.isdisjoint(axes_of(updates, d))}
    if lies not in ({}, {rows[k]: axes}):
        return None
    updates = updates if lies else sharded(updates, rows[k], axes)
    x, ids, updates = (as_varying(y, axes) for y in (x, ids, updates))
    sums = bound(eqn)(full(x, eqn.invars[0].aval.shape[dim], dim, 0), ids, updates)
    return [placed(_added(x, scattered(sums, axes, dim)), dim, axes)]
