"""`Operation`: what our primitives apply, as a parameter; its type is checked, and scopes check what it communicates.

There is one JAX primitive per kind of operation, so JAX's tables have a few entries, whatever programs do. An operation
prints in jaxprs as a separate primitive would, has the types of its operands, and refuses any others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jax.extend import source_info_util

from shtypes._compat import is_transposing, no_trace_is_running, print_as
from shtypes._compat.typed import TypedPrimitive
from shtypes.context.user_line import placed
from shtypes.core.array import Array
from shtypes.core.jax_type import HiShType
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Plan
from shtypes.resharding.moves import Kind, in_words
from shtypes.scopes.check_comm import Sent, check_bound
from shtypes.scopes.comm import open_trackers, rules_in_force
from shtypes.types import ShType


class Comm(NamedTuple):
    """A step that communicates, as the ledger lists it, of the move from ``src`` to ``dst``."""

    kind: Kind  # what it does on the devices
    axes: tuple[str, ...]  # the mesh axes that it goes along
    bytes: int  # bytes that each device sends
    launches: int  # how many collectives the compiled program has for it
    src: ShType
    dst: ShType
    dtype: str  # what is sent: it may be narrower than the value

    @property
    def words(self) -> str:
        """The communication in words."""
        narrow = f" in {self.dtype}" if self.dtype != self.src.dtype_name else ""
        return in_words(self.kind.value, self.axes) + narrow


def comm_of(plan: Plan, src: ShType, dst: ShType) -> list[Comm]:
    """What a plan for the move from ``src`` to ``dst`` communicates."""
    return [
        Comm(s.kind, s.axes, s.bytes, s.launches, src, dst, s.src.dtype_name) for s in plan.steps if s.kind.communicates
    ]


#: An operation that was bound, its operands and its results.
Bound = tuple["Operation", Sequence[Any], Sequence[Any]]


class _Thread(threading.local):
    bound: list[Bound] | None = None


_thread: Final = _Thread()


@contextlib.contextmanager
def noting_bound() -> Iterator[list[Bound]]:
    """Lists the operations that are bound in here; not those that binding them binds."""
    outer, bound = _thread.bound, list[Bound]()
    _thread.bound = bound
    try:
        yield bound
    finally:
        _thread.bound = outer
        if outer is not None:
            outer += bound


class Operation:
    """A primitive operation on typed values, with everything that it depends on; subclasses are frozen dataclasses."""

    primitive: OperationPrimitive  # the primitive of its kind
    operands: tuple[Any, ...]  # the types of its operands
    results: tuple[Any, ...]  # the types of its results
    inserted: bool = False  # whether a typing rule inserted it; else the user wrote it
    merged: tuple[Any, ...] = ()  # of one that does what several did: the lines of these

    def forward_comm(self) -> Sequence[Comm]:
        """What it communicates."""
        return ()

    def backward_comm(self) -> Sequence[Comm]:
        """What it communicates when it is transposed in all operands that have a gradient."""
        return ()

    @property
    def name(self) -> str:
        """What jaxprs and messages call it."""
        return str(self)

    # Equal by value, and by the names of dims too: JAX keeps the results of `abstract_eval`, and they print.

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        kind: Any = type(self)
        return tuple([_exact(getattr(self, name)) for name in _fields(kind)])

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def applied(self, *operands: Any) -> list[Any]:
        """The results: at once for concrete values, else in whatever JAX makes of them."""
        at_once = all(type(x) is Array for x in operands) and no_trace_is_running()
        return self.run(*operands) if at_once else self.bind(*operands)

    def run(self, *operands: Any) -> list[Any]:
        """The results for concrete values, at once."""
        check_operation(self)
        results = self.to_lojax(*operands)
        count(self)
        return results

    def bind(self, *operands: Any) -> list[Any]:
        """The results, in whatever JAX makes of them."""
        bound = _thread.bound
        if bound is None:
            return self.primitive.bind(*operands, operation=self)  # type: ignore[no-any-return]
        _thread.bound = None  # what its derivative binds follows from it
        try:
            results: list[Any] = self.primitive.bind(*operands, operation=self)
        finally:
            _thread.bound = bound
        bound.append((self, operands, results))
        return results

    # The rules that JAX asks for; what they take and return is that of JAX's primitives with several results.

    def abstract_eval(self, *types: Any) -> tuple[list[Any], set[Any]]:
        """The results' types; JAX asks when it traces, and when it checks a jaxpr again.

        Raises:
            ShardingTypeError: the operands have other types.
        """
        if types != self.operands:
            actual, expected = (" and ".join(map(str, ts)) or "nothing" for ts in (types, self.operands))
            raise ShardingTypeError(
                f"`{self}` was given {actual} instead of {expected}",
                why="it is typed for these operands, and for others it would be another operation",
                hints=["apply the function of shtypes again, which finds the types of the results"],
            )
        return list(self.results), set()

    def to_lojax(self, *operands: Any) -> list[Any]:
        """The results where JAX runs or lowers it alone."""
        raise NotImplementedError

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents."""
        raise NotImplementedError

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        """The cotangents of the linear operands; None for the others."""
        raise NotImplementedError

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results mapped over a dim of the operands, and where each has that dim."""
        raise NotImplementedError


class UnaryOperation(Operation):
    """One of one operand and one result."""

    src: HiShType
    dst: HiShType

    @property
    def operands(self) -> tuple[HiShType, ...]:  # type: ignore[override]
        return (self.src,)

    @property
    def results(self) -> tuple[HiShType, ...]:  # type: ignore[override]
        return (self.dst,)


@functools.cache
def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _exact(value: Any) -> Any:
    """A key of a field: of a type, which the operation keeps alive, its serial number."""
    if isinstance(value, ShType):
        return value.serial
    return tuple([_exact(x) for x in value]) if type(value) is tuple else value


class OperationPrimitive(TypedPrimitive):
    """The primitive of one kind of operation, which says itself how it is evaluated.

    Whoever binds it, an op, a derivative or a jaxpr that is evaluated again, is checked by the scopes in force.

    Args:
        name: Its name.
        communicates: Whether such operations may.
    """

    def __init__(self, name: str, *, communicates: bool = True) -> None:
        super().__init__(name)
        self.communicates = communicates
        print_as(self, lambda params: params["operation"].name)

    def bind(self, *operands: Any, **params: Any) -> Any:
        if self.communicates:
            check_operation(params["operation"])
        return super().bind(*operands, **params)

    def abstract_eval(self, *types: Any, operation: Operation) -> tuple[list[Any], set[Any]]:
        return operation.abstract_eval(*types)

    def to_lojax(self, *operands: Any, operation: Operation) -> list[Any]:
        results = operation.to_lojax(*operands)
        if self.communicates and no_trace_is_running():
            count(operation)
        return results

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], operation: Operation) -> tuple[list[Any], list[Any]]:
        return operation.jvp(primals, tangents)

    def transpose(self, cts: Sequence[Any], *operands: Any, operation: Operation) -> list[Any]:
        return operation.transpose(cts, *operands)

    def batch(
        self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], operation: Operation
    ) -> tuple[list[Any], list[Any]]:
        return operation.batch(axis_data, operands, dims)


class LinearizedPrimitive(OperationPrimitive):
    """One whose operations say themselves how they are linearized; of the others JAX traces the jvp."""

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool, **params: Any) -> Any:
        return params["operation"].linearize(primals, nonzero, for_vjp)


def applied_by(eqn: Any) -> Any:
    """What an equation applies: an operation of ours, else JAX's primitive."""
    return eqn.params["operation"] if isinstance(eqn.primitive, OperationPrimitive) else eqn.primitive


# what scopes see


def direction_of(stack: str) -> str:
    """Forward, backward or recomputed, from a name stack; equations of a sub-jaxpr inherit the outer direction."""
    if "rematted_computation" in stack:
        return "recomputed"
    return "backward" if "transpose(" in stack else "forward"


def current_direction() -> tuple[str, int]:
    """The direction of equations bound now, and how many derivatives are being taken around.

    JAX starts a new name stack for each body that it traces, so a body that is transposed does not say so.
    """
    stack = str(source_info_util.current_name_stack())
    return "backward" if is_transposing() else direction_of(stack), stack.count("jvp(")


def check_operation(operation: Operation) -> None:
    """Checks what an operation communicates against the scopes in force.

    Raises:
        ShardingTypeError: a scope forbids it.
    """
    if not rules_in_force():
        return
    forward, backward = operation.forward_comm(), operation.backward_comm()
    if not forward and not backward:
        return
    src, dst = (forward or backward)[0][4:6]
    if not forward:
        src, dst = dst.cotangent(), src.cotangent()
    sent, direction = (sent_by(forward), sent_by(backward)), current_direction()[0]
    try:
        check_bound(operation.name, src, dst, *sent, direction=direction, inserted=operation.inserted)
    except ShardingTypeError as error:
        raise placed(error, f"{operation}({', '.join(map(str, operation.operands))})") from None


def sent_by(comms: Sequence[Comm], noun: str = "") -> Sent:
    """The sum of some steps; in words, each of them or what ``noun`` says they are together."""
    if not comms:
        return Sent()
    axes = tuple(dict.fromkeys(a for c in comms for a in c.axes))
    words = in_words(noun, axes) if noun else " and ".join(dict.fromkeys(c.words for c in comms))
    return Sent(
        tuple(c.kind.value for c in comms), axes, sum(c.bytes for c in comms), sum(c.launches for c in comms), words
    )


def count(operation: Operation) -> None:
    """Tells open scopes that an operation ran."""
    for tracker in open_trackers():
        tracker.ran(operation, *current_direction())
