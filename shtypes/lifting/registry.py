"""The table of primitives: what evaluates each with typed operands, or why nothing does."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

from shtypes.ops.table import OPS

#: From the operands and, by keyword, the parameters of an equation to its result, or to a list of them.
Row = Callable[..., Any]

#: By the name of a primitive.
ROWS: Final[dict[str, Row]] = {}
#: Of those that a row of parameters does not fit: from the equation and its operands to the list of results.
EQUATIONS: Final[dict[str, Callable[[Any, list[Any]], list[Any]]]] = {}
#: Of the primitives that have bodies or derivative rules, and of ours: likewise, with constants among the operands as
#: they are, and whether or not an operand is typed.
BODIES: Final[dict[str, Callable[[Any, list[Any]], list[Any]]]] = {}

#: By public function, what it is of plain arrays where a plain program is traced: one of JAX's.
PLAIN_FORMS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {}

#: What evaluates a primitive that has no row, if anything does: `rows.derivatives` sets it.
FALLBACK: Final[list[Callable[[Any, list[Any]], list[Any] | None]]] = [lambda eqn, operands: None]
#: What evaluates one in local mode, before that: `rows.collectives` sets it.
OF_ONE_DEVICE: Final[list[Callable[[Any, list[Any]], list[Any] | None]]] = [lambda eqn, operands: None]


def row(*names: str) -> Callable[[Row], Row]:
    """Makes a function the row of primitives: its keywords are the parameters that it knows, and no others."""

    def add(fn: Row) -> Row:
        ROWS.update(dict.fromkeys(names, fn))
        return fn

    return add


def equation_row(*names: str) -> Callable[[Any], Any]:
    """Makes a function of the equation and its operands the row of primitives."""

    def add(fn: Any) -> Any:
        EQUATIONS.update(dict.fromkeys(names, fn))
        return fn

    return add


def body_row(*names: str) -> Callable[[Any], Any]:
    """Makes a function the row of primitives that have bodies or derivative rules."""

    def add(fn: Any) -> Any:
        BODIES.update(dict.fromkeys(names, fn))
        return fn

    return add


@functools.cache
def op(name: str) -> Callable[..., Any]:
    """The public function of arrays of this name."""
    found = OPS[name]
    made: Callable[..., Any] = getattr(importlib.import_module(found.module), found.attr)
    return made
