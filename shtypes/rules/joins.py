"""Typing of ops that join operands side by side: terms of a sum, each with zeros where the others are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.reduce import normal_dims
from shtypes.rules.tables import ADDITIVE, TERM
from shtypes.rules.typing import NO_CONSTANTS, Meeting, Typing, rule
from shtypes.types import Dim, ShType


def _meet(name: str, operands: Sequence[ShType], dtype: str, constants: frozenset[int], joined: int | None) -> Meeting:
    """The operands' dims meet one by one; they have the same sizes but for the joined one."""
    first = operands[0]
    for i, t in enumerate(operands[1:], 1):
        if t.ndim != first.ndim:
            raise ShardingTypeError(
                f"`{name}` cannot join arrays of {first.ndim} and of {t.ndim} dims",
                why=f"operand 0 is {first} and operand {i} is {t}",
            )
        for d in range(first.ndim):
            if d != joined and t.shape[d] != first.shape[d]:
                raise ShardingTypeError(
                    f"`{name}` cannot join {reasons.dim_word(first, d)} of operand 0, of size {first.shape[d]}, with "
                    f"{reasons.dim_word(t, d)} of operand {i}, of size {t.shape[d]}"
                )
    labels = [tuple(range(first.ndim))] * len(operands)
    return Meeting(name, operands, labels, ADDITIVE, [TERM] * len(operands), dtype, constants)


@rule
def concatenate(
    operands: Sequence[ShType],
    dim: int,
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "concatenate",
) -> Typing:
    """Operands one behind the other along ``dim``, which must be whole in all of them."""
    (joined,) = normal_dims(name, operands[0], dim)
    for t in operands:
        if len(operands) > 1 and joined < t.ndim and t.dims[joined].axes:
            raise reasons.along(name, t, t.dims[joined].axes[0])
    met = _meet(name, operands, dtype, constants, joined)
    total = sum(t.shape[joined] for t in operands)
    sizes = enumerate(operands[0].shape)
    # Of one operand the dim is the same as before; of several it is another, and has no name.
    dims = [met.dim(d, n) if d != joined or len(operands) == 1 else Dim(total) for d, n in sizes]
    return met.typing(dims)


@rule
def stack(
    operands: Sequence[ShType], dim: int, dtype: str, constants: frozenset[int] = NO_CONSTANTS, name: str = "stack"
) -> Typing:
    """Operands side by side along a new dim, which is not sharded."""
    ndim = operands[0].ndim + 1
    if not -ndim <= dim < ndim:
        raise ShardingTypeError(f"`{name}` has no dim {dim}: the result has {ndim} dims")
    met = _meet(name, operands, dtype, constants, None)
    dims = [met.dim(d, n) for d, n in enumerate(operands[0].shape)]
    dims.insert(dim % ndim, Dim(len(operands)))
    return met.typing(dims)


@rule
def pad(
    operands: Sequence[ShType],
    along: Sequence[int],
    shape: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "pad",
) -> Typing:
    """An operand with a scalar around it: terms of a sum, each with zeros where the other is.

    Args:
        operands: What is padded, and the scalar.
        along: The dims that are padded, which must be whole.
        shape: The shape of the result.
        constants: Operands without a gradient; see `rule`.
        name: The op, for messages.
    """
    operand = operands[0]
    reasons.check_whole(name, operand, along)
    labels = [tuple(range(operand.ndim)), ()]
    met = Meeting(name, operands, labels, ADDITIVE, [TERM] * 2, operand.dtype_name, constants)
    return met.typing([met.dim(d, n) if n == operand.shape[d] else Dim(n) for d, n in enumerate(shape)])
