"""Programs that move elements along a sharded dim: rolls, diff, gradient, flips, pads, concatenations; windows.

The devices do not divide the sizes in between: ``x[1:]`` has one element less. So such a program is evaluated as one
call (`evaluated`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.table import rewritten
from shtypes.lifting.ways.choice import CALLS, innermost, way
from shtypes.lifting.ways.evaluated import Evaluation
from shtypes.lifting.ways.moved import Moved
from shtypes.lifting.ways.moving import GROUPED, MOVES, dims_moved, keeps_dims, kind_in_group, kind_of, moves_alone
from shtypes.lifting.ways.windows import CONV, POOLS, crossing, places
from shtypes.ops.arranged import Shard
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import Axes, as_sharded, axes_of, axis_size, bound, ppermute, type_of


def _moves_together(eqn: Any) -> bool:
    """Whether a call is such, and does not split into calls of which each may move along another dim."""
    body = jaxpr_of(eqn.params["jaxpr"])
    is_group = body in GROUPED and any(map(kind_of, body.eqns)) and None not in map(kind_in_group, body.eqns)
    return (is_group or moves_alone(eqn)) and not (len(_dims_of(body)) > 1 and _is_several(body))


@way(*CALLS, only=_moves_together)
def moved(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends one permute for each distance that elements move; backward as much."""
    body = jaxpr_of(eqn.params["jaxpr"])
    dims = _dims_of(body)
    typed = [type_of(x) for x in operands if is_typed(x)]
    sharded = {(d, dim.axes) for t in typed for d, dim in enumerate(t.dims) if dim.axes and d in dims}
    if sharded and innermost(eqn).primitive.name == "rev":
        return [_flipped(innermost(eqn), operands[0])]
    tried = (_along(eqn, operands, dim, axes) for dim, axes in sorted(sharded))
    return next((results for results in tried if results is not None), None)


def _flipped(rev: Any, x: Any) -> Any:
    """Flips dims by one permute over the axes of all of them."""
    homes = {d: axes for d in rev.params["dimensions"] if (axes := axes_of(x, d))}
    axes = tuple(a for each in homes.values() for a in each)
    last = axis_size(x, axes) - 1
    y = bound(rev)(ppermute(as_varying(x, axes), axes, tuple((i, last - i) for i in range(last + 1))))
    return functools.reduce(lambda y, home: as_sharded(y, *home), homes.items(), y)


def _is_several(jaxpr: Any) -> bool:
    """Whether a program splits into several calls that move elements, with even sizes in between."""
    calls = rewritten(jaxpr)
    moving = [e for e in calls.eqns if e.primitive.name in CALLS and moves_alone(e)]
    if len(calls.eqns) == 1 and moving:
        return _is_several(jaxpr_of(moving[0].params["jaxpr"]))
    return calls is not jaxpr and len(moving) > 1


def _dims_of(jaxpr: Any) -> set[int]:
    """The dims along which a program moves elements."""
    dims: set[int] = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in CALLS:
            dims |= _dims_of(jaxpr_of(eqn.params["jaxpr"]))
        elif eqn.primitive.name in MOVES and keeps_dims(eqn):
            dims |= dims_moved(eqn)
    return dims


@way(CONV, *POOLS)
def windowed(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Exchanges a border of ``reach - stride`` elements for each sharded dim; backward as much, and its cotangent."""
    found = crossing(eqn, operands) if all(map(is_typed, operands)) else None
    if found is None:
        return None
    (nth, axes, sums), place = found, places(eqn)[found[0]]
    dims = [place.operand] * len(operands) if place.kernel is None else [place.operand, place.kernel]
    args = [_as_shard(x, d, axes) for x, d in zip(operands, dims, strict=True)]
    if any(x is None for x in args):
        return None
    run = Evaluation(dims[-1] if sums else place.result, axes, operands[0])
    y = run.windows(eqn, args, nth)
    run.compute([y])
    return [run.result(y, pending=False)]


def _as_shard(x: Any, dim: int, axes: Axes) -> Any:
    """The shard of a dim that axes shard; a value that they do not shard as it is, and None for other dims of it."""
    dims = {d: each.axes for d, each in enumerate(type_of(x).dims) if not {*axes}.isdisjoint(each.axes)}
    return x if not dims else Shard(as_varying(x, axes), type_of(x).shape[dim]) if dims == {dim: axes} else None


def _along(eqn: Any, operands: Sequence[Any], dim: int, axes: Axes) -> Sequence[Any] | None:
    args = [_as_shard(x, dim, axes) if is_typed(x) else x for x in operands]
    if any(x is None for x in args):
        return None
    run = Evaluation(dim, axes, next(x for x in operands if is_typed(x)))
    outs = run.run(eqn.params["jaxpr"], args)
    run.compute(outs)
    run.place_together(outs)
    return None if any(y.size == 0 for y in outs if isinstance(y, (Shard, Moved))) else list(map(run.result, outs))
