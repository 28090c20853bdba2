"""`einsum(..., overlap=)`: the collective that `out` needs becomes a ring of permutes between products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.core.device_put import type_of
from shtypes.core.operation import sent_by
from shtypes.dispatch.apply import located
from shtypes.dispatch.casts import cast
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.primitives import Overlapped, gathering_of, scattering_of
from shtypes.ops.collective_matmul.ring import RingSpec
from shtypes.rules.einsum_like import label_sizes, parse_equation
from shtypes.rules.overlap import Ring
from shtypes.rules.overlap import overlap as rule
from shtypes.scopes.check_comm import check_comm, check_sent
from shtypes.scopes.scope_rules import rules_in_force
from shtypes.types import ShType, State


def overlapped_einsum(
    equation: str,
    values: Sequence[Any],
    constants: frozenset[int],
    dtype: str,
    precision: Any,
    out: Any,
    overlap: Any,
) -> Array:
    """An einsum of two operands as a ring; an error if there is nothing to overlap.

    ``equation`` has all labels; ``constants`` are the operands without a gradient; ``dtype`` is that of the result.
    """
    name, types = f"einsum[{equation}]", tuple(jax.typeof(x) for x in values)
    try:
        if overlap is not True and overlap != "bidirectional":
            raise ShardingTypeError(
                f"`overlap` cannot be {overlap!r:.60}", hints=["overlap=True", 'overlap="bidirectional"']
            )
        if out is None:
            raise ShardingTypeError(
                "`overlap` needs `out`",
                why="it says what is gathered before the products, or how their pending sum is scattered",
                hints=['sh.einsum("sbh,hi->sbi", x, w, out="[_, _, _@tp]", overlap=True)'],
            )
        ring = rule(equation, types, dtype, _target(equation, types, dtype, out), constants)
        spec = RingSpec((equation,), ring.label, ring.axes, overlap == "bidirectional", precision)
        primitive = _primitive(ring, spec)
        if rules_in_force():
            _check_scopes(name, types, ring, primitive)
    except ShardingTypeError as error:
        raise located(error, name, types).with_traceback(None) from None
    operands = [cast(x, t) for x, t in zip(values, ring.operands, strict=True)]
    return reshard(primitive.applied(*_moved_first(ring, operands))[0], out)


def _target(equation: str, types: tuple[ShType, ...], dtype: str, out: Any) -> ShType:
    """The type that ``out`` names, for the sizes of the equation."""
    parsed = parse_equation(equation, tuple(t.ndim for t in types))
    sizes = label_sizes(parsed, types)
    mesh = types[0].mesh
    natural = ShType(mesh, dtype, [sizes[c] for c in parsed.output], dict.fromkeys(mesh.axis_names, State.REDUCED))
    return type_of(out, mesh, like=natural)


def _primitive(ring: Ring, spec: RingSpec) -> Overlapped:
    change = (ring.moved, ring.becomes)
    if ring.gathered is None:
        return scattering_of(spec, change, ring.operands, ring.result)
    return gathering_of(spec, (ring.gathered,), change, _moved_first(ring, ring.operands), (ring.result,))


def _moved_first(ring: Ring, pair: Sequence[Any]) -> Sequence[Any]:
    """Operands in the order of the primitive: the one that moves is first."""
    return pair[::-1] if ring.gathered == 1 else pair


def _check_scopes(name: str, types: Sequence[ShType], ring: Ring, primitive: Overlapped) -> None:
    """Checks the permutes against the scopes, forward and backward."""
    for t, goal in zip(types, ring.operands, strict=True):
        check_comm(name, t, goal, inserted=True)
    sent = (sent_by(way, "a ring of permutes") for way in (primitive.forward_comm(), primitive.backward_comm()))
    check_sent(name, ring.moved, ring.becomes, *sent)
