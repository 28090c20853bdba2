"""Hashable keys of programs and equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend import source_info_util

from shtypes._compat.jaxprs import is_literal, is_used, jaxpr_of
from shtypes.caches import Static

#: Parameters for differentiation, which do not matter to evaluation.
_DERIVATIVE_PARAMETERS: Final = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "jvp", "fwd"})
#: The maximum bytes of constants that are compared by value.
_SMALL: Final = 1 << 12


class Key(NamedTuple):
    """A hashable that identifies a program."""

    form: tuple[Any, ...]  # its equations, without numbers, constants and Python functions
    values: tuple[Any, ...]  # these, in order


def key_of(jaxpr: Any, consts: Sequence[Any], static: Callable[[Any], Any]) -> Key:
    """The key of a program; ``static`` makes any object hashable, with equality of the objects."""
    walk = _Walk(static)
    form = walk.jaxpr(jaxpr_of(jaxpr))
    walk.values += map(walk.value, consts)
    return Key(form, tuple(walk.values))


def key_of_equation(eqn: Any, operands: Sequence[Any] = ()) -> Key:
    """The key of an equation, independent of its source, and of those of its ``operands`` that are not traced."""
    plain = eqn.replace(source_info=source_info_util.new_source_info())
    variables = tuple(dict.fromkeys(v for v in eqn.invars if not is_literal(v)))
    program = SimpleNamespace(constvars=(), invars=variables, eqns=[plain], outvars=eqn.outvars)
    return key_of(program, [None if isinstance(x, jax.core.Tracer) else x for x in operands], Static)


class _Walk:
    def __init__(self, static: Callable[[Any], Any]) -> None:
        self._static = static
        self.values: list[Any] = []

    def jaxpr(self, jaxpr: Any) -> tuple[Any, ...]:
        numbers: dict[Any, int] = {}
        for var in (*jaxpr.constvars, *jaxpr.invars):
            numbers[var] = len(numbers)
        parts: list[Any] = [tuple([v.aval for v in numbers])]
        for eqn in jaxpr.eqns:
            operands = [self._atom(x, numbers) for x in eqn.invars]
            params = [(k, self._param(v)) for k, v in eqn.params.items() if k not in _DERIVATIVE_PARAMETERS]
            for var in eqn.outvars:
                numbers[var] = len(numbers)
            used = tuple(map(is_used, eqn.outvars))
            parts.append((eqn.primitive, *operands, *params, used, eqn.source_info.name_stack, eqn.ctx))
        parts.append(tuple([self._atom(x, numbers) for x in jaxpr.outvars]))
        return tuple(parts)

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
        """A hashable by which numbers, constants and objects are compared."""
        plain = isinstance(x, (np.ndarray, np.generic)) or (
            isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and type(x).__module__.startswith("jax")
        )
        if plain and isinstance(x.dtype, np.dtype) and x.dtype.kind in "biufc" and x.nbytes <= _SMALL:
            return (str(x.dtype), x.shape, np.asarray(x).tobytes())
        return self._static(x)
