"""Collectives and per-device functions on typed values, from which the ways of computing across shards are made."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.caches import CACHE_SIZE, Static
from shtypes.context.scope import attribute_set
from shtypes.core import collective
from shtypes.core.array import Array
from shtypes.core.collective import collect, once, reinterpreted
from shtypes.core.reshard import move
from shtypes.ops.jax_functions import JaxFunction
from shtypes.rules.local import Op
from shtypes.types import ShType, State, dtypes
from shtypes.types.policy import replicated

VARYING, INVARIANT = State.VARYING, State.INVARIANT
Axes = tuple[str, ...]


def type_of(x: Any) -> ShType:
    """The sharding type of a typed value."""
    return jax.typeof(x)  # type: ignore[no-any-return]


def axes_of(x: Any, dim: int) -> Axes:
    """The mesh axes that shard a dim."""
    return type_of(x).dims[dim].axes


def as_sharded(x: Any, dim: int, axes: Axes) -> Array:
    """Reinterprets a varying value as shards of a dim, minor to the axes that shard it already."""
    t = type_of(x)
    dims, n = list(t.dims), t.mesh.product(axes)
    dims[dim] = dims[dim]._replace(size=dims[dim].size * n, axes=(*dims[dim].axes, *axes))
    return reinterpreted(x, t.replace(dims=dims, states={a: s for a, s in t.beside_dims.items() if a not in axes}))


def as_unreduced(x: Any, axes: Axes) -> Array:
    """Reinterprets a varying value as the terms of an unreduced one."""
    return reinterpreted(x, type_of(x).with_axes(axes, State.UNREDUCED))


def axis_size(x: Any, axes: Axes) -> int:
    """The number of devices along the axes."""
    return type_of(x).mesh.product(axes)


def axis_index(x: Any, axes: Axes) -> Array:
    """The index of the device along the axes."""
    return collective.axis_index(type_of(x).mesh, axes, replicated())


class _Thread(threading.local):
    across = ""  # the op that the collectives belong to


_thread: Final = _Thread()


def across_shards(op: str) -> contextlib.AbstractContextManager[str]:
    """A scope in which collectives are parts of an op along a sharded dim."""
    return attribute_set(_thread, "across", op)


def _collected(op: Op, x: Any) -> Array:
    return collect(replace(op, across=_thread.across), x)


def ppermute(x: Any, axes: Axes, pairs: tuple[tuple[int, int], ...]) -> Array:
    """Sends values between devices by pairs of source and destination; zeros where nothing arrives."""
    return _collected(Op("ppermute", axes, VARYING, VARYING, perm=pairs), x)


def shift(x: Any, axes: Axes, hops: int) -> Array:
    """Shifts values by ``hops`` devices; zeros where nothing arrives."""
    n = axis_size(x, axes)
    return ppermute(x, axes, tuple((i, i + hops) for i in range(n) if 0 <= i + hops < n))


def sharded(x: Any, dim: int, axes: Axes) -> Array:
    """Shards a dim of a replicated value over the axes: each device keeps its slice, and nothing is sent."""
    t = type_of(x)
    for axis in axes:
        t = t.with_axis(axis, State.SHARDED, dim)
    return move(x, t, inserted=True)


def psum(x: Any, axes: Axes, state: State = State.REDUCED) -> Array:
    """Sums over devices: to a reduced value, which sends as much backward, or an invariant one, which sends nothing."""
    return _collected(Op("psum", axes, VARYING, state), x)


def all_gather(x: Any, axes: Axes, dim: int) -> Array:
    """Gathers values along a dim, to a reduced value: its cotangent is reduce-scattered."""
    return _collected(Op("all_gather", axes, VARYING, State.REDUCED, dim=dim, tiled=True), x)


def all_gather_invariant(x: Any, axes: Axes, dim: int) -> Array:
    """Gathers values along a dim, to an invariant value: nothing is sent backward."""
    return _collected(Op("all_gather_invariant", axes, VARYING, INVARIANT, dim=dim, tiled=True), x)


def psum_scatter(x: Any, axes: Axes, dim: int) -> Array:
    """Sums over devices and scatters the sum along a dim."""
    return _collected(Op("psum_scatter", axes, VARYING, VARYING, dim=dim, tiled=True), x)


def all_to_all(x: Any, axes: Axes, split: int, concat: int) -> Array:
    """Splits a dim into a block for each device and concatenates the received blocks along another."""
    return _collected(Op("all_to_all", axes, VARYING, VARYING, dim=split, concat=concat, tiled=True), x)


def of_device(name: str) -> Callable[[Callable[..., Any]], JaxFunction]:
    """Makes a JAX function one that each device applies to its values; arguments that are no arrays are static."""
    return lambda fn: JaxFunction(name, fn, takes_out=False)


def bound(eqn: Any, *, call: bool = False, **params: Any) -> JaxFunction:
    """An equation's primitive with other parameters, on typed values; with ``call``, it has the ways of calls."""
    return _bound(Static((eqn.primitive, *sorted({**eqn.params, **params}.items()))), call)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _bound(key: Static, call: bool) -> JaxFunction:
    primitive, *params = key.value

    def bind(*xs: Any) -> Any:
        return primitive.bind(*xs, **primitive.get_bind_params(dict(params)))

    return JaxFunction(primitive.name, jax.jit(bind) if call else bind, takes_out=False)


def along(row: Any, dim: int, ndim: int) -> Any:
    """A vector along a dim, in a shape that broadcasts to ``ndim`` dims."""
    return row.reshape([-1 if d == dim else 1 for d in range(ndim)])


@of_device("slice")
def part(x: Any, start: int, stop: int, dim: int, step: int = 1) -> Any:
    """The elements of a dim from ``start`` to ``stop``."""
    return lax.slice_in_dim(x, start, stop, step, dim)


@of_device("join")
def joined(parts: Sequence[Any], dim: int) -> Any:
    """Concatenates values along a dim."""
    return jnp.concatenate(list(parts), axis=dim)


@of_device("full")
def full(x: Any, size: int, dim: int, fill: Any) -> Any:
    """A constant array of the shape of a value, with another size of a dim."""
    return jnp.full([size if d == dim else n for d, n in enumerate(x.shape)], fill, x.dtype)


def least_or_most(dtype: Any, *, most: bool) -> Any:
    """The identity of a maximum or minimum: an infinity, or the extreme value of dtypes without one."""
    infinity, name = (np.inf, "max") if most else (-np.inf, "min")
    if jnp.issubdtype(dtype, jnp.bool_):
        return most
    if jnp.issubdtype(dtype, jnp.integer):
        return getattr(jnp.iinfo(dtype), name)  # type: ignore[no-untyped-call]
    if np.isinf(np.float32(infinity).astype(dtype)):
        return infinity
    return getattr(jnp.finfo(dtype), name)  # type: ignore[no-untyped-call]


class Shard(NamedTuple):
    """A value whose dim is sharded in blocks, of which the last may be padded.

    Attributes:
        x: The blocks, varying.
        size: The global size of the dim.
        widen: What makes some elements of the value of those of the blocks, as a pad of another dim: it is applied to
            what has been sent.
    """

    x: Any
    size: int
    widen: Callable[[Any], Any] | None = None

    @property
    def whole(self) -> Any:
        """The blocks of the value."""
        return self.x if self.widen is None else self.widen(self.x)


#: The most slices of which a value is concatenated: beyond that it is looked up.
_MOST_RUNS: Final = 8

#: Pairs of source and destination, each of them once, that one permute serves, or that stay on their devices.
_Pairs = list[tuple[int, int]]


def _rounds(counts: dict[tuple[int, int], int], n: int) -> list[_Pairs]:
    """The permutes that send so many elements from sources to destinations; what stays on its device comes first.

    Pairs join the first permute that has neither end of theirs: by distance or longest first, whichever sends less.
    """
    staying = [(a, b) for a, b in counts if a == b]
    longest = sorted(counts.keys() - {*staying}, key=lambda pair: (-counts[pair], pair))

    def joined(order: Sequence[tuple[int, int]]) -> list[_Pairs]:
        rounds: list[_Pairs] = []
        for a, b in order:
            free = (pairs for pairs in rounds if all(a != c and b != d for c, d in pairs))
            if (pairs := next(free, None)) is None:
                rounds.append([(a, b)])
            else:
                pairs.append((a, b))
        return rounds

    def sent(rounds: list[_Pairs]) -> int:
        return sum(max(counts[pair] for pair in pairs) for pairs in rounds)

    by_distance = joined(sorted(longest, key=lambda pair: (pair[1] - pair[0]) % n))
    return [*([staying] if staying else []), *min(by_distance, joined(longest), key=sent)]


def _sent(places_of: dict[tuple[int, int], np.ndarray], pairs: _Pairs, n: int) -> np.ndarray:
    """The places that each source sends, the same for all where those have one stride; negative for none."""
    union = np.unique(np.concatenate([places_of[pair] for pair in pairs]))
    slots = np.arange(union[0], union[-1] + 1, int(np.gcd.reduce(np.diff(union))) or 1)
    most = max(len(places_of[pair]) for pair in pairs)
    if len(slots) <= most or pairs[0][0] == pairs[0][1]:
        return np.tile(slots, (n, 1))
    rows = np.full((n, most), -1)
    for a, b in pairs:
        rows[a, : len(places_of[a, b])] = places_of[a, b]
    return rows


@of_device("take")
def _taken(pool: Any, device: Any, table: Static, n: int, dim: int) -> Any:
    """Looks up a device's row of a table of places in the pool; negative places give arbitrary elements."""
    places = np.frombuffer(table.value, np.int64).reshape(n, -1)
    return jnp.take(pool, jnp.asarray(np.maximum(places, 0))[device], axis=dim, mode="clip")


@of_device("spread")
def _spread(pool: Any, places: Static, dim: int) -> Any:
    """A strided slice of the pool, dilated and padded with zeros; ``places`` are the same on all devices."""
    table = np.frombuffer(places.value, np.int64)
    at = np.flatnonzero(table >= 0)
    first, last = sorted(table[at[[0, -1]]].tolist())
    gap, step = (int(row[1] - row[0]) if len(at) > 1 else 1 for row in (at, table[at]))
    y = lax.slice_in_dim(pool, first, last + 1, abs(step), dim)
    y = lax.rev(y, [dim]) if step < 0 else y
    pads = (int(at[0]), int(len(table) - 1 - at[-1]), gap - 1)
    return lax.pad(y, jnp.zeros((), y.dtype), [pads if d == dim else (0, 0, 0) for d in range(y.ndim)])


def _runs(places: np.ndarray) -> list[np.ndarray]:
    """Splits a table of places into slices of a pool: one, if all have one stride; else such of successive places."""
    at = np.flatnonzero(places >= 0)
    steps = np.stack([np.diff(at), np.diff(places[at])])
    if steps.size and (steps[:, :1] == steps).all() and steps[1, 0]:
        return [places]
    return np.split(places, at[1:][(steps != 1).any(0)])


@of_device("put")
def _put(x: Any, part: Any, start: int, dim: int) -> Any:
    """Updates a slice that begins at ``start``."""
    return lax.dynamic_update_slice_in_dim(x, part, start, dim)


@of_device("fill")
def _filled(x: Any, value: Any, device: Any, table: Static, n: int, dim: int) -> Any:
    """``value`` where the device's row of a table of bools is true, else ``x``."""
    return jnp.where(in_table(table, device, n, x.ndim, dim), jnp.asarray(value, x.dtype), x)


def in_table(table: Static, device: Any, n: int, ndim: int, dim: int) -> Any:
    """A device's row of a table of bools, along a dim."""
    return along(jnp.asarray(np.frombuffer(table.value, bool).reshape(n, -1))[device], dim, ndim)


def _assembled(pool: Any, device: Any, table: np.ndarray, lacking: np.ndarray, dim: int) -> tuple[Any, np.ndarray]:
    """Takes the elements at a device's row of a table of places in a pool, and a mask of those that are zero already.

    Slices and pads where the places are the same on all devices and lie in few runs, and looks up the rest.

    Args:
        pool: The source of the elements.
        device: The index of the device.
        table (devices, size): Places, negative where a device has no element.
        lacking (devices, pool): Where the pool of a device has zeros.
        dim: The dim.
    """
    n, per_device = table.shape
    of_any = table.max(0)
    differing = np.flatnonzero(((table >= 0) & (table != of_any)).any(0))
    first, end = (int(differing[0]), int(differing[-1]) + 1) if len(differing) else (0, 0)
    of_any[first:end] = -1
    if np.array_equal(of_any, np.arange(lacking.shape[1])):
        return pool, lacking
    runs = _runs(of_any)
    if 2 * (end - first) > per_device or len(runs) > _MOST_RUNS or (of_any < 0).all():
        return _taken(pool, device, Static(table.tobytes()), n, dim), np.zeros_like(table, bool)
    slices = [_spread(pool, Static(run.tobytes()), dim) for run in runs]
    y = joined(slices, dim) if len(runs) > 1 else slices[0]
    given = (of_any < 0) | lacking[:, of_any]
    given[:, first:end] = False
    if first < end:
        y = _put(y, _taken(pool, device, Static(table[:, first:end].tobytes()), n, dim), first, dim)
    return y, given


@of_device("key_data")
def _words(keys: Any) -> Any:
    """The words of random keys, along a dim behind theirs."""
    return jax.random.key_data(keys)


@of_device("wrap_key_data")
def _as_keys(words: Any, impl: str) -> Any:
    """The random keys with these words."""
    return jax.random.wrap_key_data(words, impl=impl)


def origin_in(source: int, places: np.ndarray) -> np.ndarray:
    """The origin, as `arranged` takes it, of the elements at some places of one source."""
    return np.stack([np.full_like(places, source), places], -1)


def arranged(device: Any, sources: Sequence[Any], origin: np.ndarray, dim: int, axes: Axes) -> Array:
    """A varying value whose elements along a dim come from sources; sends one permute for each distance.

    Args:
        device: The index of the device along the axes.
        sources: Shards, replicated arrays and scalars; at least one has the dim.
        origin: For each element of the global dim, which source it comes from and its place there; negative for zero.
        dim: The dim.
        axes: The axes that shard it.
    """
    arrays = [x.x if isinstance(x, Shard) else x for x in sources]
    values = [x for x in arrays if not np.isscalar(x)]
    key = (
        origin.tobytes(),
        dim,
        axes,
        *[repr(x) if np.isscalar(x) else isinstance(x, Shard) and (x.widen or True) for x in sources],
    )
    result: Array = once(lambda: _arranged(device, sources, arrays, origin, dim, axes), *values, key=key)
    return result


def _arranged(
    device: Any, sources: Sequence[Any], arrays: Sequence[Any], origin: np.ndarray, dim: int, axes: Axes
) -> Array:
    if keys := [x.dtype for x in arrays if not np.isscalar(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]:
        words = [x if np.isscalar(x) else _words(x) for x in arrays]  # JAX pads no keys
        of_words = [Shard(w, x.size) if isinstance(x, Shard) else w for x, w in zip(sources, words, strict=True)]
        moved: Array = _as_keys(
            _arranged(device, of_words, words, origin, dim, axes), dtypes.key_impl(dtypes.from_numpy(keys[0]))
        )
        return moved
    n = axis_size(device, axes)
    per_device = len(origin) // n
    if not per_device:
        return part(_some(sources), 0, 0, dim)  # type: ignore[no-any-return]
    #: Values, the elements of the result that they hold, where, and the devices that have them: others have zeros.
    parts: list[tuple[Any, np.ndarray, np.ndarray, Sequence[int]]] = []
    fills: list[tuple[Any, np.ndarray]] = [(0, origin[:, 0] < 0)]
    for k, (source, x) in enumerate(zip(sources, arrays, strict=True)):
        i = np.flatnonzero(origin[:, 0] == k)
        places = origin[i, 1]
        if not getattr(x, "ndim", 0):
            fills.append((x, origin[:, 0] == k))
        elif not isinstance(source, Shard):
            parts += [(x, i, places, range(n))] if len(i) else []
        else:
            size = type_of(x).shape[dim]
            pair_of = places // size * n + i // per_device
            at_of = {divmod(pair, n): np.flatnonzero(pair_of == pair) for pair in np.unique(pair_of).tolist()}
            places_of = {pair: np.unique(places[at] % size) for pair, at in at_of.items()}
            for pairs in _rounds({pair: len(needed) for pair, needed in places_of.items()}, n):
                sent, (first, *_) = _sent(places_of, pairs, n), pairs
                moves = first[0] != first[1]
                piece, _ = _assembled(x, device, sent, np.zeros((n, size), bool), dim)
                piece = ppermute(piece, axes, tuple(pairs)) if moves else piece
                piece = source.widen(piece) if source.widen else piece
                slots = [np.searchsorted(sent[a][sent[a] >= 0], places[at_of[a, b]] % size) for a, b in pairs]
                at = np.concatenate([at_of[pair] for pair in pairs])
                parts.append((piece, i[at], np.concatenate(slots), [b for _, b in pairs] if moves else range(n)))
    if not parts:  # only zeros and scalars
        parts.append(
            (
                full(_some(sources), per_device, dim, 0),
                np.arange(n * per_device),
                np.tile(np.arange(per_device), n),
                range(n),
            )
        )
    parts.sort(key=lambda each: int((each[1] % per_device).min()))  # in the order of the result, so that a slice can do
    starts = np.cumsum([0, *(x.shape[dim] for x, *_ in parts)])
    table, lacking = np.full(n * per_device, -1), np.zeros((n, starts[-1]), bool)
    for (x, i, places, having), start in zip(parts, starts, strict=False):
        table[i] = start + places
        lacking[np.isin(range(n), having, invert=True), start : start + x.shape[dim]] = True
    pool = parts[0][0] if len(parts) == 1 else joined([x for x, *_ in parts], dim)
    y: Array
    y, given = _assembled(pool, device, table.reshape(n, per_device), lacking, dim)
    fills[0] = 0, fills[0][1] & ~given.reshape(-1)
    for value, where in fills:
        y = _filled(y, value, device, Static(where.tobytes()), n, dim) if where.any() else y
    return y


def _some(sources: Sequence[Any]) -> Any:
    """A value with the dims of the sources."""
    return next(y for x in sources if getattr(y := x.whole if isinstance(x, Shard) else x, "ndim", 0))


@of_device("share")
def _shared(x: Any, device: Any, starts: Sequence[int], count: int, dims: Sequence[int], flat: int) -> Any:
    """``count`` elements of the last ``flat`` dims of a transpose, from a start that depends on the device."""
    y = jnp.transpose(x, dims)
    y = y.reshape(*y.shape[: y.ndim - flat], -1)
    return lax.dynamic_slice_in_dim(y, jnp.asarray(starts)[device], count, y.ndim - 1)


@of_device("join")
def _unshared(x: Any, pieces: Sequence[Any], shape: Sequence[int], dims: Sequence[int]) -> Any:
    """The transpose of slices of the last dim, reshaped."""
    every = [lax.slice_in_dim(x, start, stop, axis=x.ndim - 1) for start, stop in pieces]
    return jnp.transpose(jnp.concatenate(every, -1).reshape(shape), dims)


def of_all(x: Any, first: Sequence[int], share: Fraction, size: int, dim: int, axes: Axes) -> Array:
    """A dim of global ``size`` that the devices do not divide, complete on all of them.

    Sends ``devices - 1`` shares of its elements.

    Args:
        x: What each device has: at least the elements from ``d * share`` to ``(d + 1) * share`` of the dim.
        first: The index of the first element of each device along the dim.
        share: The part of the dim of each device; the last ones may have less.
        size: The size of the dim.
        dim: The dim.
        axes: The axes along which it is divided.
    """
    t, n = type_of(x), len(first)
    free = [d for d in range(t.ndim) if d != dim and not t.dims[d].axes]
    order = [*(d for d in range(t.ndim) if t.dims[d].axes), dim, *free]
    row = math.prod(t.shape[d] for d in free)
    bounds = [min(int(d * share * row), size * row) for d in range(n + 1)]
    count = max(stop - start for start, stop in itertools.pairwise(bounds))
    starts = [min(bounds[d] - first[d] * row, t.shape[dim] * row - count) for d in range(n)]
    offsets = [d * count - first[d] * row - starts[d] for d in range(n)]
    pieces = [(bounds[d] + offsets[d], bounds[d + 1] + offsets[d]) for d in range(n)]
    shares = _shared(x, axis_index(x, axes), starts, count, order, 1 + len(free))
    shape = [size if d == dim else t.shape[d] for d in order]
    every = all_gather(shares, axes, t.ndim - 1 - len(free))
    return _unshared(every, pieces, shape, np.argsort(order).tolist())  # type: ignore[no-any-return]
