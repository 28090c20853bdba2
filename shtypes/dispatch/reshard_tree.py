"""Reshards of whole trees: what they send over the same axes, of one dtype, goes in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.core.combined_collectives import move_together
from shtypes.dispatch.apply import is_typed, located
from shtypes.errors import ShardingTypeError, quoted
from shtypes.resharding.transport import transport_in_force
from shtypes.types import ShType, State


def is_tree(x: Any) -> bool:
    """Whether something is a tree of values, and not one value."""
    return type(x) is not Array and x is not None and not jax.tree_util.all_leaves([x])


def all_reduce_tree(tree: Any, axes: Sequence[str], state: State) -> Any:
    """The tree with the pending sums of its typed values finished, on ``axes`` or on all."""
    leaves, structure = jax.tree.flatten(tree)
    types = {i: jax.typeof(x) for i, x in enumerate(leaves) if is_typed(x)}
    goals = {i: _finished(t, axes, state) for i, t in types.items()}
    moving = [i for i, goal in goals.items() if goal != types[i]]
    pending = {a for i in moving for a in types[i].axes(State.UNREDUCED)}
    if not pending.issuperset(axes):
        error = ShardingTypeError(
            f"`all_reduce` finds no value of the tree that is pending over mesh axis {quoted(set(axes) - pending)}",
            hints=["sh.all_reduce(tree) finishes what is pending, over whichever axes"],
        )
        raise located(error, "all_reduce", list(types.values())[:3])
    along = replace(transport_in_force(), shared=False)  # the axes that change, as of one value
    moved = move_together([leaves[i] for i in moving], [goals[i] for i in moving], along)
    for i, x in zip(moving, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


def _finished(t: ShType, axes: Sequence[str], state: State) -> ShType:
    for axis in t.axes(State.UNREDUCED):
        if not axes or axis in axes:
            t = t.with_axis(axis, state)
    return t
