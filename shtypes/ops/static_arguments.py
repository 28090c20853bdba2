"""Which arguments of a call of JAX's functions are static, and their texts in listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from shtypes.caches import Static
from shtypes.dispatch.apply import is_array, is_typed
from shtypes.types import State


def _is_typed_or_traced(place: int, x: Any) -> bool:
    """Whether an argument is an array that is not on the host."""
    return is_typed(x) or isinstance(x, jax.core.Tracer)


def _is_first_or_inexact(place: int, x: Any) -> bool:
    """Whether an argument is an array whose values functions never read: the first, or one of floats."""
    if not _is_typed_or_traced(place, x):
        return False
    return not place or isinstance(x, jax.core.Tracer) or x.type.differentiable or not _is_replicated(x)


def _is_replicated(x: Any) -> bool:
    """Whether each device has the full value, so that reading it sends nothing."""
    return x.data is not None and {*x.type.states} <= {State.REDUCED, State.INVARIANT}


#: Which arguments are operands, by position and value; the next one where JAX must read an operand's values.
OPERANDS: Final[Sequence[Callable[[int, Any], bool]]] = (
    lambda place, x: is_array(x),
    _is_typed_or_traced,
    _is_first_or_inexact,
)


class _HostArray:
    """A copy of an array whose values a function reads; hashes and compares by value."""

    __slots__ = ("_key", "value")

    def __init__(self, x: Any) -> None:
        self.value = np.array(x)
        self._key = self.value.dtype, self.value.shape, self.value.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HostArray) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def static_value(x: Any) -> Any:
    """A static argument; an array by its values."""
    return _HostArray(x) if is_array(x) else x


def argument_of(static: Static) -> Any:
    """The argument that is passed to a function of JAX for a static one."""
    return static.value.value if isinstance(static.value, _HostArray) else static.value


def listing_name(name: str, tree: Any, static: Sequence[Static | None]) -> str:
    """A call as in listings: with its static arguments, those by keyword with their names."""
    args, kwargs = jax.tree.unflatten(tree, [None if s is None else _InListing(s.value) for s in static])
    parts = [_static_text(x) for x in args] + [f"{k}={text}" for k, x in kwargs.items() if (text := _static_text(x))]
    return f"{name}[{', '.join(filter(None, parts))}]" if any(parts) else name


class _InListing(NamedTuple):
    value: Any


def _static_text(x: Any) -> str:
    """A static argument as in listings; empty for arrays, and for objects without a short form."""
    if isinstance(x, _InListing):
        if isinstance(x.value, slice):
            parts = ["" if part is None else str(part) for part in (x.value.start, x.value.stop, x.value.step)]
            return ":".join(parts if x.value.step is not None else parts[:2])
        plain = isinstance(x.value, (int, float, str, complex)) and x.value is not False
        return "..." if x.value is Ellipsis else str(x.value) if plain else ""
    if not isinstance(x, (tuple, list)):
        return ""
    parts = ["_" if part is None else _static_text(part) for part in x]
    return f"({', '.join(parts)})" if all(parts) and {*parts} != {"_"} else ""
