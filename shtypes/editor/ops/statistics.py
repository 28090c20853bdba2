"""Quantiles, norms of vectors and matrices, integrals and differences. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from shtypes import rules
from shtypes.editor.call import Call, Number, constant, held
from shtypes.editor.dtypes import of_sum
from shtypes.editor.ops.elementwise import cast, linear, nonlinear
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.reductions import along, keepdims, sized, summed, whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints, joined, joined_dtype, one_dim, raveled, stretched
from shtypes.editor.space import Unknown
from shtypes.rules.reduce import normal_dims
from shtypes.types import ShType, State

_REAL: Final = ("f32", "bf16", "f16")
_METHODS: Final = ("linear", "lower", "higher", "nearest", "midpoint")


def _real(x: ShType) -> ShType:
    if x.dtype_name not in _REAL:
        raise Unknown
    return x


def _dims(call: Call, x: ShType, name: str) -> tuple[int, ...]:
    axis = call.static("axis", None)
    return normal_dims(name, x, None if axis is None else ints(axis))


# quantiles


def _without(call: Call, name: str, x: ShType, dims: tuple[int, ...], keep: bool, lead: tuple[int, ...]) -> ShType:
    """The type of a nonlinear function of whole dims, which are gone or of size 1; ``lead`` are new dims."""
    if not x.size or not x.ndim:
        raise Unknown
    rest = [(1, None) if d in dims else (n, d) for d, n in enumerate(x.shape) if keep or d not in dims]
    result = rules.WholeResult(x.dtype_name, (*((n, None) for n in lead), *rest))
    return call.typed(name, lambda ts: rules.whole(name, ts[0], dims, (result,), False), x)


@op("quantile", "percentile", "nanquantile", "nanpercentile")
def _quantile(call: Call) -> ShType:
    x, chosen = _real(call.array("a")), call.operand("q") if not _is_tuple(call) else call.static("q")
    call.only("a", "q", "axis", "keepdims", "method", "overwrite_input")
    lead = (len(chosen),) if isinstance(chosen, tuple) and not isinstance(chosen, Number) else ()
    if not lead and (not isinstance(chosen, Number) or chosen.kind not in ("int", "float")):
        raise Unknown
    if call.static("method", "linear") not in _METHODS:
        raise Unknown
    return _without(call, call.name, x, _dims(call, x, call.name), keepdims(call), lead)


def _is_tuple(call: Call) -> bool:
    """Whether several quantiles are written out."""
    try:
        found = call.static("q")
    except Unknown:
        return False
    return isinstance(found, tuple) and bool(found) and all(type(n) in (int, float) for n in found)


@op("nanmedian")
def _nanmedian(call: Call) -> ShType:
    x = _real(call.array("a"))
    call.only("a", "axis", "keepdims", "overwrite_input")
    return _without(call, "nanquantile", x, _dims(call, x, "nanquantile"), keepdims(call), ())


@op("logmeanexp", "nn.logmeanexp")
def _logmeanexp(call: Call) -> ShType:
    x = _real(call.array("x"))
    call.only("x", "axis", "keepdims")
    dims, keep, dtype, name = _dims(call, x, "logmeanexp"), keepdims(call), x.dtype_name, "logsumexp"
    found = call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, keep, dtype), x)
    return linear(call, "sub", found, dtype)


# norms


def _order(call: Call, default: Any) -> Any:
    """Which norm: a number, or a name."""
    found = call.static("ord", default)
    if found is not None and type(found) not in (int, float, str):
        raise Unknown
    return found


def _joinable(call: Call, x: ShType, dims: tuple[int, ...]) -> ShType:
    """The operand of a norm, which may communicate along sharded dims where ``out`` says the type of its result."""
    if x.axes(State.UNREDUCED) and call.static("out", None) is not None:
        raise Unknown  # refused in the words of what it is made of
    return along(call, x, dims)


def _normed(call: Call, name: str, x: ShType, dims: tuple[int, ...], order: Any) -> ShType:
    """The type of the norm of vectors along dims."""
    keep, dtype = keepdims(call), x.dtype_name
    if order in (0, 1):
        size = nonlinear(call, "abs", [x])
        terms = size if order else cast(call, nonlinear(call, "not_equal", [x, Number("int", 0)], "bool"), dtype)
        return finished(call, summed(call, "sum", terms, dims, keep, dtype))
    if not (order is None or isinstance(order, (int, float))):
        raise Unknown
    x = _joinable(call, x, dims)
    return finished(call, call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, keep, dtype), x))


@op("linalg.vector_norm", parameters="x")
def _vector_norm(call: Call) -> ShType:
    x = _real(call.array("x"))
    call.only("x", "axis", "keepdims", "ord", "out")
    order = _order(call, 2)
    if order is None or not x.size:
        raise Unknown
    return _normed(call, "vector_norm", x, _dims(call, x, "vector_norm" if order in (0, 1) else call.name), order)


#: The norms of matrices that may communicate; the others need singular values.
_OF_MATRICES: Final = (None, "fro", 1, -1, math.inf, -math.inf)


@op("linalg.norm")
def _norm(call: Call) -> ShType:
    x = _real(call.array("x"))
    call.only("x", "axis", "keepdims", "ord", "out")
    dims, order = _dims(call, x, "norm"), _order(call, None)
    by_default = not call.given_as_value("axis") and order is None
    if not x.size or not x.ndim or (len(dims) > 2 and not by_default):
        raise Unknown
    if len(dims) != 2 or by_default:
        return _normed(call, "norm", x, dims, order)
    if order not in _OF_MATRICES:
        raise Unknown
    x, keep, dtype = _joinable(call, x, dims), keepdims(call), x.dtype_name
    return finished(call, call.typed("norm", lambda ts: rules.reduce_nonlinear("norm", ts[0], dims, keep, dtype), x))


# integrals and differences


@op("trapezoid")
def _trapezoid(call: Call) -> ShType:
    x = _real(call.array("y"))
    call.only("y", "axis", "dx")
    if call.has("dx"):
        distance = call.operand("dx")
        if not isinstance(distance, Number) or distance.kind not in ("int", "float"):
            raise Unknown
    dim = one_dim("trapezoid", x, call.static("axis", -1))
    if not x.shape[dim]:
        raise Unknown
    result = rules.WholeResult(x.dtype_name, tuple((n, d) for d, n in enumerate(x.shape) if d != dim))
    return call.typed("trapezoid", lambda ts: rules.whole("trapezoid", ts[0], (dim,), (result,), True), x)


@op("gradient")
def _gradient(call: Call) -> ShType:
    x, axis = _real(call.array("f")), call.static("axis", None)
    call.only("f", "axis", "varargs")
    steps = call.statics("varargs")
    if len(steps) > 1 or any(type(n) not in (int, float) for n in steps):
        raise Unknown
    if axis is None and x.ndim != 1:
        raise Unknown  # a list
    dim = one_dim("gradient", x, axis or 0)
    if x.shape[dim] < 2:
        raise Unknown
    return whole(call, "gradient", x, [dim], linear=True)


@op("ediff1d")
def _ediff1d(call: Call) -> ShType:
    x = call.array("ary")
    call.only("ary")
    if x.dtype_name == "bool":
        raise Unknown
    flat = raveled(call, x)
    return sized(call, "diff", flat, 0, max(flat.shape[0] - 1, 0), linear=True)


@op("diff")
def _diff(call: Call) -> ShType:
    x, n = call.array("a"), call.static("n", 1)
    call.only("a", "n", "axis", "prepend", "append")
    if not x.ndim or type(n) is not int or n < 0 or x.dtype_name == "bool":
        raise Unknown
    dim = one_dim("diff", x, call.static("axis", -1))
    parts = [
        _edge(call, name, x, dim) for name in ("prepend", "a", "append") if name == "a" or call.given_as_value(name)
    ]
    if len(parts) > 1:
        x = joined(call, parts, dim, joined_dtype(call, parts))
    return sized(call, "diff", x, dim, max(x.shape[dim] - n, 0), linear=True) if n else x


def _edge(call: Call, name: str, x: ShType, dim: int) -> ShType:
    """What is put at an end: a number as one element along the dim, replicated as what it meets."""
    found = x if name == "a" else call.operand(name)
    if isinstance(found, ShType):
        if found is not x and (not found.ndim or held((found, x))):
            raise Unknown
        return found
    if found.kind not in ("int", "float"):
        raise Unknown
    same = found.kind == "float" if x.differentiable else found.kind == "int"
    t = constant(x.mesh, x.dtype_name if same else {"int": "i32", "float": "f32"}[found.kind])
    for axis in x.axes(State.INVARIANT):
        t = t.with_axis(axis, State.INVARIANT)
    shape = [1 if d == dim else size for d, size in enumerate(x.shape)]
    return stretched(call, t, shape, (), "broadcast_to")


@op("cumulative_sum", "cumulative_prod", parameters="x")
def _cumulative(call: Call) -> ShType:
    x, axis = call.array("x"), call.static("axis", None)
    call.only("x", "axis", "include_initial")
    name = {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}[call.name]
    first = call.static("include_initial", False)
    if (axis is None and x.ndim != 1) or type(first) is not bool:
        raise Unknown
    dim = one_dim(call.name, x, axis or 0)
    y = whole(call, name, x, [dim], linear=name == "cumsum", dtype=of_sum(x.dtype_name))
    if not first:
        return y
    start = constant(y.mesh, y.dtype_name, [1 if d == dim else n for d, n in enumerate(y.shape)])
    values, constants = (start, y), held((start, y)) | {0}
    return call.typed("concatenate", lambda ts: rules.concatenate(ts, dim, y.dtype_name, constants), *values)
