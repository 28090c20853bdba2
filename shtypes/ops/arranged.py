"""Arranges the elements of a sharded dim anew: what devices send each other, and how what arrives is assembled.

For ``x[::-1]`` of 8 elements on 2 devices, ``origin`` is ``[[0, 7], [0, 6], ..., [0, 0]]``: element 0 of the result is
element 7 of source 0. Device 0 needs elements 7, 6, 5, 4, which device 1 has at the places 3, 2, 1, 0 of its shard. So
one permute exchanges all shards, and each device reverses what it gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.caches import Static
from shtypes.core.array import Array
from shtypes.core.collective import once
from shtypes.ops.shards import Axes, along, axis_size, full, joined, of_device, part, ppermute, type_of
from shtypes.types import dtypes


class Shard(NamedTuple):
    """A value whose dim is sharded in blocks, of which the last may be padded.

    Attributes:
        x: The blocks, varying.
        size: The global size of the dim.
        widen: The value is ``widen(x)``, such as a pad of another dim; it is applied after the blocks are sent.
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


class _Exchange(NamedTuple):
    """What devices send each other of some sources. A place is an index into a device's shard.

    Attributes:
        sources: The numbers of the sources, whose shards are joined.
        places: For each element of the result, its place in the shards of its source's device.
        at_of: The elements of the result that each pair of devices, sender and receiver, exchanges.
        places_of: Their places in the sender's shard.
        rounds: The pairs of each permute.
    """

    sources: Sequence[int]
    places: np.ndarray
    at_of: dict[tuple[int, int], np.ndarray]
    places_of: dict[tuple[int, int], np.ndarray]
    rounds: list[_Pairs]

    @classmethod
    def of(cls, sources: Sequence[int], sizes: Sequence[int], origin: np.ndarray, n: int) -> _Exchange:
        """The exchange of some sources; each of ``n`` devices gets an even share of the result.

        Args:
            sources: The numbers of the sources.
            sizes: For each source, the size of its shards; 0 if it is not sharded.
            origin: As for `arranged`.
            n: The number of devices.
        """
        starts = np.zeros(len(sizes), np.int64)
        starts[list(sources)] = np.cumsum([0, *(sizes[k] for k in sources)])[:-1]
        at = np.flatnonzero(np.isin(origin[:, 0], sources))
        senders, local = np.divmod(origin[at, 1], np.array(sizes)[origin[at, 0]])
        places = np.full(len(origin), -1)
        places[at] = starts[origin[at, 0]] + local
        pair_of = senders * n + at * n // len(origin)
        at_of = {divmod(pair, n): at[pair_of == pair] for pair in np.unique(pair_of).tolist()}
        places_of = {pair: np.unique(places[i]) for pair, i in at_of.items()}
        return cls(sources, places, at_of, places_of, _rounds({pair: len(i) for pair, i in places_of.items()}, n))

    @property
    def sent(self) -> int:
        """How many elements a device sends."""
        return sum(
            max(len(self.places_of[pair]) for pair in pairs) for pairs in self.rounds if pairs[0][0] != pairs[0][1]
        )


class _Part(NamedTuple):
    """A value, the elements of the result in it, their places there, and the devices that have them, not zeros."""

    x: Any
    at: np.ndarray
    places: np.ndarray
    holders: Sequence[int]


class _Fill(NamedTuple):
    """The one value of some elements of the result."""

    value: Any
    where: np.ndarray


def _exchanges(sources: Sequence[Any], origin: np.ndarray, dim: int, n: int) -> list[_Exchange]:
    """The exchanges of shards that send least: one of each source, or one of all; what stays is of each source."""
    sizes = [type_of(x.x).shape[dim] if isinstance(x, Shard) else 0 for x in sources]
    shards = [k for k, size in enumerate(sizes) if size]
    groupings = ([[k] for k in shards], [shards])
    candidates = [[_Exchange.of(ks, sizes, origin, n) for ks in grouping] for grouping in groupings]
    best = min(candidates, key=lambda exchanges: sum(x.sent for x in exchanges))
    rounds = [(x, pairs) for x in candidates[0] for pairs in x.rounds if pairs[0][0] == pairs[0][1]]
    rounds += [(x, pairs) for x in best for pairs in x.rounds if pairs[0][0] != pairs[0][1]]
    return [x._replace(rounds=[pairs]) for x, pairs in rounds]


def elements_sent(sources: Sequence[Any], origin: np.ndarray, dim: int, n: int) -> int:
    """How many elements along a dim a device sends for `arranged`."""
    return sum(x.sent for x in _exchanges(sources, origin, dim, n))


@of_device("take")
def _taken(pool: Any, device: Any, table: Static, n: int, dim: int) -> Any:
    """Looks up a device's row of a table of places in the pool; negative places give arbitrary elements."""
    places = np.frombuffer(table.value, np.int64).reshape(n, -1)
    count = places.shape[1]
    starts = (places - np.arange(count)).max(1, where=places >= 0, initial=0)
    in_a_row = np.all((places < 0) | (places == np.add.outer(starts, np.arange(count))))
    if in_a_row and max(starts) + count <= pool.shape[dim]:  # which XLA computes with what reads it
        return lax.dynamic_slice_in_dim(pool, jnp.asarray(starts)[device], count, dim)
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
    """The elements at a device's row of a table of places in a pool, and a mask of those that are zero already.

    Slices and pads where the places are the same on all devices and lie in few runs, and looks up the rest.

    Args:
        pool: The source of the elements.
        device: The index of the device.
        table (devices, size): Places, negative where a device has no element.
        lacking (devices, pool): Where a device's pool has zeros, because it got no element there.
        dim: The dim.
    """
    n, per_device = table.shape
    common = table.max(0)  # the place on all devices that have an element, outside of first:end
    differing = np.flatnonzero(((table >= 0) & (table != common)).any(0))
    first, end = (int(differing[0]), int(differing[-1]) + 1) if len(differing) else (0, 0)
    common[first:end] = -1
    if np.array_equal(common, np.arange(lacking.shape[1])):
        return pool, lacking
    runs = _runs(common)
    if 2 * (end - first) > per_device or len(runs) > _MOST_RUNS or (common < 0).all():
        return _taken(pool, device, Static(table.tobytes()), n, dim), np.zeros_like(table, bool)
    slices = [_spread(pool, Static(run.tobytes()), dim) for run in runs]
    y = joined(slices, dim) if len(runs) > 1 else slices[0]
    zeros = (common < 0) | lacking[:, common]
    zeros[:, first:end] = False
    if first < end:
        y = _put(y, _taken(pool, device, Static(table[:, first:end].tobytes()), n, dim), first, dim)
    return y, zeros


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
    return arranged_together(device, sources, [origin], dim, axes)[0]


def arranged_together(
    device: Any, sources: Sequence[Any], origins: Sequence[np.ndarray], dim: int, axes: Axes
) -> Sequence[Array]:
    """Values as `arranged` makes each, which are sent together; none of several has sources that are widened."""
    arrays = [x.x if isinstance(x, Shard) else x for x in sources]
    values = [x for x in arrays if not np.isscalar(x)]
    key = (
        *[origin.tobytes() for origin in origins],
        dim,
        axes,
        *[repr(x) if np.isscalar(x) else isinstance(x, Shard) and (x.widen or True) for x in sources],
    )
    results: Sequence[Array] = once(lambda: _arranged(device, sources, origins, dim, axes), *values, key=key)
    return results


def together(origins: Sequence[np.ndarray], n: int) -> np.ndarray:
    """The origin of values as one, of which each of ``n`` devices has its share of each."""
    return np.concatenate([each.reshape(n, -1, 2) for each in origins], 1).reshape(-1, 2)


def _arranged(
    device: Any, sources: Sequence[Any], origins: Sequence[np.ndarray], dim: int, axes: Axes
) -> Sequence[Array]:
    arrays = [x.x if isinstance(x, Shard) else x for x in sources]
    if keys := [x.dtype for x in arrays if not np.isscalar(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]:
        words = [x if np.isscalar(x) else _words(x) for x in arrays]  # JAX pads no keys
        of_words = [Shard(w, x.size) if isinstance(x, Shard) else w for x, w in zip(sources, words, strict=True)]
        impl = dtypes.key_impl(dtypes.from_numpy(keys[0]))
        return [_as_keys(x, impl) for x in _arranged(device, of_words, origins, dim, axes)]
    if any(isinstance(x, Shard) and x.widen for x in sources):
        (origin,) = origins
        return [_widened(device, sources, origin, dim, axes)]
    n = axis_size(device, axes)
    origin = together(origins, n)
    parts: list[_Part] = []
    fills = [_Fill(0, origin[:, 0] < 0)]
    for k, (source, x) in enumerate(zip(sources, arrays, strict=True)):
        i = np.flatnonzero(origin[:, 0] == k)
        if not getattr(x, "ndim", 0):
            fills.append(_Fill(x, origin[:, 0] == k))
        elif not isinstance(source, Shard):
            parts += [_Part(x, i, origin[i, 1], range(n))] if len(i) else []
    for exchange in _exchanges(sources, origin, dim, n):
        shards = [arrays[k] for k in exchange.sources]
        x = shards[0] if len(shards) == 1 else joined(shards, dim)
        for pairs in exchange.rounds:
            sent, (first, *_) = _sent(exchange.places_of, pairs, n), pairs
            moves = first[0] != first[1]
            piece, _ = _assembled(x, device, sent, np.zeros((n, type_of(x).shape[dim]), bool), dim)
            piece = ppermute(piece, axes, tuple(pairs)) if moves else piece
            slots = [np.searchsorted(sent[a][sent[a] >= 0], exchange.places[exchange.at_of[a, b]]) for a, b in pairs]
            at = np.concatenate([exchange.at_of[pair] for pair in pairs])
            parts.append(_Part(piece, at, np.concatenate(slots), [b for _, b in pairs] if moves else range(n)))
    ends = np.cumsum([0, *(len(each) // n for each in origins)]).tolist()
    return [_of_parts(device, _some(sources), parts, fills, range(*pair), n, dim) for pair in itertools.pairwise(ends)]


def _of_parts(
    device: Any, like: Any, parts: Sequence[_Part], fills: Sequence[_Fill], columns: range, n: int, dim: int
) -> Array:
    """A result of some columns of what each device has of all results: joins parts, and fills what has one value."""
    count, width = len(columns), len(fills[0].where) // n
    if not count:
        return part(like, 0, 0, dim)  # type: ignore[no-any-return]
    own = np.full((n, width), -1)
    own[:, columns] = np.arange(n * count).reshape(n, count)
    at = own.reshape(-1)
    placed = [(p, at[p.at]) for p in parts]
    parts = [_Part(p.x, to[to >= 0], p.places[to >= 0], p.holders) for p, to in placed if (to >= 0).any()]
    if not parts:  # only zeros and scalars
        zeros = full(like, count, dim, 0)
        parts.append(_Part(zeros, np.arange(n * count), np.tile(np.arange(count), n), range(n)))
    parts.sort(key=lambda each: int((each.at % count).min()))  # in the order of the result, so that a slice can do
    starts = np.cumsum([0, *(p.x.shape[dim] for p in parts)])
    table, lacking = np.full(n * count, -1), np.zeros((n, starts[-1]), bool)
    for p, start in zip(parts, starts, strict=False):
        table[p.at] = start + p.places
        lacking[np.isin(range(n), p.holders, invert=True), start : start + p.x.shape[dim]] = True
    pool = parts[0].x if len(parts) == 1 else joined([p.x for p in parts], dim)
    y: Array
    y, zero = _assembled(pool, device, table.reshape(n, count), lacking, dim)
    for i, fill in enumerate(fills):
        where = fill.where[at >= 0] & (i > 0 or ~zero.reshape(-1))
        y = _filled(y, fill.value, device, Static(where.tobytes()), n, dim) if where.any() else y
    return y


def _widened(device: Any, sources: Sequence[Any], origin: np.ndarray, dim: int, axes: Axes) -> Array:
    """`_arranged` where some sources are widened: those of one shape are arranged together, and widened then."""
    by_shape: dict[Any, list[int]] = {}  # the sources, by the shape before they are widened; () for others
    fills: list[tuple[Any, np.ndarray]] = [(0, origin[:, 0] < 0)]
    for k, x in enumerate(sources):
        shape = type_of(x.x).shape if isinstance(x, Shard) and x.widen else ()
        if isinstance(x, Shard) or np.ndim(x):
            by_shape.setdefault((*shape[:dim], *shape[dim + 1 :]), []).append(k)
        else:
            fills.append((x, origin[:, 0] == k))
    y: Any = None
    n = axis_size(device, axes)
    for ks in by_shape.values():
        from_group, group = np.isin(origin[:, 0], ks), [x if k in ks else 0 for k, x in enumerate(sources)]
        group = [x._replace(widen=None) if isinstance(x, Shard) else x for x in group]
        z = arranged(device, group, np.where(from_group[:, None], origin, -1), dim, axes)
        for k in ks:
            widen = getattr(sources[k], "widen", None)
            wide, where = (widen(z), origin[:, 0] == k) if widen else (z, from_group)
            fills, y = (fills, wide) if y is None else ([*fills, (wide, where)], y)
    for value, where in fills:
        y = _filled(y, value, device, Static(where.tobytes()), n, dim) if where.any() else y
    return y  # type: ignore[no-any-return]


def _some(sources: Sequence[Any]) -> Any:
    """A value with the dims of the sources."""
    return next(y for x in sources if getattr(y := x.x if isinstance(x, Shard) else x, "ndim", 0))
