"""Typing of ops whose dims run together by labels that no equation names: convolutions, searches, segments. Pure.

Dims with one label run together as in an einsum; some labels must be whole, since a slice of them needs its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.index import check_ids
from shtypes.rules.tables import FACTOR, MULTILINEAR, NONLINEAR
from shtypes.rules.typing import NO_CONSTANTS, Label, Meeting, Typing, rule
from shtypes.types import ShType, State


class ProductDims(NamedTuple):
    """What a product does with the dims of its operands."""

    #: The label of each dim of each operand; None for a dim of size 1 that stretches.
    labels: tuple[tuple[Label | None, ...], ...]
    result: tuple[tuple[Label, int], ...]  # the label and the size of each dim of the result
    whole: frozenset[Label] = frozenset()  # the labels whose dims must not be sharded
    #: For labels whose dims come in groups that stay on one device, how many there are.
    groups: tuple[tuple[Label, int], ...] = ()
    ids: frozenset[int] = frozenset()  # the operands that are positions or counts, not factors


@rule
def contraction(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A product that is linear in each operand; sharded on a label that the result lacks becomes UNREDUCED."""
    for operand, labels in zip(operands, plan.labels, strict=True):
        reasons.check_whole(name, operand, [d for d, label in enumerate(labels) if label in plan.whole])
        _check_groups(name, operand, labels, dict(plan.groups))

    def join(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
        for i in plan.ids:
            check_ids(name, axis, states[i], meeting.word(i))
        return meeting.fold(MULTILINEAR, axis, states)

    met = Meeting(name, operands, plan.labels, join, [FACTOR] * len(operands), dtype, constants)
    kept = {label for label, _ in plan.result}
    summed = {axis for label, axes in met.axes.items() if label not in kept for axis in axes}
    return met.typing([met.dim(label, size) for label, size in plan.result], summed)


def _check_groups(name: str, operand: ShType, labels: Sequence[Label | None], groups: Mapping[Label, int]) -> None:
    for d, label in enumerate(labels):
        axes = operand.dims[d].axes
        devices = operand.mesh.product(axes)
        if label in groups and groups[label] % devices:
            raise ShardingTypeError(
                f"`{name}` has {groups[label]} groups along {reasons.dim_word(operand, d)}, which is sharded on "
                f"{reasons.on(axes)} into {devices} parts",
                why="a group would lie on several devices, and each of its results needs all of it",
                axes=axes,
            )


@rule
def labelled(
    name: str, operands: Sequence[ShType], plan: ProductDims, dtype: str, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A function that is linear in no operand: dims with one label run together, all others must be whole."""
    kept = {label for label, _ in plan.result}
    for operand, labels in zip(operands, plan.labels, strict=True):
        whole = [d for d, label in enumerate(labels) if label is not None and label not in kept - plan.whole]
        reasons.check_whole(name, operand, whole)

    def join(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
        for i, state in enumerate(states):
            if i in plan.ids:
                check_ids(name, axis, state, meeting.word(i))
            elif state is not None and state not in NONLINEAR:
                raise reasons.nonlinear(name, axis, meeting.word(i))
        return meeting.fold(MULTILINEAR, axis, states)

    met = Meeting(name, operands, plan.labels, join, [FACTOR] * len(operands), dtype, constants)
    return met.typing(met.dim(label, size) for label, size in plan.result)
