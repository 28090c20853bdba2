"""Which updates a scatter keeps, where several are of one element, found among its indices.

Gradients of `jax.lax.scatter` scatter a number for each update to zeros of the operand's shape, and gather them again:
all elements on each device, or two programs across shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value, with_equations
from shtypes._compat.plain_programs import alone, trace_plain
from shtypes.caches import CACHE_SIZE
from shtypes.evaluation.undo_ravel import used
from shtypes.rules.lookups import DimensionNumbers


def with_kept_updates(jaxpr: Any) -> Any:
    """Compares indices where a program asks which of its updates a scatter keeps; the program itself if none does."""
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        scatter = _asked(eqn, made)
        eqns.append(eqn if scatter is None else _found(eqn, scatter))
    same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else with_equations(jaxpr, used(eqns, jaxpr.outvars), jaxpr.outvars)


def _maker(v: Any, made: Mapping[Any, Any], *names: str) -> Any:
    """The equation that makes a variable, if it is one of some primitives; else None."""
    eqn = None if is_literal(v) else made.get(v)
    return eqn if eqn is not None and eqn.primitive.name in names else None


def _asked(eqn: Any, made: Mapping[Any, Any]) -> Any:
    """The scatter of a number for each update that a comparison of them with what is left of them is of; else None."""
    gather = _maker(eqn.invars[1], made, "gather") if eqn.primitive.name == "eq" else None
    scatter = None if gather is None else _maker(gather.invars[0], made, "scatter")
    if gather is None or scatter is None or list(scatter.invars[1:]) != [gather.invars[1], eqn.invars[0]]:
        return None
    numbers, (x, _, updates) = DimensionNumbers.of_scatter(scatter.params["dimension_numbers"]), scatter.invars
    sizes = dict(zip(numbers.windowed(x.aval.ndim), (updates.aval.shape[d] for d in numbers.window), strict=True))
    apart = all(sizes.get(d, 1) == 1 for d in numbers.indexed)  # else windows may overlap in part
    same = numbers == DimensionNumbers.of_gather(gather.params["dimension_numbers"])
    return scatter if same and apart and _is_zero(x, made) and _is_counted(updates, made) else None


def _is_zero(v: Any, made: Mapping[Any, Any]) -> bool:
    fill = _maker(v, made, "broadcast_in_dim")
    return fill is not None and is_literal(fill.invars[0]) and not literal_value(fill.invars[0])


def _is_counted(v: Any, made: Mapping[Any, Any]) -> bool:
    """Whether a variable numbers the updates, from one on."""
    added = _maker(v, made, "add")
    if added is None:
        return False
    shaped = _maker(added.invars[0], made, "broadcast_in_dim", "reshape") or added
    return _maker(shaped.invars[0], made, "iota") is not None


def _found(eqn: Any, scatter: Any) -> Any:
    """The equation that finds the same among the indices."""
    x, ids, updates = (v.aval for v in scatter.invars)
    numbers = DimensionNumbers.of_scatter(scatter.params["dimension_numbers"])
    clips = scatter.params["mode"] is lax.GatherScatterMode.CLIP
    sizes = tuple(x.shape[d] for d in numbers.indexed) if clips else ()
    call = _call(ids.shape, ids.dtype, numbers.ids_batch, sizes, numbers.window, updates.shape)
    return call.replace(invars=scatter.invars[1:2], outvars=eqn.outvars, source_info=eqn.source_info, ctx=eqn.ctx)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _call(
    shape: Sequence[int],
    dtype: Any,
    batch: Sequence[int],
    sizes: Sequence[int],
    window: Sequence[int],
    of: Sequence[int],
) -> Any:
    """The call of a function of the indices that tells of each update whether it is kept."""
    rows = tuple(d for d in range(len(of)) if d not in window)

    @jax.jit
    def kept(ids: Any) -> Any:
        at = [jnp.clip(ids[..., k], 0, n - 1) for k, n in enumerate(sizes)] or [ids[..., k] for k in range(shape[-1])]
        at += [lax.broadcasted_iota(np.int32, shape[:-1], d) for d in batch]
        *at, order = lax.sort([*(x.ravel() for x in at), jnp.arange(at[0].size)], num_keys=len(at) + 1)
        differs = functools.reduce(jnp.logical_or, (x[1:] != x[:-1] for x in at))
        last = jnp.concatenate([differs, jnp.ones(1, bool)])
        return lax.broadcast_in_dim(lax.sort([order, last], num_keys=1)[1].reshape(shape[:-1]), of, rows)

    with alone():
        closed, *_ = trace_plain(lambda ids: [kept(ids)], [jax.core.ShapedArray(shape, dtype)])
    (eqn,) = jaxpr_of(closed).eqns
    return eqn
