"""Some leaves of a tree, as the operands of a function of them alone."""

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
