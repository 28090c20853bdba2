"""The leaves of a pytree, with paths as strings and names from Flax's boxes."""

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
    """A leaf of a pytree."""

    path: str  # its keys, joined by `/`
    value: Any
    names: Names | None = None  # the names of its dims, from a box around it

    @property
    def is_array(self) -> bool:
        """Whether it is an array, typed or plain, or a `jax.ShapeDtypeStruct`."""
        return is_typed(self.value) or isinstance(self.value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))

    @property
    def type(self) -> HiShType | None:
        """Its sharding type, or None."""
        t: HiShType | None = jax.typeof(self.value) if is_typed(self.value) else None
        return t

    def __str__(self) -> str:
        """``leaf `up/kernel`, f32[8,4]``, for messages."""
        return f"leaf `{self.path}`, {self.type or f'{dtypes.from_numpy(self.value.dtype)}{list(self.value.shape)}'}"


def leaves_of(tree: Any) -> list[Leaf]:
    """The leaves in order."""
    return [leaf for _, leaves in _items(tree) for leaf in leaves]


def mapped(tree: Any, f: Callable[[list[Leaf]], Sequence[Any]]) -> Any:
    """Replaces all leaves of a pytree by ``f``; removes Flax linen's boxes, whose names are then in the types."""
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
    """Each leaf or box, with the leaves in it."""
    items = []
    for keys, item in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]:
        leaves = [Leaf(path_of(keys), item)]
        if is_box(item):
            names, inside = names_of(item), jax.tree_util.tree_flatten_with_path(item)[0]
            # without the first key in the box, that of its value
            leaves = [Leaf(path_of((*keys, *more[1:])), value, names) for more, value in inside]
        items.append((item, leaves))
    return items


def path_of(keys: Sequence[Any]) -> str:
    """The keys of a path, of any pytree node, as a string: ``layers/0/up/kernel``."""
    return "/".join(map(_key, keys))


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):  # of dicts, classes and lists
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key).strip(".[]'\"")
