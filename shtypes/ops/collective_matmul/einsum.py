"""`einsum(..., overlap=)`: the collective that `out` asks for becomes a ring of permutations between products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import jax

from shtypes.core.array import Array
from shtypes.core.device_put import type_of
from shtypes.core.operation import sent_by
from shtypes.dispatch.apply import cast, located
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.primitives import Overlapped, gathering_of, scattering_of
from shtypes.ops.collective_matmul.ring import Course
from shtypes.rules.einsum_like import label_sizes, parse_equation
from shtypes.rules.overlap import Ring
from shtypes.rules.overlap import overlap as rule
from shtypes.scopes.check_comm import check_comm, check_sent
from shtypes.scopes.comm import rules_in_force
from shtypes.types import ShType, State

#: The values of `overlap`.
Overlap = bool | Literal["bidirectional"]
_WORDS: Final = ("bidirectional",)


def overlapped_einsum(
    equation: str,
    values: Sequence[Any],
    constants: frozenset[int],
    dtype: str,
    precision: Any,
    out: Any,
    overlap: Any,
) -> Array:
    """An einsum of two operands round a ring.

    Args:
        equation: With every label written.
        values: The operands.
        constants: Those without a gradient.
        dtype: Of the result.
        precision: As in `jax.numpy.einsum`.
        out: The type that the result is to have.
        overlap: True, or ``"bidirectional"``.

    Raises:
        ShardingTypeError: there is nothing to overlap.
    """
    name, types = f"einsum[{equation}]", tuple(jax.typeof(x) for x in values)
    try:
        if not (overlap is True or overlap in _WORDS):
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
        course = Course((equation,), ring.label, ring.axes, overlap == "bidirectional", precision)
        primitive = _primitive(ring, course)
        if rules_in_force():
            _judge(name, types, ring, primitive)
    except ShardingTypeError as error:
        raise located(error, name, types).with_traceback(None) from None
    operands = [cast(x, t) for x, t in zip(values, ring.operands, strict=True)]
    return reshard(primitive.applied(*_turned(ring, operands))[0], out)


def _target(equation: str, types: tuple[ShType, ...], dtype: str, out: Any) -> ShType:
    """The type that ``out`` says, for a result of the equation's sizes."""
    parsed = parse_equation(equation, tuple(t.ndim for t in types))
    sizes = label_sizes(parsed, types)
    mesh = types[0].mesh
    natural = ShType(mesh, dtype, [sizes[c] for c in parsed.output], dict.fromkeys(mesh.axis_names, State.REDUCED))
    return type_of(out, mesh, like=natural)


def _primitive(ring: Ring, course: Course) -> Overlapped:
    change = (ring.moved, ring.becomes)
    if ring.gathered is None:
        return scattering_of(course, change, ring.operands, ring.result)
    return gathering_of(course, (ring.gathered,), change, _turned(ring, ring.operands), (ring.result,))


def _turned(ring: Ring, pair: Sequence[Any]) -> Sequence[Any]:
    """Operands in the order of the primitive: what goes round is first."""
    return pair[::-1] if ring.gathered == 1 else pair


def _judge(name: str, types: Sequence[ShType], ring: Ring, primitive: Overlapped) -> None:
    """Tells scopes what goes round, forward and backward."""
    for t, goal in zip(types, ring.operands, strict=True):
        check_comm(name, t, goal, inserted=True)
    sent = (sent_by(way, "a ring of permutes") for way in (primitive.forward_comm(), primitive.backward_comm()))
    check_sent(name, ring.moved, ring.becomes, *sent)


__all__ = ["Overlap", "overlapped_einsum"]
