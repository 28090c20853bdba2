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
from shtypes.context import user_line
from shtypes.context.user_line import named
from shtypes.core.array import Array, wrap
from shtypes.core.host import READ
from shtypes.core.meshes import context_mesh
from shtypes.scopes.comm import open_watches
from shtypes.types import ShType, State

P = ParamSpec("P")
T = TypeVar("T")


class Recipe(NamedTuple):
    """A call written down.

    Carriers are known by their places: those of the operands first, then of the constants that the op makes of nothing,
    then of each result of a step.

    Attributes:
        constants: The carriers of constants.
        steps: Compiled functions of carriers, and the places of their operands.
        results: For each leaf of the result its place and its type; no type if it is an operand itself, and no place
            if it is no typed value: then it is the second.
        structure: The tree that the result is; None if it is one typed value.
    """

    constants: tuple[Any, ...]
    steps: tuple[tuple[Callable[..., Sequence[Any]], tuple[int, ...]], ...]
    results: tuple[tuple[int, Any], ...]
    structure: Any = None

    def fits(self, operands: list[Array]) -> bool:
        """Whether the constants are on the devices of the operands."""
        return not (self.constants and operands) or _devices(self.constants[0]) == _devices(operands[0].data)

    def run(self, operands: list[Array]) -> Any:
        """The result for operands of the types that it was written down for."""
        carriers = [x.data for x in operands]
        carriers += self.constants
        for compiled, places in self.steps:
            carriers += compiled(*[carriers[i] for i in places])
        if self.structure is None:
            ((place, t),) = self.results
            return operands[place] if t is None else wrap(t, carriers[place])
        leaves = [
            t if place < 0 else operands[place] if t is None else wrap(t, carriers[place]) for place, t in self.results
        ]
        return jax.tree.unflatten(self.structure, leaves)


def _devices(carrier: Any) -> Any:
    return carrier.sharding.mesh


class Recording:
    """What an op runs, while it runs. Its operands are distinct objects."""

    def __init__(self, operands: Sequence[Array]) -> None:
        self._values: list[Any] = list(operands)  # held, so that no id is another's
        #: Where each value is: an operand, a constant, or a result of a step.
        self._places = {id(x): ("operand", i) for i, x in enumerate(operands)}
        self._operands = list(operands)
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Sequence[Any]], list[tuple[str, int]]]] = []
        self._results = 0
        self._complete = True

    def ran(self, compiled: Callable[..., Sequence[Any]], operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Notes a compiled function."""
        places = [self._places.get(id(x)) for x in operands]
        self._complete = self._complete and None not in places
        self._steps.append((compiled, places))  # type: ignore[arg-type]  # of a complete recording no place is missing
        for y in results:
            self._note(y, ("result", self._results))
            self._results += 1

    def made(self, constant: Array) -> None:
        """Notes a value that follows from static arguments alone."""
        self._note(constant, ("constant", len(self._constants)))
        self._constants.append(constant.data)

    def incomplete(self) -> None:
        """Says that another call on operands of these types may run something else."""
        self._complete = False

    def relabelled(self, operand: Array, result: Array) -> None:
        """Notes another type for the same carrier."""
        place = self._places.get(id(operand))
        if place is not None:
            self._note(result, place)

    def read(self) -> None:
        """Notes that data was read, on which what follows may depend."""
        self._complete = False

    def _note(self, value: Any, place: tuple[str, int]) -> None:
        self._values.append(value)
        self._places[id(value)] = place

    def recipe(self, result: Any) -> Recipe | None:
        """The call as a recipe; None if it used or gave what was not noted."""
        leaves, structure = ([result], None) if type(result) is Array else jax.tree.flatten(result)
        found = [self._leaf(leaf) for leaf in leaves]
        if not self._complete or None in found:
            return None
        starts = {"operand": 0, "constant": len(self._operands)}
        starts["result"] = starts["constant"] + len(self._constants)
        steps = tuple((compiled, tuple(starts[of] + i for of, i in places)) for compiled, places in self._steps)
        if all(of == "operand" for of, _, _ in found):  # type: ignore[misc]
            steps = ()
        results = tuple((starts[of] + i if of in starts else -1, t) for of, i, t in found)  # type: ignore[misc]
        return Recipe(tuple(self._constants), steps, results, structure)

    def _leaf(self, leaf: Any) -> tuple[str, int, Any] | None:
        """Where a leaf of the result is, and its type; what it is if it is static; None if that is not known."""
        if type(leaf) is not Array:
            return None if _static(leaf) is None else ("static", 0, leaf)
        if any(leaf is x for x in self._operands):
            return *self._places[id(leaf)], None
        place = self._places.get(id(leaf))
        return None if place is None else (*place, leaf.type)


class _Thread(threading.local):
    recording: Recording | None = None


_thread: Final = _Thread()


def recording() -> Recording | None:
    """The recording of the op that this thread runs, if there is one."""
    return _thread.recording


def _data_is_read() -> None:
    if _thread.recording is not None:
        _thread.recording.read()


READ.append(_data_is_read)


def replayed(op: Callable[P, T]) -> Callable[P, T]:
    """Makes an op remember its eager calls.

    Args:
        op: A function of typed values, in lists and tuples too, and static arguments that returns typed values, and
            whose doings follow from their types, the static arguments' values and JAX's context.
    """

    @functools.wraps(op)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        if _thread.recording is not None or not no_trace_is_running() or open_watches():
            return op(*args, **kwargs)
        operands: list[Array] = []
        key = _key(args, kwargs, operands)
        if key is None:
            return op(*args, **kwargs)
        recipe = _recipes.get((op, key))
        if recipe is not None:
            return recipe.run(operands) if recipe is not _NONE and recipe.fits(operands) else op(*args, **kwargs)
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
    return user_line.public(replayed(op))


def published(op: Callable[P, T], name: str, doc: str, signature: inspect.Signature | None = None) -> Callable[P, T]:
    """A function that another one made, as a public op with what `named` gives it."""
    return public(named(op, name, doc, signature=signature))


#: Stands for a call that cannot be replayed.
_NONE: Final = Recipe((), (), ())
_recipes: Final[Bounded[Recipe]] = Bounded(COMPILED)


def _key(args: Sequence[Any], kwargs: dict[str, Any], operands: list[Array]) -> tuple[Any, ...] | None:
    """What a call follows from, and its operands; None where that cannot be said."""
    key: list[Any] = []
    for x in (*args, *kwargs.values()) if kwargs else args:
        part = _operand(x, operands) if type(x) is Array else _part(x, operands)
        if part is None:
            return None
        key.append(part)
    context = trace_context()
    if context is None:
        return None
    mesh = context_mesh() if operands else jax.sharding.get_mesh()  # of nothing it makes something on these devices
    return context, mesh, *key, *kwargs


def _operand(x: Array, operands: list[Array]) -> Any:
    """What a typed value adds to the key: its type, or which operand before it is the same value."""
    if x.data is None:
        return None
    known = _index(operands, x) if operands else -1
    if known >= 0:
        return "same", known  # what was written down for one value twice does not hold for two values
    operands.append(x)
    return x.type.serial  # equal types may differ in names


def _part(x: Any, operands: list[Array]) -> Any:
    """What an argument adds to the key: of a container its parts; None for what cannot be told apart."""
    kind = type(x)
    if kind is Array:
        return _operand(x, operands)
    if kind is list or kind is tuple or kind is dict:
        parts = [_part(y, operands) for y in (x.values() if kind is dict else x)]
        names = tuple(x) if kind is dict else ()
        return None if None in parts else (kind, names, *parts)
    return _static(x)


def _index(xs: Sequence[Any], x: Any) -> int:
    for i, known in enumerate(xs):
        if known is x:
            return i
    return -1


_PLAIN: Final = frozenset({int, bool, str, type(None)})
_NAMED: Final = (type, np.dtype, jax.sharding.PartitionSpec, jax.lax.Precision, jax.lax.GatherScatterMode, State)
#: How many elements a host array may have that is told apart by them.
_FEW: Final = 64


def _static(x: Any) -> Any:
    """A static argument so that only what acts alike is equal: 1 is neither 1.0 nor True, and 0.0 is not -0.0."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if kind is float or kind is complex:
        return kind, repr(x)
    if kind is slice or kind is range:
        parts = (_static(x.start), _static(x.stop), _static(x.step))
        return None if None in parts else (kind, *parts)
    if kind is tuple:
        parts = tuple(map(_static, x))
        return None if None in parts else (kind, parts)
    if isinstance(x, ShType):
        return ShType, x.serial
    if isinstance(x, (np.ndarray, np.generic)):
        few = x.size <= _FEW and not x.dtype.hasobject
        return (kind, str(x.dtype), x.shape, x.tobytes()) if few else None
    return (kind, x) if x is Ellipsis or isinstance(x, _NAMED) else None
