"""Types elementwise ops, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.tables import ADDITIVE, FACTOR, MULTILINEAR, TERM
from shtypes.rules.typing import NO_CONSTANTS, JointTyping, Label, Typing, linear, rule
from shtypes.types import ShType, State, dtypes


def broadcast_shapes(name: str, operands: Sequence[ShType]) -> tuple[int, ...]:
    """The broadcast shape of operands."""
    ndim = max(t.ndim for t in operands)
    shape: list[int] = []
    for r in range(ndim):
        sized: tuple[int, str] | None = None
        for i, t in enumerate(operands):
            d = r - (ndim - t.ndim)
            if d < 0 or t.shape[d] == 1:
                continue
            word = f"{messages.dim_word(t, d)} of {messages.operand_word(i, len(operands))}"
            if sized is not None and sized[0] != t.shape[d]:
                raise ShardingTypeError(
                    f"`{name}` cannot broadcast {sized[1]}, of size {sized[0]}, with {word}, of size {t.shape[d]}"
                )
            sized = sized or (t.shape[d], word)
        shape.append(sized[0] if sized else 1)
    return tuple(shape)


def aligned(sizes: Sequence[int], shape: Sequence[int], labels: Sequence[Label] | None = None) -> list[Label | None]:
    """The label (by default the dim of ``shape``) of each dim of a broadcast operand; None for a stretched dim."""
    missing = len(shape) - len(sizes)
    names = range(len(shape)) if labels is None else labels
    return [names[missing + d] if size == shape[missing + d] else None for d, size in enumerate(sizes)]


def _elementwise(
    name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int], **options: Any
) -> Typing:
    shape = broadcast_shapes(name, operands)
    labels = [aligned(t.shape, shape) for t in operands]
    return JointTyping(name, operands, labels, dtype, constants, **options).typing(enumerate(shape))


@rule
def multilinear(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Linear in each operand alone, such as ``mul``."""
    return _elementwise(name, operands, dtype, constants)


@rule
def divide(
    numerator: ShType, denominator: ShType, dtype: str, constants: frozenset[int] = NO_CONSTANTS, name: str = "divide"
) -> Typing:
    """Linear in the numerator only."""
    why = "each device holds one term of the sum, and a / (b + c) is not a / b + a / c"
    return _elementwise(name, (numerator, denominator), dtype, constants, nonlinear={1: why})


@rule
def additive(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Sums and differences. A replicated term is masked to UNREDUCED if another is UNREDUCED."""
    return _elementwise(name, operands, dtype, constants, join=ADDITIVE, casts=[TERM] * len(operands))


@rule
def nonlinear(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Linear in no operand, such as ``silu``, ``max``, ``pow``, comparisons."""
    return _elementwise(name, operands, dtype, constants, nonlinear=dict.fromkeys(range(len(operands)), ""))


@rule
def select_n(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Selects among branches by the first operand, such as ``where``."""
    casts = (FACTOR, *[TERM] * (len(operands) - 1))
    return _elementwise(name, operands, dtype, constants, join=_join_branches, casts=casts)


def _join_branches(joint: JointTyping, axis: str, states: Sequence[State | None]) -> State | None:
    """``p a + (1 - p) b``: the branches are terms, the predicate is a factor of their sum."""
    predicate, *branches = states
    return joint.fold(MULTILINEAR, axis, (predicate, joint.fold(ADDITIVE, axis, (None, *branches))))


@rule
def linear_unary(name: str, operand: ShType, dtype: str) -> Typing:
    """Linear in one operand, such as ``neg`` and ``real``."""
    return linear(operand, dtype, operand.dims)


#: Exponent and mantissa bits of each real float dtype; a cast is widening if neither decreases.
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
def cast(operand: ShType, dtype: str, narrow: bool = False) -> Typing:
    """A change of dtype.

    Widening casts and casts between integers are linear, except that the terms of an UNREDUCED unsigned integer may
    have wrapped around. A cast from float to integer, and any to bool, is nonlinear. A narrowing float cast of an
    UNREDUCED operand rounds each term, so it requires ``narrow``.
    """
    dtype = dtypes.short_name(dtype)
    if dtype == operand.dtype_name:
        return Typing((operand,), (operand,))
    to_float = dtypes.differentiable(dtype)
    if dtype == "bool" or (operand.differentiable and not to_float):
        return nonlinear("astype", (operand,), dtype)
    unreduced = operand.axes(State.UNREDUCED)
    if unreduced and not narrow and operand.differentiable and to_float and narrows(operand.dtype_name, dtype):
        raise ShardingTypeError(
            f"`astype` would round each term of an operand that is unreduced on {messages.on(unreduced)} to `{dtype}`",
            why=f"the sum is taken later, over terms that have lost bits of `{operand.dtype_name}`",
            hints=["reduce first, then cast", f'x.astype("{dtype}", narrow=True) rounds each term'],
            axes=unreduced,
        )
    return linear_unary("astype", operand, dtype)
