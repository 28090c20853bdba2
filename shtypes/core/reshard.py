"""The `reshard` primitive, the only one that moves data: jaxprs read ``reshard[tp: U->R] c``. It computes nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax

from shtypes._compat import Zero, trace_notes, trace_of
from shtypes.caches import Bounded, NotesOn
from shtypes.core.array import Array
from shtypes.core.collective import vary
from shtypes.core.eager_cache import recording
from shtypes.core.jax_type import HiShType, hi
from shtypes.core.local import check_tangents
from shtypes.core.operation import LinearizedPrimitive, Operation, Sending, UnaryOperation
from shtypes.core.run_op import run_reshard
from shtypes.resharding import plan
from shtypes.resharding.transport import AS_IT_IS, Transport, one_transport, transport_in_force
from shtypes.scopes.written import check_written
from shtypes.types import REPLICATED, ShType, State

reshard_p = LinearizedPrimitive("reshard")


@dataclass(frozen=True, eq=False)
class Reshard(UnaryOperation):
    """The only operation that communicates. Linear; its transpose is the reshard of the cotangent types.

    One that a typing rule inserted prints as ``cast``, one that the user wrote as ``reshard``.
    """

    primitive = reshard_p
    src: HiShType
    dst: HiShType
    inserted: bool
    constant: bool = False  # whether its operand has no gradient, whatever its type says
    transport: Transport = AS_IT_IS  # how it communicates

    def forth(self) -> list[Sending]:
        return self._forth

    @functools.cached_property
    def _forth(self) -> list[Sending]:
        forth = self.transport.plan(self.src, self.dst)
        return [Sending(s, self.src, self.dst) for s in forth.steps if s.kind.communicates]

    def back(self) -> list[Sending]:
        return self._back

    @functools.cached_property
    def _back(self) -> list[Sending]:
        if self.constant or not self.src.differentiable:
            return []
        src, dst = self.dst.cotangent(), self.src.cotangent()
        back = self.transport.backward(self.src, self.dst)
        return [Sending(s, src, dst) for s in back.steps if s.kind.communicates]

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
        carried = nonzero[0] and self.dst.differentiable
        zero = Zero(self.dst.to_tangent_aval())
        return self.bind(*primals), [carried], lambda tangents: self.bind(*tangents) if carried else [zero]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        dst, back = self.src.to_ct_aval(), self.transport.transposed()
        return [Zero(dst) if isinstance(ct, Zero) else returned(ct, dst, inserted=self.inserted, transport=back)]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        dst = self.dst.inc_rank(axis_data.size, d)
        return [resharded(x, dst, inserted=self.inserted, transport=self.transport)], [d]


#: By the serial numbers of the types and the rest: layers are alike.
_known: Final[Bounded[Reshard]] = Bounded()


def _reshard(src: ShType, dst: ShType, inserted: bool, constant: bool, transport: Transport) -> Reshard:
    """The operation; the same object for the same."""
    key = (src.serial, dst.serial, inserted, constant, transport)
    return _known.get(key) or _known.put(key, Reshard(hi(src), hi(dst), inserted, constant, transport))


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
    x: Array, dst: ShType, *, inserted: bool = False, constant: bool = False, transport: Transport | None = None
) -> Array:
    """A typed value in another type of the same mesh, dtype, shape and varying axes; itself if it has it."""
    transport = transport_in_force() if transport is None else transport
    src = jax.typeof(x)
    if src == dst:
        return x
    plan(src, dst)  # raises if there is no way
    operation = _reshard(src, dst, inserted, constant, transport)
    moved: Array = operation.applied(x)[0]
    if not operation.forth() and src.local_bytes <= dst.local_bytes:
        _note_cast(moved, x, operation)
    return moved


@dataclass(frozen=True)
class Price:
    """What is sent: bytes and launches, forward and when it is transposed."""

    forth: tuple[int, int]
    back: tuple[int, int]

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> Price:
        """The price of some operations."""
        return cls(_sum([s for p in operations for s in p.forth()]), _sum([s for p in operations for s in p.back()]))

    def saves(self, other: Price) -> bool:
        """Whether it is nowhere more than another, and less in what is sent forward."""
        pairs = [*zip(self.forth, other.forth, strict=True), *zip(self.back, other.back, strict=True)]
        return all(a <= b for a, b in pairs) and self.forth != other.forth


def _sum(sendings: Sequence[Sending]) -> tuple[int, int]:
    return sum(s.step.bytes for s in sendings), sum(s.step.launches for s in sendings)


# A cotangent that was cast for free


def returned(ct: Array, dst: ShType, *, inserted: bool, transport: Transport) -> Array:
    """A cotangent in another type: from a form that it was cast from for free, where that sends less.

    Transposition puts reshards in a row that nobody wrote: the seed of a reduced loss is 1, made unreduced, and the
    all-reduce in which the loss ends sums it up again. The value before the cast holds the sum already.
    """
    best = _reshard(jax.typeof(ct), dst, inserted, False, transport)
    if best.src == dst or not best.forth():
        return resharded(ct, dst, inserted=inserted, transport=transport)
    source, row = ct, [best]
    for x, cast in _casts(ct):
        row.append(cast)
        if one_transport([move.transport for move in row]) is None:
            break
        move = _reshard(jax.typeof(x), dst, inserted, False, transport)
        if Price.of([move]).saves(Price.of([best, *row[1:]])):
            source, best = x, move
    return resharded(source, dst, inserted=inserted, transport=transport)


#: What values outside of traces were cast from.
_cast_from: Final[NotesOn[tuple[Array, Reshard]]] = NotesOn()


def _note_cast(moved: Any, x: Array, cast: Reshard) -> None:
    """Notes what a value was cast from, which takes no more memory."""
    if not isinstance(moved, jax.core.Tracer):
        if recording() is None:  # a call that is repeated would note nothing
            _cast_from.put(moved, (x, cast))
        return
    notes = trace_notes(trace_of(moved))
    if notes is not None:
        notes["cast", id(moved)] = moved, (x, cast)  # the value is kept, so that its id is not another's


def _casts(x: Any) -> Iterator[tuple[Array, Reshard]]:
    """The values that a value was cast from, the last first, with the casts."""
    while True:
        if isinstance(x, jax.core.Tracer):
            _, known = (trace_notes(trace_of(x)) or {}).get(("cast", id(x)), (None, None))
        else:
            known = _cast_from.get(x)
        if known is None:
            return
        yield known
        x = known[0]


#: What each reshard has of its own; the others of its fields are options, which only alike ones share.
_OWN: Final = {"src", "dst", "inserted", "constant", "transport", "merged"}


@dataclass(frozen=True, eq=False)
class MergedReshard(Reshard):
    """One reshard in the place of several."""

    merged: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class AbsorbedReshard(Reshard):
    """A reshard that another one does too: it sends nothing. For reports; no program has it."""

    def forth(self) -> list[Sending]:
        return []

    def back(self) -> list[Sending]:
        return []


def direct(moves: Sequence[Reshard], src: HiShType, dst: HiShType) -> MergedReshard | None:
    """One reshard for several that are alike but for their types; None where their options differ."""
    options = {tuple(sorted(_options(move).items())) for move in moves}
    transport = one_transport([move.transport for move in moves])
    if len(options) != 1 or transport is None:
        return None
    inserted = all(move.inserted for move in moves)
    constant = any(move.constant for move in moves)
    return MergedReshard(src, dst, inserted, constant, transport, **dict(options.pop()))


def absorbed(move: Reshard) -> AbsorbedReshard:
    """The reshard, when another one does it too."""
    return AbsorbedReshard(move.src, move.dst, move.inserted, move.constant, move.transport, **_options(move))


def _options(move: Reshard) -> dict[str, Any]:
    """What a reshard says besides its types."""
    return {f.name: getattr(move, f.name) for f in dataclasses.fields(move) if f.name not in _OWN}


def move(x: Array, dst: ShType, *, inserted: bool = False, constant: bool = False) -> Array:
    """Reshards a typed value to a type of the same mesh, dtype and shape; nothing happens if it has it.

    Args:
        x: The value.
        dst: The type.
        inserted: Whether a typing rule asks for it.
        constant: Whether the value has no gradient, whatever its type says.
    """
    src = jax.typeof(x)
    if src == dst:
        return x
    if inserted:
        check_written(src, dst)
    if State.VARYING in dst.states and src.axes(State.VARYING) != dst.axes(State.VARYING):
        return move_to_varying(x, dst, inserted=inserted, constant=constant)
    return resharded(x, dst, inserted=inserted, constant=constant)


def move_to_varying(x: Array, dst: ShType, *, inserted: bool, constant: bool = False) -> Array:
    """A cast some axes of which go from replicated to varying; the others move as ever.

    Raises:
        ShardingTypeError: another state would become varying, or varying another state.
    """
    src = middle = jax.typeof(x)
    gained = [a for a in dst.axes(State.VARYING) if src.state(a) is not State.VARYING]
    middle = dst
    for axis in gained:
        if src.state(axis) not in REPLICATED:
            plan(src, dst)  # says why not
        middle = middle.with_axis(axis, State.REDUCED if constant else src.state(axis))
    return vary(move(x, middle, inserted=inserted, constant=constant), gained, inserted=inserted)
