"""Scatters by permutations, as in gradients of sorts, computed as sorts by the indices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from shtypes._compat.jaxprs import jaxpr_of, with_equations
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.positions import Count, Placed, inside, place_of, positions_in
from shtypes.evaluation.rows.lookups import applies
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.choice import CALLS, way
from shtypes.lifting.ways.order import sorted_by_columns
from shtypes.ops.arithmetic import add
from shtypes.ops.shards import axes_of, of_device, type_of
from shtypes.rules.lookups import DimensionNumbers


def with_unique_places(jaxpr: Any) -> Any:
    """Marks the scatters by permutations in a program as such; returns the program itself if there are none."""
    return _marked(jaxpr, (None,) * len(jaxpr.invars))


@functools.lru_cache(maxsize=256)
def _marked(jaxpr: Any, places: tuple[Any, ...]) -> Any:
    """The marked program, by what its arguments count."""
    args = (Placed(v.aval.shape, place) for v, place in zip(jaxpr.invars, places, strict=True))
    value = positions_in(jaxpr, dict(zip(jaxpr.invars, args, strict=True)))
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in (*CALLS, "scan"):
            closed = eqn.params["jaxpr"]
            body = _marked(jaxpr_of(closed), tuple(inside(eqn, [place_of(value(v)) for v in eqn.invars])))
            if body is not jaxpr_of(closed):
                eqn = eqn.replace(params={**eqn.params, "jaxpr": with_equations(closed, body.eqns, body.outvars)})
        elif (d := _scattered_dim(eqn)) is not None and place_of(value(eqn.invars[1])) == Count(d, in_order=False):
            mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
            eqn = eqn.replace(params={**eqn.params, "unique_indices": True, "mode": mode})
        eqns.append(eqn)
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
