"""The settings as part of JAX's trace context; deferred completion of errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any, Final

import jax
from jax.extend import source_info_util

from shtypes.context import settings
from shtypes.context.frames import OURS
from shtypes.context.settings import connect_jax, current_settings
from shtypes.core.meshes import context_mesh, use_mesh
from shtypes.errors import ShardingTypeError
from shtypes.rules.price_fixes import Inside, no_inside_comm
from shtypes.rules.suggest_fixes import Rule, fixes
from shtypes.types import ShType

#: Holds the current `Settings`.
CONTEXT: Final[Any] = jax.make_user_context(default_value=None)


connect_jax(CONTEXT, CONTEXT.set_global)

# for user lines in JAX's equations and compiled programs
for _path in OURS:
    source_info_util.register_exclusion(_path)


def complete_when_read(error: ShardingTypeError, complete: Callable[[], None]) -> None:
    """Runs ``complete`` when an error's fixes are first read, under the present settings and mesh."""
    settings_at_error, mesh = current_settings(), context_mesh()

    def as_raised() -> None:
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(settings.scope(settings_at_error))
            if context_mesh() != mesh:
                scopes.enter_context(jax.set_mesh(None) if mesh is None else use_mesh(mesh))
            complete()

    error.defer(as_raised)


def suggest_when_read(
    error: ShardingTypeError,
    rule: Rule,
    operands: tuple[ShType, ...],
    names: Sequence[str] | None = None,
    inside: Inside = no_inside_comm,
) -> ShardingTypeError:
    """Adds the fixes of an op that does not type to an error without fixes; arguments as for `fixes`."""

    def complete() -> None:
        error.fixes = error.fixes or fixes(rule, operands, names, error.same, inside)

    complete_when_read(error, complete)
    return error


def holds_tracers(x: Any, seen: set[int] | None = None) -> bool:
    """Whether an object refers to tracers, directly or in closures, which a deferred call must not use."""
    seen = set() if seen is None else seen
    if isinstance(x, jax.core.Tracer):
        return True
    if id(x) in seen:
        return False
    seen.add(id(x))
    parts: Iterable[Any]
    if isinstance(x, FunctionType):
        parts = (cell.cell_contents for cell in x.__closure__ or () if cell != CellType())
    elif isinstance(x, functools.partial):
        parts = (x.func, *x.args, *x.keywords.values())
    elif isinstance(x, MethodType):
        parts = (x.__func__, x.__self__)
    elif isinstance(x, (tuple, list)):
        parts = x
    else:
        parts = (x.__wrapped__,) if callable(x) and hasattr(x, "__wrapped__") else ()
    return any(holds_tracers(each, seen) for each in parts)
