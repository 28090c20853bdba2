"""Medians and quantiles along a sharded dim: selects the elements at some places of a sort without the sort.

A sort of which only some places are read is one call with its readers (`grouping`). The devices search each element bit
by bit: they count how many elements are below the candidate. Readers to which the order does not matter, such as sums,
read the operand of the sort then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import captured, is_literal, jaxpr_of, literal_value, variables
from shtypes._compat.plain_programs import Search
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.interpreter import evaluate
from shtypes.evaluation.local_rows import clamped
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.lifting.ways.choice import CALLS, innermost, way
from shtypes.lifting.ways.moving import GROUPED
from shtypes.lifting.ways.order import elements_before
from shtypes.lifting.ways.programs import is_one_of, uses_of
from shtypes.ops.reinterpret import stop_gradient
from shtypes.ops.sharded_reductions import as_varying, total
from shtypes.ops.shards import Axes, all_gather_invariant, along, axes_of, bound, of_device, part, psum, type_of
from shtypes.types import State

#: Reductions to which the order of elements does not matter.
_REDUCTIONS: Final = frozenset({"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum"})
#: Modes of gathers whose indices are clipped or in bounds.
_WITHIN: Final = frozenset({"GatherScatterMode.CLIP", "GatherScatterMode.PROMISE_IN_BOUNDS"})
#: The most places for which a selection is considered.
_MOST: Final = 64


def sorted_dim(eqn: Any) -> int | None:
    """The dim of a sort of one array, or of a call of one; None of other equations."""
    eqn = innermost(eqn)
    return int(eqn.params["dimension"]) if eqn.primitive.name == "sort" and len(eqn.invars) == 1 else None


def _places_read(eqn: Any, dim: int) -> tuple[int, Callable[[Sequence[Any]], Any]]:
    """How many places along a dim an equation reads, the same in all rows; and a function of other operands to them."""
    x, p = eqn.invars[0].aval, eqn.params
    one = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    match eqn.primitive.name:
        case "slice":
            ranges = zip(p["start_indices"], p["limit_indices"], p["strides"] or (1,) * x.ndim, strict=True)
            read = [range(*each) for each in ranges]
            if all(d == dim or read[d] == range(n) for d, n in enumerate(x.shape)):
                return len(read[dim]), lambda _: np.array(read[dim])
        case "dynamic_slice" if tuple(p["slice_sizes"]) == one:
            return 1, lambda starts: starts[dim]
        case "gather":
            numbers = p["dimension_numbers"]
            along = tuple(numbers.start_index_map) == (dim,) and not numbers.operand_batching_dims
            if along and str(p["mode"]) in _WITHIN and tuple(p["slice_sizes"]) == one:
                return int(eqn.invars[1].aval.size), lambda places: places[0]
    return 0, lambda _: None


def selections(jaxpr: Any) -> Iterator[list[int]]:
    """The equation numbers of sorts of which only some places are read in order, with the readers and what is between.

    Places may depend on what is read in any order, such as how many elements are numbers.
    """
    uses = uses_of(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        dim = sorted_dim(eqn)
        if dim is None or is_literal(eqn.invars[0]) or not _key_bits(eqn.invars[0].aval.dtype):
            continue
        readers = _readers_in_order(jaxpr, i, dim)
        counts = [j < len(jaxpr.eqns) and _places_read(jaxpr.eqns[j], dim)[0] for j in readers]
        if readers and all(counts) and sum(counts) <= _MOST:
            group = uses.with_between([i, *readers])
            if all(uses.before[j].isdisjoint(readers) for j in group):
                yield sorted(group)


def _readers_in_order(jaxpr: Any, i: int, dim: int) -> list[int]:
    """The numbers of the equations to which the order along a dim of the result of equation ``i`` matters.

    To those that read the result of a group it does not.
    """
    (y,), eqns = jaxpr.eqns[i].outvars, jaxpr.eqns
    ordered = _ordered(jaxpr, dim) - ({y} if jaxpr in GROUPED else set())
    read = uses_of(jaxpr).readers[y] - ({len(eqns)} if jaxpr in GROUPED else set())
    return sorted(j for j in read if j == len(eqns) or not _reads_in_any_order(eqns[j], y, dim, ordered))


def _reads_in_any_order(eqn: Any, v: Any, dim: int, ordered: set[Any]) -> bool:
    """Whether the order of a variable along a dim does not matter to an equation, unless it does in ``ordered``."""
    name = eqn.primitive.name
    if name in _REDUCTIONS:
        return dim in eqn.params["axes"]
    if name in CALLS:
        body = jaxpr_of(eqn.params["jaxpr"])
        inner = _ordered(body, dim)
        return all(w not in inner for w, x in zip(body.invars, eqn.invars, strict=True) if x is v)
    alone = acts_per_element(name) and all(w is v for w in variables(eqn.invars) if w.aval.ndim)
    return alone and ordered.isdisjoint(eqn.outvars)


def _ordered(jaxpr: Any, dim: int) -> set[Any]:
    """The variables of a program whose order along a dim matters."""
    ordered = set(variables(jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        others = [v for v in variables(eqn.invars) if v not in ordered]
        ordered.update(v for v in others if not _reads_in_any_order(eqn, v, dim, ordered))
    return ordered


@way(*CALLS, only=is_one_of(selections))
def by_bits(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sends an all-reduce of a count for each bit, place and row; of floats one more, and a gather of the candidates.

    Those are ``(bits + 1) 2 (n - 1) / n + n - 1`` values of 4 bytes on ``n`` devices; backward nothing.
    """
    body = jaxpr_of(eqn.params["jaxpr"])
    first, *others = body.eqns
    env = dict(zip((*body.constvars, *body.invars), (*captured(eqn.params["jaxpr"]), *operands), strict=True))
    x, dim = env[first.invars[0]], sorted_dim(first)
    axes = () if dim is None or not is_typed(x) else axes_of(x, dim)
    if dim is None or not axes or not type_of(x).size:
        return None
    readers = [body.eqns[i] for i in _readers_in_order(body, 0, dim)]
    env[first.outvars[0]] = x
    for e in others:
        if e not in readers:
            read = list(dict.fromkeys(variables(e.invars)))
            alone = body.replace(constvars=[], invars=read, eqns=[e], outvars=e.outvars)
            env.update(zip(e.outvars, map(_finished, evaluate(alone, [], [env[v] for v in read])), strict=True))
    counts, which = zip(*(_places_read(e, dim) for e in readers), strict=True)
    of_readers = [[literal_value(v) if is_literal(v) else env[v] for v in e.invars[1:]] for e in readers]
    places = [f(xs) for f, xs in zip(which, of_readers, strict=True)]
    if not all(map(_is_replicated, places)):
        return None
    last = type_of(x).ndim - 1  # of which searches need no copies
    found = _selected(_transposed(x, dim, last), last, axes, _in_a_row(places, type_of(x).shape[dim]))
    rows = _transposed(found, last, dim)
    ends = np.cumsum(counts).tolist()
    parts = [part(rows, start, stop, dim) for start, stop in zip([0, *ends], ends, strict=False)]
    env.update((e.outvars[0], _read_again(rows, e)) for rows, e in zip(parts, readers, strict=True))
    return [env[v] for v in body.outvars]


def _finished(x: Any) -> Any:
    """A value whose pending sum is finished: what is read in several places is sent once."""
    return total(x, axes, State.REDUCED) if is_typed(x) and (axes := type_of(x).axes(State.UNREDUCED)) else x


def _is_replicated(places: Any) -> bool:
    return not is_typed(places) or {*type_of(places).states} <= {State.REDUCED, State.INVARIANT}


@of_device("places")
def _in_a_row(places: Sequence[Any], size: int) -> Any:
    within = (clamped(jnp.asarray(p), size - 1) for p in places)
    return jnp.concatenate([jnp.ravel(p).astype(np.int32) for p in within])


def _read_again(rows: Any, eqn: Any) -> Any:
    """Evaluates an equation on the rows at its places."""
    if eqn.primitive.name != "gather":
        return rows
    shape = eqn.invars[1].aval.shape
    return bound(eqn)(rows, np.arange(np.prod(shape), dtype=np.int32).reshape(shape))


def _key_bits(dtype: Any) -> int:
    """The bits of the sort keys of a dtype; 0 for a dtype that has none."""
    if not any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_)):
        return 0
    return 1 if dtype == np.bool_ else 8 * int(dtype.itemsize)


@of_device("keys")
def _keys(x: Any) -> Any:
    """Unsigned integers in the order of a sort, equal for elements that are equal there."""
    kind = np.dtype(f"u{max(x.dtype.itemsize, 1)}")
    top, most = kind.type(1 << (8 * kind.itemsize - 1)), kind.type(np.iinfo(kind).max)
    if not jnp.issubdtype(x.dtype, np.floating):
        return x.astype(kind) ^ top if jnp.issubdtype(x.dtype, np.signedinteger) else x.astype(kind)
    bits = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros((), x.dtype), x), kind)
    return jnp.where(jnp.isnan(x), most, jnp.where(bits >= top, ~bits, bits | top))


@of_device("elements")
def _elements(keys: Any, dtype: Any) -> Any:
    """The integers or bools of sort keys."""
    top = keys.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    return (keys ^ top if jnp.issubdtype(dtype, np.signedinteger) else keys).astype(dtype)


@of_device("sort")
def _sorted(keys: Any, dim: int) -> Any:
    """Sorts keys; returns them and their indices before."""
    return lax.sort((keys, lax.broadcasted_iota(np.int32, keys.shape, dim)), dim, num_keys=1)


def _found(keys: Any, numbers: Any, dim: int, side: str) -> Any:
    """``jnp.searchsorted`` of candidates in sorted keys along a dim."""
    found = elements_before(keys, jnp.moveaxis(numbers, dim, -1), Search(side, dim, keys.ndim - 1))
    return jnp.moveaxis(found, -1, dim)


@of_device("below")
def _below(keys: Any, numbers: Any, bit: Any, dim: int, count: int) -> Any:
    """How many keys of a device are below each candidate with one more bit set."""
    if numbers is None:  # before the first bit
        numbers = jnp.zeros([count if d == dim else n for d, n in enumerate(keys.shape)], keys.dtype)
    return _found(keys, numbers | bit.astype(keys.dtype), dim, "left")


@of_device("bit")
def _with_bit(numbers: Any, below: Any, places: Any, bit: Any, dim: int) -> Any:
    """Sets a bit of the candidates that still have no more elements below than the place."""
    few = below <= along(places, dim, below.ndim)
    bits = jnp.where(few, bit, 0).astype(bit.dtype)
    return bits if numbers is None else numbers | bits


@of_device("equal")
def _equal(keys: Any, numbers: Any, dim: int) -> Any:
    """How many keys of a device are below each candidate, and how many are equal."""
    below = _found(keys, numbers, dim, "left")
    return below, _found(keys, numbers, dim, "right") - below


@of_device("element")
def _candidates(x: Any, order: Any, own: Any, equal: Any, places: Any, below: Any, dim: int) -> Any:
    """The device that has the element of each place, and the element that this device would have there."""
    equal = equal.reshape(*equal.shape[:dim], -1, own.shape[dim], *equal.shape[dim + 1 :])
    turn = along(places, dim, below.ndim) - below  # its index among the equal elements
    ends = jnp.cumsum(equal, dim)
    passed = ends <= jnp.expand_dims(turn, dim)
    at = jnp.take_along_axis(order, own + turn - jnp.sum(jnp.where(passed, equal, 0), dim), dim, mode="clip")
    return jnp.sum(passed, dim), jnp.take_along_axis(x, at, dim, mode="clip")


@of_device("element")
def _chosen(elements: Any, owner: Any, dim: int) -> Any:
    elements = elements.reshape(*owner.shape[:dim], -1, *owner.shape[dim:])
    return jnp.squeeze(jnp.take_along_axis(elements, jnp.expand_dims(owner, dim), dim, mode="clip"), dim)


_transposed = of_device("transpose")(jnp.moveaxis)


def _selected(x: Any, dim: int, axes: Axes, places: Any) -> Any:
    """The elements at some places of a sorted last dim."""
    t, count = type_of(x), int(type_of(places).size)
    own = as_varying(x, axes)
    keys, order = _sorted(_keys(stop_gradient(own)), dim)
    kind = np.dtype(f"u{t.dtype.itemsize}")
    bits = np.array([1 << i for i in reversed(range(_key_bits(t.dtype)))], kind)

    def step(numbers: Any, bit: Any) -> tuple[Any, None]:
        below = psum(_below(keys, numbers, bit, dim, count), axes)
        return _with_bit(numbers, below, places, bit, dim), None

    numbers, _ = step(None, bits[0])
    if len(bits) > 1:
        numbers, _ = lax.scan(step, numbers, bits[1:])
    if not jnp.issubdtype(t.dtype, np.floating):
        return _elements(numbers, t.dtype)
    below, equal = _equal(keys, numbers, dim)
    equal_of_all = all_gather_invariant(equal, axes, dim)
    owner, elements = _candidates(own, order, below, equal_of_all, places, psum(below, axes), dim)
    return _chosen(all_gather_invariant(elements, axes, dim), owner, dim)
