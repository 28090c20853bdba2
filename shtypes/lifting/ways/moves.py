"""Programs that move elements along a sharded dim: rolls, diff, gradient, flips, pads, concatenations.

The devices do not divide the sizes in between: ``x[1:]`` has one element less. So such a program is evaluated as one
call. A moved value is a table of where its elements come from, so moves of moves are one; operands of arithmetic, and
results, are materialized by one permute for each distance. The last shards may have padding.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np

from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.plain_programs import bind_plain
from shtypes.caches import Static
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.rows import shapes  # noqa: F401  # which has their rows
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.evaluation.table import ROWS, rewritten
from shtypes.lifting.typed_calls import TypedCall
from shtypes.lifting.ways.choice import CALLS, innermost, way
from shtypes.lifting.ways.per_element import RULED, results_of, ruled_per_element, with_rule
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    Axes,
    Shard,
    all_gather,
    arranged,
    as_sharded,
    as_unreduced,
    axes_of,
    axis_index,
    axis_size,
    bound,
    in_table,
    of_device,
    part,
    ppermute,
    psum,
    type_of,
)
from shtypes.ops.table import OPS
from shtypes.types import dtypes

#: Primitives that change the dims: small values, such as edges to be repeated, are gathered for them.
_RESHAPES: Final = ("broadcast_in_dim", "reshape", "squeeze")
#: Primitives that move elements along a dim, with their rows: a user may register another.
_MOVES: Final = {name: ROWS[name] for name in ("broadcast_in_dim", "concatenate", "pad", "rev", "slice", "split")}


def _of(operand: int, places: np.ndarray) -> np.ndarray:
    return np.stack([np.full_like(places, operand), places], -1)


def _origin(eqn: Any, dim: int) -> np.ndarray:
    """For each element of the results along a dim, which operand it comes from, and its index there."""
    p, size, results = eqn.params, eqn.invars[0].aval.shape[dim], eqn.outvars[0].aval.shape[dim]
    match eqn.primitive.name:
        case "slice":
            step = p["strides"][dim] if p["strides"] else 1
            return _of(0, np.arange(p["start_indices"][dim], p["limit_indices"][dim], step))
        case "rev":
            return _of(0, np.arange(size)[:: -1 if dim in p["dimensions"] else 1])
        case "split":
            return _of(0, np.arange(size))
        case "concatenate":
            return np.concatenate([_of(i, np.arange(v.aval.shape[dim])) for i, v in enumerate(eqn.invars)])
        case "broadcast_in_dim":
            return _of(0, np.arange(results) if results == size else np.zeros(results, np.int64))
    low, high, gap = (int(n) for n in p["padding_config"][dim])
    places = np.full(size + max(size - 1, 0) * gap, -1)
    places[:: gap + 1] = np.arange(size)
    places = np.pad(places, (max(low, 0), max(high, 0)), constant_values=-1)
    places = places[max(-low, 0) : len(places) - max(-high, 0)]
    return np.where(places[:, None] < 0, [1, 0], _of(0, places))  # the second operand fills


def _elsewhere(eqn: Any, dim: int, blocks: tuple[int, ...]) -> dict[str, Any] | None:
    """The parameters of a primitive that moves elements, without what it does along a dim; None if nothing is left."""
    p, ndim, held = eqn.params, eqn.invars[0].aval.ndim, blocks[dim]

    def with_dim(values: Any, value: Any) -> tuple[Any, ...]:
        return tuple(value if d == dim else each for d, each in enumerate(values))

    match eqn.primitive.name:
        case "concatenate":
            return None if p["dimension"] == dim else {}
        case "split":
            return None if p["axis"] == dim else {}
        case "rev":
            dims = tuple(d for d in p["dimensions"] if d != dim)
            return {"dimensions": dims} if dims else None
        case "pad":
            config = with_dim(p["padding_config"], (0, 0, 0))
            return {"padding_config": config} if any(map(any, config)) else None
        case "broadcast_in_dim":
            shape = with_dim(eqn.outvars[0].aval.shape, held)
            return {"shape": shape} if shape != blocks else None
    start, limit = with_dim(p["start_indices"], 0), with_dim(p["limit_indices"], held)
    steps = with_dim(p["strides"] or [1] * ndim, 1)
    some = (start, limit, steps) != ((0,) * ndim, blocks, (1,) * ndim)
    return {"start_indices": start, "limit_indices": limit, "strides": steps} if some else None


def _beside(eqn: Any, dim: int, blocks: tuple[int, ...]) -> dict[str, Any] | None:
    """The parameters, for shards, of a primitive that changes dims behind a dim; None if it changes it, or another."""
    p, before, after = eqn.params, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if before[: dim + 1] != after[: dim + 1]:
        return None
    match eqn.primitive.name:
        case "squeeze":
            return {} if min(p["dimensions"]) > dim else None
        case "reshape":
            return {"new_sizes": blocks} if p["dimensions"] is None else None
    kept = tuple(range(dim + 1))
    return {"shape": blocks} if tuple(p["broadcast_dimensions"])[: dim + 1] == kept else None


class Moved(NamedTuple):
    """A value that is not materialized: a table of where its elements come from.

    Attributes:
        sources: Shards, replicated values, and scalars that fill.
        origin: For each element along the dim, which source it comes from, and its index there.
    """

    sources: tuple[Any, ...]
    origin: np.ndarray

    @property
    def size(self) -> int:
        """The size of the dim."""
        return len(self.origin)


def _as_list(eqn: Any, y: Any) -> list[Any]:
    return list(y) if eqn.primitive.multiple_results else [y]


class _Evaluation:
    """Evaluates a program on shards of a dim.

    Args:
        dim: The dim, the same in all values.
        axes: The axes that shard it.
        x (...): Any value on the mesh.
    """

    def __init__(self, dim: int, axes: Axes, x: Any) -> None:
        self.dim, self.axes, self.n, self.device = dim, axes, axis_size(x, axes), axis_index(x, axes)
        self._sent: dict[int, tuple[Any, Shard]] = {}  # materialized values, by id

    def run(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        """Evaluates a program."""
        return results_of(jaxpr_of(closed), captured(closed), args, self._equation)

    def _equation(self, eqn: Any, xs: list[Any]) -> Sequence[Any]:
        name = eqn.primitive.name
        if name in CALLS:
            return self.run(eqn.params["jaxpr"], xs)
        if not any(isinstance(x, (Shard, Moved)) for x in xs):
            return _as_list(eqn, bound(eqn)(*xs)) if any(map(is_typed, xs)) else bind_plain(eqn, xs)
        if name in _MOVES and _keeps_dims(eqn):
            return self._moved(eqn, xs)
        if name in _RESHAPES:
            params = _beside(eqn, self.dim, self._held(eqn.outvars[0].aval.shape))
            repeats = eqn.outvars[0].aval.size > eqn.invars[0].aval.size
            if params is None or (repeats and self._are_few(xs[0])):  # as the edge of a pad, which is sent once
                return [bound(eqn)(*map(self._complete, xs))]
            return [Shard(bound(eqn, **params)(self.block(xs[0]).x), self._size(xs[0]))]
        size = eqn.outvars[0].aval.shape[self.dim]
        spreads = [not getattr(x, "ndim", 1) or self._size(x) != size for x in xs]  # is broadcast along the dim
        blocks = [self._complete(x) if s else self.block(x).x for x, s in zip(xs, spreads, strict=True)]
        if size % self.n:  # the padding must not add to gradients of what is broadcast
            like = next(x for x, s in zip(blocks, spreads, strict=True) if not s)
            pairs = zip(blocks, spreads, strict=True)
            blocks = [self._spread(x, like, size) if s and is_typed(x) else x for x, s in pairs]
        y = with_rule(eqn)(*blocks) if name == RULED else bound(eqn)(*blocks)
        return [Shard(each, size) for each in _as_list(eqn, y)]

    def _spread(self, number: Any, like: Any, size: int) -> Any:
        """Broadcasts a differentiable value along the dim to the shape of a shard, zero in the padding."""
        if not type_of(number).differentiable:
            return number
        held = type_of(like).shape[self.dim]
        return _numbers(
            like, number, self.device, Static((np.arange(self.n * held) < size).tobytes()), self.n, self.dim
        )

    def _complete(self, x: Any) -> Any:
        """Gathers a value, such as an edge that is repeated."""
        if not isinstance(x, (Shard, Moved)):
            return x
        if self._are_few(x) and (terms := self._terms(x)) is not None:
            return psum(terms, self.axes)
        return part(all_gather(self.block(x).x, self.axes, self.dim), 0, x.size, self.dim)

    def _are_few(self, x: Any) -> bool:
        """Whether a sum over the devices of a value's elements along the dim sends less than a gather."""
        return 2 * self._size(x) <= self.n

    def _moved(self, eqn: Any, xs: Sequence[Any]) -> Sequence[Shard | Moved]:
        """Applies a move to the tables of its operands; moves along other dims are done at once."""
        params = _elsewhere(eqn, self.dim, self._held(eqn.invars[0].aval.shape))
        if params is not None:
            count = len(xs) if eqn.primitive.name == "concatenate" else 1
            y: Any = bound(eqn, call=True, **params)(*[self.block(x).x for x in xs[:count]], *xs[count:])
            done = [Shard(each, self._size(xs[0])) for each in _as_list(eqn, y)]
            if count > 1 or len(done) > 1:
                return done
            xs = [*done, *xs[1:]]
        sources: list[Any] = []
        origins = []
        for x in xs:
            of_x = self._as_moved(x)
            numbers = [
                next((k for k, y in enumerate(sources) if y is z), len(sources) + i) for i, z in enumerate(of_x.sources)
            ]
            sources += of_x.sources
            origins.append(np.stack([np.array(numbers)[of_x.origin[:, 0]], of_x.origin[:, 1]], -1))
        origin = _origin(eqn, self.dim)
        starts = np.cumsum([0, *map(len, origins)])[:-1]
        origin = np.concatenate(origins)[starts[origin[:, 0]] + origin[:, 1]]
        ends = np.cumsum([v.aval.shape[self.dim] for v in eqn.outvars])[:-1]
        return [Moved(tuple(sources), each) for each in np.split(origin, ends)]

    def _held(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a shard of a value."""
        return tuple(-(-n // self.n) if d == self.dim else n for d, n in enumerate(shape))

    def _as_moved(self, x: Any) -> Moved:
        return x if isinstance(x, Moved) else Moved((x,), _of(0, np.arange(self._size(x))))

    def _size(self, x: Any) -> int:
        if isinstance(x, (Shard, Moved)):
            return x.size
        shape = type_of(x).shape if is_typed(x) else np.shape(x)
        return int(shape[self.dim]) if shape else 1

    def block(self, x: Any) -> Shard:
        """Materializes a value, once."""
        if isinstance(x, Shard):
            return x
        if id(x) not in self._sent:
            self._sent[id(x)] = x, self._blocks(x)
        return self._sent[id(x)][1]

    def result(self, x: Any) -> Any:
        """A result as a typed value: sharded, or where the devices do not divide it, a pending sum of their parts."""
        if not isinstance(x, (Shard, Moved)):
            return x
        if x.size % self.n == 0:
            return as_sharded(self.block(x).x, self.dim, self.axes)
        terms = self._terms(x)
        return self._complete(x) if terms is None else as_unreduced(terms, self.axes)

    def _terms(self, x: Shard | Moved) -> Any:
        """A value of which each device has the elements of its shards, else zeros; None of what cannot be summed."""
        sources, origin = self._as_moved(x)
        shards = {k: type_of(y.x) for k, y in enumerate(sources) if isinstance(y, Shard)}
        if not all(dtypes.summable(t.dtype_name) for t in shards.values()):
            return None
        sizes = np.array([shards[k].shape[self.dim] if k in shards else sys.maxsize for k in range(len(sources))])
        is_own = origin[:, 1] // sizes[origin[:, 0]] == np.arange(self.n)[:, None]
        zero = len(sources), 0  # the one that changes no sum
        origin = np.where(is_own[..., None], origin, zero).reshape(-1, 2)
        return arranged(self.device, (*sources, -0.0), origin, self.dim, self.axes)

    def _blocks(self, x: Any) -> Shard:
        moved = self._as_moved(x)
        origin = np.pad(moved.origin, ((0, -moved.size % self.n), (0, 0)), constant_values=-1)
        return Shard(arranged(self.device, moved.sources, origin, self.dim, self.axes), moved.size)


@of_device("fill")
def _numbers(like: Any, value: Any, device: Any, table: Static, n: int, dim: int) -> Any:
    """Broadcasts a value where the device's row of a table of bools is true; zero elsewhere."""
    where = in_table(table, device, n, like.ndim, dim)
    return jnp.broadcast_to(jnp.where(where, value, jnp.zeros((), value.dtype)), like.shape)


def moves_alone(eqn: Any) -> bool:
    """Whether an equation is a call of moves along dims and elementwise functions alone."""
    return eqn.primitive.name in CALLS and _kind_of_body(eqn.params["jaxpr"]) is True


def _moves_together(eqn: Any) -> bool:
    """Whether a call is such, and does not split into calls of which each may move along another dim."""
    body = jaxpr_of(eqn.params["jaxpr"])
    return moves_alone(eqn) and not (len(_dims_of(body)) > 1 and _is_several(body))


def _kind_of_body(closed: Any) -> bool | None:
    kinds = [kind_of(e) for e in jaxpr_of(closed).eqns]
    return None if None in kinds else any(kinds)


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
        p, name = eqn.params, eqn.primitive.name
        if name in CALLS:
            dims |= _dims_of(jaxpr_of(p["jaxpr"]))
        elif name in ("concatenate", "rev", "split"):
            dims.update(p["dimensions"] if name == "rev" else [p["axis" if name == "split" else "dimension"]])
        elif name in _MOVES and _keeps_dims(eqn):
            before, after = (v.aval.shape for v in (eqn.invars[0], eqn.outvars[0]))
            pads = p.get("padding_config", ((),) * len(before))
            dims.update(d for d, pad in enumerate(pads) if before[d] != after[d] or any(pad))
    return dims


def _along(eqn: Any, operands: Sequence[Any], dim: int, axes: Axes) -> Sequence[Any] | None:
    args: list[Any] = []
    for x in operands:
        t = type_of(x) if is_typed(x) else None
        lies = {d: each.axes for d, each in enumerate(t.dims) if not {*axes}.isdisjoint(each.axes)} if t else {}
        if lies not in ({}, {dim: axes}):
            return None
        args.append(Shard(as_varying(x, axes), type_of(x).shape[dim]) if lies else x)
    run = _Evaluation(dim, axes, next(x for x in operands if is_typed(x)))
    outs = run.run(eqn.params["jaxpr"], args)
    return None if any(y.size == 0 for y in outs if isinstance(y, (Shard, Moved))) else list(map(run.result, outs))


#: The prefix of the names by which `shtypes suggest --patch` marks values of expressions.
MARKED: Final = "shtypes."


def is_mark(eqn: Any) -> bool:
    """Whether an equation only marks its operand."""
    return eqn.primitive.name == "name" and str(eqn.params["name"]).startswith(MARKED)


def kind_of(eqn: Any) -> bool | None:
    """True if an equation moves elements, False if it is elementwise, None if it is neither."""
    name = eqn.primitive.name
    if eqn.effects:
        return None
    if name in CALLS:
        return _kind_of_body(eqn.params["jaxpr"])
    if name == "name":
        return False if is_mark(eqn) else None  # a mark does not split a program
    if name == RULED:
        return False if ruled_per_element(eqn) else None
    if name == "typed_call":
        call, ranks = eqn.params["call"], {v.aval.ndim for v in eqn.invars} - {0}
        op = OPS.get(call.name) if isinstance(call, TypedCall) and call.fn is None else None
        return False if len(ranks) < 2 and op is not None and op.per_element else None
    if name in _MOVES and _keeps_dims(eqn):
        return True if ROWS[name] is _MOVES[name] else None
    return False if name in _RESHAPES or acts_per_element(name) or not any(v.aval.ndim for v in eqn.invars) else None


def _keeps_dims(eqn: Any) -> bool:
    """Whether a broadcast has the dims of its operand."""
    dims = eqn.params.get("broadcast_dimensions", ())
    return eqn.primitive.name != "broadcast_in_dim" or tuple(dims) == tuple(range(eqn.outvars[0].aval.ndim))
