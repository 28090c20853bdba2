"""`Operation`: what our primitives apply, as a parameter; its types, and its communication, are checked when bound.

There is one JAX primitive per kind of operation, so JAX's tables get few entries. An operation prints in jaxprs like a
separate primitive, and accepts only operands of its types.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.extend import source_info_util

from shtypes._compat import Zero, is_transposing, no_trace_is_running, print_as
from shtypes._compat.typed import TypedPrimitive
from shtypes.context.user_line import placed
from shtypes.core.array import Array
from shtypes.core.jax_type import HiShType
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Plan
from shtypes.resharding.moves import Kind, in_words
from shtypes.rules.cotangent import check_tangent
from shtypes.scopes.check_comm import Sent, check_bound
from shtypes.scopes.comm import open_trackers
from shtypes.scopes.scope_rules import rules_in_force
from shtypes.types import ShType


class Comm(NamedTuple):
    """A communicating step, for the ledger, of the reshard from ``src`` to ``dst``."""

    kind: Kind
    axes: tuple[str, ...]  # its mesh axes
    bytes: int  # bytes that each device sends
    launches: int  # the number of collectives in the compiled program
    src: ShType
    dst: ShType
    dtype: str  # the dtype sent, which may be narrower than the value's

    @property
    def words(self) -> str:
        """The communication in words."""
        narrow = f" in {self.dtype}" if self.dtype != self.src.dtype_name else ""
        return in_words(self.kind.value, self.axes) + narrow


def comm_of(plan: Plan, src: ShType, dst: ShType) -> list[Comm]:
    """The communication of a plan for the reshard from ``src`` to ``dst``."""
    return [
        Comm(s.kind, s.axes, s.bytes, s.launches, src, dst, s.src.dtype_name) for s in plan.steps if s.kind.communicates
    ]


#: A bound operation, with its operands and results.
Bound = tuple["Operation", Sequence[Any], Sequence[Any]]


class _Thread(threading.local):
    bound: list[Bound] | None = None


_thread: Final = _Thread()


@contextlib.contextmanager
def noting_bound() -> Iterator[list[Bound]]:
    """Collects the operations bound in it, but not those that their derivatives bind."""
    outer, bound = _thread.bound, list[Bound]()
    _thread.bound = bound
    try:
        yield bound
    finally:
        _thread.bound = outer
        if outer is not None:
            outer += bound


class Operation:
    """A primitive operation on typed values, with all its parameters; subclasses are frozen dataclasses."""

    primitive: OperationPrimitive  # the primitive of its kind
    operands: tuple[Any, ...]  # the types of its operands
    results: tuple[Any, ...]  # the types of its results
    inserted: bool = False  # whether a typing rule inserted it; else the user wrote it
    merged: tuple[Any, ...] = ()  # the lines of the operations that were merged into it

    def forward_comm(self) -> Sequence[Comm]:
        """The collectives that it runs."""
        return ()

    def backward_comm(self) -> Sequence[Comm]:
        """The collectives that its transpose runs, by all operands that have a gradient."""
        return ()

    @property
    def name(self) -> str:
        """The name in jaxprs and messages."""
        return str(self)

    # equal by value, including the names of dims, because JAX caches the results of `abstract_eval`, which print

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
        """The results: computed eagerly for concrete values, else bound."""
        at_once = all(type(x) is Array for x in operands) and no_trace_is_running()
        return self.run(*operands) if at_once else self.bind(*operands)

    def run(self, *operands: Any) -> list[Any]:
        """The results for concrete values, computed eagerly."""
        check_operation(self)
        results = self.to_lojax(*operands)
        count(self)
        return results

    def bind(self, *operands: Any) -> list[Any]:
        """Binds it in JAX's current trace."""
        bound = _thread.bound
        if bound is None:
            return self.primitive.bind(*operands, operation=self)  # type: ignore[no-any-return]
        _thread.bound = None  # excludes what its derivative binds
        try:
            results: list[Any] = self.primitive.bind(*operands, operation=self)
        finally:
            _thread.bound = bound
        bound.append((self, operands, results))
        return results

    # JAX's rules, with arguments and results as for JAX's primitives with several results

    def abstract_eval(self, *types: Any) -> tuple[list[Any], set[Any]]:
        """The results' types, for JAX's traces and checks of jaxprs; an error if the operands have other types."""
        if types != self.operands:
            actual, expected = (" and ".join(map(str, ts)) or "nothing" for ts in (types, self.operands))
            raise ShardingTypeError(
                f"`{self}` was given {actual} instead of {expected}",
                why="it is typed for these operands, and for others it would be another operation",
                hints=["apply the function of shtypes again, which finds the types of the results"],
            )
        return list(self.results), set()

    def to_lojax(self, *operands: Any) -> list[Any]:
        """The results, if JAX runs or lowers it alone."""
        raise NotImplementedError

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents."""
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents], False)
        return outs, push(tangents)

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool) -> tuple[Any, Any, Any]:
        """As `HiPrimitive.linearize`; of a `LinearizedPrimitive`, and where there is no other ``jvp``."""
        raise NotImplementedError

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        """The cotangents of the linear operands; None for the others."""
        raise NotImplementedError

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results mapped over a dim of the operands, and the position of that dim in each."""
        raise NotImplementedError


class UnaryOperation(Operation):
    """An operation of one operand and one result."""

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
    """A key of a field; for a type, which the operation keeps alive, its serial number."""
    if isinstance(value, ShType):
        return value.serial
    return tuple([_exact(x) for x in value]) if type(value) is tuple else value


class OperationPrimitive(TypedPrimitive):
    """The primitive of one kind of operation, which delegates its rules to the operation.

    Binding it, in an op, a derivative or an evaluated jaxpr, checks the open scopes if such operations may communicate.
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
        check_tangents(primals, tangents)
        return operation.jvp(primals, tangents)

    def transpose(self, cts: Sequence[Any], *operands: Any, operation: Operation) -> list[Any]:
        return operation.transpose(cts, *operands)

    def batch(
        self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], operation: Operation
    ) -> tuple[list[Any], list[Any]]:
        return operation.batch(axis_data, operands, dims)


class LinearizedPrimitive(OperationPrimitive):
    """A primitive whose operations have linearization rules; for others, JAX traces the jvp."""

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool, **params: Any) -> Any:
        return params["operation"].linearize(primals, nonzero, for_vjp)


def applied_by(eqn: Any) -> Any:
    """The operation of an equation, or else JAX's primitive."""
    return eqn.params["operation"] if isinstance(eqn.primitive, OperationPrimitive) else eqn.primitive


def check_tangents(primals: Sequence[Any], tangents: Sequence[Any]) -> None:
    """Refuses tangents of other types than their values', which `jax.jvp` does not check."""
    for x, tangent in zip(primals, tangents, strict=True):
        t = jax.typeof(x)
        if type(tangent) is not Zero and type(t) is HiShType and t.differentiable:
            actual = jax.typeof(tangent)
            if actual is not t and actual != t:
                check_tangent(actual if type(actual) is HiShType else str(actual), t)


# communication scopes


def direction_of(stack: str) -> str:
    """Forward, backward or recomputed, from a name stack; equations of a sub-jaxpr inherit the outer direction."""
    if "rematted_computation" in stack:
        return "recomputed"
    return "backward" if "transpose(" in stack else "forward"


def current_direction() -> tuple[str, int]:
    """The direction of equations bound now, and the number of enclosing derivatives.

    JAX starts a new name stack for each traced body, so the stack of a transposed body does not show it.
    """
    stack = str(source_info_util.current_name_stack())
    return "backward" if is_transposing() else direction_of(stack), stack.count("jvp(")


def check_operation(operation: Operation) -> None:
    """Checks the communication of an operation against the open scopes."""
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
    """The sum of some steps; in words, each of them, or ``noun`` for all."""
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
