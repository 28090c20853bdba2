"""The `reshard` primitive, the only one that moves data: jaxprs read ``reshard[tp: U->R] c``. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shtypes._compat import Zero
from shtypes.core.array import Array
from shtypes.core.hitype import HiShType, hi
from shtypes.core.operation import LinearizedPrimitive, Sending, UnaryOperation
from shtypes.lowering.per_op import run_reshard
from shtypes.plans import plan
from shtypes.plans.transport import AS_IT_IS, Transport, transport_in_force
from shtypes.primitives.local import check_tangents
from shtypes.types import ShType, State

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
        forth = self.transport.plan(self.src, self.dst)
        return [Sending(s, self.src, self.dst) for s in forth.steps if s.kind.communicates]

    def back(self) -> list[Sending]:
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
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents])
        return outs, push(tangents)

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool]) -> tuple[list[Any], list[bool], Any]:
        carried = nonzero[0] and self.dst.differentiable
        zero = Zero(self.dst.to_tangent_aval())
        return self.bind(*primals), [carried], lambda tangents: self.bind(*tangents) if carried else [zero]

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        (ct,) = cts
        dst, back = self.src.to_ct_aval(), self.transport.transposed()
        return [Zero(dst) if isinstance(ct, Zero) else resharded(ct, dst, inserted=self.inserted, transport=back)]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        (x,), (d,) = operands, dims
        dst = self.dst.inc_rank(axis_data.size, d)
        return [resharded(x, dst, inserted=self.inserted, transport=self.transport)], [d]


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
    moved: Array = Reshard(src, hi(dst), inserted, constant, transport).applied(x)[0]
    return moved
