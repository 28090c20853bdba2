"""Diagonals, permutations, and what is typed by few rules of its own. Pure."""

from __future__ import annotations

from typing import Any

from shtypes import rules
from shtypes.editor.call import Call, Number, constant, held
from shtypes.editor.dtypes import of_sum
from shtypes.editor.ops.elementwise import chosen, nonlinear
from shtypes.editor.ops.indexing import looked_up
from shtypes.editor.ops.products import contraction
from shtypes.editor.ops.reductions import whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import expanded, one_dim, raveled
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.random import categorical
from shtypes.types import ShType


def _matrix(call: Call, x: ShType) -> tuple[int, int, int]:
    """The dim of the rows, that of the columns, and the offset."""
    rows, columns = (one_dim(call.name, x, call.static(n, d)) for n, d in (("axis1", 0), ("axis2", 1)))
    offset = call.static("offset", 0)
    if rows == columns or type(offset) is not int:
        raise Unknown
    return rows, columns, offset


def _diagonal_of(call: Call, x: ShType, rows: int, columns: int, k: int) -> ShType:
    if not k and x.shape[rows] == x.shape[columns] and (x.dims[rows].axes or x.dims[columns].axes):
        labels = [chr(ord("a") + d) for d in range(x.ndim)]
        labels[columns] = labels[rows]
        rest = [c for d, c in enumerate(labels) if d not in (rows, columns)]
        return contraction(call, f"{''.join(labels)}->{''.join([*rest, labels[rows]])}", (x,))
    sizes = x.shape[rows] + min(k, 0), x.shape[columns] - max(k, 0)
    if any(map(stands_for_a_name, sizes)) and sizes[0] != sizes[1]:
        raise Unknown  # which of the two is smaller
    count = max(0, min(sizes))
    return call.typed("diagonal", lambda ts: rules.diagonal(ts[0], rows, columns, count), x)


@op("diagonal")
def _diagonal(call: Call) -> ShType:
    x = call.array("a")
    return _diagonal_of(call, x, *_matrix(call, x))


@op("diag", "diagflat")
def _diag(call: Call) -> ShType:
    x, k = call.array("v"), call.static("k", 0)
    x = raveled(call, x) if call.name == "diagflat" else x
    if type(k) is not int or x.ndim not in (1, 2):
        raise Unknown
    if x.ndim == 2:
        return _diagonal_of(call, x, 0, 1, k)
    if k:
        size = x.shape[0] + abs(k)
        result = rules.WholeResult(x.dtype_name, ((size, None), (size, None)))
        return call.typed("diag", lambda ts: rules.whole("diag", ts[0], (0,), (result,), True), x)
    return call.typed("diag", lambda ts: rules.diag(ts[0]), x)


@op("trace")
def _trace(call: Call) -> ShType:
    x = call.array("a")
    rows, columns, _ = _matrix(call, x)
    call.only("a", "offset", "axis1", "axis2")
    dims, dtype = (rows, columns), of_sum(x.dtype_name)
    return call.typed("trace", lambda ts: rules.reduce_sum(ts[0], dims, False, dtype, "trace"), x)


@op("nancumsum", "nancumprod")
def _skipping(call: Call) -> ShType:
    x, axis, name = call.array("a"), call.static("axis", None), call.name.removeprefix("nan")
    call.only("a", "axis")
    if not x.differentiable or x.dtype_name[0] == "c" or axis is None:
        raise Unknown
    number = Number("int", 0 if name == "cumsum" else 1)
    kept = chosen(call, nonlinear(call, "isnan", [x], "bool"), [number, x])
    return whole(call, name, kept, [one_dim(name, x, axis)], linear=name == "cumsum")


@op("unwrap")
def _unwrap(call: Call) -> ShType:
    x = call.array("p")
    call.only("p", "axis")
    if x.dtype_name != "f32":
        raise Unknown
    return whole(call, "unwrap", x, [one_dim("unwrap", x, call.static("axis", -1))], linear=False)


@op("random.permutation")
def _permutation(call: Call) -> ShType:
    key, x, axis = call.array("key"), call.operand("x"), call.static("axis", 0)
    call.only("key", "x", "axis")
    count: Any = x.value if isinstance(x, Number) else x.shape[one_dim("permutation", x, axis)]
    if type(count) is not int or key.ndim:
        raise Unknown
    made = (rules.WholeResult("i32", ((count, None),)),)
    order = call.typed("permutation", lambda ts: rules.whole("permutation", ts[0], (), made, False), key)
    return order if isinstance(x, Number) else looked_up(call, "take", x, order, one_dim("permutation", x, axis))


@op("random.categorical")
def _categorical(call: Call) -> ShType:
    key, logits = call.array("key"), call.array("logits")
    call.only("key", "logits", "axis")
    if not logits.differentiable or key.ndim:
        raise Unknown
    dim, constants = one_dim("categorical", logits, call.static("axis", -1)), held((key, logits))
    return call.typed("categorical", lambda ts: categorical("categorical", ts[0], ts[1], dim, constants), key, logits)


@op("nn.rotary_embedding")
def _rotary(call: Call) -> ShType:
    x = call.array("x")
    call.only("x", "base")
    if x.ndim < 3 or not x.differentiable or x.dims[-1].axes or stands_for_a_name(x.shape[-1]) or x.shape[-1] % 2:
        raise Unknown
    at = expanded(call, constant(x.mesh, "i32", [x.shape[-3]]), (-2, -1))
    dtype = x.dtype_name
    name, constants = "rotary_embedding", frozenset((0,))
    return call.typed(name, lambda ts: rules.multilinear(name, ts, dtype, constants), at, x)
