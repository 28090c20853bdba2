"""The leaves of a tree, with paths that are text and what Flax's boxes say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shtypes.core.jax_type import HiShType
from shtypes.dispatch.apply import is_typed
from shtypes.numerics.tree.flax_names import Names, is_box, is_dropped, names_of
from shtypes.types import dtypes


class Leaf(NamedTuple):
    """A leaf of a tree."""

    path: str  # its keys with `/` between them
    value: Any
    names: Names | None = None  # what a box around it calls its dims

    @property
    def is_array(self) -> bool:
        """Whether it is an array, typed or plain, or says of one its shape and dtype."""
        return is_typed(self.value) or isinstance(self.value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))

    @property
    def type(self) -> HiShType | None:
        """Its sharding type, if it has one."""
        t: HiShType | None = jax.typeof(self.value) if is_typed(self.value) else None
        return t

    def __str__(self) -> str:
        """``leaf `up/kernel`, f32[8,4]``, as messages say it."""
        return f"leaf `{self.path}`, {self.type or f'{dtypes.from_numpy(self.value.dtype)}{list(self.value.shape)}'}"


def leaves_of(tree: Any) -> list[Leaf]:
    """The leaves in order."""
    return [leaf for _, leaves in _items(tree) for leaf in leaves]


def mapped(tree: Any, f: Callable[[list[Leaf]], Sequence[Any]]) -> Any:
    """The tree with other leaves; Flax linen's boxes are gone, whose names are in the types then.

    Args:
        tree: The tree.
        f: Gives for all leaves what stands in their places.
    """
    items = _items(tree)
    values = iter(f([leaf for _, leaves in items for leaf in leaves]))
    new = []
    for item, leaves in items:
        inside = [next(values) for _ in leaves]
        if is_dropped(item):
            new.append(jax.tree.unflatten(jax.tree.structure(item.value), inside))
        else:
            new.append(jax.tree.unflatten(jax.tree.structure(item), inside) if is_box(item) else inside[0])
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_box), new)


def _items(tree: Any) -> list[tuple[Any, list[Leaf]]]:
    """Each leaf or box, and the leaves that it stands for."""
    items = []
    for keys, item in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]:
        leaves = [Leaf(path_of(keys), item)]
        if is_box(item):
            names, inside = names_of(item), jax.tree_util.tree_flatten_with_path(item)[0]
            # The first key is that of the value in its box, which is nothing to the user.
            leaves = [Leaf(path_of((*keys, *more[1:])), value, names) for more, value in inside]
        items.append((item, leaves))
    return items


def path_of(keys: Sequence[Any]) -> str:
    """The keys of a path as text: ``layers/0/up/kernel``, whatever kind of tree each of them is of."""
    return "/".join(map(_key, keys))


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):  # of dicts, of classes, of lists
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")
