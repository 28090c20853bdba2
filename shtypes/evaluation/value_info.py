"""Values that depend on nothing that has a gradient: they take any replicated state for free."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import jax
import numpy as np

from shtypes._compat import trace_notes, trace_of
from shtypes.core.reshard import move
from shtypes.core.shard_fn import wide_enough
from shtypes.dispatch.apply import constant, constant_of, is_number, is_typed
from shtypes.types import State
from shtypes.types.mesh import Mesh

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
