"""How an optimizer's trees lie: the types that it works in, and those of its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.combined_collectives import move_together
from shtypes.core.device_put import type_of
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.transport import reshard_fix
from shtypes.scopes.comm import allows_implicit
from shtypes.scopes.judging import judge
from shtypes.training.states import placed
from shtypes.types import ShType, State, dtypes

#: A tree of types or texts, a function from a type to one, or None for the types that values have.
Layout = Any | Callable[[ShType], Any] | None
Tree = Any


def layout_of(layout: Layout, params: Tree) -> list[ShType | None]:
    """For each leaf of the parameters the type that is meant; None for one that has no type.

    Raises:
        ShardingTypeError: the layout has another structure than the parameters, or does not fit them.
    """
    leaves, structure = jax.tree.flatten(params)
    if layout is None or callable(layout):
        given = [x.type if is_typed(x) else None for x in leaves]
        given = [layout(t) if callable(layout) and t is not None else t for t in given]
    else:
        given = _leaves_like(layout, structure)
    found = [type_of(t, x.type.mesh, like=x.type) if is_typed(x) else None for x, t in zip(leaves, given, strict=True)]
    for x, t in zip(leaves, found, strict=True):
        if t is not None and t.axes(State.UNREDUCED):
            raise ShardingTypeError(f"an optimizer's state cannot be a pending sum, as {t} is, for {x.type}")
    return found


def _leaves_like(layout: Tree, structure: Any) -> list[Any]:
    found: Any = jax.tree.structure(layout)
    if found != structure:
        raise ShardingTypeError(
            f"`types` has another structure, {found}, than the parameters, {structure}",
            hints=["a function from a parameter's type to the type that is meant"],
        )
    return jax.tree.leaves(layout)


def in_types(tree: Tree, goals: Sequence[ShType | None]) -> Tree:
    """Typed values in the types of a layout, in their own dtypes; gathers over the same axes go in one collective."""
    leaves, structure = jax.tree.flatten(tree)
    moving = [
        (i, goal.replace(dtype=x.type.dtype_name))
        for i, (x, goal) in enumerate(zip(leaves, goals, strict=True))
        if is_typed(x) and goal is not None
    ]
    moved = move_together([leaves[i] for i, _ in moving], [goal for _, goal in moving])
    for (i, _), x in zip(moving, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


# updates


def like_values(tree: Tree, others: Tree) -> Tree:
    """Values in the types of others, where they have these for free, or may communicate; plain ones too."""
    return jax.tree.map(_like, tree, others) if _alike(tree, others) else tree


def like_value(x: Any, other: Any) -> Any:
    """An update in the type of its parameter.

    Raises:
        ShardingTypeError: that would communicate, and may not.
    """
    x = _like(x, other)
    if is_typed(x) and is_typed(other) and x.type.shape == other.type.shape:
        t = other.type.replace(dtype=x.type.dtype_name)
        if x.type != t:
            raise ShardingTypeError(
                f"`apply_updates` is given an update of type {x.type} for a parameter of type {other.type}",
                why="parameters keep their types, and this one would not",
                fixes=[reshard_fix(x.type, t, "update")],
                hints=["sh.implicit_comm() around the call allows it"],
            )
    return x


def _like(x: Any, other: Any) -> Any:
    if not is_typed(other) or np.shape(x) != other.type.shape:
        return x
    if not is_typed(x):
        return placed(x, other.type.replace(dtype=dtypes.from_numpy(jnp.result_type(x))))
    t = other.type.replace(dtype=x.type.dtype_name)
    if x.type == t or (plan(x.type, t).communicates and not allows_implicit()):
        return x
    judge("update", x.type, t, inserted=True)
    return move(x, t, inserted=True)


def _alike(tree: Tree, other: Tree) -> bool:
    one: Any = jax.tree.structure(tree)
    return bool(one == jax.tree.structure(other))


__all__ = ["Layout", "in_types", "layout_of", "like_value", "like_values"]
