"""The `reshard` primitive, the only one that moves data, printed as ``reshard[tp: U->R] c``. It computes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import Zero, trace_ctx, trace_notes, trace_of
from shtypes.caches import Bounded, NotesOn
from shtypes.core.array import Array
from shtypes.core.collective import vary
from shtypes.core.eager_cache import current_recorder
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.operation import Bound, Comm, LinearizedPrimitive, Operation, UnaryOperation, comm_of
from shtypes.core.run_op import run_reshard
from shtypes.resharding import plan
from shtypes.resharding.transport import AS_IT_IS, Transport, one_transport, transport_in_force
from shtypes.scopes.check_comm import check_written
from shtypes.types import REPLICATED, ShType, State

reshard_p = LinearizedPrimitive("reshard")


@dataclass(frozen=True, eq=False)
class Reshard(UnaryOperation):
    """A reshard; linear, with the reshard of the cotangent types as its transpose.

    It prints as ``cast`` if a typing rule inserted it, and as ``reshard`` if the user wrote it.
    """

    primitive = reshard_p
    src: HiShType
    dst: HiShType
    inserted: bool
    constant: bool = False  # whether its operand has no gradient, despite its type
    transport: Transport = AS_IT_IS  # how it communicates
    merged: tuple[Any, ...] = ()
    absorbed: bool = False  # whether it was merged into another one, and so sends nothing: in reports only

    def forward_comm(self) -> list[Comm]:
        return self._forward

    @functools.cached_property
    def _forward(self) -> list[Comm]:
        return [] if self.absorbed else comm_of(self.transport.plan(self.src, self.dst), self.src, self.dst)

    def backward_comm(self) -> list[Comm]:
        return self._backward

    @functools.cached_property
    def _backward(self) -> list[Comm]:
        if self.absorbed or self.constant or not self.src.differentiable:
            return []
        return comm_of(self.transport.backward(self.src, self.dst), self.dst.cotangent(), self.src.cotangent())

    def __str__(self) -> str:
        description = ", ".join(filter(None, (changes(self.src, self.dst), str(self.transport))))
        return f"{'cast' if self.inserted else 'reshard'}[{description}]"

    def to_lojax(self, *operands: Any) -> list[Array]:
        (x,) = operands
        return [run_reshard(x, self.dst, self.transport)]

    def linearize(
        self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool
    ) -> tuple[list[Any], list[bool], Any]:
        moves = nonzero[0] and self.dst.differentiable
        zero = Zero(self.dst.to_tangent_aval())
        return self.bind(*primals), [moves], lambda tangents: self.bind(*tangents) if moves else [zero]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        dst, transport = self.src.to_ct_aval(), self.transport.transposed()
        return [
            Zero(dst)
            if isinstance(ct, Zero)
            else reshard_cotangent(ct, dst, inserted=self.inserted, transport=transport)
        ]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        dst = self.dst.inc_rank(axis_data.size, d)
        return [resharded(x, dst, inserted=self.inserted, transport=self.transport)], [d]


def types_as_used(xs: Sequence[Any], bound: Sequence[Bound]) -> list[ShType]:
    """The types in which a typing uses values: after the cast that it inserts for all uses, if it does."""
    casts: dict[int, set[ShType | None]] = {}
    for operation, operands, results in bound:
        cast = results[0].type if isinstance(operation, Reshard) and operation.inserted else None
        for x in operands:
            casts.setdefault(id(x), set()).add(cast)
    only = [casts[id(x)] if len(casts.get(id(x), ())) == 1 else {None} for x in xs]
    return [cast or x.type for (cast,), x in zip(only, xs, strict=True)]


#: By serial numbers of the types and the rest, because layers repeat.
_reshards: Final[Bounded[Reshard]] = Bounded()


def _reshard(src: ShType, dst: ShType, inserted: bool, constant: bool, transport: Transport) -> Reshard:
    """The cached operation."""
    key = (src.serial, dst.serial, inserted, constant, transport)
    return _reshards.get(key) or _reshards.put(
        key, Reshard(as_jax_type(src), as_jax_type(dst), inserted, constant, transport)
    )


def changes(src: ShType, dst: ShType) -> str:
    """The changes of a reshard, axis by axis: ``tp: U->S(0)``."""

    def place(t: ShType, axis: str) -> str:
        state = t.state(axis)
        return f"S({t.dim_of(axis)})" if state is State.SHARDED else state.value

    moved = [f"{a}: {place(src, a)}->{place(dst, a)}" for a in src.mesh.axis_names if place(src, a) != place(dst, a)]
    order = [
        f"{i}: ({','.join(s.axes)})->({','.join(d.axes)})"
        for i, (s, d) in enumerate(zip(src.dims, dst.dims, strict=True))
        if s.axes != d.axes and set(s.axes) == set(d.axes)
    ]
    return ", ".join(moved + order)


def resharded(
    x: Array,
    dst: ShType,
    *,
    inserted: bool = False,
    constant: bool = False,
    transport: Transport | None = None,
    check: Callable[[], None] | None = None,
) -> Array:
    """Reshards a typed value to another type of the same mesh, dtype, shape and varying axes."""
    transport = transport_in_force() if transport is None else transport
    src = jax.typeof(x)
    if src == dst:
        return x
    transport.plan(src, dst)  # raises if impossible
    return reshard_once(_reshard(src, dst, inserted, constant, transport), x, check)


def reshard_once(operation: Reshard, x: Any, check: Callable[[], None] | None = None) -> Array:
    """Binds a reshard; reuses an earlier one of the value in the same trace, else calls ``check`` first."""
    transport, src, dst = operation.transport, operation.src, operation.dst
    sends = bool(operation.forward_comm() or operation.backward_comm())
    notes = trace_notes(trace_ctx.trace) if isinstance(x, jax.core.Tracer) else None
    key = ("sent", id(x), transport.dtype, transport.ct_dtype) if sends else ("cast", id(x), operation)
    earlier = [] if notes is None else notes.setdefault(key, [])
    for _, other, moved in earlier:
        if (before := _reuse(moved, other, operation)) is not None:
            return before
    if check is not None:
        check()
    result: Array = operation.applied(x)[0]
    if notes is not None:
        earlier.append((x, operation, result))  # with the value, so that its id is not reused
    if not any(_sum(operation.forward_comm())) and src.local_bytes <= dst.local_bytes:  # as along an axis of size 1
        _note_cast(result, x, operation)
    return result


def _reuse(moved: Array, earlier: Reshard, operation: Reshard) -> Array | None:
    """The result of an operation from that of an earlier one on the same value, or None.

    A type that differs only by casts without communication, such as invariant for reduced, is cast.
    """
    dst = operation.dst
    if operation.constant < earlier.constant or earlier.dst.dims != dst.dims:
        return None
    if earlier.dst == dst:
        return moved
    cast = _reshard(earlier.dst, dst, True, operation.constant, operation.transport)
    if cast.forward_comm() or cast.backward_comm():
        return None
    result: Array = cast.applied(moved)[0]
    return result


def move(x: Array, dst: ShType, *, inserted: bool = False, constant: bool = False) -> Array:
    """Reshards a typed value to another type of the same mesh, dtype and shape; replicated axes may become varying.

    ``inserted``: whether a typing rule inserted it; ``constant``: whether the value has no gradient, despite its type.
    """
    src = jax.typeof(x)
    if src == dst:
        return x
    if inserted:
        check_written(src, dst)
    if State.VARYING not in dst.states or src.axes(State.VARYING) == dst.axes(State.VARYING):
        return resharded(x, dst, inserted=inserted, constant=constant)
    gained = [a for a in dst.axes(State.VARYING) if src.state(a) is not State.VARYING]
    middle = dst
    for axis in gained:
        if src.state(axis) not in REPLICATED:
            plan(src, dst)  # raises
        middle = middle.with_axis(axis, State.REDUCED if constant else src.state(axis))
    if middle != src:  # the gradient is reduced over all of the axes at once
        middle = middle.with_axes(gained, State.REDUCED)
    return vary(move(x, middle, inserted=inserted, constant=constant), gained, inserted=inserted)


# prices of reshards in a row


class Price(NamedTuple):
    """Bytes and launches, forward and transposed."""

    forward: tuple[int, int]
    backward: tuple[int, int]

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Price:
        """The total of some operations."""
        return cls(
            _sum([c for p in operations for c in p.forward_comm()]),
            _sum([c for p in operations for c in p.backward_comm()]),
        )

    def saves(self, other: Price) -> bool:
        """Whether no part exceeds that of another price, and the forward part is less."""
        pairs = zip((*self.forward, *self.backward), (*other.forward, *other.backward), strict=True)
        return self.forward != other.forward and all(a <= b for a, b in pairs)


def _sum(comms: Sequence[Comm]) -> tuple[int, int]:
    return sum(c.bytes for c in comms), sum(c.launches for c in comms)


def merged_reshard(moves: Sequence[Reshard], src: HiShType, dst: HiShType) -> Reshard | None:
    """One reshard for several in a row; None if their transports differ."""
    transport = one_transport([move.transport for move in moves])
    if transport is None:
        return None
    return Reshard(src, dst, all(m.inserted for m in moves), any(m.constant for m in moves), transport)


# cotangents that were cast for free


def reshard_cotangent(ct: Array, dst: ShType, *, inserted: bool, transport: Transport) -> Array:
    """Reshards a cotangent, from an earlier value of which it is a free cast if that sends less.

    Transposition puts reshards in a row: the seed of a reduced loss is 1, cast to unreduced, and the transposed
    all-reduce of the loss would sum it again. The value before the cast is already that sum.
    """
    best = _reshard(jax.typeof(ct), dst, inserted, False, transport)
    if best.src == dst or not best.forward_comm():
        return resharded(ct, dst, inserted=inserted, transport=transport)
    source, row = ct, [best]
    for x, cast in _casts(ct):
        row.append(cast)
        candidate = _reshard(jax.typeof(x), dst, inserted, False, transport)
        sends = candidate.forward_comm() or candidate.backward_comm()
        if sends and one_transport([move.transport for move in row]) is None:
            break  # each narrow cast rounds
        if Price.of([candidate]).saves(Price.of([best, *row[1:]])):
            source, best = x, candidate
    return resharded(source, dst, inserted=inserted, transport=transport)


#: The values from which concrete values were cast.
_cast_from: Final[NotesOn[tuple[Array, Reshard]]] = NotesOn()


def _note_cast(moved: Any, x: Array, cast: Reshard) -> None:
    """Records the value from which a value was cast, which takes no more memory."""
    if not isinstance(moved, jax.core.Tracer):
        if current_recorder() is None:  # a cached call would record nothing
            _cast_from.put(moved, (x, cast))
        return
    notes = trace_notes(trace_of(moved))
    if notes is not None:
        notes["cast", id(moved)] = moved, (x, cast)  # keeps the value alive, so that its id is not reused


def _casts(x: Any) -> Iterator[tuple[Array, Reshard]]:
    """The values from which a value was cast, the last first, with the casts."""
    while True:
        if isinstance(x, jax.core.Tracer):
            _, cast = (trace_notes(trace_of(x)) or {}).get(("cast", id(x)), (None, None))
        else:
            cast = _cast_from.get(x)
        if cast is None:
            return
        yield cast
        x = cast[0]
