"""Collectives and per-device functions on typed values, of which the ways of computing across shards consist."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.caches import CACHE_SIZE, Static
from shtypes.context.scope import attribute_set
from shtypes.core import collective
from shtypes.core.array import Array
from shtypes.core.collective import collect, reinterpreted
from shtypes.core.reshard import move
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


@of_device("split")
def in_parts(x: Any, n: int, dim: int) -> Any:
    """Splits a dim into ``n`` parts along a new dim before it."""
    return x.reshape(*x.shape[:dim], n, -1, *x.shape[dim + 1 :])


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
