"""The eager cache: an op that ran on operands of these types before runs its recorded compiled functions again.

An op is determined by the types of its operands, its static arguments and JAX's context, which includes the policy and
the mesh. The general path is run first, and recorded as the compiled functions that it called.
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
from shtypes.scopes.comm import inserted_reshards, open_trackers
from shtypes.types import ShType, State

P = ParamSpec("P")
T = TypeVar("T")


class CachedCall(NamedTuple):
    """A recorded call. Physical arrays are numbered: the operands', then the results of each step.

    Attributes:
        steps: Compiled functions of physical arrays, with the numbers of their operands.
        results: The number and type of each leaf of the result. The type is None if the leaf is an operand; for a leaf
            that is not a typed value the number is -1 and the second is the leaf.
        constants: The physical arrays that the op creates, in steps without operands.
        structure: The pytree structure of the result; None for one typed value.
    """

    steps: tuple[tuple[Callable[..., Sequence[Any]], tuple[int, ...]], ...]
    results: tuple[tuple[int, Any], ...]
    constants: tuple[Any, ...] = ()
    structure: Any = None

    def matches(self, operands: list[Array]) -> bool:
        """Whether the constants are on the operands' devices."""
        return not operands or self.constants[0].sharding.mesh == operands[0].data.sharding.mesh

    def run(self, operands: list[Array]) -> Any:
        """The result for operands of the recorded types."""
        arrays = [x.data for x in operands]
        for compiled, places in self.steps:
            arrays += compiled(*[arrays[i] for i in places])
        if self.structure is None:
            ((place, t),) = self.results
            return operands[place] if t is None else wrap(t, arrays[place])
        leaves = [
            t if place < 0 else operands[place] if t is None else wrap(t, arrays[place]) for place, t in self.results
        ]
        return jax.tree.unflatten(self.structure, leaves)


class CallRecorder:
    """Records the steps of an op. Its operands are distinct objects."""

    def __init__(self, operands: Sequence[Array]) -> None:
        self._operands = list(operands)
        self._values: list[Any] = []  # keeps the values alive, so that no id is reused
        self._places: dict[int, int] = {}  # the numbers of values by id
        self._constants: list[Any] = []
        self._steps: list[tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]] = []
        self._count = 0
        self._complete = True
        self._shared = inserted_reshards()
        self._number(operands)

    def _number(self, values: Sequence[Array]) -> None:
        self._values += values
        for x in values:
            self._places[id(x)] = self._count
            self._count += 1

    def ran(self, compiled: Callable[..., Sequence[Any]], operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Records a compiled function."""
        places = tuple([self._places.get(id(x)) for x in operands])
        self._complete = self._complete and None not in places
        self._steps.append((compiled, places))
        self._number(results)

    def add_constant(self, constant: Array) -> None:
        """Records a value that depends only on static arguments."""
        data = (constant.data,)
        self._constants += data
        self._steps.append((lambda: data, ()))
        self._number([constant])

    def relabelled(self, operand: Array, result: Array) -> None:
        """Records another type for the same physical array."""
        place = self._places.get(id(operand))
        if place is not None:
            self._values.append(result)
            self._places[id(result)] = place

    def inserts(self) -> None:
        """Records that a cast is shared with later ops of the current scope, which a replay would not do."""
        if self._shared is not None:  # else the call itself opened the scope
            self._complete = False

    def incomplete(self) -> None:
        """Marks the call as not determined by the operands' types."""
        self._complete = False

    def cached_call(self, result: Any) -> CachedCall | None:
        """The recorded call; None if it used or returned something that was not recorded."""
        leaves, structure = ([result], None) if type(result) is Array else jax.tree.flatten(result)
        results = [self._leaf(leaf) for leaf in leaves]
        if not self._complete or None in results:
            return None
        entries: Any = tuple(results)
        steps = () if all(0 <= place < len(self._operands) for place, _ in entries) else tuple(self._steps)
        return CachedCall(steps, entries, tuple(self._constants) if steps else (), structure)

    def _leaf(self, leaf: Any) -> tuple[int, Any] | None:
        """The entry of a leaf in `CachedCall.results`, or None."""
        if type(leaf) is not Array:
            return None if _static(leaf) is None else (-1, leaf)
        place = self._places.get(id(leaf))
        if place is None:
            return None
        return place, None if any(leaf is x for x in self._operands) else leaf.type


class _Thread(threading.local):
    recorder: CallRecorder | None = None


_thread: Final = _Thread()


def current_recorder() -> CallRecorder | None:
    """The recorder of the op that this thread runs, or None."""
    return _thread.recorder


def _data_is_read() -> None:
    if _thread.recorder is not None:
        _thread.recorder.incomplete()  # the op may depend on the data


READ.append(_data_is_read)


def cached_eagerly(op: Callable[P, T]) -> Callable[P, T]:
    """Caches the eager calls of an op: a function of typed values, also in lists and tuples, and static arguments.

    It returns typed values, which their types, the static arguments' values and JAX's context determine.
    """

    @functools.wraps(op)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        if _thread.recorder is not None or not no_trace_is_running() or open_trackers():
            return op(*args, **kwargs)
        operands: list[Array] = []
        key = _key(args, kwargs, operands)
        if key is None:
            return op(*args, **kwargs)
        cached = _calls.get((op, key))
        if cached is not None:
            if cached is _NONE or (cached.constants and not cached.matches(operands)):
                return op(*args, **kwargs)
            return cached.run(operands)
        _thread.recorder = recorder = CallRecorder(operands)
        try:
            result = op(*args, **kwargs)
        finally:
            _thread.recorder = None
        _calls.put((op, key), recorder.cached_call(result) or _NONE)
        return result

    return call


def public(op: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public op: errors name the user's line, and eager calls are cached."""
    return user_line.public(cached_eagerly(op))


def published(op: Callable[P, T], name: str, doc: str, signature: inspect.Signature | None = None) -> Callable[P, T]:
    """Makes a generated function a public op, with name, doc and signature as in `named`."""
    return public(named(op, name, doc, signature=signature))


#: The entry of a call that cannot be cached.
_NONE: Final = CachedCall((), ())
_calls: Final[Bounded[CachedCall]] = Bounded(COMPILED)


def _key(args: Sequence[Any], kwargs: dict[str, Any], operands: list[Array]) -> tuple[Any, ...] | None:
    """The cache key of a call, and its operands; None if it has none."""
    key: list[Any] = []
    for x in (*args, *kwargs.values()) if kwargs else args:
        kind = type(x)
        if kind in _PLAIN:
            key.append((kind, x))
            continue
        part = _operand(x, operands) if kind is Array else _part(x, operands)
        if part is None:
            return None
        key.append(part)
    context = trace_context()
    if context is None:
        return None
    mesh = context_mesh() if operands else jax.sharding.get_mesh()  # the devices of created values
    return context, mesh, *key, *kwargs


def _operand(x: Array, operands: list[Array]) -> Any:
    """The key of a typed value: its type, or the index of the same value among the operands."""
    if x.data is None:
        return None
    for i, other in enumerate(operands):
        if other is x:
            return "same", i  # a call with one value twice differs from one with two values
    operands.append(x)
    return x.type.serial  # equal types may differ in names


def _part(x: Any, operands: list[Array]) -> Any:
    """The key of an argument, for a container that of its items; None if it has none."""
    kind = type(x)
    if kind is Array:
        return _operand(x, operands)
    if kind in _PLAIN:
        return kind, x
    if kind is list or kind is tuple or kind is dict:
        parts = [_part(y, operands) for y in (x.values() if kind is dict else x)]
        names = tuple(x) if kind is dict else ()
        return None if None in parts else (kind, names, *parts)
    return _static(x)


_PLAIN: Final = frozenset({int, bool, str, type(None)})
_NAMED: Final = (type, np.dtype, jax.sharding.PartitionSpec, jax.lax.Precision, jax.lax.GatherScatterMode, State)
#: The maximum size of a host array that is a key by its elements.
_FEW: Final = 64


def _static(x: Any) -> Any:
    """The key of a static argument, in which 1 differs from 1.0 and True, and 0.0 from -0.0."""
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
        return (kind, x.dtype, x.shape, x.tobytes()) if few else None
    return (kind, x) if x is Ellipsis or isinstance(x, _NAMED) else None
