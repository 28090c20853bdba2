"""Ops that move elements and compute nothing: dims in another order, reshape, broadcast, joins. Pure."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from shtypes import rules
from shtypes.editor.call import Call, Number, arrays, constant, held
from shtypes.editor.dtypes import OF_NUMBER, promoted
from shtypes.editor.ops.elementwise import dtype_of
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.registry import op
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.reduce import normal_dims
from shtypes.types import ShType
from shtypes.types.dtypes import is_key


def ints(given: Any) -> tuple[int, ...]:
    """One integer or several, as a tuple."""
    found = given if isinstance(given, (tuple, list)) else (given,)
    if not all(type(n) is int for n in found):
        raise Unknown
    return tuple(found)


def one_dim(name: str, x: ShType, dim: Any) -> int:
    """A dim counted from the front."""
    if type(dim) is not int:
        raise Unknown
    return normal_dims(name, x, dim)[0]


# the order of dims


def permuted(call: Call, x: ShType, perm: Sequence[int]) -> ShType:
    """The dims in another order."""
    if tuple(perm) == tuple(range(x.ndim)):
        return x
    return call.typed("transpose", lambda ts: rules.transpose(ts[0], tuple(perm)), x)


@op("transpose")
def _transpose(call: Call) -> ShType:
    x = call.array("a")
    axes = call.static("axes", None)
    given = tuple(range(x.ndim))[::-1] if axes is None else ints(axes)
    return permuted(call, x, [d + x.ndim if -x.ndim <= d < 0 else d for d in given])


def swapped(call: Call, x: ShType, first: Any, second: Any) -> ShType:
    """Two dims in each other's place."""
    i, j = one_dim("swapaxes", x, first), one_dim("swapaxes", x, second)
    perm = list(range(x.ndim))
    perm[i], perm[j] = j, i
    return permuted(call, x, perm)


@op("swapaxes")
def _swapaxes(call: Call) -> ShType:
    return swapped(call, call.array("a"), call.static("axis1"), call.static("axis2"))


@op("matrix_transpose", "linalg.matrix_transpose")
def _matrix_transpose(call: Call) -> ShType:
    return swapped(call, call.array("x"), -1, -2)


def moved_to(call: Call, x: ShType, source: Any, destination: Any) -> ShType:
    """Dims moved to other places."""
    src, dst = ints(source), ints(destination)
    if len(src) != len(dst):
        raise ShardingTypeError(f"`moveaxis` was given {len(src)} dims to move and {len(dst)} places")
    for given in (src, dst):
        normal_dims("moveaxis", x, given)
    src, dst = (tuple(d % x.ndim for d in v) for v in (src, dst))
    perm = [d for d in range(x.ndim) if d not in src]
    for place, dim in sorted(zip(dst, src, strict=True)):
        perm.insert(place, dim)
    return permuted(call, x, perm)


@op("moveaxis")
def _moveaxis(call: Call) -> ShType:
    return moved_to(call, call.array("a"), call.static("source"), call.static("destination"))


@op("rollaxis")
def _rollaxis(call: Call) -> ShType:
    x, start = call.array("a"), call.static("start", 0)
    dim = one_dim("rollaxis", x, call.static("axis"))
    before = start + x.ndim if start < 0 else start
    return moved_to(call, x, dim, before - 1 if dim < before else before)


# shapes


def reshaped(call: Call, x: ShType, shape: Sequence[int]) -> ShType:
    """The elements in order in another shape.

    Where sizes are not known the rule may deal axes in one way and the program in another, or refuse what fits.
    """
    new = tuple(shape)
    same = len(new) == x.ndim and all(n in (m, -1) for n, m in zip(new, x.shape, strict=True))
    if same and (-1 not in new or (new.count(-1) == 1 and x.size > 0)):
        return x
    unknown = any(map(stands_for_a_name, x.shape)) or not call.knows(a for d in x.dims for a in d.axes)
    try:
        found = call.typed("reshape", lambda ts: rules.reshape(ts[0], new), x)
    except ShardingTypeError:
        if unknown:
            raise Unknown from None
        raise
    if unknown and any(d.axes and d not in x.dims for d in found.dims):
        raise Unknown
    return found


def raveled(call: Call, x: ShType) -> ShType:
    """All dims as one."""
    return reshaped(call, x, (-1,))


@op("reshape")
def _reshape(call: Call) -> ShType:
    x = call.array("a")
    if call.static("order", "C") not in ("C", "K", "A"):
        raise Unknown
    sizes = call.statics("sizes")
    given = call.static("shape") if call.has("shape") else sizes[0] if len(sizes) == 1 else sizes
    return finished(call, reshaped(call, x, ints(given)))


@op("ravel")
def _ravel(call: Call) -> ShType:
    if call.static("order", "C") not in ("C", "K", "A"):
        raise Unknown
    return finished(call, raveled(call, call.array("a")))


@op("collapse")
def _collapse(call: Call) -> ShType:
    x = call.array("operand")
    start, stop, _ = slice(call.static("start_dimension"), call.static("stop_dimension", None)).indices(x.ndim)
    return reshaped(call, x, (*x.shape[:start], math.prod(x.shape[start:stop]), *x.shape[stop:]))


def expanded(call: Call, x: ShType, dims: Any) -> ShType:
    """New dims of size 1."""
    places = ints(dims)
    return call.typed("expand_dims", lambda ts: rules.expand(ts[0], places), x)


@op("expand_dims")
def _expand_dims(call: Call) -> ShType:
    return expanded(call, call.array("a"), call.static("axis"))


@op("squeeze")
def _squeeze(call: Call) -> ShType:
    x, axis = call.array("a"), call.static("axis", None)
    dims = None if axis is None else ints(axis)
    if dims == () or (dims is None and 1 not in x.shape):
        return x
    return call.typed("squeeze", lambda ts: rules.squeeze(ts[0], dims), x)


def stretched(call: Call, x: ShType, shape: Sequence[int], dims: Sequence[int], name: str) -> ShType:
    """The value repeated along new dims and those of size 1."""
    if tuple(shape) == x.shape and tuple(dims) == tuple(range(len(shape))):
        return x
    return call.typed(name, lambda ts: rules.broadcast(ts[0], tuple(shape), tuple(dims), name), x)


@op("broadcast_to")
def _broadcast_to(call: Call) -> ShType:
    x, shape = call.array("array", "arr"), ints(call.static("shape"))
    lead = len(shape) - x.ndim
    if lead < 0:
        raise ShardingTypeError(f"{x} cannot be broadcast to {shape}, which has fewer dims")
    return finished(call, stretched(call, x, shape, range(lead, len(shape)), "broadcast_to"))


@op("broadcast_in_dim")
def _broadcast_in_dim(call: Call) -> ShType:
    x, shape = call.array("operand"), ints(call.static("shape"))
    dims = ints(call.static("broadcast_dimensions"))
    return finished(call, stretched(call, x, shape, dims, "broadcast_in_dim"))


@op("broadcast")
def _broadcast(call: Call) -> ShType:
    x = call.array("operand")
    shape = (*ints(call.static("sizes")), *x.shape)
    return finished(call, stretched(call, x, shape, range(len(shape) - x.ndim, len(shape)), "broadcast_to"))


@op("broadcast_arrays")
def _broadcast_arrays(call: Call) -> list[ShType]:
    values = [t for t in call.several("args") if isinstance(t, ShType)]
    if len(values) < len(call.given["args"]):
        raise Unknown
    rank = max(t.ndim for t in values)
    sizes = [{t.shape[d - rank] for t in values if t.ndim >= rank - d} - {1} for d in range(rank)]
    if any(len(several) > 1 for several in sizes):
        raise Unknown
    shape = [min(several, default=1) for several in sizes]
    return [stretched(call, t, shape, range(rank - t.ndim, rank), "broadcast_to") for t in values]


_AT_LEAST: dict[str, tuple[int, Callable[[int], tuple[int, ...]]]] = {
    "atleast_1d": (1, lambda n: (0,)),
    "atleast_2d": (2, lambda n: (0, 1) if n == 0 else (0,)),
    "atleast_3d": (3, lambda n: {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[n]),
}


@op(*_AT_LEAST)
def _at_least(call: Call) -> ShType:
    values = arrays(call.several("arys"))
    if len(values) != 1 or len(call.given["arys"]) != 1:
        raise Unknown
    count, dims = _AT_LEAST[call.name]
    (x,) = values
    return expanded(call, x, dims(x.ndim)) if x.ndim < count else x


# joins


def all_arrays(call: Call, *names: str) -> list[ShType]:
    """The operands of a join, which are arrays and numbers."""
    values = call.listed(*names)
    typed = arrays(values)
    if not typed:
        raise Unknown
    return [constant(typed[0].mesh, OF_NUMBER[v.kind]) if isinstance(v, Number) else v for v in values]


def joined(call: Call, values: Sequence[ShType], dim: Any, dtype: str) -> ShType:
    """The operands one behind the other."""
    if type(dim) is not int or any(is_key(t.dtype_name) for t in values):
        raise Unknown
    constants = held(values)
    return call.typed("concatenate", lambda ts: rules.concatenate(ts, dim, dtype, constants), *values)


def joined_dtype(call: Call, values: Sequence[ShType]) -> str:
    """The dtype of a join."""
    asked = call.static("dtype", None)
    return functools.reduce(promoted, [t.dtype_name for t in values]) if asked is None else dtype_of(asked)


@op("concatenate")
def _concatenate(call: Call) -> ShType:
    values = all_arrays(call, "arrays")
    dtype, axis = joined_dtype(call, values), call.static("axis", 0)
    if axis is None:
        values, axis = [raveled(call, v) for v in values], 0
    return joined(call, values, axis, dtype)


@op("stack")
def _stack(call: Call) -> ShType:
    values = all_arrays(call, "arrays")
    dtype, axis = joined_dtype(call, values), operator.index(call.static("axis", 0))
    constants = held(values)
    return finished(call, call.typed("stack", lambda ts: rules.stack(ts, axis, dtype, constants), *values))
