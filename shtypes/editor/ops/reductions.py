"""Sums, means, extremes, and ops along dims that must be whole. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from shtypes import rules
from shtypes.editor.call import Call, Number, held
from shtypes.editor.dtypes import of_mean, of_sum
from shtypes.editor.ops.elementwise import added, chosen, dtype_of, nonlinear, product
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints, one_dim, raveled, reshaped
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.reduce import normal_dims
from shtypes.signatures.pattern import pattern
from shtypes.types import ShType, State
from shtypes.types.dtypes import differentiable, is_key
from shtypes.types.policy import replicated


def _dims(call: Call, x: ShType, default: Any = None, name: str = "axis") -> tuple[int, ...]:
    axis = call.static(name, default)
    return normal_dims(call.name, x, None if axis is None else ints(axis))


def keepdims(call: Call) -> bool:
    """Whether dims that are reduced stay, of size 1."""
    return bool(call.static("keepdims", False))


def summed(call: Call, name: str, x: ShType, dims: tuple[int, ...], keep: bool, dtype: str) -> ShType:
    """The type of a sum over dims."""
    if is_key(x.dtype_name):
        raise Unknown
    return call.typed(name, lambda ts: rules.reduce_sum(ts[0], dims, keep, dtype, name), x)


def _wanted(call: Call, name: str, x: ShType) -> str | None:
    """The dtype to sum in, where it is given; an unreduced operand must not be rounded."""
    given = call.static("dtype", None)
    if given is None:
        return None
    dtype = dtype_of(given)
    if x.axes(State.UNREDUCED):
        call.typed(name, lambda ts: rules.cast(ts[0], dtype, name=name), x)
    return dtype


@op("sum", "reduce_sum")
def _sum(call: Call) -> ShType:
    x = call.array("a", "operand")
    call.only("a", "operand", "axis", "axes", "keepdims", "dtype", "out", "promote_integers")
    if call.name == "reduce_sum":
        dims = _dims(call, x, name="axes")
        return finished(call, summed(call, "sum", x, dims, False, x.dtype_name))
    dims, dtype = _dims(call, x), _wanted(call, "sum", x)
    if not call.static("promote_integers", True):
        raise Unknown
    return finished(call, summed(call, "sum", x, dims, keepdims(call), dtype or of_sum(x.dtype_name)))


@op("count_nonzero")
def _count_nonzero(call: Call) -> ShType:
    x = call.array("a")
    found = x if x.dtype_name == "bool" else nonlinear(call, "not_equal", [x], "bool")
    return finished(call, summed(call, "sum", found, _dims(call, x), keepdims(call), "i32"))


@op("nansum")
def _nansum(call: Call) -> ShType:
    x = call.array("a")
    call.only("a", "axis", "keepdims", "out")
    if not x.differentiable or x.dtype_name[0] == "c":
        raise Unknown
    present = chosen(call, nonlinear(call, "isnan", [x], "bool"), [Number("int", 0), x])
    return finished(call, summed(call, "sum", present, _dims(call, x), keepdims(call), x.dtype_name))


@op("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
def _reduced_by_name(call: Call) -> ShType:
    x = call.array("operand")
    call.only("operand", "axes")
    dims, dtype, name = _dims(call, x, name="axes"), x.dtype_name, call.name.removeprefix("reduce_")
    return call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, False, dtype), x)


@op("mean")
def _mean(call: Call) -> ShType:
    x = call.array("a")
    call.only("a", "axis", "keepdims", "dtype", "out")
    dims, dtype = _dims(call, x), _wanted(call, "mean", x)
    if dtype is not None and not differentiable(dtype):
        raise Unknown
    return finished(call, summed(call, "mean", x, dims, keepdims(call), dtype or of_mean(x.dtype_name)))


def along(call: Call, x: ShType, dims: Sequence[int]) -> ShType:
    """The operand of an op that may communicate along sharded dims where ``out`` says the type of its result."""
    axes = [a for d in dims for a in x.dims[d].axes]
    out = call.static("out", None)
    if not axes or out is None:
        return x
    read = pattern(out)
    if read.dims is None or any(d.open_ended or d.keeps for d in read.dims):
        raise Unknown  # where the other axes are depends on the way
    return x.with_axes(axes, replicated())


def _reduced(call: Call, x: ShType, dims: tuple[int, ...], dtype: str) -> ShType:
    name, keep = call.name, keepdims(call)
    if is_key(x.dtype_name):
        raise Unknown
    x = along(call, x, dims)
    return finished(call, call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, keep, dtype), x))


@op("max", "min", "nanmax", "nanmin", "ptp", "prod", "all", "any", "std", "var", "median", "nanstd", "nanvar")
def _extreme(call: Call) -> ShType:
    x, name = call.array("a"), call.name
    call.only("a", "axis", "keepdims", "out", "ddof", "correction")
    dtype = x.dtype_name
    if name in ("all", "any"):
        dtype = "bool"
    elif name == "prod":
        dtype = of_sum(dtype)
    elif name in ("std", "var", "median", "nanstd", "nanvar"):
        if call.static("out", None) is not None:
            raise Unknown
        if not x.differentiable or dtype[0] == "c":
            raise Unknown
    elif name == "ptp" and dtype == "bool":
        raise Unknown
    dims = _dims(call, x)
    if name in _NEED_ELEMENTS:
        _check_elements(x, dims)
    return _reduced(call, x, dims, dtype)


_NEED_ELEMENTS: Final = frozenset(("max", "min", "nanmax", "nanmin", "ptp", "median"))


def _check_elements(x: ShType, dims: Sequence[int]) -> None:
    """Nothing is known of what is refused for want of elements."""
    if any(not x.shape[d] for d in dims):
        raise Unknown


@op("argmax", "argmin", "nanargmax", "nanargmin")
def _position(call: Call) -> ShType:
    x = call.array("a")
    axis = call.static("axis", None)
    dims, name, keep = normal_dims(call.name, x, axis), call.name, keepdims(call)
    _check_elements(x, dims)
    if name.startswith("nan"):
        return finished(call, call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, keep, "i32"), x))
    return _reduced(call, x, dims, "i32")


@op("nn.logsumexp")
def _logsumexp(call: Call) -> ShType:
    x = call.array("a")
    call.only("a", "axis", "keepdims", "out")
    if not x.differentiable or x.dtype_name[0] == "c":
        raise Unknown
    dims, keep = _dims(call, x), keepdims(call)
    x = along(call, x, dims)
    dtype, name = x.dtype_name, "logsumexp"
    return finished(call, call.typed(name, lambda ts: rules.reduce_nonlinear(name, ts[0], dims, keep, dtype), x))


# along whole dims


def whole(call: Call, name: str, x: ShType, dims: Sequence[int], *, linear: bool, dtype: str = "") -> ShType:
    """The type of an op that acts along dims and keeps the shape."""
    if is_key(x.dtype_name) and not linear:
        raise Unknown
    result = rules.WholeResult(dtype or x.dtype_name, tuple((n, d) for d, n in enumerate(x.shape)))
    places = tuple(sorted(set(dims)))
    return call.typed(name, lambda ts: rules.whole(name, ts[0], places, (result,), linear), x)


def sized(call: Call, name: str, x: ShType, dim: int, size: int, *, linear: bool, dtype: str = "") -> ShType:
    """The type of an op that acts along a dim and gives it another size."""
    sizes = ((size, d) if d == dim else (n, d) for d, n in enumerate(x.shape))
    result = rules.WholeResult(dtype or x.dtype_name, tuple(sizes))
    return call.typed(name, lambda ts: rules.whole(name, ts[0], (dim,), (result,), linear), x)


def resized(
    call: Call, name: str, x: ShType, along: Sequence[int], sizes: Sequence[int], *, linear: bool = True
) -> ShType:
    """The type of an op that acts along dims and gives them other sizes."""
    result = rules.WholeResult(x.dtype_name, tuple((n, d) for d, n in enumerate(sizes)))
    return call.typed(name, lambda ts: rules.whole(name, ts[0], tuple(along), (result,), linear), x)


@op("nn.softmax", "nn.log_softmax", "nn.standardize")
def _softmax(call: Call) -> ShType:
    x = call.array("x")
    call.only("x", "axis", "out", "epsilon", "algorithm")
    if not x.differentiable:
        raise Unknown
    dims = _dims(call, x, -1)
    x = along(call, x, dims)
    return finished(call, whole(call, call.name.removeprefix("nn."), x, dims, linear=False))


@op("nn.rms_norm", "nn.layer_norm")
def _norm(call: Call) -> ShType:
    x = call.array("x")
    factors = [call.array(n) for n in ("scale", "bias") if call.given_as_value(n)]
    if not x.differentiable or held(factors):
        raise Unknown
    dims = _dims(call, x, -1)
    y = whole(call, call.name.removeprefix("nn."), x, dims if call.static("out", None) is None else (), linear=False)
    if call.given_as_value("scale"):
        y = product(call, [y, factors[0]])
    return finished(call, added(call, "add", [y, factors[-1]]) if call.given_as_value("bias") else y)


@op("cumsum", "cumprod")
def _cumulative(call: Call) -> ShType:
    x, axis = call.array("a"), call.static("axis", None)
    x, axis = (raveled(call, x), 0) if axis is None else (x, axis)
    asked = call.static("dtype", None)
    dtype = of_sum(x.dtype_name) if asked is None else dtype_of(asked)
    name = call.name
    return whole(call, name, x, [one_dim(name, x, axis)], linear=name == "cumsum", dtype=dtype)


@op("cummax", "cummin", "cumlogsumexp")
def _running(call: Call) -> ShType:
    x, name = call.array("operand"), call.name.removeprefix("")
    if x.dtype_name == "bool" or (name == "cumlogsumexp" and not x.differentiable):
        raise Unknown
    return whole(call, name, x, [one_dim(name, x, call.static("axis", 0))], linear=False)


@op("sort", "argsort")
def _sort(call: Call) -> ShType:
    x, axis, name = call.array("a"), call.static("axis", -1), call.name
    call.only("a", "axis", "stable", "descending")
    x, axis = (raveled(call, x), 0) if axis is None else (x, axis)
    return whole(call, name, x, [one_dim(name, x, axis)], linear=False, dtype="i32" if name == "argsort" else "")


@op("flip", "fliplr", "flipud", "rev")
def _flip(call: Call) -> ShType:
    x = call.array("m", "operand")
    given: Any = {"fliplr": 1, "flipud": 0}.get(call.name, call.static("axis", None))
    given = call.static("dimensions") if call.name == "rev" else given
    dims = normal_dims("flip", x, None if given is None else ints(given))
    return whole(call, "flip", x, dims, linear=True)


@op("roll")
def _roll(call: Call) -> ShType:
    x, axis = call.array("a"), call.static("axis", None)
    shift = ints(call.static("shift"))
    if axis is None:
        flat = raveled(call, x)
        size = flat.shape[0]
        moves = size and any(n % size for n in shift)  # all the way around is where it was
        return reshaped(call, whole(call, "roll", flat, [0] if moves else [], linear=True), x.shape)
    dims = ints(axis)
    if len(shift) not in (1, len(dims)):
        raise Unknown
    places = [one_dim("roll", x, d) for d in dims]
    shifts = shift * len(dims) if len(shift) == 1 else shift
    moving = [d for d, n in zip(places, shifts, strict=True) if x.shape[d] and n % x.shape[d]]
    return whole(call, "roll", x, moving, linear=True) if moving else x


@op("repeat")
def _repeat(call: Call) -> ShType:
    x, count, axis = call.array("a"), call.static("repeats"), call.static("axis", None)
    call.only("a", "repeats", "axis", "out")
    if type(count) is not int:
        raise Unknown
    x, axis = (raveled(call, x), 0) if axis is None else (x, axis)
    dim = one_dim("repeat", x, axis)
    return finished(call, call.typed("repeat", lambda ts: rules.repeat(ts[0], dim, count), x))


#: Of more parts nothing is said: a type for each would take long.
_MOST_PARTS: Final = 4096
_MOST_UNSTACKED: Final = 64


def _parts(call: Call, x: ShType) -> tuple[int, list[int]]:
    """The dim along which a value is split, and the sizes of the parts."""
    own: Any = {"vsplit": 0, "hsplit": min(x.ndim - 1, 1), "dsplit": 2}.get(call.name, call.static("axis", 0))
    dim = one_dim("split", x, own)
    given, size = call.static("indices_or_sections"), x.shape[dim]
    if type(given) is int:
        if stands_for_a_name(size) or given > _MOST_PARTS:
            whole(call, "split", x, [dim], linear=True)
            raise Unknown
        if not 0 < given <= _MOST_PARTS or size % given:
            raise Unknown
        return dim, [size // given] * given
    ends = ints(given)
    if any(n < 0 for n in ends) or list(ends) != sorted(ends) or (ends and ends[-1] > size):
        raise Unknown
    edges = [0, *ends, size]
    return dim, [b - a for a, b in itertools.pairwise(edges)]


@op("average")
def _average(call: Call) -> ShType:
    x = call.array("a")
    call.only("a", "axis", "keepdims", "out")
    return finished(call, summed(call, "mean", x, _dims(call, x), keepdims(call), of_mean(x.dtype_name)))


@op("linalg.inv", "linalg.pinv", "linalg.cholesky", "linalg.det", "linalg.eigvalsh", "linalg.matrix_power")
def _matrices(call: Call) -> ShType:
    x, name = call.array("a"), call.name.removeprefix("linalg.")
    call.only("a", "n")
    if call.has("n") and type(call.static("n")) is not int:
        raise Unknown
    if x.ndim < 2 or x.shape[-1] != x.shape[-2] or x.dtype_name not in ("f32", "f64"):
        raise Unknown
    both = (x.ndim - 2, x.ndim - 1)
    if name not in ("det", "eigvalsh"):
        return whole(call, name, x, both, linear=False)
    kept = enumerate(x.shape[: -2 if name == "det" else -1])
    result = rules.WholeResult(x.dtype_name, tuple((n, d) for d, n in kept))
    return call.typed(name, lambda ts: rules.whole(name, ts[0], both, (result,), False), x)


@op("split", "hsplit", "vsplit", "dsplit")
def _split(call: Call) -> list[ShType]:
    x = call.array("ary")
    dim, sizes = _parts(call, x)
    shapes = ([(n, d) if d == dim else (m, d) for d, m in enumerate(x.shape)] for n in sizes)
    results = tuple(rules.WholeResult(x.dtype_name, tuple(shape)) for shape in shapes)
    return list(call.typed_all("split", lambda ts: rules.whole("split", ts[0], (dim,), results, True), [x]))


@op("array_split")
def _array_split(call: Call) -> list[ShType]:
    x, count = call.array("ary"), call.static("indices_or_sections")
    if type(count) is not int:
        dim, sizes = _parts(call, x)
    else:
        dim = one_dim("array_split", x, call.static("axis", 0))
        size = x.shape[dim]
        if not 0 < count <= _MOST_PARTS or stands_for_a_name(size):
            raise Unknown
        sizes = [size // count + (i < size % count) for i in range(count)]
    shapes = ([(n, d) if d == dim else (m, d) for d, m in enumerate(x.shape)] for n in sizes)
    results = tuple(rules.WholeResult(x.dtype_name, tuple(shape)) for shape in shapes)
    return list(call.typed_all("array_split", lambda ts: rules.whole("array_split", ts[0], (dim,), results, True), [x]))


@op("top_k")
def _top_k(call: Call) -> list[ShType]:
    x, k = call.array("operand"), call.static("k")
    if type(k) is not int or x.dtype_name == "bool":
        raise Unknown
    dim = one_dim("top_k", x, call.static("axis", -1))
    shape = tuple((k, d) if d == dim else (n, d) for d, n in enumerate(x.shape))
    results = tuple(rules.WholeResult(dtype, shape) for dtype in (x.dtype_name, "i32"))
    return list(call.typed_all("top_k", lambda ts: rules.whole("top_k", ts[0], (dim,), results, False), [x]))


@op("unstack", parameters="x axis")
def _unstack(call: Call) -> tuple[ShType, ...] | list[ShType]:
    x = call.array("x")
    if 0 in (x.ndim, x.size):
        raise Unknown
    dim = one_dim("unstack", x, call.static("axis", 0))
    size = x.shape[dim]
    result = rules.WholeResult(x.dtype_name, tuple((n, d) for d, n in enumerate(x.shape) if d != dim))
    one = call.typed("unstack", lambda ts: rules.whole("unstack", ts[0], (dim,), (result,), True), x)
    return (one,) * size if size <= _MOST_UNSTACKED else [one]
