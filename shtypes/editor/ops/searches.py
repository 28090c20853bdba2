"""Sorting by keys, searches among sorted elements, and counts. Pure."""

from __future__ import annotations

from typing import Any

from shtypes.editor.call import Call, Number, constant, held
from shtypes.editor.ops.elementwise import chosen, nonlinear
from shtypes.editor.ops.indexing import indexed, span, taken_along
from shtypes.editor.ops.reductions import whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import one_dim
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.labelled import ProductDims, contraction, labelled
from shtypes.rules.lookup import segment_sum
from shtypes.types import ShType

# in order


def _order(call: Call, keys: ShType, axis: Any) -> ShType:
    return whole(call, "argsort", keys, [one_dim("argsort", keys, axis)], linear=False, dtype="i32")


@op("sort_key_val")
def _sort_key_val(call: Call) -> tuple[ShType, ...]:
    keys, values, axis = call.array("keys"), call.array("values"), call.static("dimension", -1)
    call.only("keys", "values", "dimension", "is_stable")
    if keys.shape != values.shape:
        raise Unknown
    order = _order(call, keys, axis)
    return taken_along(call, keys, order, axis), taken_along(call, values, order, axis)


@op("lexsort")
def _lexsort(call: Call) -> ShType:
    columns, axis = call.listed("keys"), call.static("axis", -1)
    arrays = [t for t in columns if isinstance(t, ShType)]
    if not arrays or len(arrays) < len(columns) or len({t.shape for t in arrays}) > 1:
        raise Unknown
    order = _order(call, arrays[0], axis)
    for column in arrays[1:]:
        after = _order(call, taken_along(call, column, order, axis), axis)
        order = taken_along(call, order, after, axis)
    return order


# among others


def _searched(looked_for: ShType, places: int, at: int) -> ProductDims:
    """The operand in one place is looked for, element by element, in the others, which are whole."""
    own = tuple(("element", d) for d in range(looked_for.ndim))
    labels = tuple(own if i == at else (("searched", 0),) for i in range(places))
    return ProductDims(labels, tuple(zip(own, looked_for.shape, strict=True)), frozenset({("searched", 0)}))


def _found(call: Call, name: str, values: tuple[ShType, ShType], at: int) -> ShType:
    plan, constants = _searched(values[at], 2, at), held(values)
    return call.typed(name, lambda ts: labelled(name, ts, plan, "i32", constants), *values)


@op("searchsorted")
def _searchsorted(call: Call) -> ShType:
    a, v = call.array("a"), call.array("v")
    call.only("a", "v", "side", "method")
    if a.ndim != 1 or call.static("side", "left") not in ("left", "right") or a.dtype_name != v.dtype_name:
        raise Unknown
    if a.dtype_name not in ("f32", "bf16", "f16", "i32") or stands_for_a_name(a.shape[0]):
        raise Unknown  # the positions of many elements are long
    return _found(call, "searchsorted", (a, v), 1)


@op("digitize")
def _digitize(call: Call) -> ShType:
    x, edges = call.array("x"), call.array("bins")
    call.only("x", "bins", "right")
    if edges.ndim != 1 or x.dtype_name != "f32" or edges.dtype_name != "f32" or stands_for_a_name(edges.shape[0]):
        raise Unknown
    if not edges.shape[0]:
        raise Unknown
    return _found(call, "digitize", (x, edges), 0)


@op("interp")
def _interp(call: Call) -> ShType:
    values = call.array("x"), call.array("xp"), call.array("fp")
    call.only("x", "xp", "fp")
    x, places, heights = values
    if any(t.dtype_name != "f32" for t in values) or places.ndim != 1 or places.shape != heights.shape:
        raise Unknown
    if not places.shape[0]:
        raise Unknown
    plan, constants = _searched(x, 3, 0)._replace(ids=frozenset({0, 1})), held(values)
    return call.typed("interp", lambda ts: contraction("interp", ts, plan, "f32", constants), *values)


# counts


def _counted(call: Call, data: ShType, ids: ShType, count: int) -> ShType:
    constants = held((data, ids))
    return call.typed("segment_sum", lambda ts: segment_sum("segment_sum", ts, count, (), constants), data, ids)


@op("bincount")
def _bincount(call: Call) -> ShType:
    x, length, least = call.array("x"), call.static("length"), call.static("minlength", 0)
    call.only("x", "weights", "minlength", "length")
    if x.ndim != 1 or x.dtype_name not in ("i32", "u32") or type(length) is not int or type(least) is not int:
        raise Unknown
    ids = nonlinear(call, "maximum", [x, Number("int", 0)])
    weights = call.array("weights") if call.given_as_value("weights") else ids
    if weights.shape != ids.shape or max(length, least) < 0 or (weights is ids and x.dtype_name != "i32"):
        raise Unknown
    return _counted(call, weights, ids, max(length, least))


@op("histogram")
def _histogram(call: Call) -> tuple[ShType, ...]:
    x, bins, ends = call.array("a"), call.static("bins", 10), call.static("range")
    call.only("a", "bins", "range")
    if x.dtype_name != "f32" or type(bins) is not int or not 0 < bins < 10**6:
        raise Unknown
    if not isinstance(ends, (tuple, list)) or len(ends) != 2 or any(type(n) not in (int, float) for n in ends):
        raise Unknown
    edges = constant(x.mesh, "f32", [bins + 1])
    found = _found(call, "searchsorted", (edges, x), 1)
    last = nonlinear(call, "equal", [x, constant(x.mesh, "f32")], "bool")
    found = chosen(call, last, [Number("int", bins), found])
    counts = _counted(call, x, found, bins + 1)
    return indexed(call, "index", counts, (span(slice(1, None), bins + 1),), []), edges
