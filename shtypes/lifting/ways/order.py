"""Binary searches, top_k, sorts and unique along a sharded dim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.eqn_frames import is_of_jax
from shtypes._compat.jaxprs import jaxpr_of
from shtypes._compat.plain_programs import Search, search_of
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.positions import Count, place_of
from shtypes.lifting.ways.choice import CALLS, gathered_first, name_of, way
from shtypes.ops.arithmetic import astype
from shtypes.ops.sharded_reductions import as_varying, shard_of
from shtypes.ops.shards import (
    all_gather_invariant,
    all_to_all,
    along,
    as_sharded,
    as_unreduced,
    axes_of,
    axis_index,
    axis_size,
    bound,
    of_device,
    part,
    psum_scatter,
    shift,
    type_of,
)
from shtypes.types import dtypes


def elements_before(a: Any, v: Any, search: Search, dtype: Any = np.int32) -> Any:
    """``jnp.searchsorted`` along a dim of a sorted array; the dims of the queries are the last of the result."""
    f: Callable[..., Any] = functools.partial(jnp.searchsorted, side=search.side)
    a = jnp.moveaxis(a, search.dimension, -1)
    for _ in range(a.ndim - 1 - search.batch_dims):
        f = jax.vmap(f, (0, None))
    for _ in range(search.batch_dims):
        f = jax.vmap(f)
    return f(a, v).astype(dtype)


_counted = of_device("searchsorted")(elements_before)


def _of_queries(v: Any, axes: Sequence[str]) -> list[tuple[int, tuple[str, ...]]] | None:
    """The dims of queries that some axes shard, with their axes; None if one is not sharded by all of these."""
    dims = [(d, axes_of(v, d)) for d in range(type_of(v).ndim)] if is_typed(v) else []
    sharded = [(d, each) for d, each in dims if not {*axes}.isdisjoint(each)]
    return sharded if all({*axes} <= {*each} for _, each in sharded) else None


@way("call_hi_primitive", *CALLS, only=search_of, assumes=True)
def by_counts(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Counts in each shard, to unreduced results: sends nothing. Queries sharded alike are gathered."""
    (a, v), search = operands, search_of(eqn)
    axes = axes_of(a, search.dimension) if search and is_typed(a) else ()
    of_queries = _of_queries(v, axes)
    if not axes or not search or of_queries is None:
        return None
    for d, each in of_queries:
        v = all_gather_invariant(as_varying(v, each), axes, d)
    counts = _counted(as_varying(a, axes), v, search, eqn.outvars[0].aval.dtype)
    first = type_of(a).ndim - 1 - search.batch_dims
    return [as_sharded(psum_scatter(counts, axes, first + d), first + d, each) for d, each in of_queries] or [
        as_unreduced(counts, axes)
    ]


@way("call_hi_primitive", *CALLS, only=search_of)
def of_complete(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers the sorted array where its shards cannot be counted in, and not what each step of a search reads."""
    (a, v), search = operands, search_of(eqn)
    if not search or not is_typed(a) or _of_queries(v, axes_of(a, search.dimension)) is not None:
        return None
    return gathered_first(eqn, operands, [search.dimension])


@of_device("shifted")
def _shifted(places: Any, device: Any, size: int) -> Any:
    """Indices in a shard as indices in the global dim."""
    return places + (device * size).astype(places.dtype)


_taken = of_device("take")(functools.partial(jnp.take_along_axis, mode="clip"))


@way("top_k", "approx_top_k")
def first_of_each(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Gathers the top ``k`` of each shard: ``k (devices - 1)`` values and indices of each row; backward nothing."""
    (x,), p = operands, eqn.params
    t = type_of(x)
    dim, k = int(p.get("axis", p.get("reduction_dimension", -1))) % t.ndim, int(p["k"])
    axes = axes_of(x, dim)
    size = t.local_shape[dim]
    if not axes or k >= size or not p.get("aggregate_to_topk", True):
        return None
    values, places = bound(eqn)(as_varying(x, axes))
    places = _shifted(places, axis_index(x, axes), size)
    best, at = bound(eqn)(all_gather_invariant(values, axes, dim))
    places = all_gather_invariant(places, axes, dim)  # on their own: indices that are not used are not sent
    return [best, _taken(places, at, dim)]


def _along(row: Any, x: Any, dim: int) -> Any:
    """Broadcasts a vector along a dim to the shape of a value."""
    return jnp.broadcast_to(along(row, dim, x.ndim), x.shape)


@of_device("sort")
def _sorted(xs: Sequence[Any], dim: int, keys: int) -> Any:
    return lax.sort(list(xs), dim, num_keys=keys)


def _largest(dtype: Any) -> Any:
    """The value of a dtype that sorts last."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.asarray(complex(np.nan, np.nan), dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        nan = np.asarray(np.nan).astype(dtype)
        return nan if np.isnan(nan) else jnp.finfo(dtype).max  # type: ignore[no-untyped-call]  # the narrowest have none
    return np.asarray(dtype == np.dtype(bool) or jnp.iinfo(dtype).max, dtype)  # type: ignore[no-untyped-call]


@of_device("deal")
def _dealt(x: Any, dim: int, n: int, is_key: bool) -> Any:
    """Every ``n``-th element of a sorted shard for each device, concatenated; the shard ends with padding."""
    fill = lax.convert_element_type(_largest(x.dtype) if is_key else 0, x.dtype)
    x = lax.pad(x, fill, [(0, -size % n if d == dim else 0, 0) for d, size in enumerate(x.shape)])
    rows = x.reshape(*x.shape[:dim], -1, n, *x.shape[dim + 1 :])
    return jnp.swapaxes(rows, dim, dim + 1).reshape(x.shape)


def _padded(indices: Any, is_padding: Any, size: int) -> Any:
    """Indices below ``size`` in the narrowest dtype that has a greater value, which padding has."""
    dtype = np.min_scalar_type(size)
    indices = indices.astype(dtype)
    return indices if is_padding is None else jnp.where(is_padding, dtype.type(np.iinfo(dtype).max), indices)


@of_device("places")
def _slots(x: Any, device: Any, dim: int, size: int, n: int) -> Any:
    """The index of each element along a dim, dealt to ``n`` devices; the greatest value for padding."""
    nth = jnp.arange(x.shape[dim]) % (x.shape[dim] // n)
    is_padding = _along(nth * n + device >= size, x, dim) if size % n else None
    return _padded(lax.broadcasted_iota(np.int32, x.shape, dim), is_padding, x.shape[dim])


@of_device("places")
def _numbers(own: Any, dim: int, size: int, n: int, dealt: bool) -> Any:
    """The global indices of elements, from those in the shards of the senders, or in the columns that these dealt."""
    width, numbers = own.shape[dim] // n, own.astype(np.int32)
    sender = _along(jnp.repeat(jnp.arange(n), width), own, dim)
    if not dealt:
        sender, numbers = numbers // width, numbers % width * n + sender
    return _padded(sender * size + numbers, own == np.iinfo(own.dtype).max if size % n else None, n * size)


@of_device("merge")
def _merged(
    xs: Sequence[Any], before: Sequence[Any], after: Sequence[Any], device: Any, dim: int, keys: int, n: int
) -> Any:
    """Merges shards of which only neighbours overlap with the ends of their neighbours."""
    size, reach = xs[0].shape[dim], before[0].shape[dim]

    def cut(xs: Sequence[Any], start: int, stop: int) -> list[Any]:
        return [lax.slice_in_dim(x, start, stop, axis=dim) for x in xs]

    def merged(low: Sequence[Any], high: Sequence[Any]) -> Any:
        return lax.sort([jnp.concatenate(pair, dim) for pair in zip(low, high, strict=True)], dim, num_keys=keys)

    head, tail = cut(xs, 0, reach), cut(xs, size - reach, size)
    first = cut(merged(before, head), reach, 2 * reach)
    last = cut(merged(tail, after), 0, reach)
    first = [jnp.where(device > 0, a, b) for a, b in zip(first, head, strict=True)]
    last = [jnp.where(device < n - 1, a, b) for a, b in zip(last, tail, strict=True)]
    parts = zip(first, cut(xs, reach, size - reach), last, strict=True)
    return [jnp.concatenate(each, dim) for each in parts]


@of_device("slice")
def _without_padding(x: Any, before: Any, device: Any, dim: int, size: int) -> Any:
    """A shard of the elements that are not padding, from a shard with it and the end of the one before."""
    padding, reach = x.shape[dim] - size, before.shape[dim]
    return lax.dynamic_slice_in_dim(jnp.concatenate([before, x], dim), reach - device * padding, size, dim)


@way("sort")
def by_columns(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sorts shards by columnsort: two all-to-alls of the shard, and borders of ``(n - 1) ** 2`` rows to both sides.

    On two devices, with ``7 1 8 2 | 6 3 5 4``::

        sorted      1 2 7 8 | 3 4 5 6
        dealt       1 7 3 5 | 2 8 4 6    device d gets every second element of each shard, from its d-th on
        sorted      1 3 5 7 | 2 4 6 8
        sent back   1 3 2 4 | 5 7 6 8    device d gets the d-th part of each shard
        sorted      1 2 3 4 | 5 6 7 8    and the ends of neighbours are merged

    Where ties matter, the second half of it sends an index beside each element: where equal elements differ otherwise,
    in other operands, in gradients, zeros in their signs. Sorted shards are dealt, sorted, and returned: then
    no element is further than ``(n - 1) ** 2`` from its place
    (Leighton, Tight bounds on the complexity of parallel sorting, 1985).
    """
    for k in range(int(eqn.params["num_keys"]), len(operands)):
        if _counts_along(operands[k], int(eqn.params["dimension"]), eqn.invars[k].aval):
            return sorted_by_columns(eqn.params, [*operands[:k], *operands[k + 1 :]], eqn.invars[k].aval, k)
    return sorted_by_columns(eqn.params, operands, None)


def _counts_along(x: Any, dim: int, aval: Any) -> bool:
    """Whether a value is an iota, as argsort sorts along: it orders ties, and is sent in the narrowest dtype."""
    fits = jnp.issubdtype(aval.dtype, np.integer) and np.iinfo(aval.dtype).max >= aval.shape[dim] - 1
    return bool(fits and place_of(x) == Count(dim))


def sorted_by_columns(p: Any, operands: Sequence[Any], iota: Any, k: int = 0) -> Sequence[Any] | None:
    """Sorts operands by columns; None where they cannot be.

    ``iota``: the type of an iota that is sorted along, which is no operand and is result ``k``; None without one.
    """
    dim, keys = int(p["dimension"]), int(p["num_keys"])
    axes = next((axes_of(x, dim) for x in operands if is_typed(x) and axes_of(x, dim)), ())
    if not all(map(is_typed, operands)) or not axes or any(axes_of(x, dim) not in (axes, ()) for x in operands):
        return None
    n = axis_size(operands[0], axes)
    size, reach = type_of(operands[0]).shape[dim] // n, (n - 1) ** 2
    if n < 2 or size < 2 * reach or not type_of(operands[0]).size:
        return None

    xs = [shard_of(x, dim, axes) for x in operands]
    device = axis_index(operands[0], axes)
    ties_differ = keys < len(xs) or any(jnp.issubdtype(type_of(x).dtype, jnp.inexact) for x in xs)
    has_slots = iota is None and (p["is_stable"] or size % n > 0) and ties_differ
    if iota is not None:
        xs = [*xs[:keys], _slots(xs[0], device, dim, size, 1), *xs[keys:]]
        keys += 1
    xs = [all_to_all(_dealt(x, dim, n, i < keys), axes, dim, dim) for i, x in enumerate(_sorted(xs, dim, keys))]
    if iota is not None:
        xs[keys - 1] = _numbers(xs[keys - 1], dim, size, n, True)
    if has_slots:
        xs = [*xs[:keys], _slots(xs[0], device, dim, size, n), *xs[keys:]]
        keys += 1
    xs = [all_to_all(x, axes, dim, dim) for x in _sorted(xs, dim, keys)]
    if has_slots:
        xs[keys - 1] = _numbers(xs[keys - 1], dim, size, n, False)
    xs = _sorted(xs, dim, keys)
    padded = type_of(xs[0]).shape[dim]
    before = [shift(part(x, padded - reach, padded, dim), axes, 1) for x in xs]
    after = [shift(part(x, 0, reach, dim), axes, -1) for x in xs]
    xs = list(_merged(xs, before, after, device, dim, keys, n))
    if has_slots or iota is not None:
        numbers = xs.pop(keys - 1)
        xs = xs if iota is None else [*xs[:k], numbers, *xs[k:]]
    if padded > size:
        start = padded - (n - 1) * (padded - size)
        xs = [_without_padding(x, shift(part(x, start, padded, dim), axes, 1), device, dim, size) for x in xs]
    if iota is not None:
        xs[k] = astype(xs[k], dtypes.from_numpy(iota.dtype))
    return [as_sharded(x, dim, axes) for x in xs]


@of_device("unique")
def _differs(x: Any, before: Any, device: Any, equal_nan: bool) -> Any:
    """Which elements of a shard differ from the one before; the first of the dim does."""

    def differ(a: Any, b: Any) -> Any:
        return (a != b) & ~(equal_nan & jnp.isnan(a) & jnp.isnan(b))

    return jnp.concatenate([differ(x[:1], before) | (device == 0), differ(x[1:], x[:-1])])


def _is_unique(eqn: Any) -> bool:
    """Whether an equation is a call of what `jnp.unique` sorts by."""
    return name_of(eqn) == "unique_sorted_mask" and is_of_jax(eqn.params["jaxpr"])


@way(*CALLS, only=_is_unique)
def first_of_their_kind(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Sorts a row and masks the first of equal elements, as `jnp.unique` does: sends one element beside the sort."""
    (x,), results = operands, [v.aval for v in eqn.outvars]  # of the row, its mask and places those that are read
    masks, dtype = [i for i, t in enumerate(results) if t.dtype == bool], eqn.invars[0].aval.dtype
    of_bools = int(jnp.issubdtype(dtype, jnp.bool_))
    if results[0].ndim != 1 or len(masks) < 1 + of_bools or jnp.issubdtype(dtype, jnp.complexfloating):
        return None
    equal_nan = any(e.primitive.name == "not" for e in jaxpr_of(eqn.params["jaxpr"]).eqns)
    sort = {"dimension": 0, "num_keys": 1, "is_stable": True}
    places = results[masks[-1] + 1 :]
    found = sorted_by_columns(sort, [x], places[0] if places else None, 1)
    axes = axes_of(x, 0)
    if found is None:
        return None
    y = as_varying(found[0], axes)
    size = type_of(y).local_shape[0]
    is_new = _differs(y, shift(part(y, size - 1, size, 0), axes, 1), axis_index(x, axes), equal_nan)
    return [*found[: masks[-1]], as_sharded(is_new, 0, axes), *found[1:]]
