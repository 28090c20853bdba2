"""What equations move along dims: tables of where elements come from, and which equations are evaluated together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value, variables
from shtypes.caches import Bounded
from shtypes.evaluation.rows import shapes  # noqa: F401  # which has their rows
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.evaluation.table import MOVING, ROWS
from shtypes.evaluation.undo_ravel import keeps_order, with_used
from shtypes.lifting.typed_calls import TypedCall
from shtypes.lifting.ways.choice import CALLS
from shtypes.lifting.ways.per_element import RULED, ruled_per_element
from shtypes.lifting.ways.windows import window_dims
from shtypes.ops.arranged import origin_in
from shtypes.ops.table import OPS

#: The bodies of calls of what `grouping` groups, which may have windows in them.
GROUPED: Final[Bounded[bool]] = Bounded()
#: Primitives that change the dims: small values, such as edges to be repeated, are gathered for them.
RESHAPES: Final = ("broadcast_in_dim", "reshape", "squeeze")
#: Primitives that make zeros of zeros.
_OF_ZEROS: Final = frozenset({*RESHAPES, "reduce_sum", "transpose", "pad", "add_any"})
#: Primitives that are computed of what is not asked for, too: no derivative of theirs may be infinite.
LINEAR: Final = ("add_any", "add", "sub", "neg")
#: Primitives that move elements along a dim, with their rows: a user may register another.
MOVES: Final = {name: ROWS[name] for name in ("broadcast_in_dim", "concatenate", "pad", "rev", "slice", "split")}
MOVING.update(MOVES.keys() - {"broadcast_in_dim"})  # which alone moves nothing


def moves_alike(eqn: Any) -> bool:
    """Whether an equation is the call of a group without windows, which moves all its operands alike."""
    if eqn.primitive.name not in CALLS or (body := jaxpr_of(eqn.params["jaxpr"])) not in GROUPED:
        return False
    return not any(map(window_dims, body.eqns))


def origin_of(eqn: Any, dim: int) -> np.ndarray:
    """For each element of the results along a dim, which operand it comes from, and its index there."""
    p, size, results = eqn.params, eqn.invars[0].aval.shape[dim], eqn.outvars[0].aval.shape[dim]
    match eqn.primitive.name:
        case "slice":
            step = p["strides"][dim] if p["strides"] else 1
            return origin_in(0, np.arange(p["start_indices"][dim], p["limit_indices"][dim], step))
        case "rev":
            return origin_in(0, np.arange(size)[:: -1 if dim in p["dimensions"] else 1])
        case "split":
            return origin_in(0, np.arange(size))
        case "concatenate":
            return np.concatenate([origin_in(i, np.arange(v.aval.shape[dim])) for i, v in enumerate(eqn.invars)])
        case "broadcast_in_dim":
            return origin_in(0, np.arange(results) if results == size else np.zeros(results, np.int64))
    low, high, gap = (int(n) for n in p["padding_config"][dim])
    places = np.full(size + max(size - 1, 0) * gap, -1)
    places[:: gap + 1] = np.arange(size)
    places = np.pad(places, (max(low, 0), max(high, 0)), constant_values=-1)
    places = places[max(-low, 0) : len(places) - max(-high, 0)]
    return np.where(places[:, None] < 0, [1, 0], origin_in(0, places))  # the second operand fills


def padding_of(eqn: Any) -> dict[int, tuple[int, int, int]] | None:
    """By dim, what a pad adds at the ends and in between, or a slice without steps takes away; None of others."""
    p = eqn.params
    match eqn.primitive.name:
        case "pad":
            return {d: (int(low), int(high), int(gap)) for d, (low, high, gap) in enumerate(p["padding_config"])}
        case "slice" if all(n == 1 for n in p["strides"] or ()):
            ends = zip(p["start_indices"], p["limit_indices"], eqn.invars[0].aval.shape, strict=True)
            return {d: (-int(start), int(stop) - n, 0) for d, (start, stop, n) in enumerate(ends)}
    return None


def cuts_of(crop: Any) -> dict[int, tuple[int, int, int]] | None:
    """How many elements a slice or pad removes at the ends of each dim; None if it does something else."""
    pads = padding_of(crop)
    if pads is None or any(low > 0 or high > 0 or gap for low, high, gap in pads.values()):
        return None
    return {d: (-low, -high, 0) for d, (low, high, _) in pads.items()}


def at_sizes(eqn: Any, shape: Sequence[int], sizes: Mapping[int, int]) -> dict[str, Any]:
    """The parameters of an equation whose results have other ``sizes`` of some dims, along which it does nothing.

    Args:
        eqn: The equation.
        shape: The shape of its first operand.
        sizes: The sizes, by dim of its results.
    """
    p = dict(eqn.params)
    of_results = tuple(sizes.get(d, n) for d, n in enumerate(eqn.outvars[0].aval.shape))
    p.update((name, of_results) for name in ("shape", "new_sizes") if name in p)
    if "slice_sizes" in p:
        before = zip(p["slice_sizes"], eqn.invars[0].aval.shape, shape, strict=True)
        p["slice_sizes"] = tuple(new if n == old else n for n, old, new in before)
    match eqn.primitive.name:
        case "slice":
            p["start_indices"] = tuple(0 if d in sizes else n for d, n in enumerate(p["start_indices"]))
            p["limit_indices"] = tuple(shape[d] if d in sizes else n for d, n in enumerate(p["limit_indices"]))
            p["strides"] = tuple(1 if d in sizes else n for d, n in enumerate(p["strides"] or [1] * len(shape)))
        case "pad":
            p["padding_config"] = tuple((0, 0, 0) if d in sizes else n for d, n in enumerate(p["padding_config"]))
        case "rev":
            p["dimensions"] = tuple(d for d in p["dimensions"] if d not in sizes)
    return p


def dims_moved(eqn: Any) -> set[int]:
    """The dims along which a primitive moves elements."""
    p, shape = eqn.params, eqn.invars[0].aval.shape
    if eqn.primitive.name in ("concatenate", "split"):
        return {p["axis" if "axis" in p else "dimension"]}
    moves = at_sizes(eqn, shape, {})
    return {d for d, n in enumerate(shape) if at_sizes(eqn, shape, {d: n}) != moves}


def beside(eqn: Any, dim: int, block: Sequence[int]) -> dict[str, Any] | None:
    """The parameters, on a block, of a primitive that changes dims behind a dim; None if it changes it, or another."""
    p = eqn.params
    behind = eqn.invars[0].aval.shape[: dim + 1] == eqn.outvars[0].aval.shape[: dim + 1]
    match eqn.primitive.name:
        case "squeeze" | "reduce_sum":
            behind &= min(p.get("axes", p.get("dimensions"))) > dim
        case "reshape":
            behind &= keeps_order(eqn)
        case "broadcast_in_dim":
            behind &= tuple(p["broadcast_dimensions"])[: dim + 1] == tuple(range(dim + 1))
    return at_sizes(eqn, block, {dim: block[dim]}) if behind else None


# kinds


#: The prefix of the names by which `shtypes suggest --patch` marks values of expressions.
MARKED: Final = "shtypes."


def is_mark(eqn: Any) -> bool:
    """Whether an equation only marks its operand."""
    return eqn.primitive.name == "name" and str(eqn.params["name"]).startswith(MARKED)


def moves_alone(eqn: Any, *besides: str) -> bool:
    """Whether an equation is a call of moves along dims, elementwise functions, and some primitives besides, alone."""
    return eqn.primitive.name in CALLS and _kind_of_body(eqn.params["jaxpr"], *besides) is True


def _kind_of_body(closed: Any, *besides: str) -> bool | None:
    kinds = [kind_of(e) for e in jaxpr_of(closed).eqns if e.primitive.name not in besides]
    return None if None in kinds else any(kinds)


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
    if name in MOVES and keeps_dims(eqn):
        pads = padding_of(eqn)
        return (pads is None or any(map(any, pads.values()))) if ROWS[name] is MOVES[name] else None
    return False if name in RESHAPES or acts_per_element(name) or not any(v.aval.ndim for v in eqn.invars) else None


def kind_in_group(eqn: Any) -> bool | None:
    """The kind of an equation in a group, where windows and products may be between what is moved."""
    return False if window_dims(eqn) or carried_dims(eqn) is not None else kind_of(eqn)


def carried_dims(eqn: Any) -> Collection[int] | None:
    """The first dims, if along them a product, a transpose or a sum computes each element alone; None of others."""
    p = eqn.params
    match eqn.primitive.name:
        case "reduce_sum":
            return range(min(p["axes"])) if p["axes"] else None
        case "transpose":
            dims, along = list(p["permutation"]), range(eqn.outvars[0].aval.ndim)
        case "dot_general":
            (_, (dims, along)) = p["dimension_numbers"]
        case _:
            return None
    return range(next((d for d, pair in enumerate(zip(dims, along, strict=True)) if pair != (d, d)), len(dims)))


def keeps_dims(eqn: Any) -> bool:
    """Whether a broadcast has the dims of its operand."""
    dims = eqn.params.get("broadcast_dimensions", ())
    return eqn.primitive.name != "broadcast_in_dim" or tuple(dims) == tuple(range(eqn.outvars[0].aval.ndim))


def without_empty_parts(jaxpr: Any) -> Any:
    """Joins and sums without the parts that have no elements, and without what only these are computed of.

    Of a join's gradient such a part adds zeros.
    """
    zeros = set[Any]()  # variables that are zeros, as the gradients of no elements are
    same: dict[Any, Any] = {}  # by variable, another with its value: a sum of it and zeros, or of which it is one
    results = set(variables(jaxpr.outvars))
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}.difference(results)

    def named(v: Any) -> Any:
        while not is_literal(v) and v in same:
            v = same[v]
        return v

    def has_some(v: Any) -> bool:
        return bool(literal_value(v) != 0 if is_literal(v) else v.aval.size and v not in zeros)

    def full(eqn: Any) -> list[Any]:
        name = eqn.primitive.name
        parts = list(filter(has_some if name in _OF_ZEROS else lambda v: v.aval.size, eqn.invars))
        if name in _OF_ZEROS and not parts:
            zeros.update(eqn.outvars)
        if name == "add_any" and len(parts) == 1:
            (total,), part = eqn.outvars, named(parts[0])
            if total not in results or part in made:
                same.update({total: part} if total not in results else {part: total})
                return []
        return [eqn.replace(invars=parts) if name == "concatenate" and 0 < len(parts) < len(eqn.invars) else eqn]

    eqns = [e for eqn in jaxpr.eqns for e in full(eqn)]
    if same:
        eqns = [e.replace(invars=list(map(named, e.invars)), outvars=list(map(named, e.outvars))) for e in eqns]
    return with_used(jaxpr, eqns)
