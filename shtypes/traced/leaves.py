"""The leaves of a tree: where each is, and some of them as the operands of a function of them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax


def split(tree: Any, keep: Callable[[Any], bool]) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves for which ``keep`` holds, and what makes the tree again with others in their places."""
    leaves, structure = jax.tree.flatten(tree)
    kept = list(map(keep, leaves))
    fixed = [None if k else x for x, k in zip(leaves, kept, strict=True)]  # a function may outlive the trace

    def again(values: Iterable[Any]) -> Any:
        rest = iter(values)
        return jax.tree.unflatten(structure, [next(rest) if k else x for x, k in zip(fixed, kept, strict=True)])

    return [x for x, k in zip(leaves, kept, strict=True) if k], again


def leaf_paths(tree: Any) -> list[str]:
    """Where each leaf is, as messages name it."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
