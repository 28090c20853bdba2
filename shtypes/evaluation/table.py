"""The table of primitives: what evaluates each with typed operands.

What each device runs is the primitive itself, bound on its shards; where it is not, `EXCEPTIONS` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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

_ACROSS: Final = "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod"
#: The reductions that join the parts of devices by a collective where a dim is sharded and communication is allowed.
ACROSS: Final = frozenset(_ACROSS.split())

#: Why a device may do something else than the primitive on its shards, for those of which it may.
_EXCEPTIONS: Final = {
    "its result is its operand: nothing runs": "copy tie",
    "of a position in a sharded dim each device has its own rows; a number that fills a pending sum counts once": (
        "dynamic_slice gather slice"
    ),
    "of a sharded dim each device changes its own rows": (
        "dynamic_update_slice scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"
    ),
    "of what goes with the keys and is sharded along them each device finds its own rows": "sort",
    "along sharded dims, where it may communicate, each device reduces its part and a collective joins these": _ACROSS,
    "it is the reduction of a dim, since an axis that `jax.vmap` names is one": "pmax pmin psum",
    "as an einsum it is the same dot, and its transposes are dots that share their copies": "dot_general",
    "it is no primitive of JAX's: the number in the type of its operand": "full_like",
    "each device that has another part calls the host with that": "debug_callback debug_print io_callback",
}
EXCEPTIONS: Final = {name: why for why, names in _EXCEPTIONS.items() for name in names.split()}

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
