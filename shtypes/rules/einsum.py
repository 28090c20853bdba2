"""Typing of einsum: reading an equation, and one multilinear rule per mesh axis. Pure."""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError, how_many
from shtypes.rules import reasons
from shtypes.rules.tables import FACTOR, MULTILINEAR
from shtypes.rules.typing import NO_CONSTANTS, Meeting, Typing, rule
from shtypes.types import ShType


class EinsumEquation(NamedTuple):
    """An equation with every label written: one string of letters per operand, and the result's."""

    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return ",".join(self.inputs) + "->" + self.output


@functools.lru_cache(maxsize=4096)
def parse_equation(equation: str, ndims: tuple[int, ...]) -> EinsumEquation:
    """Reads an equation for operands of ``ndims`` dims.

    ``...`` stands for the dims that have no letter, aligned from the right. Without ``->`` the result has the dims
    of ``...`` and then the letters that occur once, in order.

    Raises:
        ShardingTypeError: the equation does not say what it means, or does not fit the operands.
    """
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, right):
        _check_letters(equation, part)
    if len(inputs) != len(ndims):
        raise _bad(equation, f"it names {how_many(len(inputs), 'operand')}, and there are {len(ndims)}")
    hidden = [_hidden(equation, inputs[i], ndims[i], i, len(ndims)) for i in range(len(ndims))]
    most = max(hidden)
    free = [c for c in string.ascii_letters if c not in text]
    if most > len(free):
        raise _bad(equation, "there are not enough letters for the dims of `...`")
    dots = "".join(free[:most])
    full = tuple(p.replace("...", dots[most - n :]) for p, n in zip(inputs, hidden, strict=True))
    if arrow:
        output = right.replace("...", dots)
    else:
        counts = Counter("".join(full))
        output = dots + "".join(sorted(c for c, n in counts.items() if n == 1 and c not in dots))
    _check_output(equation, full, output)
    return EinsumEquation(full, output)


def canonical_equation(equation: str, ndims: Sequence[int]) -> str:
    """The equation with every label written out; see `parse_equation`."""
    return str(parse_equation(equation, tuple(ndims)))


def _bad(equation: str, what: str) -> ShardingTypeError:
    return ShardingTypeError(f"the equation `{equation}` cannot be read: {what}")


def _check_letters(equation: str, part: str) -> None:
    letters = part.replace("...", "", 1)
    wrong = next((c for c in letters if c not in string.ascii_letters), None)
    if wrong is not None:
        raise _bad(equation, f"`{wrong}` is not a letter")


def _hidden(equation: str, part: str, ndim: int, index: int, count: int) -> int:
    """How many dims of an operand the ``...`` stands for."""
    letters = len(part.replace("...", ""))
    word = reasons.operand_word(index, count)
    if "..." not in part and letters != ndim:
        raise _bad(equation, f"`{part}` names {how_many(letters, 'dim')} of {word}, which has {ndim}")
    if letters > ndim:
        raise _bad(equation, f"`{part}` names at least {how_many(letters, 'dim')} of {word}, which has {ndim}")
    return ndim - letters


def _check_output(equation: str, inputs: tuple[str, ...], output: str) -> None:
    known = set("".join(inputs))
    for label, n in Counter(output).items():
        if label not in known:
            raise _bad(equation, f"the result's label `{label}` is in no operand")
        if n > 1:
            raise _bad(equation, f"the result names label `{label}` {n} times")


def label_sizes(equation: EinsumEquation, operands: Sequence[ShType]) -> dict[str, int]:
    """The size of each label; a dim of size 1 stretches to the others.

    Raises:
        ShardingTypeError: two dims of one label differ in size, neither 1; names both.
    """
    found: dict[str, tuple[int, int, int]] = {}  # and which dim of which operand says so
    for i, (labels, operand) in enumerate(zip(equation.inputs, operands, strict=True)):
        for d, (label, size) in enumerate(zip(labels, operand.shape, strict=True)):
            known, *where = found.setdefault(label, (size, i, d))
            if known == 1:
                found[label] = (size, i, d)
            elif size not in (known, 1):
                there, here = (
                    f"{reasons.dim_word(operands[j], e)} of {reasons.operand_word(j, len(operands))}"
                    for j, e in (where, (i, d))
                )
                raise ShardingTypeError(
                    f"`einsum` label `{label}` has size {known} in {there} and size {size} in {here}"
                )
    return {label: size for label, (size, *_) in found.items()}


@rule
def einsum(
    equation: str,
    operands: Sequence[ShType],
    dtype: str,
    constants: frozenset[int] = NO_CONSTANTS,
    name: str = "einsum",
) -> Typing:
    """Products summed over the labels that the result lacks; sharded on one of these becomes UNREDUCED.

    Of a diagonal (``ii``), one dim may be sharded: the local function takes its own part of the other.
    """
    parsed = parse_equation(equation, tuple(t.ndim for t in operands))
    sizes = label_sizes(parsed, operands)
    labels = [
        [label if size == sizes[label] else None for label, size in zip(part, t.shape, strict=True)]
        for part, t in zip(parsed.inputs, operands, strict=True)
    ]
    met = Meeting(name, operands, labels, MULTILINEAR, [FACTOR] * len(operands), dtype, constants)
    kept = set(parsed.output)
    summed = {axis for label, axes in met.axes.items() if label not in kept for axis in axes}
    dims = [met.dim(label, sizes[label]) for label in parsed.output]
    return met.typing(dims, summed)
