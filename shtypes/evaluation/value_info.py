"""Values that depend on nothing that has a gradient: they take any replicated state for free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import trace_notes, trace_of
from shtypes._compat.local_axes import struct
from shtypes.core.localfn import wide_enough
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.primitives.moving import move
from shtypes.primitives.native import from_jax
from shtypes.resharding import plan
from shtypes.resharding.join import join
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh, context

#: What is noted of a value that the program has widened, and of sums of it: its dtype before. `jnp.sum` of bf16 adds in
#: f32 and gives bf16; so of a pending sum each term is finished in f32, and rounded once.
WIDENED: Final = "widened"
#: What is noted of a value that depends on nothing that has a gradient, and of one that counts along a dim.
CONSTANT: Final = "constant"
PLACES: Final = "places"
#: Where the notes of a trace are, and what is noted of most values.
_KEY: Final = "lifted"
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class _Thread(threading.local):
    """What is known of values without a trace while an evaluation runs: by id, with the value, then by kind."""

    eager: dict[str, dict[int, tuple[Any, dict[str, Any]]]] | None = None


_thread: Final = _Thread()


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Around an evaluation: what is noted of values that no trace holds is forgotten after the outermost one."""
    outer = _thread.eager
    if outer is None:
        _thread.eager = {}
    try:
        yield
    finally:
        _thread.eager = outer


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
    """Says of a value that it depends on nothing that has a gradient."""
    note(x, CONSTANT, True)


def noted(x: Any) -> Mapping[str, Any]:
    """What was noted of a value, by kind."""
    notes: Any = trace_notes(trace_of(x)) if isinstance(x, jax.core.Tracer) else _thread.eager
    found = notes.get(_KEY, _NOTHING).get(id(x)) if notes else None
    return _NOTHING if found is None else found[1]


def known(x: Any, kind: str) -> Any:
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
        _, of_value = notes.setdefault(_KEY, {}).setdefault(id(x), (x, {}))  # held, so that its id is not another's
        of_value[kind] = what


def typed_constant(x: Any, mesh: Mesh) -> Any:
    """A plain constant as a typed value without gradient."""
    with wide_enough(x.dtype):
        return constant_of(x, mesh) if isinstance(x, jax.core.Tracer) else constant(x, mesh)


def number(x: Any) -> Any:
    """A scalar that is known, as a Python number; else the value itself."""
    if isinstance(x, jax.core.Tracer) or is_typed(x) or not hasattr(x, "dtype") or np.ndim(x):
        return x
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.extended) else np.asarray(x)[()].item()


def beside_others(operands: Sequence[Any]) -> list[Any]:
    """Operands of an equation: each constant typed, in the replicated states of the values that it meets."""
    values = [x for x in operands if is_typed(x) and not is_constant(x)]
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    found = []
    for x in operands:
        if is_number(number(x)):
            found.append(number(x))
        elif is_constant(x):
            found.append(_beside(x if is_typed(x) else typed_constant(x, mesh), values))
        else:
            found.append(x)
    return found


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
    """What stands for a value in the trace of a plain program: its global shape and dtype."""
    if is_typed(x):
        return struct(x.type.shape, x.type.dtype, x.type, like=like)
    aval = jax.typeof(x)
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), like=like)


def of_some(f: Callable[[list[Any]], Any], xs: Sequence[Any], chosen: Sequence[int]) -> Callable[..., Any]:
    """A function of all of ``xs`` as one of those that are chosen, by their places; the others are held."""

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
