"""Notes on values: constants (without a gradient), what they count, and dtypes before they were widened.

Constants take any replicated state for free.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import trace_notes, trace_of
from shtypes._compat.jaxprs import wide_enough
from shtypes._compat.local_axes import struct
from shtypes.context.scope import attribute_set
from shtypes.core.conversion import from_jax
from shtypes.core.reshard import move
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed, match_replicated
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.join import join
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State
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


def operand_key(x: Any) -> tuple[Any, ...] | None:
    """The part of a cache key for an operand: its type and notes, or a number; None for another plain value."""
    if is_typed(x):
        about, t = noted(x), x.type
        return t.serial, not t.differentiable or CONSTANT in about, about.get(PLACES), about.get(WIDENED)
    if is_number(value := number(x)):
        return type(value), repr(value), str(getattr(x, "dtype", ""))
    return None


def copy_notes(x: Any, to: Any) -> None:
    """Adds the notes of a value to another."""
    for kind, what in noted(x).items():
        note(to, kind, what)


def type_constants(operands: Sequence[Any]) -> list[Any]:
    """Types the constants among an equation's operands, in the replicated states of the others; scalars are numbers."""
    values = [x for x in operands if is_typed(x) and not is_constant(x)]
    values = values or [x for x in operands if is_typed(x) and x.type.axes(State.INVARIANT)]
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
