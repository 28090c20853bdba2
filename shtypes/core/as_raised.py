"""Completes errors when they are read, as of where they were raised: an error that nobody reads costs no search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import jax

from shtypes.context import ambient
from shtypes.context.ambient import current_ambient
from shtypes.core.meshes import context_mesh, use_mesh
from shtypes.errors import ShardingTypeError
from shtypes.rules.suggest_fixes import Rule, fixes
from shtypes.types import ShType


def complete_when_read(error: ShardingTypeError, complete: Callable[[], None]) -> None:
    """Has ``complete`` run when the fixes of an error are read first, in the scopes and on the mesh in force here."""
    around, mesh = current_ambient(), context_mesh()

    def as_raised() -> None:
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(ambient.scope(around))
            if context_mesh() != mesh:
                scopes.enter_context(jax.set_mesh(None) if mesh is None else use_mesh(mesh))
            complete()

    error.defer(as_raised)


def suggest_when_read(
    error: ShardingTypeError, rule: Rule, operands: tuple[ShType, ...], names: Sequence[str] | None = None
) -> ShardingTypeError:
    """The error with the fixes of an op that does not type, unless it has others; arguments as of `fixes`."""

    def complete() -> None:
        error.fixes = error.fixes or fixes(rule, operands, names)

    complete_when_read(error, complete)
    return error
