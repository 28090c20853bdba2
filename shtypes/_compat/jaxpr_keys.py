"""What tells programs apart: two traces of one function give the same program if they have the same key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from shtypes._compat.jaxprs import is_literal, jaxpr_of

#: Parameters that say how an equation is differentiated, which a program that only runs does not ask.
_OF_DERIVATIVES: Final = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "jvp", "fwd"})
#: Constants up to so many bytes are compared by value.
_SMALL: Final = 1 << 12


class Key(NamedTuple):
    """What a program is."""

    form: tuple[Any, ...]  # its equations, without the values of numbers and constants and without functions of Python
    values: tuple[Any, ...]  # these, in the order in which they come


def key_of(jaxpr: Any, consts: Sequence[Any], static: Callable[[Any], Any]) -> Key:
    """The key of a program; ``static`` makes a hashable of any object, equal only to that of an equal one."""
    walk = _Walk(static)
    form = walk.jaxpr(jaxpr_of(jaxpr))
    walk.values += map(walk.value, consts)
    return Key(form, tuple(walk.values))


class _Walk:
    def __init__(self, static: Callable[[Any], Any]) -> None:
        self._static = static
        self.values: list[Any] = []

    def jaxpr(self, jaxpr: Any) -> tuple[Any, ...]:
        numbers: dict[Any, int] = {}
        for var in (*jaxpr.constvars, *jaxpr.invars):
            numbers[var] = len(numbers)
        found: list[Any] = [tuple([v.aval for v in numbers])]
        for eqn in jaxpr.eqns:
            operands = [self._atom(x, numbers) for x in eqn.invars]
            params = [(k, self._param(v)) for k, v in eqn.params.items() if k not in _OF_DERIVATIVES]
            for var in eqn.outvars:
                numbers[var] = len(numbers)
            found.append((eqn.primitive, *operands, *params, len(eqn.outvars), eqn.source_info.name_stack, eqn.ctx))
        found.append(tuple([self._atom(x, numbers) for x in jaxpr.outvars]))
        return tuple(found)

    def _atom(self, x: Any, numbers: dict[Any, int]) -> Any:
        if not is_literal(x):
            return numbers[x]
        self.values.append(self.value(x.val))
        return x.aval

    def _param(self, value: Any) -> Any:
        if hasattr(jaxpr_of(value), "eqns"):
            self.values += map(self.value, getattr(value, "consts", ()))
            return self.jaxpr(jaxpr_of(value))
        if type(value) in (tuple, list):
            return tuple([self._param(v) for v in value])
        if isinstance(value, (int, float, complex, str, bytes, type(None), type)):
            return self._static(value)
        if callable(value) or isinstance(value, (np.ndarray, jax.Array)):
            self.values.append(self.value(value))
            return getattr(value, "__code__", type(value))
        return self._static(value)

    def value(self, x: Any) -> Any:
        """What a number, a constant or an object is equal by."""
        plain = isinstance(x, (np.ndarray, np.generic)) or (
            isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and type(x).__module__.startswith("jax")
        )
        if plain and isinstance(x.dtype, np.dtype) and x.dtype.kind in "biufc" and x.nbytes <= _SMALL:
            return (str(x.dtype), x.shape, np.asarray(x).tobytes())
        return self._static(x)


__all__ = ["Key", "key_of"]
