"""Which updates a scatter keeps, where several are of one element: found by sorting its indices.

Gradients of `jax.lax.scatter` ask for it by an array of the operand's shape, so that all of its elements are on each
device, or two programs across shards::

    numbers = 1 + iota(updates)
    kept = gather(scatter(zeros, indices, numbers), indices) == numbers
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import is_literal, literal_value
from shtypes.evaluation.positions import counted, positions_in
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.opened import equations_of
from shtypes.lifting.ways.uses import Uses, uses_of
from shtypes.rules.lookups import DimensionNumbers


def with_kept_updates(jaxpr: Any) -> Any:
    """Compares indices where a program asks which of its updates a scatter keeps; the program itself if none does."""
    uses = uses_of(jaxpr)
    scatters = {i: scatter for i, e in enumerate(jaxpr.eqns) if (scatter := _scatter_of_numbers(e, uses)) is not None}
    if not scatters:
        return jaxpr
    value = positions_in(jaxpr, {})
    counts = {i: counted(value(scatter.invars[1])) for i, scatter in scatters.items()}
    eqns = [
        y for i, e in enumerate(jaxpr.eqns) for y in (_by_sorting(e, scatters[i], counts[i]) if i in scatters else [e])
    ]
    return with_used(jaxpr, eqns)


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
    return scatter if same and disjoint and _is_zero(x, uses) and _are_numbers(updates, uses) else None


def _is_zero(v: Any, uses: Uses) -> bool:
    fill = uses.maker(v, "broadcast_in_dim")
    return fill is not None and is_literal(fill.invars[0]) and not literal_value(fill.invars[0])


def _are_numbers(v: Any, uses: Uses) -> bool:
    """Whether a variable has the numbers of the updates, from one on."""
    added = uses.maker(v, "add")
    if added is None:
        return False
    shaped = uses.maker(added.invars[0], "broadcast_in_dim", "reshape") or added
    return uses.maker(shaped.invars[0], "iota") is not None


def _by_sorting(eqn: Any, scatter: Any, counts: Mapping[int, int]) -> list[Any]:
    """The equations that find the same among the indices; ``counts``: their components that count along a dim."""
    (x, ids, updates), p = scatter.invars, scatter.params
    numbers = DimensionNumbers.of_scatter(p["dimension_numbers"])
    sizes = [x.aval.shape[d] if p["mode"] is lax.GatherScatterMode.CLIP else 0 for d in numbers.indexed]
    compared = [(k, n) for k, n in enumerate(sizes) if k not in counts]
    differ_along = sorted({*numbers.ids_batch, *counts.values()})
    rows = [d for d in range(updates.aval.ndim) if d not in numbers.window]

    def kept(ids: Any) -> Any:
        return [lax.broadcast_in_dim(_last_of_equal(ids, compared, differ_along), updates.aval.shape, rows)]

    return equations_of(kept, [ids], eqn, eqn.outvars)[0]


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

    components = [flat(jnp.clip(ids[..., k], 0, n - 1) if n else ids[..., k]) for k, n in compared]
    number = lax.broadcasted_iota(np.int32, flat(ids[..., 0]).shape, dim)
    *components, number = lax.sort([*components, number], dimension=dim, num_keys=len(components) + 1)
    differs = functools.reduce(jnp.logical_or, (x[..., 1:] != x[..., :-1] for x in components), number[..., 1:] < 0)
    last = jnp.concatenate([differs, jnp.ones((*number.shape[:-1], 1), bool)], dim)
    return lax.sort([number, last], dimension=dim, num_keys=1)[1].reshape(sizes).transpose(np.argsort(order))
