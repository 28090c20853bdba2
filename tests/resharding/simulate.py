"""A mesh of devices as a list of numpy arrays, and what each kind of step does on it, from its definition.

Nothing here imports the code that is judged but for the names of kinds and states: steps are read as data. A *family*
is an array whose first dims are the mesh, so that ``family[i, j]`` is the shard of device (i, j).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from shtypes.resharding import Kind, Step
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh


def all_types(mesh: Mesh, shape: tuple[int, ...], states: str = "RIU", dtype: str = "f32") -> list[ShType]:
    """Every type of that shape: every ordered choice of axes on dims, every state in ``states`` for the others."""
    names, out = mesh.axis_names, []
    for k in range(len(names) + 1):
        for order in itertools.permutations(names, k):
            for cuts in itertools.combinations_with_replacement(range(k + 1), len(shape) - 1):
                ends = (0, *cuts, k)
                axes = [order[i:j] for i, j in itertools.pairwise(ends)]
                if any(n % mesh.product(a) for n, a in zip(shape, axes, strict=True)):
                    continue
                rest = [a for a in names if a not in order]
                dims = [Dim(n, a) for n, a in zip(shape, axes, strict=True)]
                for letters in itertools.product(states, repeat=len(rest)):
                    out.append(ShType(mesh, dtype, dims, {a: State(s) for a, s in zip(rest, letters, strict=True)}))
    return list(dict.fromkeys(out))


def devices(mesh: Mesh) -> list[tuple[int, ...]]:
    """The coordinates of each device."""
    return list(itertools.product(*map(range, mesh.axis_sizes)))


def own_slice(t: ShType, device: tuple[int, ...]) -> tuple[slice, ...]:
    """Which part of the global array a device has, as far as its sharded axes say."""
    at = dict(zip(t.mesh.axis_names, device, strict=True))
    out = []
    for dim in t.dims:
        start, width = 0, dim.size
        for axis in dim.axes:  # major to minor: each axis cuts what the ones before left
            width //= t.mesh.shape[axis]
            start += at[axis] * width
        out.append(slice(start, start + width))
    return tuple(out)


def meaning(t: ShType, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The global value that a family denotes: concatenate, take any (all must agree), sum.

    Raises:
        AssertionError: devices that must hold the same value do not.
    """
    replicated = [t.state(a) in (State.REDUCED, State.INVARIANT) for a in t.mesh.axis_names]
    total = np.zeros(t.shape, family.dtype)
    for device in devices(t.mesh):
        first = tuple(0 if r else i for r, i in zip(replicated, device, strict=True))
        np.testing.assert_array_equal(family[device], family[first], err_msg=f"{t} is not the same on its copies")
        if device == first:
            total[own_slice(t, device)] += family[device]
    return total


def split(t: ShType, value: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A family of type ``t`` that denotes ``value``; pending sums are split at random, in whole numbers."""
    pending = [i for i, a in enumerate(t.mesh.axis_names) if t.state(a) is State.UNREDUCED]
    sizes = [t.mesh.axis_sizes[i] for i in pending]
    terms = rng.integers(-9, 9, (*sizes, *value.shape)).astype(value.dtype)
    flat = terms.reshape(math.prod(sizes), *value.shape)
    flat[0] = value - flat[1:].sum(0)
    family = np.zeros((*t.mesh.axis_sizes, *t.local_shape), value.dtype)
    for device in devices(t.mesh):
        family[device] = terms[tuple(device[i] for i in pending)][own_slice(t, device)]
    return family


def seen_as(t: ShType, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same devices, with the same shards, on the mesh and in the shape of another view of the array."""
    return family.reshape(*t.mesh.axis_sizes, *t.local_shape)


def follow(steps: Iterable[Step], family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What each device holds after some steps."""
    for step in steps:
        family = run(step, seen_as(step.src, family))
    return family


def run(step: Step, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What each device holds after a step. It reads no more of the step than its kind, its axes and its two types."""
    match step.kind:
        case Kind.RELABEL:
            return family
        case Kind.MASK:
            keep = np.ones(step.src.mesh.axis_sizes, bool)
            for axis in step.axes:
                shape = [1] * keep.ndim
                shape[step.src.mesh.index(axis)] = -1
                keep = keep & (np.arange(step.src.mesh.shape[axis]) == 0).reshape(shape)
            return np.where(keep.reshape(*keep.shape, *(1,) * step.src.ndim), family, 0)
        case Kind.SLICE:
            return _cut(step.src, step.dst, family)
        case Kind.PLACE:
            return _put(step.src, step.dst, family)
        case Kind.ALL_REDUCE:
            return _sum(step, family)
        case Kind.REDUCE_SCATTER:
            return _cut(step.src, step.dst, _sum(step, family))
        case Kind.ALL_GATHER:
            return _sum(step, _put(step.src, step.dst, family))
        case Kind.ALL_TO_ALL:
            between = without(step.src, step.axes)
            return _cut(between, step.dst, _sum(step, _put(step.src, between, family)))
        case Kind.PERMUTE:
            return exchange(step, family)


def exchange(step: Step, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sends whole shards, or pieces of them, along the pairs of a permute; each device must get all of its shard once.

    Of whole shards each device sends one. Of pieces it sends at most one in a round.
    """
    if step.pieces is None and not step.exchange:
        return family
    mesh, axes = step.src.mesh, step.live
    sizes = [mesh.shape[a] for a in axes]
    everyone = range(math.prod(sizes))
    places = [mesh.index(a) for a in axes]
    moved = np.moveaxis(family, places, range(len(places)))
    flat = moved.reshape(math.prod(sizes), *moved.shape[len(places) :])
    others = moved.shape[len(places) : len(mesh.axis_names)]
    out = np.zeros((len(everyone), *others, *step.dst.local_shape), family.dtype)
    written = np.zeros((len(everyone), *step.dst.local_shape), int)
    nowhere = ((0,) * step.src.ndim,) * len(everyone)
    rounds = [(step.exchange, nowhere, nowhere)] if step.pieces is None else list(step.pieces.rounds)
    shape = step.src.local_shape if step.pieces is None else step.pieces.shape
    for pairs, cut, put in rounds:
        chosen = pairs or [(i, i) for i in everyone]
        assert sorted(b for _, b in chosen) == list(everyone)
        assert len({a for a, _ in chosen}) == len(chosen)
        for source, target in chosen:
            piece = flat[source][..., *_box(cut[source], shape)]
            out[target][..., *_box(put[target], shape)] = piece
            written[target][_box(put[target], shape)] += 1
    assert (written == 1).all()
    return np.moveaxis(out.reshape(*sizes, *out.shape[1:]), range(len(places)), places)


def _box(start: tuple[int, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))


def received(step: Step) -> float:
    """The bytes that the busiest device gets from others, counted on shards that carry the name of their owner."""
    mesh, item = step.src.mesh, step.src.local_bytes / max(1, math.prod(step.src.local_shape))
    if step.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER):
        # A ring of n sends n - 1 pieces of 1/n each to add up, and as many again to tell everybody.
        n = math.prod(mesh.shape[a] for a in step.axes)
        return (1 + (step.kind is Kind.ALL_REDUCE)) * (n - 1) / n * step.src.local_bytes
    names = np.arange(1, mesh.size + 1).reshape(mesh.axis_sizes)
    owner = np.broadcast_to(
        names.reshape(*mesh.axis_sizes, *(1,) * step.src.ndim), (*mesh.axis_sizes, *step.src.local_shape)
    )
    if step.kind in (Kind.RELABEL, Kind.MASK, Kind.SLICE, Kind.PLACE):
        return 0.0
    after = run(step, owner.astype(np.int64))
    foreign = after != names.reshape(*mesh.axis_sizes, *(1,) * step.src.ndim)
    return float(foreign.reshape(mesh.size, -1).sum(1).max()) * item


def without(t: ShType, axes: tuple[str, ...]) -> ShType:
    """The type in which ``axes`` shard nothing (reduced instead)."""
    dims = [Dim(d.size, tuple(a for a in d.axes if a not in axes)) for d in t.dims]
    rest = {a: t.state(a) for a in t.mesh.axis_names if t.state(a) is not State.SHARDED}
    return ShType(t.mesh, t.dtype_name, dims, rest | dict.fromkeys(axes, State.REDUCED))


def _cut(src: ShType, dst: ShType, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty((*dst.mesh.axis_sizes, *dst.local_shape), family.dtype)
    for device in devices(dst.mesh):
        out[device] = family[device][_inside(own_slice(src, device), own_slice(dst, device))]
    return out


def _put(src: ShType, dst: ShType, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.zeros((*dst.mesh.axis_sizes, *dst.local_shape), family.dtype)
    for device in devices(dst.mesh):
        out[device][_inside(own_slice(dst, device), own_slice(src, device))] = family[device]
    return out


def _inside(outer: tuple[slice, ...], inner: tuple[slice, ...]) -> tuple[slice, ...]:
    for a, b in zip(outer, inner, strict=True):
        assert a.start <= b.start <= b.stop <= a.stop, "a device would need what it does not hold"
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(outer, inner, strict=True))


def _sum(step: Step, family: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    places = tuple(step.src.mesh.index(a) for a in step.axes)
    return np.broadcast_to(family.sum(places, keepdims=True), family.shape)
