"""Typing of elementwise ops, with numpy's broadcasting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.tables import ADDITIVE, FACTOR, MULTILINEAR, NONLINEAR, TERM
from shtypes.rules.typing import (
    NO_CONSTANTS,
    CastTable,
    Join,
    Label,
    Meeting,
    PairTable,
    Typing,
    linear,
    rule,
)
from shtypes.types import ShType, State, dtypes


def broadcast_shapes(name: str, operands: Sequence[ShType]) -> tuple[int, ...]:
    """The shape of operands broadcast together.

    Raises:
        ShardingTypeError: two dims have different sizes, neither 1; names both.
    """
    ndim = max(t.ndim for t in operands)
    shape: list[int] = []
    for r in range(ndim):
        found: tuple[int, str] | None = None
        for i, t in enumerate(operands):
            d = r - (ndim - t.ndim)
            if d < 0 or t.shape[d] == 1:
                continue
            word = f"{reasons.dim_word(t, d)} of {reasons.operand_word(i, len(operands))}"
            if found is not None and found[0] != t.shape[d]:
                raise ShardingTypeError(
                    f"`{name}` cannot broadcast {found[1]}, of size {found[0]}, with {word}, of size {t.shape[d]}"
                )
            found = found or (t.shape[d], word)
        shape.append(found[0] if found else 1)
    return tuple(shape)


def aligned(sizes: Sequence[int], shape: Sequence[int], labels: Sequence[Label] | None = None) -> list[Label | None]:
    """The label of each dim of an operand that is broadcast to ``shape``, or the number of the dim that it becomes.

    None where it is stretched from size 1.
    """
    ahead = len(shape) - len(sizes)
    known = range(len(shape)) if labels is None else labels
    return [known[ahead + d] if size == shape[ahead + d] else None for d, size in enumerate(sizes)]


def _elementwise(
    name: str,
    operands: Sequence[ShType],
    join: Join | PairTable,
    casts: Sequence[CastTable],
    dtype: str,
    constants: frozenset[int],
) -> Typing:
    shape = broadcast_shapes(name, operands)
    labels = [aligned(t.shape, shape) for t in operands]
    met = Meeting(name, operands, labels, join, casts, dtype, constants)
    return met.typing(met.dim(r, size) for r, size in enumerate(shape))


def _nonlinear_state(meeting: Meeting, axis: str, index: int, state: State | None, why: str = "") -> State | None:
    if state is None:
        return None
    if state not in NONLINEAR:
        raise reasons.nonlinear(meeting.name, axis, meeting.word(index), why)
    return NONLINEAR[state]


def _join_quotient(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    numerator, denominator = states
    why = "each device holds one term of the sum, and a / (b + c) is not a / b + a / c"
    return meeting.fold(MULTILINEAR, axis, (numerator, _nonlinear_state(meeting, axis, 1, denominator, why)))


def _join_nonlinear(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    return meeting.fold(MULTILINEAR, axis, [_nonlinear_state(meeting, axis, i, s) for i, s in enumerate(states)])


def _join_select(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    """p·a + (1 - p)·b: the branches are terms, the predicate is a factor of their sum."""
    predicate, *branches = states
    return meeting.fold(MULTILINEAR, axis, (predicate, meeting.fold(ADDITIVE, axis, (None, *branches))))


@rule
def multilinear(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Linear in each operand alone, such as ``mul``."""
    return _elementwise(name, operands, MULTILINEAR, [FACTOR] * len(operands), dtype, constants)


@rule
def divide(
    numerator: ShType,
    denominator: ShType,
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "divide",
) -> Typing:
    """Linear in the numerator only."""
    return _elementwise(name, (numerator, denominator), _join_quotient, [FACTOR] * 2, dtype, constants)


@rule
def additive(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Sums and differences of operands. A constant met by an UNREDUCED operand becomes UNREDUCED: it is masked."""
    return _elementwise(name, operands, ADDITIVE, [TERM] * len(operands), dtype, constants)


@rule
def nonlinear(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Elementwise on one or more operands and linear in none, such as ``silu``, ``max``, ``pow``, comparisons."""
    return _elementwise(name, operands, _join_nonlinear, [FACTOR] * len(operands), dtype, constants)


@rule
def select(
    predicate: ShType,
    on_true: ShType,
    on_false: ShType,
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "where",
) -> Typing:
    """``where(predicate, on_true, on_false)``; ``constants`` counts the predicate as operand 0."""
    operands = (predicate, on_true, on_false)
    return _elementwise(name, operands, _join_select, (FACTOR, TERM, TERM), dtype, constants)


@rule
def select_n(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """One of any number of branches; the first operand says which."""
    casts = (FACTOR, *[TERM] * (len(operands) - 1))
    return _elementwise(name, operands, _join_select, casts, dtype, constants)


@rule
def linear_unary(name: str, operand: ShType, dtype: str) -> Typing:
    """Linear in one operand and acting on each element alone, such as ``neg`` and ``real``."""
    return linear(operand, dtype, operand.dims)


#: Exponent and mantissa bits of each real float dtype; a cast is widening where neither gets fewer.
_FLOAT_BITS: Final[dict[str, tuple[int, int]]] = {
    "f64": (11, 52),
    "f32": (8, 23),
    "f16": (5, 10),
    "bf16": (8, 7),
    "f8_e4m3fn": (4, 3),
    "f8_e4m3": (4, 3),
    "f8_e4m3fnuz": (4, 3),
    "f8_e4m3b11fnuz": (4, 3),
    "f8_e5m2": (5, 2),
    "f8_e5m2fnuz": (5, 2),
    "f8_e3m4": (3, 4),
    "f8_e8m0fnu": (8, 0),
    "f4_e2m1fn": (2, 1),
}
_REAL_PART: Final = {"c64": "f32", "c128": "f64"}


def narrows(src: str, dst: str) -> bool:
    """Whether a cast between differentiable dtypes loses bits."""
    src, dst = (_REAL_PART.get(name, name) for name in (src, dst))
    if src == dst:
        return False
    a, b = _FLOAT_BITS[src], _FLOAT_BITS[dst]
    return a == b or a[0] > b[0] or a[1] > b[1]


@rule
def cast(operand: ShType, dtype: str, narrow: bool = False, name: str = "astype") -> Typing:
    """A change of dtype.

    Widening casts and casts between integers are linear, except that the terms of an UNREDUCED unsigned integer may
    have wrapped around. A cast from float to integer, and any to bool, is nonlinear. A narrowing float cast of an
    UNREDUCED operand rounds each term, so it must be asked for with ``narrow``.
    """
    dtype = dtypes.short_name(dtype)
    if dtype == operand.dtype_name:
        return Typing((operand,), (operand,))
    to_float = dtypes.differentiable(dtype)
    if dtype == "bool" or (operand.differentiable and not to_float):
        return nonlinear(name, (operand,), dtype)
    unreduced = operand.axes(State.UNREDUCED)
    if unreduced and not narrow and operand.differentiable and to_float and narrows(operand.dtype_name, dtype):
        raise ShardingTypeError(
            f"`{name}` would round each term of an operand that is unreduced on {reasons.on(unreduced)} to `{dtype}`",
            why=f"the sum is taken later, over terms that have lost bits of `{operand.dtype_name}`",
            hints=["reduce first, then cast", f'x.astype("{dtype}", narrow=True) rounds each term'],
            axes=unreduced,
        )
    return linear_unary(name, operand, dtype)
