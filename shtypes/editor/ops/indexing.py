"""``x[...]``, and lookups by positions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shtypes.editor.call import Argument, Call, Number, constant, held
from shtypes.editor.dtypes import together
from shtypes.editor.ops.elementwise import chosen, dtype_of, nonlinear
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import expanded, one_dim, raveled
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.index import IndexEntry, New, Position, Slice, index, result_labels, update
from shtypes.rules.labelled import ProductDims, labelled
from shtypes.rules.lookup import one_hot, segment_sum, take_along
from shtypes.types import ShType


def indexed(call: Call, name: str, x: ShType, entries: tuple[IndexEntry, ...], ids: list[ShType]) -> ShType:
    """The type of an index that is read."""
    operands = (x, *ids)
    constants = held(operands)
    return call.typed(name, lambda ts: index(name, ts, entries, constants), *operands)


def _read(call: Call) -> ShType:
    x = call.array("x")
    entries, ids = _entries(call, x)
    if len(entries) == x.ndim and all(e == (0, n, 1) for e, n in zip(entries, x.shape, strict=True)):
        return x
    return indexed(call, "index", x, tuple(entries), ids)


@op("getitem")
def _getitem(call: Call) -> ShType:
    return _read(call)


def _entries(call: Call, x: ShType) -> tuple[list[IndexEntry], list[ShType]]:
    """What stands between the brackets, and the arrays of positions in it."""
    if not call.has("key"):
        raise Unknown
    parts = call.given["key"][0].entries()
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > x.ndim:
        raise ShardingTypeError(f"an index of {used} dims does not fit {x}, which has {x.ndim}")
    gap = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(gap) > 1:
        raise ShardingTypeError("an index can have `...` only once")
    at = gap[0] if gap else len(parts)
    parts[at : at + len(gap)] = [slice(None)] * (x.ndim - used)
    entries: list[IndexEntry] = []
    ids: list[ShType] = []
    sizes = iter(x.shape)
    for part in parts:
        entries.append(New() if part is None else _entry(call, next(sizes), part, ids))
    return entries, ids


@op("iter")
def _iterated(call: Call) -> list[ShType]:
    """The elements, of one type."""
    x = call.array("x")
    if not x.ndim or not x.shape[0]:
        raise Unknown
    return [indexed(call, "index", x, (Position(0), *(Slice(0, n) for n in x.shape[1:])), [])]


#: The methods of ``x.at[...]``, and what they do.
CHANGES: Final = {
    **{name: name for name in ("set", "add", "subtract", "multiply", "divide", "power", "min", "max")},
    "mul": "multiply",
    "sub": "subtract",
}


#: Options of them that change no type.
_MODES: Final = frozenset(("mode", "unique_indices", "indices_are_sorted"))
_BOUNDS: Final = (None, "drop", "fill", "clip", "promise_in_bounds")


@op("at.get")
def _got(call: Call) -> ShType:
    """``x.at[key].get()``."""
    mode = call.static("mode", None)
    if not (_MODES | {"fill_value"}).issuperset(call.keywords) or mode not in _BOUNDS:
        raise Unknown
    if mode not in ("fill", "drop"):
        return _read(call)
    x = call.array("x")
    entries, ids = _entries(call, x)
    if not ids or any(isinstance(e, Position) and e.operand is None for e in entries):
        raise Unknown
    found = indexed(call, "index", x, tuple(entries), ids)
    labels = result_labels(entries, [("dim", d) for d in range(x.ndim)], max(t.ndim for t in ids))
    places = [i for i, label in enumerate(labels) if isinstance(label, tuple) and label[0] == "ids"]
    return _filled(call, ids, found, len(labels) - places[-1] - 1 if places else 0)


@op(*(f"at.{how}" for how in CHANGES))
def _changed(call: Call) -> ShType:
    """``x.at[key].add(values)`` and its kind."""
    x, how = call.array("x"), CHANGES[call.name.removeprefix("at.")]
    entries, ids = _entries(call, x)
    values = call.operand("values")
    if not _MODES.issuperset(call.keywords) or call.static("mode", None) not in _BOUNDS:
        raise Unknown
    if isinstance(values, Number):
        if together([x, values]) != x.dtype_name:
            raise Unknown
        values = constant(x.mesh, x.dtype_name)
        fixed = {len(ids) + 1}
    else:
        fixed = set()
    if values.dtype_name != x.dtype_name:
        raise Unknown
    operands, name = (x, *ids, values), f"at_{how}"
    constants = held(operands) | fixed
    return call.typed(name, lambda ts: update(name, how, ts, tuple(entries), constants), *operands)


def one_index(call: Call, size: int, argument: Argument, ids: list[ShType]) -> IndexEntry:
    """A position that an argument says."""
    (part,) = argument.entries()
    if type(part) is int and not -size <= part < size:
        raise Unknown
    return _entry(call, size, part, ids)


def _entry(call: Call, size: int, part: Any, ids: list[ShType]) -> IndexEntry:
    if isinstance(part, slice):
        return span(part, size)
    if type(part) is int:
        if not size:
            raise Unknown
        return Position(min(max(part + size if part < 0 else part, 0), size - 1))
    found = call.read_operand(part)
    if isinstance(found, Number) or found.dtype_name[0] not in "iu":
        if isinstance(found, Number) and found.kind == "int":
            return Position(0)
        raise Unknown
    if not size:
        raise Unknown
    ids.append(found)
    return Position(operand=len(ids) - 1)


def span(part: slice, size: int) -> Slice:
    """A slice of a dim."""
    if stands_for_a_name(size) and part.step not in (None, 1):
        raise Unknown
    start, stop, step = part.indices(size)
    count = max(0, -((start - stop) // step))  # how many it is: `len` of a range counts to 2**63
    return Slice(start, count, step) if count > 1 else Slice(start if count else 0, count)


def looked_up(call: Call, name: str, x: ShType, ids: Any, dim: int) -> ShType:
    """The type of the rows at positions."""
    if isinstance(ids, Number) or ids.dtype_name[0] not in "iu" or not x.shape[dim]:
        raise Unknown
    entries: list[IndexEntry] = [Slice(0, n) for n in x.shape]
    entries[dim] = Position(operand=0)
    return indexed(call, name, x, tuple(entries), [ids])


@op("take")
def _take(call: Call) -> ShType:
    x, ids, axis = call.array("a"), call.array("indices"), call.static("axis", None)
    call.only("a", "indices", "axis", "mode", "fill_value")
    mode = call.static("mode", None)
    if mode not in (None, "fill", "clip", "wrap"):
        raise Unknown
    x, axis = (raveled(call, x), 0) if axis is None else (x, axis)
    dim = one_dim("take", x, axis)
    found = looked_up(call, "take", x, ids, dim)
    return found if mode in ("clip", "wrap") else _filled(call, [ids], found, x.ndim - dim - 1)


def _filled(call: Call, ids: Sequence[ShType], y: ShType, after: int) -> ShType:
    """The value with what marks a position out of range."""
    value = call.static("fill_value", None)
    if value is not None and (type(value) not in (int, float) or not y.differentiable or y.dtype_name[0] == "c"):
        raise Unknown
    valid = nonlinear(call, "in_range", ids, "bool")
    if after:
        valid = expanded(call, valid, tuple(range(-after, 0)))
    if y.differentiable:
        return chosen(call, valid, [y, Number("float", 1.0 if value is None else float(value))])
    return chosen(call, valid, [y, Number("bool" if y.dtype_name == "bool" else "int", 1)])


@op("embedding", "nn.embedding")
def _embedding(call: Call) -> ShType:
    return looked_up(call, "embedding", call.array("table"), call.array("ids"), 0)


@op("take_along_axis")
def _take_along(call: Call) -> ShType:
    x, ids, axis = call.array("arr"), call.array("indices"), call.static("axis", -1)
    mode = call.static("mode", None)
    if mode not in (None, "fill", "clip") or ids.dtype_name[0] not in "iu":
        raise Unknown
    x, ids, axis = (raveled(call, x), raveled(call, ids), 0) if axis is None else (x, ids, axis)
    found = taken_along(call, x, ids, axis)
    return found if mode == "clip" else _filled(call, [ids], found, 0)


def taken_along(call: Call, x: ShType, ids: ShType, axis: Any) -> ShType:
    """The type of the elements at positions along a dim."""
    dim, constants = one_dim("take_along_axis", x, axis), held((x, ids))
    if not x.shape[dim]:
        raise Unknown
    return call.typed("take_along_axis", lambda ts: take_along("take_along_axis", ts, dim, constants), x, ids)


@op("segment_sum")
def _segments(call: Call) -> ShType:
    data, ids, count = call.array("data"), call.array("segment_ids"), call.static("num_segments")
    over = call.static("over", ())
    axes = (over,) if isinstance(over, str) else tuple(over)
    if type(count) is not int or ids.dtype_name[0] not in "iu" or (axes and not call.knows(axes)):
        raise Unknown
    constants = held((data, ids))
    return call.typed("segment_sum", lambda ts: segment_sum("segment_sum", ts, count, axes, constants), data, ids)


@op("segment_max", "segment_min", "segment_prod")
def _segments_reduced(call: Call) -> ShType:
    data, ids, count, name = call.array("data"), call.array("segment_ids"), call.static("num_segments"), call.name
    call.only("data", "segment_ids", "num_segments")
    plain = data.dtype_name[0] in "iu" or (data.differentiable and data.dtype_name[0] != "c")
    if type(count) is not int or count < 1 or ids.dtype_name[0] not in "iu" or not plain:
        raise Unknown
    if ids.ndim != 1 or data.shape[:1] != ids.shape:
        raise Unknown
    others = tuple(("dim", d) for d in range(1, data.ndim))
    made = tuple(zip(("segments", *others), (count, *data.shape[1:]), strict=True))
    plan = ProductDims((("rows", *others), ("rows",)), made, frozenset({"rows"}))
    dtype, constants = data.dtype_name, held((data, ids))
    return call.typed(name, lambda ts: labelled(name, ts, plan, dtype, constants), data, ids)


@op("one_hot")
def _one_hot(call: Call) -> ShType:
    x, count, axis = call.array("x"), call.static("num_classes"), call.static("axis", -1)
    if (
        type(count) is not int
        or type(axis) is not int
        or not -x.ndim - 1 <= axis <= x.ndim
        or x.dtype_name[0] not in "iu"
    ):
        raise Unknown
    asked, over = call.static("dtype", None), call.static("over", ())
    dtype = "f32" if asked is None else dtype_of(asked)
    axes = (over,) if isinstance(over, str) else tuple(over)
    dim = axis % (x.ndim + 1)
    return call.typed("one_hot", lambda ts: one_hot("one_hot", ts[0], count, dim, dtype, axes), x)
