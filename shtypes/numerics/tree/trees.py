"""Converts pytrees of typed values to plain arrays and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from shtypes.context.signature_errors import check_function
from shtypes.context.user_line import public
from shtypes.core import conversion as array
from shtypes.core.conversion import convert as value_from_jax
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType


@public
def to_jax(tree: Any) -> Any:
    """Converts each typed value of a pytree to a plain `jax.Array`, for an optimizer or a checkpoint.

    Args:
        tree: A pytree. Its typed values are sharded, reduced or invariant; other leaves are unchanged.

    Communicates: nothing. See `shtypes.to_jax`.
    """
    return jax.tree.map(lambda leaf: array.to_jax(leaf) if is_typed(leaf) else leaf, tree)


@public
def from_jax(tree: Any, *, like: Any) -> Any:
    """Converts each plain array of a pytree to a typed value, the inverse of `to_jax`.

    Args:
        tree: A pytree of plain arrays.
        like: A pytree of the same structure, whose leaves are typed values or types; others leave the array unchanged.

    Raises:
        ShardingTypeError: the trees differ, or a type does not fit.

    Communicates: the reshards from the arrays' present shardings; nothing for results of `to_jax`.
    """
    leaves, targets = jax.tree.leaves(tree), jax.tree.leaves(like)
    structure: Any = jax.tree.structure(tree)
    other: Any = jax.tree.structure(like)
    if structure != other:
        raise ShardingTypeError(f"`like` has another structure, {other}, than the tree, {structure}")
    typed = [value_from_jax(x, t) if (t := _type(w)) is not None else x for x, w in zip(leaves, targets, strict=True)]
    return jax.tree.unflatten(structure, typed)


def _type(leaf: Any) -> ShType | None:
    if isinstance(leaf, ShType):
        return leaf
    return jax.typeof(leaf) if is_typed(leaf) else None


@public
def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`jax.tree.map`: typed values are leaves."""
    check_function("tree.map", f)
    return jax.tree.map(f, tree, *rest, is_leaf=is_leaf)
