"""Notes on values: which depend on nothing that has a gradient, and which count 0, 1, 2, ... along a dim.

Constants take any replicated state for free. ``x[jnp.arange(n), labels]`` and `jnp.put_along_axis` name each row by its
number; if these count, the dim is a batch dim, and each device looks up in its rows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import trace_notes, trace_of
from shtypes._compat.local_axes import struct
from shtypes.core.conversion import from_jax
from shtypes.core.reshard import move
from shtypes.core.shard_fn import wide_enough
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.join import join
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh, context

#: The kind of note on a widened value, and on sums of it: its dtype before. `jnp.sum` of bf16 adds in
#: f32 and gives bf16; so of a pending sum each term is finished in f32, and rounded once.
WIDENED: Final = "widened"
#: The kinds of notes on a value that depends on nothing that has a gradient, and on one that counts along a dim.
CONSTANT: Final = "constant"
PLACES: Final = "places"
#: The key of a trace's notes, and the empty notes that most values have.
_KEY: Final = "lifted"
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


#: Notes on values: by id, with the value, then by kind.
_Notes = dict[str, dict[int, tuple[Any, dict[str, Any]]]]


class _Thread(threading.local):
    """Notes on values without a trace while an evaluation runs."""

    eager: _Notes | None = None


_thread: Final = _Thread()


@contextlib.contextmanager
def noting(notes: _Notes | None = None) -> Iterator[None]:
    """A scope around an evaluation: notes on values without a trace are dropped after the outermost one.

    With ``notes`` the values are noted as in these.
    """
    outer = _thread.eager
    if notes is not None:
        _thread.eager = notes
    elif outer is None:
        _thread.eager = {}
    try:
        yield
    finally:
        _thread.eager = outer


def notes_kept() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A function for a scope in which the values without a trace are noted as they are now."""
    return functools.partial(noting, _thread.eager)


def is_inexact(x: Any) -> bool:
    """Whether a value has a gradient, by its dtype."""
    if is_typed(x):
        return x.type.differentiable
    dtype = getattr(x, "dtype", None)
    return bool(jax.numpy.issubdtype(jax.numpy.result_type(x) if dtype is None else dtype, jax.numpy.inexact))


def is_constant(x: Any) -> bool:
    """Whether a value depends on nothing that has a gradient."""
    traced = isinstance(x, jax.core.Tracer)
    if not traced and not is_typed(x):
        return True
    if not is_inexact(x):
        return True
    return CONSTANT in noted(x)


def note_constant(x: Any) -> None:
    """Notes that a value depends on nothing that has a gradient."""
    note(x, CONSTANT, True)


def noted_as(constant: Iterable[bool], values: Sequence[Any]) -> Sequence[Any]:
    """The values that stand for others in a body or a rule; those of constants are noted as constants."""
    for x, is_one in zip(values, constant, strict=True):
        if is_one:
            note_constant(x)
    return values


def noted(x: Any) -> Mapping[str, Any]:
    """What was noted of a value, by kind."""
    notes: Any = trace_notes(trace_of(x)) if isinstance(x, jax.core.Tracer) else _thread.eager
    entry = notes.get(_KEY, _NOTHING).get(id(x)) if notes else None
    return _NOTHING if entry is None else entry[1]


def note_of(x: Any, kind: str) -> Any:
    """What was noted of a value of one kind; None if nothing was."""
    return noted(x).get(kind)


def note(x: Any, kind: str, what: Any) -> None:
    """Notes something of a value, as long as its trace lives; of plain arrays nothing, which can be looked at."""
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
    """A plain constant as a typed value without gradient."""
    with wide_enough(x.dtype):
        return constant_of(x, mesh) if isinstance(x, jax.core.Tracer) else constant(x, mesh)


def sharded_constant(x: Any, mesh: Mesh) -> Any:
    """A plain array that is sharded on devices of a mesh, as a typed constant; anything else as it is."""
    if isinstance(x, jax.core.Tracer) or not isinstance(getattr(x, "sharding", None), jax.NamedSharding):
        return x
    if x.sharding.is_fully_replicated or x.sharding.mesh.axis_names != mesh.axis_names:
        return x
    made = typed_constant(x, mesh)
    note_constant(made)
    return made


def number(x: Any) -> Any:
    """A concrete scalar as a Python number; else the value itself."""
    if isinstance(x, jax.core.Tracer) or is_typed(x) or not hasattr(x, "dtype") or np.ndim(x):
        return x
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x)[()].item()


def beside_others(operands: Sequence[Any]) -> list[Any]:
    """Operands of an equation: each constant typed, in the replicated states of the values that it meets."""
    values = [x for x in operands if is_typed(x) and not is_constant(x)]
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    typed = []
    for x in operands:
        if is_number(number(x)):
            typed.append(number(x))
        elif is_constant(x):
            typed.append(_beside(x if is_typed(x) else typed_constant(x, mesh), values))
        else:
            typed.append(x)
    return typed


def _beside(x: Any, values: Sequence[Any]) -> Any:
    t = x.type
    for axis in t.axes(State.REDUCED):
        met = {v.type.state(axis) for v in values}
        if State.INVARIANT in met and State.REDUCED not in met:
            t = t.with_axis(axis, State.INVARIANT)
    return x if t == x.type else move(x, t, inserted=True, constant=True)


def type_of(x: Any) -> ShType | None:
    """The sharding type of a value; None of a plain one."""
    return x.type if is_typed(x) else None


def mesh_of(xs: Sequence[Any]) -> Mesh | None:
    """The mesh of typed values among others; that of the context where none is typed."""
    return next((x.type.mesh for x in xs if is_typed(x)), None) or context()


def aval_of(x: Any, like: Any = None) -> Any:
    """The abstract value that stands for a value in the trace of a plain program: its global shape and dtype."""
    if is_typed(x):
        return struct(x.type.shape, x.type.dtype, x.type, like=like)
    aval = jax.typeof(x)
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), like=like)


def of_some(f: Callable[[list[Any]], Any], xs: Sequence[Any], chosen: Sequence[int]) -> Callable[..., Any]:
    """A function of all of ``xs`` as one of the ``chosen`` places; the others are constants."""

    def of_chosen(*some: Any) -> Any:
        full = list(xs)
        for i, x in zip(chosen, some, strict=True):
            full[i] = x
        return f(full)

    return of_chosen


def placed(x: Any, t: ShType, name: str = "placed") -> Any:
    """A plain or typed value in a type."""
    if is_typed(x):
        if x.type == t:
            return x
        check_comm(name, x.type, t, inserted=True)
        return move(x, t, inserted=True)
    if is_constant(x):
        return move(typed_constant(jnp.asarray(x, t.dtype), t.mesh), t, inserted=True, constant=True)
    return move(from_jax(x, mesh=t.mesh), t, inserted=True)


def is_free(src: ShType, dst: ShType) -> bool:
    """Whether a value gets from one type to another without communication, forward and backward."""
    if (src.mesh, src.shape, src.dtype_name) != (dst.mesh, dst.shape, dst.dtype_name):
        return False
    try:
        there = plan(src, dst)
        back = plan(dst.cotangent(), src.cotangent()) if src.differentiable else there
    except ShardingTypeError:
        return False
    return not there.bytes and not back.bytes


def joined(types: list[ShType | None]) -> ShType | None:
    """The type that values in one place can have for free; the first typed one where there is none; None if plain."""
    typed = [t for t in types if t is not None]
    if not typed or all(t == typed[0] for t in typed):
        return typed[0] if typed else None
    try:
        return join(typed)
    except ShardingTypeError:
        return next((t for t in typed if all(is_free(s, t) for s in typed)), typed[0])


# positions that count along a dim

#: More positions than this are not looked through for a count.
_MOST: Final = 1 << 20


class Count(NamedTuple):
    """A value whose elements are their positions along ``dim``."""

    dim: int


class Counts(NamedTuple):
    """Positions of several components, in the last dim: the dims along which some count, by component."""

    dims: tuple[tuple[int, int], ...]


class Never(NamedTuple):
    """A truth value that is false everywhere."""


def place_of(x: Any) -> Any:
    """The note on a value's positions; of a concrete one, read from its elements."""
    if hasattr(x, "place"):  # a value of a program that is not evaluated
        return x.place
    if isinstance(x, jax.core.Tracer) or is_typed(x):
        return note_of(x, PLACES)
    if not isinstance(x, (np.ndarray, jax.Array)) or not 1 < x.size <= _MOST:
        return None
    if x.dtype == np.dtype(bool):
        return None if np.asarray(x).any() else Never()
    return _seen(np.asarray(x)) if np.issubdtype(x.dtype, np.integer) else None


def _seen(x: Any) -> Count | None:
    for d, n in enumerate(x.shape):
        if n > 1:
            count = np.arange(n).reshape([n if e == d else 1 for e in range(x.ndim)])
            return Count(d) if np.array_equal(x, np.broadcast_to(count, x.shape)) else None
    return None


def counted(ids: Any) -> dict[int, int]:
    """By component of positions (..., k), the dim along which it counts."""
    about = place_of(ids)
    last = len(ids.shape) - 1
    if isinstance(about, Counts):
        return dict(about.dims)
    if isinstance(about, Count) and about.dim != last:
        return dict.fromkeys(range(ids.shape[last]), about.dim)
    is_plain = isinstance(ids, (np.ndarray, jax.Array)) and not isinstance(ids, jax.core.Tracer)
    if about is None and is_plain and not is_typed(ids):  # what is typed may differ on each device
        parts = [_seen(np.asarray(ids[..., j])) if 1 < ids.size <= _MOST else None for j in range(ids.shape[last])]
        return {j: part.dim for j, part in enumerate(parts) if part is not None}
    return {}


# how it is handed on


def _lt(eqn: Any, xs: Sequence[Any]) -> Any:
    x, least = xs
    return Never() if _is_zero(least) and isinstance(place_of(x), Count) else None


def _is_zero(x: Any) -> bool:
    """Whether a value is a constant zero; without JAX's `==`, which gives a tracer inside a trace."""
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
    """The place of a value through a reshape that adds or drops dims of size 1 only."""
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


#: Primitives that leave the terms of a pending sum in their wide dtype: sums of them, and elements moved.
_KEPT: Final = frozenset(("reduce_sum", "broadcast_in_dim", "reshape", "squeeze", "transpose"))
#: Primitives that scale them by a number.
_SCALED: Final = frozenset(("div", "mul"))


def follow(eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Derives the notes on an equation's result from its operands: its dtype before it was widened, what it counts."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        _note_widening(eqn.invars[0].aval.dtype, outs[0])
    elif name in _KEPT or (name in _SCALED and any(is_number(number(x)) for x in operands)):
        narrow = next((note_of(x, WIDENED) for x in operands if is_typed(x)), None)
        if narrow is not None:
            note(outs[0], WIDENED, narrow)
    about = positions(eqn, operands)
    if about is not None:
        note(outs[0], PLACES, about)


def positions(eqn: Any, operands: Sequence[Any]) -> Any:
    """What the first result of an equation counts, by what its operands do; None where that is not known."""
    follows = _FOLLOWED.get(eqn.primitive.name)
    return follows(eqn, operands) if follows is not None and _is_of_positions(eqn.outvars[0].aval) else None


def _note_widening(src: Any, out: Any) -> None:
    floats = is_typed(out) and jnp.issubdtype(src, jnp.floating) and jnp.issubdtype(out.type.dtype, jnp.floating)
    if floats and src.itemsize < out.type.dtype.itemsize:
        note(out, WIDENED, src)


def _is_of_positions(aval: Any) -> bool:
    """Truth values, or integers wide enough for each position."""
    dtype = aval.dtype
    if not isinstance(dtype, np.dtype) or math.prod(aval.shape) <= 1:
        return False
    return dtype == np.dtype(bool) or (bool(np.issubdtype(dtype, np.integer)) and dtype.itemsize >= 4)


def carry(name: str, operands: Sequence[Any], typed: Sequence[Any]) -> None:
    """Copies the notes on a lookup's positions to their typed form."""
    if name != "gather" and not name.startswith("scatter"):
        return
    counts = counted(operands[1])
    if counts:
        note(typed[1], PLACES, Counts(tuple(counts.items())))
