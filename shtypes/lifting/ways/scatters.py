"""Scatters by permutations, as in gradients of sorts, as sorts by the indices; and which updates scatters keep.

Gradients of `jax.lax.scatter` ask for those it keeps, where several are of one element, by an array of the operand's
shape, so that all of its elements are on each device, or two programs across shards. They are found by sorting::

    numbers = 1 + iota(updates)
    kept = gather(scatter(zeros, indices, numbers), indices) == numbers
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value, with_equations
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.positions import Count, Placed, counted, inside, place_of, positions_in
from shtypes.evaluation.rows.lookups import applies
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.choice import CALLS, way
from shtypes.lifting.ways.order import sorted_by_columns
from shtypes.lifting.ways.programs import Uses, equations_of, uses_of
from shtypes.ops.arithmetic import add
from shtypes.ops.shards import axes_of, of_device, type_of
from shtypes.rules.lookups import DimensionNumbers


def with_sorted_places(jaxpr: Any) -> Any:
    """Marks the scatters by permutations, and compares indices to find the updates that a scatter keeps."""
    return _marked(jaxpr, (None,) * len(jaxpr.invars))


@functools.lru_cache(maxsize=256)
def _marked(jaxpr: Any, places: tuple[Any, ...]) -> Any:
    """The program, by what its arguments count; the program itself if there is nothing to do."""
    args = (Placed(v.aval.shape, place) for v, place in zip(jaxpr.invars, places, strict=True))
    value, uses = positions_in(jaxpr, dict(zip(jaxpr.invars, args, strict=True))), uses_of(jaxpr)
    eqns = list[Any]()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in (*CALLS, "scan"):
            closed = eqn.params["jaxpr"]
            body = _marked(jaxpr_of(closed), tuple(inside(eqn, [place_of(value(v)) for v in eqn.invars])))
            if body is not jaxpr_of(closed):
                eqn = eqn.replace(params={**eqn.params, "jaxpr": with_equations(closed, body.eqns, body.outvars)})
        elif (d := _scattered_dim(eqn)) is not None and place_of(value(eqn.invars[1])) == Count(d, in_order=False):
            mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
            eqn = eqn.replace(params={**eqn.params, "unique_indices": True, "mode": mode})
        scatter = _scatter_of_numbers(eqn, uses)
        eqns += [eqn] if scatter is None else _by_sorting(eqn, scatter, counted(value(scatter.invars[1])))
    return with_used(jaxpr, eqns)


def _scattered_dim(eqn: Any) -> int | None:
    """The dim of a scatter that has an index along one dim for each element; None for others."""
    if eqn.primitive.name not in ("scatter", "scatter-add") or applies(eqn):
        return None
    numbers, shapes = DimensionNumbers.of_scatter(eqn.params["dimension_numbers"]), [v.aval.shape for v in eqn.invars]
    rest = tuple(d for d in range(len(shapes[0])) if d not in numbers.indexed)
    beside = numbers.batch == numbers.ids_batch == rest and not numbers.window
    return numbers.indexed[0] if beside and shapes == [shapes[2], (*shapes[2], 1), shapes[2]] else None


def _scattered_once(eqn: Any) -> int | None:
    """The dim of a scatter by a permutation; None for others."""
    p = eqn.params
    once = p["unique_indices"] and p["mode"] is lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return _scattered_dim(eqn) if once else None


@of_device("places")
def _narrow(places: Any, size: int) -> Any:
    """Indices without their last dim, in the narrowest dtype."""
    return places[..., 0].astype(np.min_scalar_type(size - 1))


@way("scatter", "scatter-add")
def sorted_by_places(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sorts the updates by their indices; sends what the sort sends, backward without the indices."""
    (x, ids, updates), dim = operands, _scattered_once(eqn)
    if dim is None or not is_typed(ids) or not is_typed(updates) or not axes_of(ids, dim):
        return None
    size = type_of(updates).shape[dim]
    by_places = {"dimension": dim, "num_keys": 1, "is_stable": False}
    results = sorted_by_columns(by_places, [_narrow(ids, size), updates], None)
    if results is None:
        return None
    return [results[1] if eqn.primitive.name == "scatter" else add(results[1], x)]


# kept updates


def _scatter_of_numbers(eqn: Any, uses: Uses) -> Any:
    """The scatter of the updates' numbers, if an equation compares what a gather reads of it with them; else None."""
    gather = uses.maker(eqn.invars[1], "gather") if eqn.primitive.name == "eq" else None
    scatter = None if gather is None else uses.maker(gather.invars[0], "scatter")
    if gather is None or scatter is None or list(scatter.invars[1:]) != [gather.invars[1], eqn.invars[0]]:
        return None
    numbers, (x, _, updates) = DimensionNumbers.of_scatter(scatter.params["dimension_numbers"]), scatter.invars
    sizes = dict(zip(numbers.windowed(x.aval.ndim), (updates.aval.shape[d] for d in numbers.window), strict=True))
    disjoint = all(sizes.get(d, 1) == 1 for d in numbers.indexed)  # else windows may overlap in part
    same = numbers == DimensionNumbers.of_gather(gather.params["dimension_numbers"])
    reads = same and gather.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP
    numbered = _is_filled(x, 0, uses) and _are_numbers(updates, numbers.window, uses)
    return scatter if disjoint and reads and numbered else None


def _is_filled(v: Any, value: int, uses: Uses) -> bool:
    fill = uses.maker(v, "broadcast_in_dim")
    return fill is not None and is_literal(fill.invars[0]) and bool(literal_value(fill.invars[0]) == value)


def _are_numbers(v: Any, window: Collection[int], uses: Uses) -> bool:
    """Whether a variable has another number, from one on, for each window of a scatter's updates."""
    added = uses.maker(v, "add")
    if added is None or not _is_filled(added.invars[1], 1, uses):
        return False
    count = added.invars[0]
    shaped = uses.maker(count, "reshape")
    iota = uses.maker(count if shaped is None else shaped.invars[0], "iota")
    rows = [d for d in range(v.aval.ndim) if d not in window]
    if iota is None or [count.aval.shape[d] for d in rows] != [v.aval.shape[d] for d in rows]:
        return False
    dtype, shape = iota.params["dtype"], iota.params["shape"]
    return bool(np.issubdtype(dtype, np.integer) and len(shape) == 1 and shape[0] <= np.iinfo(dtype).max)


def _by_sorting(eqn: Any, scatter: Any, counts: Mapping[int, int]) -> list[Any]:
    """The equations that find the same among the indices; ``counts``: their components that count along a dim."""
    (x, ids, updates), mode = scatter.invars, scatter.params["mode"]
    numbers = DimensionNumbers.of_scatter(scatter.params["dimension_numbers"])
    sizes = [x.aval.shape[d] for d in numbers.indexed]
    clipped = mode is lax.GatherScatterMode.CLIP
    differ = {k: d for k, d in counts.items() if ids.aval.shape[d] <= sizes[k] or not clipped}
    compared = [(k, n if clipped else 0) for k, n in enumerate(sizes) if k not in differ]
    differ_along = sorted({*numbers.ids_batch, *differ.values()})
    rows = [d for d in range(updates.aval.ndim) if d not in numbers.window]

    def kept(ids: Any) -> Any:
        last = _last_of_equal(ids, compared, differ_along)
        if mode is lax.GatherScatterMode.FILL_OR_DROP:
            inside = (ids[..., k] == _clipped(ids[..., k], n) for k, n in enumerate(sizes))
            last = functools.reduce(jnp.logical_and, inside, last)
        return [lax.broadcast_in_dim(last, updates.aval.shape, rows)]

    return equations_of(kept, [ids], eqn, eqn.outvars)[0]


def _clipped(ids: Any, size: int) -> Any:
    """Indices clipped to a dim."""
    return jnp.clip(ids, 0, min(size - 1, np.iinfo(ids.dtype).max))


def _last_of_equal(ids: Any, compared: Sequence[tuple[int, int]], differ_along: Sequence[int]) -> Any:
    """Which indices are the last of equal ones.

    Args:
        ids: The indices, with their components along the last dim.
        compared: The components that are compared, with the sizes to which they are clipped; 0 without.
        differ_along: The dims along which indices differ.
    """
    order = (*differ_along, *(d for d in range(ids.ndim - 1) if d not in differ_along))
    dim = len(differ_along)
    sizes = [ids.shape[d] for d in order]

    def flat(component: Any) -> Any:
        return component.transpose(order).reshape(*sizes[:dim], math.prod(sizes[dim:]))

    components = [flat(_clipped(ids[..., k], n) if n else ids[..., k]) for k, n in compared]
    number = lax.broadcasted_iota(np.int32, flat(ids[..., 0]).shape, dim)
    *components, number = lax.sort([*components, number], dimension=dim, num_keys=len(components) + 1)
    differs = functools.reduce(jnp.logical_or, (x[..., 1:] != x[..., :-1] for x in components), number[..., 1:] < 0)
    last = jnp.concatenate([differs, jnp.ones((*number.shape[:-1], 1), bool)], dim)
    return lax.sort([number, last], dimension=dim, num_keys=1)[1].reshape(sizes).transpose(np.argsort(order))
