"""Records our scopes and JAX's settings in the equations of a plain program.

A lifted program is evaluated after its trace, when the scopes that it opened have ended. So an equation that is bound
under other settings than at the program's start has a mark in its name stack, which JAX preserves through all
transformations; the mark has no name, and prints as nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from jax.extend import source_info_util

from shtypes._compat import private, trace_context
from shtypes.context.settings import Settings, current, current_settings, scope

#: JAX's other context managers with settings.
_CONTEXTS: Final = ("xla_metadata", "compute_on", "pallas_tpu_interpret_mode")
#: JAX's settings by name.
_STATES: Final[dict[str, Any]] = {
    **private("jax._src.config", "config_states"),
    **{name: private("jax._src.config", f"{name}_context_manager") for name in _CONTEXTS},
}
_folding: Final = _STATES.pop("eager_constant_folding")  # affects tracing, not equations
#: Settings that are not in trace-cache keys, but change how an equation runs.
_CHECKS: Final = (_STATES["jax_debug_nans"], _STATES["jax_debug_infs"])
#: Fields that are recorded separately, or apply to speculative tracing.
_EXCLUDED: Final = frozenset({"scopes", "speculative", "start"})
#: The ids of the settings at the start of programs.
_starts: Final[dict[Any, int]] = {}


class InForce(NamedTuple):
    """The settings that a program changed since its start."""

    rules: tuple[Any, ...] = ()  # the rules of the communication scopes that it opened, outermost first
    fields: tuple[tuple[str, Any], ...] = ()  # our other settings, by field of `Settings`
    jax: tuple[tuple[str, Any], ...] = ()  # JAX's settings, by name


class _Mark(NamedTuple):
    """An element of a name stack without a name."""

    in_force: InForce

    def wrap(self, stack: list[str]) -> None:
        """Adds nothing to the names of a stack."""


class _Start(NamedTuple):
    """The settings at the start of a plain program, and a cache of marks for changed ones."""

    settings: Settings
    checks: tuple[Any, ...]
    context: Any
    states: dict[str, Any]
    marks: dict[Any, _Mark | None]


class _Thread(threading.local):
    start: _Start | None = None


_thread: Final = _Thread()


def all_traced() -> contextlib.AbstractContextManager[Any]:
    """Context manager in which every equation is traced, even in `jax.ensure_compile_time_eval`."""
    manager: contextlib.AbstractContextManager[Any] = _folding(False)
    return manager


@contextlib.contextmanager
def noting_settings() -> Iterator[None]:
    """Context manager around the trace of a plain program, in which its equations record changed settings."""
    outer = _thread.start
    states = {name: state.value for name, state in _STATES.items()}
    number = _starts.setdefault((trace_context(), _checks()), len(_starts) + 1)  # part of JAX's cache keys
    with scope(current_settings()._replace(start=number)):
        _thread.start = _Start(current_settings(), _checks(), trace_context(), states, {})
        try:
            yield
        finally:
            _thread.start = outer


def _checks() -> tuple[Any, ...]:
    return tuple([state.value for state in _CHECKS])


def mark() -> _Mark | None:
    """The mark of the settings changed since the program's start, or None."""
    start = _thread.start
    if start is None:
        return None
    settings, checks, context = current.value, _checks(), trace_context()
    if settings is start.settings and checks == start.checks and context == start.context:
        return None
    key = (settings, checks, context)
    try:
        return start.marks[key]
    except KeyError:
        start.marks[key] = difference = _difference(start, settings)
        return difference


def _difference(start: _Start, settings: Settings) -> _Mark | None:
    before = start.settings
    rules = tuple(rule for i, rule in enumerate(settings.scopes) if before.scopes[i : i + 1] != (rule,))
    fields = tuple(
        (name, value)
        for name, value in zip(settings._fields, settings, strict=True)
        if name not in _EXCLUDED and value != getattr(before, name)
    )
    jax = tuple((name, s.value) for name, s in _STATES.items() if s.value is not start.states[name])
    changes = InForce(rules, fields, tuple((n, v) for n, v in jax if v != start.states[n]))
    return _Mark(changes) if any(changes) else None


def marked(changes: _Mark | None) -> contextlib.AbstractContextManager[Any]:
    """Context manager in which equations carry a mark."""
    if changes is None:
        return contextlib.nullcontext()
    stack: Any = source_info_util.current_name_stack()
    manager: contextlib.AbstractContextManager[Any] = source_info_util.set_name_stack(
        type(stack)((*stack.stack, changes))
    )
    return manager


def set_at(eqn: Any) -> InForce | None:
    """The settings at an equation that changed since its program's start, or None."""
    for element in reversed(eqn.source_info.name_stack.stack):
        if type(element) is _Mark:
            return element.in_force
    return None


def without_marks(stack: Any) -> Any:
    """A name stack without the marks of settings."""
    if any(type(element) is _Mark for element in stack.stack):
        return type(stack)(tuple(e for e in stack.stack if type(e) is not _Mark))
    return stack


@contextlib.contextmanager
def settings(changes: InForce) -> Iterator[None]:
    """Context manager that sets a program's settings again, but not the rules of its communication scopes."""
    with contextlib.ExitStack() as entered:
        if changes.fields:
            entered.enter_context(scope(current_settings()._replace(**dict(changes.fields))))
        for name, value in changes.jax:
            entered.enter_context(_setting(_STATES[name], value))
        yield


@contextlib.contextmanager
def _setting(state: Any, value: Any) -> Iterator[None]:
    """Context manager that sets one of JAX's settings."""
    hook = getattr(state, "_update_thread_local_hook", None)
    outer = state.swap_local(value)
    if hook is not None:
        hook(value)
    try:
        yield
    finally:
        state.set_local(outer)
        if hook is not None:
            hook(state.value)
