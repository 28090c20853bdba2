"""Typing of gather and scatter by dimension numbers, as XLA has them. Pure.

The dims of the array are of four kinds. A *batch* dim runs together with one of the positions. A dim that is taken
whole keeps its axes. A dim of which a window of one element is taken at a position is looked up: where it is sharded,
each device finds its own rows. Any other window must be of a dim that is not sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shtypes.rules import reasons
from shtypes.rules.index import check_summable, join_lookup, kind_of, scattered
from shtypes.rules.tables import FACTOR
from shtypes.rules.typing import NO_CONSTANTS, Label, Meeting, Typing, rule
from shtypes.types import Dim, ShType


class Numbers(NamedTuple):
    """Which dim is what."""

    window: tuple[int, ...]  # the dims of the result (or of the updates) that are dims of a window
    collapsed: tuple[int, ...]  # the dims of the array whose window has one element and that the result lacks
    indexed: tuple[int, ...]  # for each component of a position, the dim of the array that it is in
    batch: tuple[int, ...] = ()  # the dims of the array that run together with dims of the positions
    ids_batch: tuple[int, ...] = ()  # these, in the same order

    def windowed(self, ndim: int) -> list[int]:
        """The dims of the array, of ``ndim`` dims, that are dims of a window, in order."""
        return [d for d in range(ndim) if d not in self.collapsed and d not in self.batch]

    def looked_up(self, sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
        """The dims that may be sharded though positions index them: of their windows of ``sizes`` each has one row."""
        return [d for d in self.indexed if sizes[d] == 1 and d not in self.batch and shape[d]]


def _labels(name: str, operand: ShType, numbers: Numbers, sizes: Sequence[int]) -> list[Label]:
    """The label of each dim of the array."""
    labels: list[Label] = []
    looked_up = numbers.looked_up(sizes, operand.shape)
    for d, n in enumerate(sizes):
        if d in numbers.batch:
            labels.append(("batch", numbers.ids_batch[numbers.batch.index(d)]))
        elif d in looked_up:
            labels.append(("at", d))
        elif n == operand.shape[d] and d not in numbers.collapsed:
            labels.append(("dim", d))
        elif operand.dims[d].axes:
            raise reasons.along(name, operand, operand.dims[d].axes[0])
        else:
            labels.append(("part", d))
    return labels


def _ids_labels(name: str, ids: ShType, numbers: Numbers) -> list[Label]:
    """The label of each dim of the positions; the last one, of their components, must be whole."""
    last = ids.ndim - 1
    reasons.check_whole(name, ids, (last,))
    return [*(("batch" if j in numbers.ids_batch else "ids", j) for j in range(last)), ("components",)]


def _result_labels(own: Sequence[Label], of_ids: Sequence[Label], numbers: Numbers) -> list[Label]:
    """The label of each dim of the result, or of the updates."""
    windows = iter([own[d] if own[d][0] == "dim" else ("part", d) for d in numbers.windowed(len(own))])  # type: ignore[index]
    rows = iter(of_ids[:-1])
    ndim = len(numbers.window) + len(of_ids) - 1
    return [next(windows) if d in numbers.window else next(rows) for d in range(ndim)]


@rule
def gather(
    name: str,
    operands: Sequence[ShType],
    numbers: Numbers,
    sizes: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """Windows of an array at positions; ``operands`` are the array and the positions.

    Typed as ``x[...]``: an axis that shards a dim that is looked up becomes UNREDUCED, the positions' dims keep theirs.
    """
    operand, ids = operands
    own, of_ids = _labels(name, operand, numbers, sizes), _ids_labels(name, ids, numbers)
    met = Meeting(name, operands, [own, of_ids], join_lookup, [FACTOR] * 2, operand.dtype_name, constants)
    looked = {axis for label in own if kind_of(label) == "at" for axis in met.axes.get(label, ())}
    check_summable(name, operand, looked)
    windows = iter([sizes[d] for d in numbers.windowed(operand.ndim)])
    rows = iter(ids.shape[:-1])
    dims = []
    for d, label in enumerate(_result_labels(own, of_ids, numbers)):
        size = next(windows) if d in numbers.window else next(rows)
        dims.append(met.dim(label, size) if kind_of(label) in ("dim", "ids", "batch") else Dim(size))
    return met.typing(dims, looked)


@rule
def scatter(
    name: str,
    how: str,
    operands: Sequence[ShType],
    numbers: Numbers,
    sizes: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """Windows of an array changed at positions; ``operands`` are the array, the positions and the updates.

    Typed as ``x.at[...]``: added updates that are sharded as their positions are make the array a pending sum.
    """
    operand, ids, _ = operands
    own, of_ids = _labels(name, operand, numbers, sizes), _ids_labels(name, ids, numbers)
    of_update = _result_labels(own, of_ids, numbers)
    return scattered(name, how, operands, [own, of_ids, of_update], constants)
