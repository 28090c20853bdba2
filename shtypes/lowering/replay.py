"""Eager calls again: an op on operands of the same types runs what it ran before, without asking the rules again.

What an op does follows from the types of its operands, its static arguments and JAX's context, which holds the policy
and the mesh. The general path stays the only one that decides: its first eager call is written down as the compiled
functions that it ran on which values, and later calls run those.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from shtypes._compat import no_trace_is_running, trace_context
from shtypes.caches import COMPILED, Bounded
from shtypes.context.user_line import named, public_op
from shtypes.core.array import Array, wrap
from shtypes.core.hitype import HiShType
from shtypes.core.meshes import context_mesh
from shtypes.scopes.comm import open_watches
from shtypes.types import ShType, State

P = ParamSpec("P")
T = TypeVar("T")


class Recipe(NamedTuple):
    """A call written down. Values are known by their places: the operands first, then each result."""

    #: Compiled functions of carriers, and the places of their operands.
    steps: tuple[tuple[Callable[..., Sequence[Any]], tuple[int, ...]], ...]
    result: int  # the place of the result
    type: HiShType | None  # its type; None if it is an operand itself

    def run(self, operands: list[Array]) -> Array:
        """The op on operands of the types that it was written down for."""
        if self.type is None:
            return operands[self.result]
        carriers = [x.data for x in operands]
        for compiled, places in self.steps:
            carriers += compiled(*[carriers[i] for i in places])
        return wrap(self.type, carriers[self.result])


class Recording:
    """What an op runs, while it runs. Its operands are distinct objects."""

    def __init__(self, operands: Sequence[Array]) -> None:
        self._values = list(operands)  # held, so that no id is another's
        self._places = {id(x): i for i, x in enumerate(operands)}
        self._carriers = self._operands = len(operands)
        self._steps: list[tuple[Callable[..., Sequence[Any]], tuple[int, ...]]] = []
        self._complete = True

    def ran(self, compiled: Callable[..., Sequence[Any]], operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Notes a compiled function."""
        places = tuple(self._places.get(id(x), -1) for x in operands)
        self._complete = self._complete and -1 not in places
        self._steps.append((compiled, places))
        for y in results:
            self._values.append(y)
            self._places[id(y)] = self._carriers
            self._carriers += 1

    def relabelled(self, operand: Array, result: Array) -> None:
        """Notes another type for the same carrier."""
        self._values.append(result)
        self._places[id(result)] = self._places.get(id(operand), -1)

    def recipe(self, result: Any) -> Recipe | None:
        """The call as a recipe; None if it used or gave what was not noted."""
        place = self._places.get(id(result), -1) if type(result) is Array else -1
        if not self._complete or place < 0:
            return None
        if any(result is x for x in self._values[: self._operands]):
            return Recipe((), place, None)
        return Recipe(tuple(self._steps), place, result.type)


class _Thread(threading.local):
    recording: Recording | None = None


_thread: Final = _Thread()


def recording() -> Recording | None:
    """The recording of the op that this thread runs, if there is one."""
    return _thread.recording


def replayed(op: Callable[P, T]) -> Callable[P, T]:
    """Makes an op remember its eager calls.

    Args:
        op: A function of typed values and static arguments that returns one typed value, and whose doings follow from
            their types, their values and JAX's context.
    """

    @functools.wraps(op)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        operands: list[Array] = []
        key = _key(args, kwargs, operands) if _thread.recording is None else None
        if key is None or open_watches() or not no_trace_is_running():
            return op(*args, **kwargs)
        recipe = _recipes.get((op, key))
        if recipe is _NONE:
            return op(*args, **kwargs)
        if recipe is not None:
            return recipe.run(operands)
        _thread.recording = noted = Recording(operands)
        try:
            result = op(*args, **kwargs)
        finally:
            _thread.recording = None
        _recipes.put((op, key), noted.recipe(result) or _NONE)
        return result

    return call


def public(op: Callable[P, T]) -> Callable[P, T]:
    """A public op of values: its errors leave with the user's line, and its eager calls are remembered."""
    return public_op(replayed(op))


def published(op: Callable[P, T], name: str, doc: str, signature: inspect.Signature | None = None) -> Callable[P, T]:
    """A function that another one made, as a public op with what `named` gives it."""
    return public(named(op, name, doc, signature=signature))


#: Stands for a call that cannot be replayed.
_NONE: Final = Recipe((), -1, None)
_recipes: Final[Bounded[Recipe]] = Bounded(COMPILED)


def _key(args: Sequence[Any], kwargs: dict[str, Any], operands: list[Array]) -> tuple[Any, ...] | None:
    """What a call follows from, and its operands; None where that cannot be said."""
    key: list[Any] = []
    for x in (*args, *kwargs.values()) if kwargs else args:
        if type(x) is Array:
            if x.data is None:
                return None
            known = _index(operands, x) if operands else -1
            if known >= 0:
                key.append(known)  # what was written down for one value twice does not hold for two values
                continue
            operands.append(x)
            key.append(x.type.serial)  # equal types may differ in names
        else:
            static = _static(x)
            if static is None:
                return None
            key.append(static)
    context = trace_context()
    return None if context is None else (context, context_mesh(), *key, *kwargs)


def _index(xs: Sequence[Any], x: Any) -> int:
    for i, known in enumerate(xs):
        if known is x:
            return i
    return -1


_PLAIN: Final = frozenset({int, bool, str, type(None)})
_NAMED: Final = (type, np.dtype, jax.sharding.PartitionSpec, jax.lax.Precision, State)


def _static(x: Any) -> Any:
    """A static argument so that only what acts alike is equal: 1 is neither 1.0 nor True, and 0.0 is not -0.0."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if kind is float or kind is complex:
        return kind, repr(x)
    if kind is tuple:
        parts = tuple(map(_static, x))
        return None if None in parts else (kind, parts)
    if isinstance(x, ShType):
        return ShType, x.serial
    return (kind, x) if isinstance(x, _NAMED) else None
