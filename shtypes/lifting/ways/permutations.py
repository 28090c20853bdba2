"""Scatters by permutations, as in gradients of sorts, computed as sorts by the indices."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import is_literal, jaxpr_of, with_equations
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.rows.lookups import applies
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.choice import CALLS, way
from shtypes.lifting.ways.order import numbered, sorted_by_columns
from shtypes.lifting.ways.uses import uses_of
from shtypes.ops.arithmetic import add
from shtypes.ops.shards import axes_of, least_or_most, of_device, type_of
from shtypes.rules.lookups import DimensionNumbers


def with_unique_places(jaxpr: Any) -> Any:
    """Marks the scatters by permutations in a program as such; returns the program itself if there are none."""
    return _marked(jaxpr, ())[0]


@functools.lru_cache(maxsize=256)
def _marked(jaxpr: Any, places: tuple[tuple[int, int], ...]) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """The marked program, and which results are permutations along which dim, given which arguments are."""
    dims = {jaxpr.invars[i]: d for i, d in places}  # the variables that are permutations, with the dim
    eqns = []
    for i, eqn in enumerate(jaxpr.eqns):
        if found := numbered(jaxpr, i):
            dims[eqn.outvars[found[1]]] = int(eqn.params["dimension"])
        elif eqn.primitive.name in CALLS:
            body, results = _marked(jaxpr_of(eqn.params["jaxpr"]), _known(dims, eqn.invars))
            dims.update((eqn.outvars[j], d) for j, d in results)
            if body is not jaxpr_of(eqn.params["jaxpr"]):
                closed = with_equations(eqn.params["jaxpr"], body.eqns, body.outvars)
                eqn = eqn.replace(params={**eqn.params, "jaxpr": closed})
        elif (kept := _kept(eqn, jaxpr)) in dims:
            dims[eqn.outvars[0]] = dims[kept]
        elif (d := _scattered_dim(eqn)) is not None and (1, d) in _known(dims, eqn.invars):
            mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
            eqn = eqn.replace(params={**eqn.params, "unique_indices": True, "mode": mode})
        eqns.append(eqn)
    return with_used(jaxpr, eqns), _known(dims, jaxpr.outvars)


def _known(dims: Mapping[Any, int], variables: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((i, dims[v]) for i, v in enumerate(variables) if not is_literal(v) and v in dims)


def _kept(eqn: Any, jaxpr: Any) -> Any:
    """The operand with the same indices as the result, perhaps without a last dim of one; None if there is none."""
    if eqn.primitive.name not in ("broadcast_in_dim", "convert_element_type", "reshape", "select_n"):
        return None
    p, v, (y,) = eqn.params, eqn.invars[0], [w.aval for w in eqn.outvars]
    match eqn.primitive.name:
        case "convert_element_type":
            keeps = jnp.issubdtype(y.dtype, np.integer) and least_or_most(y.dtype, most=True) >= max(y.shape, default=0)
        case "select_n":  # replaces negative indices, of which there are none
            by, v = uses_of(jaxpr).maker(v, "lt"), eqn.invars[1]
            keeps = by is not None and by.invars[0] is v and _is_zero(by.invars[1])
        case _:
            last = () if y.shape == v.aval.shape else (1,)
            keeps = y.shape == (*v.aval.shape, *last)
            keeps = keeps and tuple(p.get("broadcast_dimensions", range(v.aval.ndim))) == (*range(v.aval.ndim),)
    return v if keeps and not is_literal(v) else None


def _is_zero(v: Any) -> bool:
    return is_literal(v) and not np.any(v.val)


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
