"""What ways are made of: the shards of a value as varying values, what devices exchange, functions of one device."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.caches import MOST, Static
from shtypes.core.array import Array
from shtypes.core.collective import AxisIndex, collect, reinterpreted
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local
from shtypes.core.reshard import move
from shtypes.ops.arithmetic import add
from shtypes.ops.jax_functions import JaxFunction
from shtypes.rules.local import Op
from shtypes.types import ShType, State
from shtypes.types.policy import replicated

VARYING, INVARIANT = State.VARYING, State.INVARIANT
Axes = tuple[str, ...]


def type_of(x: Any) -> ShType:
    """The sharding type of a typed value."""
    return jax.typeof(x)  # type: ignore[no-any-return]


def axes_of(x: Any, dim: int) -> Axes:
    """The mesh axes that shard a dim."""
    return type_of(x).dims[dim].axes


def placed(x: Any, dim: int, axes: Axes) -> Array:
    """A varying value as the shards of a dim, after the axes that shard it already."""
    t = type_of(x)
    dims, n = list(t.dims), t.mesh.product(axes)
    dims[dim] = dims[dim]._replace(size=dims[dim].size * n, axes=(*dims[dim].axes, *axes))
    return reinterpreted(x, t.replace(dims=dims, states={a: s for a, s in t.beside_dims.items() if a not in axes}))


def pending(x: Any, axes: Axes) -> Array:
    """A varying value as the terms of a pending sum."""
    t = type_of(x)
    for axis in axes:
        t = t.with_axis(axis, State.UNREDUCED)
    return reinterpreted(x, t)


def count(x: Any, axes: Axes) -> int:
    """The number of devices along the axes."""
    return type_of(x).mesh.product(axes)


def index(x: Any, axes: Axes) -> Array:
    """The number of each device along the axes."""
    mesh = type_of(x).mesh
    states = {a: VARYING if a in axes else replicated() for a in mesh.axis_names}
    return local(AxisIndex(axes), out=as_jax_type(ShType(mesh, "i32", [], states)))


class _Thread(threading.local):
    across = ""  # the op that is computed across shards


_thread: Final = _Thread()


@contextlib.contextmanager
def across_shards(op: str) -> Iterator[None]:
    """A scope in which collectives are parts of an op along a sharded dim."""
    outer, _thread.across = _thread.across, op
    try:
        yield
    finally:
        _thread.across = outer


def _collected(op: Op, x: Any) -> Array:
    return collect(replace(op, across=_thread.across), x)


def permuted(x: Any, axes: Axes, pairs: tuple[tuple[int, int], ...]) -> Array:
    """What each device has of another, by pairs of source and destination; zeros where it gets nothing."""
    return _collected(Op("ppermute", axes, VARYING, VARYING, perm=pairs), x)


def sent(x: Any, axes: Axes, hops: int) -> Array:
    """What each device has of the one ``hops`` before it; zeros where there is none."""
    n = count(x, axes)
    return permuted(x, axes, tuple((i, i + hops) for i in range(n) if 0 <= i + hops < n))


def sharded(x: Any, dim: int, axes: Axes) -> Array:
    """A replicated value whose dim is sharded on the axes: each device keeps its part."""
    t = type_of(x)
    for axis in axes:
        t = t.with_axis(axis, State.SHARDED, dim)
    return move(x, t, inserted=True)


def summed(x: Any, axes: Axes) -> Array:
    """The sum of what all devices have, reduced; backward as much is sent."""
    return _collected(Op("psum", axes, VARYING, State.REDUCED), x)


def collected(x: Any, axes: Axes, dim: int) -> Array:
    """What all devices have, along a dim, reduced: its cotangent is scattered."""
    return _collected(Op("all_gather", axes, VARYING, State.REDUCED, dim=dim, tiled=True), x)


def gathered(x: Any, axes: Axes, dim: int) -> Array:
    """What all devices have, along a dim, replicated: nothing is sent backward where it may be invariant."""
    return _collected(Op("all_gather_invariant", axes, VARYING, INVARIANT, dim=dim, tiled=True), x)


def scattered(x: Any, axes: Axes, dim: int) -> Array:
    """The sum of what all devices have, of which each keeps its part of a dim."""
    return _collected(Op("psum_scatter", axes, VARYING, VARYING, dim=dim, tiled=True), x)


def turned(x: Any, axes: Axes, split: int, concat: int) -> Array:
    """The shards of one dim as those of another, by an all-to-all of the parts of a varying value."""
    return _collected(Op("all_to_all", axes, VARYING, VARYING, dim=split, concat=concat, tiled=True), x)


def of_device(name: str) -> Callable[[Callable[..., Any]], JaxFunction]:
    """Makes a plain function one of typed values that each device applies; what is no array is static."""
    return lambda fn: JaxFunction(name, fn, takes_out=False)


def bound(eqn: Any, **params: Any) -> JaxFunction:
    """The primitive of an equation with other parameters, of typed values."""
    return _bound(Static((eqn.primitive, *sorted({**eqn.params, **params}.items()))))


@functools.lru_cache(maxsize=MOST)
def _bound(key: Static) -> JaxFunction:
    primitive, *params = key.value
    return JaxFunction(
        primitive.name, lambda *xs: primitive.bind(*xs, **primitive.get_bind_params(dict(params))), takes_out=False
    )


def along(row: Any, dim: int, ndim: int) -> Any:
    """Plain numbers, each for one element along a dim, to be broadcast."""
    return row.reshape([-1 if d == dim else 1 for d in range(ndim)])


@of_device("slice")
def part(x: Any, start: int, stop: int, dim: int) -> Any:
    """The elements of a dim from ``start`` to ``stop``."""
    return lax.slice_in_dim(x, start, stop, axis=dim)


@of_device("join")
def joined(parts: Sequence[Any], dim: int) -> Any:
    """Values side by side along a dim."""
    return jnp.concatenate(list(parts), axis=dim)


@of_device("fill")
def _filled(x: Any, me: Any, low: int, high: int, value: Any) -> Any:
    """The value where the number of the device is not from ``low`` to before ``high``."""
    return jnp.where((me >= low) & (me < high), x, jnp.asarray(value, x.dtype))


@of_device("pad")
def padded(x: Any, low: int, high: int, dim: int) -> Any:
    """A dim with zeros before and after it."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(low, high, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)])


def _pieces(size: int, n: int, start: int, stop: int) -> list[tuple[int, int, int]]:
    """Of the elements from ``start`` to ``stop`` of a shard, those of each: its distance, and from where to where."""
    spans = [(hop, max(start - hop * size, 0), min(stop - hop * size, size)) for hop in range(1 - n, n)]
    return [(hop, low, high) for hop, low, high in spans if low < high]


def bordered(x: Any, dim: int, axes: Axes, before: int, after: int, fill: Any = 0) -> Array:
    """Shards with elements of their neighbours before and after them, without their own where negative.

    ``fill`` is beyond the ends. Communicates: a permute of the border for each shard that it reaches into.
    """
    size, n = type_of(x).shape[dim], count(x, axes)
    start, stop = -before, size + after
    parts = []
    for hop, low, high in _pieces(size, n, start, stop):
        piece = x if high - low == size else part(x, low, high, dim)
        piece = sent(piece, axes, -hop) if hop else piece
        if hop and not _is_zero(fill):
            piece = _filled(piece, index(x, axes), max(0, -hop), min(n, n - hop), fill)
        parts.append(piece)
    ends = min(stop, (1 - n) * size) - start, stop - max(start, n * size)  # beyond the ends of every device
    first, last = ([full(x, width, dim, fill)] if width > 0 else [] for width in ends)
    parts = [*first, *parts, *last]
    result: Array = parts[0] if len(parts) == 1 else joined(parts, dim)
    return result


@of_device("full")
def full(x: Any, size: int, dim: int, fill: Any) -> Any:
    """A number in the shape of a value, with another size of a dim."""
    return jnp.full([size if d == dim else n for d, n in enumerate(x.shape)], fill, x.dtype)


def unbordered(x: Any, dim: int, axes: Axes, before: int, after: int) -> Array:
    """Shards without their borders, which are added to the shards that they are of: the transpose of `bordered`."""
    size = type_of(x).shape[dim] - before - after
    terms = []
    for hop, low, high in _pieces(size, count(x, axes), -before, size + after):
        at = hop * size + before  # where the shard at this distance lies
        piece = part(x, at + low, at + high, dim)
        back = sent(piece, axes, hop) if hop else piece
        terms.append(padded(back, low, size - high, dim) if high - low < size else back)
    result: Array = functools.reduce(add, terms) if terms else full(x, size, dim, 0)
    return result


def _is_zero(fill: Any) -> bool:
    return isinstance(fill, (int, float)) and fill == 0
