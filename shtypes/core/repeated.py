"""Finds the repeated layers in a sequence of steps, which need to be traced only once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

#: The fewest steps of a repeated layer.
_LEAST: Final = 4


class Layer(NamedTuple):
    """Steps in sequence that occur again with other values."""

    steps: range  # their indices
    inputs: tuple[Any, ...]  # the values from outside, in order of their first use
    outputs: tuple[Any, ...]  # the values that later steps use
    form: Hashable  # equal for layers with equal steps, inputs and outputs


def _longest_repeat(sequence: Any) -> tuple[int, int, int]:
    """The longest tandem repeat of a sequence: its length, start and period; zeros for none."""
    best = (0, 0, 0)
    for period in range(_LEAST, len(sequence) // 2 + 1):
        same = sequence[:-period] == sequence[period:]
        if np.count_nonzero(same) + period <= best[0]:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        for a, b in zip(edges[::2], edges[1::2], strict=True):
            covered = (b - a) // period * period + period
            if b - a >= period and covered > best[0]:
                best = (int(covered), int(a), period)
    return best


def repeats(codes: Sequence[Hashable]) -> tuple[Any, list[tuple[range, int]]]:
    """A sequence as numbers, and its tandem repeats: the indices of each, and its period."""
    numbers: dict[Hashable, int] = {}
    sequence = np.array([numbers.setdefault(code, len(numbers)) for code in codes], np.int64)
    tandem, left = list[tuple[range, int]](), [range(len(sequence))]
    while left:
        part = left.pop()
        covered, at, period = _longest_repeat(sequence[part.start : part.stop])
        if covered:
            tandem.append((part[at : at + covered], period))
            left += [part[:at], part[at + covered :]]
    return sequence, tandem


def layers(
    codes: Sequence[Hashable],
    reads: Sequence[Sequence[Hashable]],
    writes: Sequence[Sequence[Hashable]],
    results: Iterable[Hashable],
) -> list[Layer]:
    """The repeated layers of a sequence of steps, in order.

    Args:
        codes: For each step, what it does; equal codes are equal but for the values.
        reads: The values that each takes.
        writes: The values that each makes.
        results: The values that are needed at the end.
    """
    sequence, tandem = repeats(codes)
    last: dict[Hashable, int] = {v: i for i, some in enumerate(reads) for v in some}
    last.update(dict.fromkeys(results, len(sequence)))
    parts = [steps[i : i + period] for steps, period in tandem for i in range(0, len(steps), period)]
    return [_layer(steps, sequence, reads, writes, last) for steps in sorted(parts, key=lambda steps: steps.start)]


def numbered(steps: Iterable[tuple[Hashable, Iterable[Hashable]]]) -> tuple[tuple[Any, ...], dict[Hashable, int]]:
    """Steps, each with its code and values, with numbers for the values in order of their first use."""
    numbers: dict[Hashable, int] = {}
    form = tuple([(code, *[numbers.setdefault(v, len(numbers)) for v in values]) for code, values in steps])
    return form, numbers


def _layer(steps: range, sequence: Any, reads: Any, writes: Any, last: dict[Hashable, int]) -> Layer:
    form, numbers = numbered((int(sequence[i]), (*reads[i], *writes[i])) for i in steps)
    inputs: dict[Hashable, None] = {}
    inside: dict[Hashable, None] = {}
    for i in steps:
        inputs |= {v: None for v in reads[i] if v not in inside}
        inside |= dict.fromkeys(writes[i])
    outputs = tuple(v for v in inside if v not in inputs and last.get(v, -1) >= steps.stop)
    return Layer(steps, tuple(inputs), outputs, (*form, tuple(numbers[v] for v in outputs)))
