"""Values with elements put in, left out or put elsewhere, at places that are known. Nothing here communicates."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import astype
from shtypes.ops.create import zeros
from shtypes.ops.diagonals import diag
from shtypes.ops.dispatch import as_ints, dtype_name, is_number, is_typed, lift, meeting
from shtypes.ops.elementwise import equal
from shtypes.ops.gather import scatter
from shtypes.ops.index import getitem
from shtypes.ops.joins import concatenate
from shtypes.ops.lookup import take
from shtypes.ops.ranges import broadcasted_iota
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.select import where
from shtypes.ops.shape import broadcast_in_dim, broadcast_to, expand_dims, ravel, reshape
from shtypes.ops.whole import apply_whole, function


@public
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """Values put behind others, as `jax.numpy.append`; typed as `concatenate`."""
    a, b = meeting([arr, values])
    return concatenate([ravel(a), ravel(b)], 0) if axis is None else concatenate([a, b], axis)


def _known(name: str, obj: Any, size: int) -> Any:
    """Positions that are known when it is traced, as numpy has them."""
    if is_typed(obj) or isinstance(obj, jax.core.Tracer):
        raise ShardingTypeError(f"`{name}` takes positions that are known when it is traced")
    return np.arange(size)[obj] if isinstance(obj, slice) else np.asarray(obj)


def _flat(arr: Any, axis: int | None, name: str) -> tuple[Any, int]:
    ((x,), _) = lift([arr])
    if axis is None:
        return ravel(x), 0
    return x, normalize_dims(axis, jax.typeof(x).ndim, name)[0]


@public
def delete(arr: ArrayLike, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Array:
    """The value without some positions of a dim, as `jax.numpy.delete`; the positions must be known.

    Args:
        arr (...): A value; every state is kept, and the dim must be whole.
        obj: Positions: integers, a slice, or a mask.
        axis: The dim; by default the value is taken as one dim.
        assume_unique_indices: Accepted for compatibility; ignored.

    Communicates: nothing. Transpose: the cotangent with zeros at these positions.
    """
    x, dim = _flat(arr, axis, "delete")
    size = jax.typeof(x).shape[dim]
    kept = np.delete(np.arange(size), _known("delete", obj, size))
    return _rows("delete", x, kept, dim)


def _rows(name: str, x: Any, places: Any, dim: int) -> Array:
    """Known positions of a dim, which must be whole."""
    fn = function(name, _taken, linear=True, places=tuple(places.tolist()), dim=dim)
    return apply_whole(name, fn, x, [dim])


def _taken(x: Any, places: tuple[int, ...], dim: int) -> Any:
    return jnp.take(x, np.asarray(places, np.int32), dim, mode="clip")


@public
def insert(arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None) -> Array:
    """Values put in before positions of a dim, as `jax.numpy.insert`; the positions must be known.

    Args:
        arr (...): A value; the dim must be whole.
        obj: Positions: integers or a slice.
        values (...): What to put in, in the dtype of ``arr``; typed as the parts of `concatenate`.
        axis: The dim; by default the value is taken as one dim.

    Communicates: nothing.
    """
    x, dim = _flat(arr, axis, "insert")
    t = jax.typeof(x)
    size = t.shape[dim]
    at = _known("insert", obj, size)
    places = np.where(at < 0, at + size, at)
    count = max(places.size, 1)
    ((new,), _) = lift([values if not is_number(values) else np.asarray(values, t.dtype)])
    new = astype(new, t.dtype)
    if places.ndim == 0 and jax.typeof(new).ndim == t.ndim and axis is not None:
        count = jax.typeof(new).shape[dim]
        places = np.full(count, places)
    elif places.ndim == 0 and jax.typeof(new).ndim and axis is None:
        count = jax.typeof(new).size
        places = np.full(count, places)
    elif places.ndim == 0 and jax.typeof(new).ndim:
        new = expand_dims(new, dim)
    shape = list(t.shape)
    shape[dim] = count
    new = broadcast_to(new, tuple(shape))
    order = np.argsort(np.concatenate([np.arange(size) * 2 + 1, places.ravel() * 2]), kind="stable")
    return take(concatenate([x, new], dim), order.astype(np.int32), dim, mode="clip")


@public
def resize(a: ArrayLike, new_shape: Any) -> Array:
    """The elements in order, as often as they fit into another shape, as `jax.numpy.resize`; they must be whole."""
    shape = as_ints(new_shape, "the shape of `resize`")
    ((a,), _) = lift([a])
    size, wanted = jax.typeof(a).size, math.prod(shape)
    if not size:
        return zeros(shape, jax.typeof(a).dtype)
    if wanted == size:
        return reshape(a, shape)
    return reshape(_rows("resize", ravel(a), np.arange(wanted) % size, 0), shape)


@public
def compress(
    condition: Any, a: ArrayLike, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Array:
    """The positions of a dim where a known mask holds, as `jax.numpy.compress`; the dim must be whole."""
    x, dim = _flat(a, axis, "compress")
    mask = _known("compress", condition, jax.typeof(x).shape[dim])
    if size is not None:
        raise ShardingTypeError("`compress` needs no size for a known mask")
    return getitem(x, (*[slice(None)] * dim, np.nonzero(mask)[0]))


@public
def choose(a: ArrayLike, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """At each element the choice of that number, as `jax.numpy.choose`; typed as `where`, choice by choice.

    Args:
        a (...): Integers.
        choices: Values; shapes broadcast.
        out: Not supported.
        mode: ``"clip"`` or ``"wrap"``; ``"raise"`` cannot be known.

    Communicates: nothing.
    """
    if mode not in ("clip", "wrap") or out is not None:
        raise ShardingTypeError('`choose` needs mode="clip" or mode="wrap"', why="an error would depend on values")
    options = (
        list(choices) if isinstance(choices, (list, tuple)) else [getitem(choices, i) for i in range(len(choices))]
    )
    ((number,), _) = lift([a])
    picked = options[-1]
    number = number % len(options) if mode == "wrap" else number
    for i in reversed(range(len(options) - 1)):
        picked = where(number <= i, options[i], picked)
    return picked


@public
def put_along_axis(
    arr: ArrayLike, indices: Any, values: ArrayLike, axis: int | None = None, inplace: bool = False, *, mode: Any = None
) -> Array:
    """One position of a dim replaced for each place of the other dims, as `jax.numpy.put_along_axis`.

    Per axis: the other dims of the value, of the positions and of what is put there run together, as in
    `take_along_axis`. Where the dim itself is sharded each device changes its own elements; the positions and what is
    put there must be whole along it.

    Args:
        arr (..., n, ...): A value.
        indices (..., m, ...): Integers.
        values (..., m, ...): What is put there; shapes broadcast.
        axis: The dim; by default the value is taken as one dim.
        inplace: Must be False.
        mode: As for ``x.at[...]``.

    Communicates: nothing.
    """
    if inplace:
        raise ShardingTypeError("`put_along_axis` makes a new value", hints=["inplace=False"])
    shape = jax.typeof(lift([arr])[0][0]).shape
    x, dim = _flat(arr, axis, "put_along_axis")
    ((ids,), _) = lift([indices])
    ids = ravel(ids) if axis is None else ids
    size = jax.typeof(x).shape[dim]
    others = tuple(d for d in range(jax.typeof(x).ndim) if d != dim)
    places = tuple(jax.typeof(ids).shape[d] if d == dim else n for d, n in enumerate(jax.typeof(x).shape))
    ids = broadcast_to(where(ids < 0, ids + size, ids) if size else ids, places)
    values = np.asarray(values, jax.typeof(x).dtype) if is_number(values) else values
    # The other dims of all three run together: a sharded one stays so.
    numbers = jax.lax.ScatterDimensionNumbers((), (dim,), (dim,), others, others)
    updates = broadcast_to(meeting([values, x])[0], places)
    return reshape(scatter(x, expand_dims(ids, -1), updates, numbers, mode=mode), shape)


@public
def fill_diagonal(a: ArrayLike, val: Any, wrap: bool = False, *, inplace: bool = False) -> Array:
    """The main diagonal replaced by numbers, as `jax.numpy.fill_diagonal`; any dim may be sharded.

    Args:
        a (n, m): A matrix, or an array of equal dims.
        val: A number, or a vector of as many as the diagonal has.
        wrap: Not supported.
        inplace: Must be False.

    Communicates: nothing. Transpose: the cotangent with zeros on the diagonal.
    """
    if inplace or wrap:
        raise ShardingTypeError("`fill_diagonal` makes a new value, and knows no `wrap`", hints=["inplace=False"])
    x, *row = meeting([a] if is_number(val) else [a, val])
    shape = jax.typeof(x).shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise ShardingTypeError(f"`fill_diagonal` needs a matrix or equal dims, not {jax.typeof(x)}")
    index = [broadcasted_iota(np.int32, shape, d) for d in range(len(shape))]
    on = equal(index[0], index[1])
    for other in index[2:]:
        on = on & equal(index[0], other)
    val = row[0] if row else val
    if row and jax.typeof(val).ndim:
        count = min(shape)
        val = getitem(val, slice(0, count))
        rest = np.zeros(shape[-1] - count, jax.typeof(val).dtype)
        val = broadcast_to(val if not rest.size else concatenate([val, rest], 0), shape)
    return where(on, val, x)


@public
def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """The matrix with all elements on diagonal ``k``, as `jax.numpy.diagflat`; see `diag`."""
    return diag(ravel(v), k)


@public
def ix_(*args: Any) -> tuple[Array, ...]:
    """Vectors of positions that span a grid, as `jax.numpy.ix_`."""
    vectors, _ = lift([np.asarray(a) if not hasattr(a, "dtype") else a for a in args])
    if any(jax.typeof(v).ndim != 1 for v in vectors):
        raise ShardingTypeError(f"`ix_` takes vectors, not {', '.join(str(jax.typeof(v)) for v in vectors)}")
    vectors = [v if jax.typeof(v).size else astype(v, dtype_name(jnp.int_)) for v in vectors]
    count = len(vectors)
    shapes = [[jax.typeof(v).shape[0] if d == i else 1 for d in range(count)] for i, v in enumerate(vectors)]
    return tuple(broadcast_in_dim(v, shape, (i,)) for i, (v, shape) in enumerate(zip(vectors, shapes, strict=True)))


@public
def ravel_multi_index(
    multi_index: Any, dims: Sequence[int], mode: str = "clip", order: str = "C", *, dtype: Any = None
) -> Array:
    """Positions in the dims as one, as `jax.numpy.ravel_multi_index`, with ``mode`` ``"clip"`` or ``"wrap"``.

    ``dtype`` is that of the result; by default that of the positions.
    """
    sizes = tuple(map(operator.index, dims))
    if mode not in ("clip", "wrap") or order not in ("C", "F") or len(multi_index) != len(sizes):
        raise ShardingTypeError(
            f"`ravel_multi_index` needs {len(sizes)} positions, mode='clip' or 'wrap', order='C' or 'F'"
        )
    pairs = list(zip(multi_index, sizes, strict=True))
    flat: Any = 0
    for ids, size in pairs if order == "C" else pairs[::-1]:
        ((at,), _) = lift([ids])
        at = at if dtype is None else astype(at, dtype)
        at = at % size if mode == "wrap" else at.clip(0, size - 1)
        flat = flat * size + at
    position: Array = flat
    return position


@public
def unravel_index(indices: Any, shape: Sequence[int]) -> tuple[Array, ...]:
    """One position as positions in the dims, as `jax.numpy.unravel_index`; those out of range are brought into it.

    Raises:
        ShardingTypeError: the positions are no integers, or no array of this shape has positions.
    """
    sizes = (operator.index(shape),) if isinstance(shape, int) else tuple(map(operator.index, shape))
    ((rest,), _) = lift([np.asarray(indices) if is_number(indices) else indices])
    total = int(np.prod(sizes))
    if not jnp.issubdtype(jax.typeof(rest).dtype, jnp.integer) or not total:
        raise ShardingTypeError(
            f"`unravel_index` takes integers in an array that has elements, not {jax.typeof(rest)} in {list(sizes)}"
        )
    rest = where(rest < 0, rest + total, rest).clip(0, total - 1)
    found = []
    for size in reversed(sizes):
        found.append(rest % size)
        rest = rest // size
    return tuple(reversed(found))
