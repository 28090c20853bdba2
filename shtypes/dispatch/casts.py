"""Casts that typing rules insert, shared by all uses of a value."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import set_current_trace

from shtypes._compat import no_trace_is_running, trace_notes, trace_of
from shtypes._compat.typed import CLASSES
from shtypes.core.array import Array
from shtypes.core.eager_cache import current_recorder
from shtypes.core.reshard import move
from shtypes.rules.candidate_types import keeps_varying, price_of
from shtypes.scopes.comm import inserted_reshards
from shtypes.scopes.scope_rules import allows_implicit, minimizing
from shtypes.types import ShType


def cast(x: Array, t: ShType, *, constant: bool = False) -> Array:
    """Casts an operand to the type of a rule; ``constant`` if it gets no cotangent.

    A tracer is cast once, in its trace: before the loop that closes over it, and for all ops that use it. So the
    backward communication of the cast runs once, on the sum of the cotangents. A cast that communicates forward is
    shared only within one run of the scope that allows it; there concrete values share casts too.
    """
    notes = None if x.type == t else _notes(x)
    if notes is None:
        return move(x, t, inserted=True, constant=constant)
    scope = inserted_reshards()
    key = (id(x), t.exact, constant, scope if scope is not None and price_of(x.type, t).forward else None)
    cached = notes.get(key)
    if cached is None:
        traced = isinstance(x, jax.core.Tracer)
        with set_current_trace(trace_of(x)) if traced else contextlib.nullcontext():
            sources = (x, *versions(x, t)) if allows_implicit() else (x,)
            src = min(sources, key=lambda y: price_of(y.type, t).cost(minimizing()))
            cached = x if traced else None, move(src, t, inserted=True, constant=constant)
        notes[key] = cached  # with x, so that its id is not reused
    moved: Array = cached[1]
    if scope is not None:
        noted = notes.setdefault(_versions_of(x), [])
        if not any(y is moved for y in noted):
            noted.append(moved)
    return moved


def versions(x: Any, goal: ShType | None = None) -> Sequence[Any]:
    """Earlier casts of a value; with ``goal``, those that can become it."""
    notes = _notes(x) if type(x) in CLASSES else None
    noted: list[Any] = [] if notes is None else notes.get(_versions_of(x), [])
    return noted if goal is None else [y for y in noted if keeps_varying(y.type, goal)]


def _versions_of(x: Any) -> Any:
    return "versions", id(x), inserted_reshards()


def _notes(x: Any) -> dict[Any, Any] | None:
    """The notes of a tracer's trace, or those on a value in the current run of a scope; None if there are none."""
    if isinstance(x, jax.core.Tracer):
        return trace_notes(trace_of(x))
    scope = inserted_reshards()
    if scope is None or not no_trace_is_running():
        return None
    recorder = current_recorder()
    if recorder is not None:
        recorder.inserts()
    of_scope = scope.get(x)
    return scope.put(x, {}) if of_scope is None else of_scope
