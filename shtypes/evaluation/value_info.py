"""Notes on values: constants (without a gradient), and indices that count 0, 1, 2, ... along a dim.

Constants take any replicated state for free. ``x[jnp.arange(n), labels]`` and `jnp.put_along_axis` index rows by
counting; such a dim is a batch dim of the lookup, and each device looks up in its rows.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import trace_notes, trace_of
from shtypes._compat.jaxprs import captured, is_literal, jaxpr_of, literal_value
from shtypes._compat.local_axes import struct
from shtypes.context.scope import attribute_set
from shtypes.core.conversion import from_jax
from shtypes.core.reshard import move
from shtypes.core.shard_fn import is_inexact, wide_enough
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed, match_replicated
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.join import join
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType
from shtypes.types.mesh import Mesh, context

#: The kind of note with the original dtype of a widened value and of sums of it. `jnp.sum` of bf16 adds in f32
#: and returns bf16; so a pending sum is finished in f32, and rounded once.
WIDENED: Final = "widened"
#: The kinds of notes on a value without a gradient, and on one that counts along a dim.
CONSTANT: Final = "constant"
PLACES: Final = "places"
#: The key of a trace's notes, and the empty notes of most values.
_KEY: Final = "lifted"
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


#: By `_KEY` and the id of a value: the value, and its notes by kind.
_Notes = dict[str, dict[int, tuple[Any, dict[str, Any]]]]


class _Thread(threading.local):
    """Notes on values without a trace while an evaluation runs."""

    eager: _Notes | None = None


_thread: Final = _Thread()


def noting(notes: _Notes | None = None) -> contextlib.AbstractContextManager[_Notes]:
    """A scope that keeps notes on values without a trace, in ``notes`` or those of the enclosing scope, if any."""
    notes = _thread.eager if notes is None else notes
    return attribute_set(_thread, "eager", {} if notes is None else notes)


def notes_kept() -> Callable[[], contextlib.AbstractContextManager[_Notes]]:
    """A function for later scopes with the current notes on values without a trace."""
    return functools.partial(noting, _thread.eager)


def is_constant(x: Any) -> bool:
    """Whether a value has no gradient: it is concrete, has an integer dtype, or is noted as a constant."""
    traced = isinstance(x, jax.core.Tracer)
    if not traced and not is_typed(x):
        return True
    if not is_inexact(x):
        return True
    return CONSTANT in noted(x)


def note_constant(x: Any) -> None:
    """Notes that a value has no gradient."""
    note(x, CONSTANT, True)


def noted_as(constant: Iterable[bool], values: Sequence[Any]) -> Sequence[Any]:
    """Notes some of the values, such as a body's inputs, as constants; returns all."""
    for x, is_one in zip(values, constant, strict=True):
        if is_one:
            note_constant(x)
    return values


def noted(x: Any) -> Mapping[str, Any]:
    """The notes on a value, by kind."""
    notes: Any = trace_notes(trace_of(x)) if isinstance(x, jax.core.Tracer) else _thread.eager
    entry = notes.get(_KEY, _NOTHING).get(id(x)) if notes else None
    return _NOTHING if entry is None else entry[1]


def note_of(x: Any, kind: str) -> Any:
    """The note of one kind on a value, or None."""
    return noted(x).get(kind)


def note(x: Any, kind: str, what: Any) -> None:
    """Adds a note to a tracer, for the life of its trace, or to a typed value; concrete plain arrays have none."""
    notes: Any = None
    if isinstance(x, jax.core.Tracer):
        notes = trace_notes(trace_of(x))
    elif is_typed(x):
        notes = _thread.eager
    if notes is not None:
        _, of_value = notes.setdefault(_KEY, {}).setdefault(
            id(x), (x, {})
        )  # keeps it alive, so that its id is not reused
        of_value[kind] = what


def typed_constant(x: Any, mesh: Mesh) -> Any:
    """Converts a plain constant to a typed value without gradient."""
    with wide_enough(x.dtype):
        return constant_of(x, mesh) if isinstance(x, jax.core.Tracer) else constant(x, mesh)


def sharded_constant(x: Any, mesh: Mesh) -> Any:
    """Converts a plain array that is sharded over a mesh to a typed constant; returns other values unchanged."""
    if isinstance(x, jax.core.Tracer) or not isinstance(getattr(x, "sharding", None), jax.NamedSharding):
        return x
    if x.sharding.is_fully_replicated or x.sharding.mesh.axis_names != mesh.axis_names:
        return x
    typed = typed_constant(x, mesh)
    note_constant(typed)
    return typed


def number(x: Any) -> Any:
    """Converts a concrete scalar to a Python number; returns other values unchanged."""
    if isinstance(x, jax.core.Tracer) or is_typed(x) or not hasattr(x, "dtype") or np.ndim(x):
        return x
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x)[()].item()


def type_constants(operands: Sequence[Any]) -> list[Any]:
    """Types the constants among an equation's operands, in the replicated states of the others; scalars are numbers."""
    values = [x for x in operands if is_typed(x) and not is_constant(x)]
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    typed = []
    for x in operands:
        if is_number(number(x)):
            typed.append(number(x))
        elif is_constant(x):
            typed.append(match_replicated(x if is_typed(x) else typed_constant(x, mesh), *values, constant=True))
        else:
            typed.append(x)
    return typed


def type_of(x: Any) -> ShType | None:
    """The sharding type of a value; None if it is plain."""
    return x.type if is_typed(x) else None


def mesh_of(xs: Sequence[Any]) -> Mesh | None:
    """The mesh of the typed values, or of the context if none is typed."""
    return next((x.type.mesh for x in xs if is_typed(x)), None) or context()


def aval_of(x: Any, like: Any = None) -> Any:
    """The abstract value of a value in the trace of a plain program, with its global shape."""
    if is_typed(x):
        return struct(x.type.shape, x.type.dtype, x.type, like=like)
    aval = jax.typeof(x)
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), like=like)


def of_some(f: Callable[[list[Any]], Any], xs: Sequence[Any], chosen: Sequence[int]) -> Callable[..., Any]:
    """Restricts a function of the list ``xs`` to the arguments at the indices ``chosen``; the others are fixed."""

    def of_chosen(*some: Any) -> Any:
        full = list(xs)
        for i, x in zip(chosen, some, strict=True):
            full[i] = x
        return f(full)

    return of_chosen


def cast_to_type(x: Any, t: ShType, name: str = "placed") -> Any:
    """Casts or reshards a plain or typed value to a type."""
    if is_typed(x):
        if x.type == t:
            return x
        check_comm(name, x.type, t, inserted=True)
        return move(x, t, inserted=True)
    if is_constant(x):
        return move(typed_constant(jnp.asarray(x, t.dtype), t.mesh), t, inserted=True, constant=True)
    return move(from_jax(x, mesh=t.mesh), t, inserted=True)


def is_free(src: ShType, dst: ShType) -> bool:
    """Whether a reshard communicates neither forward nor backward."""
    if (src.mesh, src.shape, src.dtype_name) != (dst.mesh, dst.shape, dst.dtype_name):
        return False
    try:
        there = plan(src, dst)
        back = plan(dst.cotangent(), src.cotangent()) if src.differentiable else there
    except ShardingTypeError:
        return False
    return not there.bytes and not back.bytes


def joined(types: list[ShType | None]) -> ShType | None:
    """A type to which all typed values can be cast for free, else the first type; None if all are plain."""
    typed = [t for t in types if t is not None]
    if not typed or all(t == typed[0] for t in typed):
        return typed[0] if typed else None
    try:
        return join(typed)
    except ShardingTypeError:
        return next((t for t in typed if all(is_free(s, t) for s in typed)), typed[0])


# indices that count along a dim

#: Concrete arrays larger than this are not compared with a count.
_MOST: Final = 1 << 20


class Count(NamedTuple):
    """The note on an array that counts 0, 1, 2, ... along ``dim``."""

    dim: int


class Counts(NamedTuple):
    """The note on indices (..., k): pairs of a component and the dim along which it counts."""

    dims: tuple[tuple[int, int], ...]


class Never(NamedTuple):
    """The note on a bool array that is False everywhere."""


def place_of(x: Any) -> Any:
    """What a value counts: its note, or for a concrete array what its elements show."""
    if hasattr(x, "place"):  # a value of the solver
        return x.place
    if isinstance(x, jax.core.Tracer) or is_typed(x):
        return note_of(x, PLACES)
    if not isinstance(x, (np.ndarray, jax.Array)) or not 1 < x.size <= _MOST:
        return None
    if x.dtype == np.dtype(bool):
        return None if np.asarray(x).any() else Never()
    return _count_in(np.asarray(x)) if np.issubdtype(x.dtype, np.integer) else None


def _count_in(x: Any) -> Count | None:
    for d, n in enumerate(x.shape):
        if n > 1:
            count = np.arange(n).reshape([n if e == d else 1 for e in range(x.ndim)])
            return Count(d) if np.array_equal(x, np.broadcast_to(count, x.shape)) else None
    return None


def counted(ids: Any) -> dict[int, int]:
    """For the components of indices (..., k) that count along a dim, that dim."""
    about = place_of(ids)
    last = len(ids.shape) - 1
    if isinstance(about, Counts):
        return dict(about.dims)
    if isinstance(about, Count) and about.dim != last:
        return dict.fromkeys(range(ids.shape[last]), about.dim)
    is_plain = isinstance(ids, (np.ndarray, jax.Array)) and not isinstance(ids, jax.core.Tracer)
    if about is None and is_plain and not is_typed(ids):  # a typed value may differ on each device
        parts = [_count_in(np.asarray(ids[..., j])) if 1 < ids.size <= _MOST else None for j in range(ids.shape[last])]
        return {j: part.dim for j, part in enumerate(parts) if part is not None}
    return {}


# the notes on results


def _lt(eqn: Any, xs: Sequence[Any]) -> Any:
    x, least = xs
    return Never() if _is_zero(least) and isinstance(place_of(x), Count) else None


def _is_zero(x: Any) -> bool:
    """Whether a value is a concrete zero; by NumPy's `==`, since JAX's returns a tracer inside a trace."""
    return not isinstance(x, jax.core.Tracer) and not is_typed(x) and np.ndim(x) == 0 and bool(np.asarray(x) == 0)


def _broadcast(eqn: Any, xs: Sequence[Any]) -> Any:
    about, shape = place_of(xs[0]), eqn.params["shape"]
    if isinstance(about, Never):
        return about
    if isinstance(about, Count):
        dim = int(eqn.params["broadcast_dimensions"][about.dim])
        return Count(dim) if shape[dim] == xs[0].shape[about.dim] else None
    return None


def _reshape(eqn: Any, xs: Sequence[Any]) -> Any:
    """The note after a reshape that only adds or drops dims of size 1."""
    about, src, dst = place_of(xs[0]), xs[0].shape, eqn.outvars[0].aval.shape
    if isinstance(about, Never):
        return about
    if not isinstance(about, Count) or (eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape"):
        return None
    src_dims, dst_dims = ([d for d, n in enumerate(shape) if n != 1] for shape in (src, dst))
    if [src[d] for d in src_dims] != [dst[d] for d in dst_dims] or about.dim not in src_dims:
        return None
    return Count(dst_dims[src_dims.index(about.dim)])


def _concatenate(eqn: Any, xs: Sequence[Any]) -> Any:
    last = len(xs[0].shape) - 1
    if eqn.params["dimension"] != last:
        return None
    counts, at = [], 0
    for x in xs:
        counts += [(at + j, dim) for j, dim in counted(x).items()]
        at += x.shape[last]
    return Counts(tuple(counts)) if counts else None


def _same(eqn: Any, xs: Sequence[Any]) -> Any:
    return place_of(xs[0]) if np.issubdtype(eqn.outvars[0].aval.dtype, np.integer) else None


@dataclass(eq=False)
class _Placed:
    """A value inside a call."""

    shape: tuple[int, ...]
    place: Any


def _call(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    body, env = jaxpr_of(eqn.params["jaxpr"]), dict[Any, Any]()
    env.update(zip((*body.invars, *body.constvars), (*xs, *captured(eqn.params["jaxpr"])), strict=True))

    def read(v: Any) -> Any:
        return literal_value(v) if is_literal(v) else env[v]

    for inner in body.eqns:
        about = itertools.chain(positions(inner, [read(v) for v in inner.invars]), itertools.repeat(None))
        env.update((v, _Placed(v.aval.shape, place)) for v, place in zip(inner.outvars, about, strict=False))
    return [place_of(read(v)) for v in body.outvars]


_FOLLOWED: Final[dict[str, Callable[[Any, Sequence[Any]], Any]]] = {
    "iota": lambda eqn, xs: Count(int(eqn.params["dimension"])),
    "lt": _lt,
    "select_n": lambda eqn, xs: place_of(xs[1]) if isinstance(place_of(xs[0]), Never) else None,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "concatenate": _concatenate,
    "convert_element_type": _same,
    "copy": _same,
}


#: Linear primitives through which the note on a widened value passes.
_PASSED: Final = frozenset(("reduce_sum", "broadcast_in_dim", "reshape", "squeeze", "transpose"))
#: Primitives through which it passes if the other operand is a number.
_SCALED: Final = frozenset(("div", "mul"))


def note_results(eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Notes what an equation's results count, and the first one's dtype before it was widened."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        _note_widening(eqn.invars[0].aval.dtype, outs[0])
    elif name in _PASSED or (name in _SCALED and any(is_number(number(x)) for x in operands)):
        narrow = next((note_of(x, WIDENED) for x in operands if is_typed(x)), None)
        if narrow is not None:
            note(outs[0], WIDENED, narrow)
    for out, about in zip(outs, positions(eqn, operands), strict=False):
        if about is not None:
            note(out, PLACES, about)


def positions(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """What the results of an equation count, from its operands; None if unknown, as it is of those beyond the last."""
    if eqn.primitive.name == "jit":
        are = [_is_of_positions(v.aval) for v in eqn.outvars]
        notes = _call(eqn, operands) if any(are) else []
        return [about if counts else None for about, counts in zip(notes, are, strict=False)]
    follows = _FOLLOWED.get(eqn.primitive.name)
    return (follows(eqn, operands),) if follows is not None and _is_of_positions(eqn.outvars[0].aval) else ()


def _note_widening(src: Any, out: Any) -> None:
    floats = is_typed(out) and jnp.issubdtype(src, jnp.floating) and jnp.issubdtype(out.type.dtype, jnp.floating)
    if floats and src.itemsize < out.type.dtype.itemsize:
        note(out, WIDENED, src)


def _is_of_positions(aval: Any) -> bool:
    """Whether an array has bools, or integers of at least 32 bits."""
    dtype = aval.dtype
    if not isinstance(dtype, np.dtype) or math.prod(aval.shape) <= 1:
        return False
    return dtype == np.dtype(bool) or (bool(np.issubdtype(dtype, np.integer)) and dtype.itemsize >= 4)


def copy_position_notes(name: str, operands: Sequence[Any], typed: Sequence[Any]) -> None:
    """Copies the notes on a lookup's indices to their typed form."""
    if name != "gather" and not name.startswith("scatter"):
        return
    counts = counted(operands[1])
    if counts:
        note(typed[1], PLACES, Counts(tuple(counts.items())))
