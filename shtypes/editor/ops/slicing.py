"""Slices by name, padding, tiles, and joins by the shape of their operands. Pure."""

from __future__ import annotations

import math
import string
from typing import Any, Final

from shtypes.editor.call import Call, Number, arrays, held
from shtypes.editor.ops.elementwise import added, chosen, nonlinear
from shtypes.editor.ops.indexing import indexed, one_index, span
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.products import contraction
from shtypes.editor.ops.reductions import resized, sized, whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import (
    all_arrays,
    expanded,
    ints,
    joined,
    joined_dtype,
    one_dim,
    permuted,
    raveled,
    reshaped,
)
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.index import IndexEntry, Slice, dynamic_slice, dynamic_update_slice
from shtypes.types import ShType, State


def _whole_entries(x: ShType) -> list[IndexEntry]:
    return [Slice(0, n) for n in x.shape]


def _taken(call: Call, x: ShType, entries: list[IndexEntry], ids: list[ShType]) -> ShType:
    whole_already = not ids and all(e == (0, n, 1) for e, n in zip(entries, x.shape, strict=True))
    return x if whole_already else indexed(call, call.name, x, tuple(entries), ids)


@op("slice_in_dim")
def _slice_in_dim(call: Call) -> ShType:
    x = call.array("operand")
    dim, entries = one_dim("slice_in_dim", x, call.static("axis", 0)), _whole_entries(x)
    part = slice(call.static("start_index"), call.static("limit_index"), call.static("stride", 1))
    entries[dim] = span(part, x.shape[dim])
    return _taken(call, x, entries, [])


@op("slice")
def _slice(call: Call) -> ShType:
    x, starts, limits = call.array("operand"), call.static("start_indices"), call.static("limit_indices")
    steps = call.static("strides", None) or (1,) * x.ndim
    parts = list(zip(ints(starts), ints(limits), ints(steps), strict=False))
    if len(parts) != x.ndim or any(map(stands_for_a_name, x.shape)):
        raise Unknown
    if any(not 0 <= a <= b <= n or s < 1 for (a, b, s), n in zip(parts, x.shape, strict=True)):
        raise Unknown
    return _taken(call, x, [span(slice(*p), n) for p, n in zip(parts, x.shape, strict=True)], [])


@op("index_in_dim", "dynamic_index_in_dim")
def _index_in_dim(call: Call) -> ShType:
    x = call.array("operand")
    dim, entries = one_dim(call.name, x, call.static("axis", 0)), _whole_entries(x)
    ids: list[ShType] = []
    entries[dim] = one_index(call, x.shape[dim], call.given["index"][0], ids)
    found = indexed(call, call.name, x, tuple(entries), ids)
    return expanded(call, found, dim) if call.static("keepdims", True) else found


def _starts(call: Call, name: str, sizes: tuple[int, ...], x: ShType) -> list[ShType]:
    """The positions that are values, of the dims that are not taken whole."""
    parts = call.given[name][0].entries() if call.has(name) else []
    if len(parts) != x.ndim or any(not 0 <= n <= m for n, m in zip(sizes, x.shape, strict=True)):
        raise Unknown
    found: list[ShType] = []
    for part, n, m in zip(parts, sizes, x.shape, strict=True):
        if n != m and type(part) is not int:
            position = call.read_operand(part)
            found += [] if isinstance(position, Number) else [position]
    return found


def _dynamic(call: Call, x: ShType, starts: list[ShType], sizes: tuple[int, ...]) -> ShType:
    operands = (x, *starts)
    constants = held(operands)
    return call.typed("dynamic_slice", lambda ts: dynamic_slice("dynamic_slice", ts, sizes, constants), *operands)


@op("dynamic_slice")
def _dynamic_slice(call: Call) -> ShType:
    x, sizes = call.array("operand"), ints(call.static("slice_sizes"))
    if len(sizes) != x.ndim:
        raise Unknown
    return _dynamic(call, x, _starts(call, "start_indices", sizes, x), sizes)


def _start_in_dim(call: Call, size: int, whole_size: int, name: str = "start_index") -> list[ShType]:
    start = call.operand(name)
    return [] if isinstance(start, Number) or size == whole_size else [start]


@op("dynamic_slice_in_dim")
def _dynamic_slice_in_dim(call: Call) -> ShType:
    x, size = call.array("operand"), call.static("slice_size")
    dim = one_dim(call.name, x, call.static("axis", 0))
    if type(size) is not int or not 0 <= size <= x.shape[dim]:
        raise Unknown
    sizes = tuple(size if d == dim else n for d, n in enumerate(x.shape))
    return _dynamic(call, x, _start_in_dim(call, size, x.shape[dim]), sizes)


def _updated(call: Call, x: ShType, starts: list[ShType], update: ShType) -> ShType:
    if x.dtype_name != update.dtype_name or x.ndim != update.ndim:
        raise Unknown
    operands, name = (x, *starts, update), "dynamic_update_slice"
    constants = held(operands)
    return call.typed(name, lambda ts: dynamic_update_slice(name, ts, constants), *operands)


@op("dynamic_update_slice")
def _dynamic_update_slice(call: Call) -> ShType:
    x, update = call.array("operand"), call.array("update")
    if x.ndim != update.ndim:
        raise Unknown
    return _updated(call, x, _starts(call, "start_indices", update.shape, x), update)


@op("dynamic_update_slice_in_dim")
def _dynamic_update_slice_in_dim(call: Call) -> ShType:
    x, update = call.array("operand"), call.array("update")
    dim = one_dim(call.name, x, call.static("axis"))
    if x.ndim != update.ndim:
        raise Unknown
    return _updated(call, x, _start_in_dim(call, update.shape[dim], x.shape[dim]), update)


@op("dynamic_update_index_in_dim")
def _dynamic_update_index_in_dim(call: Call) -> ShType:
    x, update = call.array("operand"), call.array("update")
    dim = one_dim(call.name, x, call.static("axis"))
    if update.ndim < x.ndim:
        update = expanded(call, update, dim)
    if x.ndim != update.ndim or not 1 <= update.shape[dim] <= x.shape[dim]:
        raise Unknown
    return _updated(call, x, _start_in_dim(call, update.shape[dim], x.shape[dim], "index"), update)


# more of the same


def _widths(given: Any, ndim: int) -> list[tuple[int, int]]:
    """How much is put before and behind each dim, as numpy broadcasts it."""
    if type(given) is int:
        given = ((given, given),)
    rows = [given] if given and all(type(n) is int for n in given) else list(given)
    rows = rows * ndim if len(rows) == 1 else rows
    pairs = [tuple(row) * 2 if len(row) == 1 else tuple(row) for row in rows]
    if len(pairs) != ndim or any(len(p) != 2 or any(type(n) is not int or n < 0 for n in p) for p in pairs):
        raise Unknown
    return [(a, b) for a, b in pairs]


#: The ways to pad in which what is put around is linear in the operand, and others; floats stay what they are.
_LINEAR_MODES: Final = frozenset(("edge", "empty", "linear_ramp", "mean", "reflect", "symmetric", "wrap"))
_EXTREMES: Final = frozenset(("maximum", "median", "minimum"))


@op("pad")
def _pad(call: Call) -> ShType:
    x = call.array("array")
    mode = call.static("mode", "constant")
    if not isinstance(mode, str) or not call.has("pad_width"):
        raise Unknown
    widths = _widths(call.static("pad_width"), x.ndim)
    along = [d for d, (a, b) in enumerate(widths) if a or b]
    sizes = [n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)]
    if mode != "constant":
        known = mode in _LINEAR_MODES or mode in _EXTREMES
        if not known or call.keywords or not x.differentiable or x.dtype_name[0] == "c":
            raise Unknown
        if any(not x.shape[d] for d in along):
            raise Unknown
        return resized(call, "pad", x, along, sizes, linear=mode in _LINEAR_MODES)
    value = call.static("constant_values", 0)
    if set(call.keywords) - {"constant_values"} or type(value) not in (int, float, bool):
        raise Unknown
    if value and not x.differentiable:
        raise Unknown
    padded = resized(call, "pad", x, along, sizes)
    if not value or not along or not padded.axes(State.UNREDUCED):
        return padded
    return added(call, "add", [padded, padded])  # what is around counts once


@op("delete")
def _delete(call: Call) -> ShType:
    x, axis = call.array("arr"), call.static("axis", None)
    x, axis = (raveled(call, x), 0) if axis is None else (x, axis)
    dim, given = one_dim("delete", x, axis), call.static("obj")
    size, places = x.shape[dim], ints(given)
    known = not stands_for_a_name(size) or type(given) is int
    if not known or any(not -size <= n < size for n in places):
        raise Unknown
    left = size - len({n % size for n in places})
    return sized(call, "delete", x, dim, left, linear=True)


@op("resize")
def _resize(call: Call) -> ShType:
    x, shape = call.array("a"), ints(call.static("new_shape"))
    wanted = math.prod(shape)
    if any(map(stands_for_a_name, (*x.shape, *shape))) or not x.size or min(shape, default=1) < 0:
        raise Unknown
    if wanted == x.size:
        return reshaped(call, x, shape)
    return reshaped(call, sized(call, "resize", raveled(call, x), 0, wanted, linear=True), shape)


@op("choose")
def _choose(call: Call) -> ShType:
    number, options, mode = call.array("a"), call.listed("choices"), call.static("mode", "raise")
    call.only("a", "choices", "mode")
    if mode not in ("clip", "wrap") or number.dtype_name not in ("i32", "u32") or len(options) < 2:
        raise Unknown
    if len(options) > 2 and not arrays(options[-2:]):
        raise Unknown  # what is chosen of two numbers is an array all the same
    number = nonlinear(call, "mod", [number, Number("int")]) if mode == "wrap" else number
    picked = options[-1]
    for option in options[-2::-1]:
        picked = chosen(call, nonlinear(call, "less_equal", [number, Number("int")], "bool"), [option, picked])
    (found,) = arrays([picked])
    return found


@op("tile")
def _tile(call: Call) -> ShType:
    x, counts = call.array("A"), ints(call.static("reps"))
    if len(counts) > x.ndim:
        x = expanded(call, x, tuple(range(len(counts) - x.ndim)))
    counts = (1,) * (x.ndim - len(counts)) + counts
    along = [d for d, n in enumerate(counts) if n != 1]
    sizes = [n * m for n, m in zip(x.shape, counts, strict=True)]
    return resized(call, "tile", x, along, sizes) if along else x


@op("hstack", "vstack", "dstack", "column_stack")
def _stacked(call: Call) -> ShType:
    values = all_arrays(call, "tup")
    if held(values):
        raise Unknown
    dtype = joined_dtype(call, values)
    if call.name == "column_stack":
        return joined(call, [reshaped(call, x, (-1, 1)) if x.ndim < 2 else x for x in values], 1, dtype)
    least, dim = {"hstack": (1, 1), "vstack": (2, 0), "dstack": (3, 2)}[call.name]
    values = [_with_dims(call, x, least) for x in values]
    return joined(call, values, 0 if call.name == "hstack" and values[0].ndim == 1 else dim, dtype)


def _with_dims(call: Call, x: ShType, least: int) -> ShType:
    if x.ndim >= least:
        return x
    if least == 3:
        return expanded(call, x, {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[x.ndim])
    return expanded(call, x, tuple(range(least - x.ndim)))


@op("rot90")
def _rot90(call: Call) -> ShType:
    x, turns = call.array("m"), call.static("k", 1)
    a, b = (one_dim("rot90", x, d) for d in call.static("axes", (0, 1)))
    if type(turns) is not int or a == b:
        raise Unknown
    dims = list(range(x.ndim))
    dims[a], dims[b] = dims[b], dims[a]
    if turns % 4 == 2:
        return whole(call, "flip", x, (a, b), linear=True)
    if turns % 4 == 0:
        return x
    if turns % 4 == 1:
        return permuted(call, whole(call, "flip", x, [b], linear=True), dims)
    return whole(call, "flip", permuted(call, x, dims), [b], linear=True)


@op("dot_general")
def _dot_general(call: Call) -> ShType:
    lhs, rhs = call.array("lhs"), call.array("rhs")
    if held((lhs, rhs)):
        raise Unknown
    (summed_l, summed_r), (batch_l, batch_r) = (tuple(map(ints, p)) for p in call.static("dimension_numbers"))
    a, b = list(string.ascii_letters[: lhs.ndim]), list(string.ascii_letters[lhs.ndim : lhs.ndim + rhs.ndim])
    pairs = [*zip(summed_l, summed_r, strict=False), *zip(batch_l, batch_r, strict=False)]
    if len(summed_l) != len(summed_r) or len(batch_l) != len(batch_r):
        raise Unknown
    if any(not (0 <= i < lhs.ndim and 0 <= j < rhs.ndim) for i, j in pairs):
        raise Unknown
    for i, j in pairs:
        b[j] = a[i]
    kept = [a[i] for i in batch_l]
    kept += [c for i, c in enumerate(a) if i not in (*summed_l, *batch_l)]
    kept += [c for j, c in enumerate(b) if j not in (*summed_r, *batch_r)]
    return finished(call, contraction(call, f"{''.join(a)},{''.join(b)}->{''.join(kept)}", (lhs, rhs)))
