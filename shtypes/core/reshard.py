"""The `reshard` primitive, the only one that moves data: jaxprs read ``reshard[tp: U->R] c``. It computes nothing."""

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
from shtypes.core.local import check_tangents
from shtypes.core.operation import Comm, LinearizedPrimitive, Operation, UnaryOperation, comm_of
from shtypes.core.run_op import run_reshard
from shtypes.resharding import plan
from shtypes.resharding.transport import AS_IT_IS, Transport, one_transport, transport_in_force
from shtypes.scopes.check_comm import check_written
from shtypes.types import REPLICATED, ShType, State

reshard_p = LinearizedPrimitive("reshard")


@dataclass(frozen=True, eq=False)
class Reshard(UnaryOperation):
    """Linear; its transpose is the reshard of the cotangent types.

    One that a typing rule inserted prints as ``cast``, one that the user wrote as ``reshard``.
    """

    primitive = reshard_p
    src: HiShType
    dst: HiShType
    inserted: bool
    constant: bool = False  # whether its operand has no gradient, whatever its type says
    transport: Transport = AS_IT_IS  # how it communicates
    merged: tuple[Any, ...] = ()
    absorbed: bool = False  # whether another one does it too, so that it sends nothing: in reports only

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
        how = ", ".join(filter(None, (changes(self.src, self.dst), str(self.transport))))
        return f"{'cast' if self.inserted else 'reshard'}[{how}]"

    def to_lojax(self, *operands: Any) -> list[Array]:
        (x,) = operands
        return [run_reshard(x, self.dst, self.transport)]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents], False)
        return outs, push(tangents)

    def linearize(
        self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool
    ) -> tuple[list[Any], list[bool], Any]:
        moves = nonzero[0] and self.dst.differentiable
        zero = Zero(self.dst.to_tangent_aval())
        return self.bind(*primals), [moves], lambda tangents: self.bind(*tangents) if moves else [zero]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        dst, back = self.src.to_ct_aval(), self.transport.transposed()
        return [Zero(dst) if isinstance(ct, Zero) else returned(ct, dst, inserted=self.inserted, transport=back)]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        dst = self.dst.inc_rank(axis_data.size, d)
        return [resharded(x, dst, inserted=self.inserted, transport=self.transport)], [d]


#: By the serial numbers of the types and the rest: layers are alike.
_reshards: Final[Bounded[Reshard]] = Bounded()


def _reshard(src: ShType, dst: ShType, inserted: bool, constant: bool, transport: Transport) -> Reshard:
    """The operation; the same object for the same."""
    key = (src.serial, dst.serial, inserted, constant, transport)
    return _reshards.get(key) or _reshards.put(
        key, Reshard(as_jax_type(src), as_jax_type(dst), inserted, constant, transport)
    )


def changes(src: ShType, dst: ShType) -> str:
    """What a reshard changes, axis by axis: ``tp: U->S(0)``."""

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
    """A typed value in another type of the same mesh, dtype, shape and varying axes; itself if it has it.

    What a traced value was sent for before, in the same trace, is not sent again; else ``check`` is called first.
    """
    transport = transport_in_force() if transport is None else transport
    src = jax.typeof(x)
    if src == dst:
        return x
    plan(src, dst)  # raises if there is no way
    operation = _reshard(src, dst, inserted, constant, transport)
    sends = bool(operation.forward_comm() or operation.backward_comm())
    notes = trace_notes(trace_ctx.trace) if sends and _of_current_trace(x) else None
    earlier = [] if notes is None else notes.setdefault(("sent", id(x), transport.dtype, transport.ct_dtype), [])
    for _, other, moved in earlier:
        if (before := _from_earlier(moved, other, operation)) is not None:
            return before
    if check is not None:
        check()
    result: Array = operation.applied(x)[0]
    if notes is not None:
        earlier.append((x, operation, result))  # with the value, so that its id is not another's
    if not operation.forward_comm() and src.local_bytes <= dst.local_bytes:
        _note_cast(result, x, operation)
    return result


def _from_earlier(moved: Array, earlier: Reshard, operation: Reshard) -> Array | None:
    """The result of an operation from that of an earlier one of the same value; None where it must be sent.

    A type that differs only in what devices know to be alike, such as invariant for reduced, is cast to.
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


def _of_current_trace(x: Any) -> bool:
    """Whether a value belongs to the trace that equations go to now: inside a loop or checkpoint, to the body's."""
    return isinstance(x, jax.core.Tracer) and trace_of(x) is trace_ctx.trace


def move(x: Array, dst: ShType, *, inserted: bool = False, constant: bool = False) -> Array:
    """A typed value in another type of the same mesh, dtype and shape, where axes may become varying, too.

    Args:
        x: The value.
        dst: The type.
        inserted: Whether a typing rule asks for it.
        constant: Whether the value has no gradient, whatever its type says.

    Raises:
        ShardingTypeError: an axis would become varying that is not replicated, or stop being varying.
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
            plan(src, dst)  # says why not
        middle = middle.with_axis(axis, State.REDUCED if constant else src.state(axis))
    if middle != src:  # a gradient returns along all of the axes at once
        middle = middle.with_axes(gained, State.REDUCED)
    return vary(move(x, middle, inserted=inserted, constant=constant), gained, inserted=inserted)


# prices of several reshards in a row


class Price(NamedTuple):
    """Bytes and launches, forward and when it is transposed."""

    forward: tuple[int, int]
    backward: tuple[int, int]

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Price:
        """The sum of what some operations send."""
        return cls(
            _sum([c for p in operations for c in p.forward_comm()]),
            _sum([c for p in operations for c in p.backward_comm()]),
        )

    def saves(self, other: Price) -> bool:
        """Whether it is nowhere more than another, and less in what is sent forward."""
        pairs = zip((*self.forward, *self.backward), (*other.forward, *other.backward), strict=True)
        return self.forward != other.forward and all(a <= b for a, b in pairs)


def _sum(comms: Sequence[Comm]) -> tuple[int, int]:
    return sum(c.bytes for c in comms), sum(c.launches for c in comms)


def direct(moves: Sequence[Reshard], src: HiShType, dst: HiShType) -> Reshard | None:
    """One reshard for several in a row; None where they communicate in different ways."""
    transport = one_transport([move.transport for move in moves])
    if transport is None:
        return None
    return Reshard(src, dst, all(m.inserted for m in moves), any(m.constant for m in moves), transport)


# a cotangent that was cast for free


def returned(ct: Array, dst: ShType, *, inserted: bool, transport: Transport) -> Array:
    """A cotangent in another type, resharded from an earlier value of which it is a free cast where that sends less.

    Transposition puts reshards in a row that nobody wrote: the seed of a reduced loss is 1, cast to unreduced, and the
    transposed all-reduce of the loss would sum it up again. The value before the cast is already that sum.
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
            break  # what is sent narrow is rounded once for each
        if Price.of([candidate]).saves(Price.of([best, *row[1:]])):
            source, best = x, candidate
    return resharded(source, dst, inserted=inserted, transport=transport)


#: The values from which concrete values were cast.
_cast_from: Final[NotesOn[tuple[Array, Reshard]]] = NotesOn()


def _note_cast(moved: Any, x: Array, cast: Reshard) -> None:
    """Notes what a value was cast from, which takes no more memory."""
    if not isinstance(moved, jax.core.Tracer):
        if current_recorder() is None:  # a cached call would note nothing
            _cast_from.put(moved, (x, cast))
        return
    notes = trace_notes(trace_of(moved))
    if notes is not None:
        notes["cast", id(moved)] = moved, (x, cast)  # keeps the value alive, so that its id is not reused


def _casts(x: Any) -> Iterator[tuple[Array, Reshard]]:
    """The values that a value was cast from, the last first, with the casts."""
    while True:
        if isinstance(x, jax.core.Tracer):
            _, cast = (trace_notes(trace_of(x)) or {}).get(("cast", id(x)), (None, None))
        else:
            cast = _cast_from.get(x)
        if cast is None:
            return
        yield cast
        x = cast[0]
