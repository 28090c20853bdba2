"""Reads the leaves of a call that has the structure of the last one, in a third of the time that flattening takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax

#: The structure of one leaf.
LEAF: Final = jax.tree.structure(0)


def reader(tree: Any) -> Callable[[Any], list[Any] | None] | None:
    """What lists the leaves of a value that has the structure ``tree``, in the order of `jax.tree.leaves`.

    It is one expression, such as ``[x0["a"], x0["b"]] if type(x0 := call) is dict and len(x0) == 2 else None``. Of a
    value of another structure it gives None or raises a KeyError. It takes anything for a leaf: look at those.
    """
    checks: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {}  # the classes and keys

    def read(node: Any, value: str) -> bool:
        kind, keys = node.node_data() or (object, None)  # a leaf
        if node == LEAF:
            leaves.append(value)
        elif kind is type(None):
            checks.append(f"{value} is None")
        elif kind in (dict, list, tuple) or _is_named_tuple(kind):
            children, x = node.children(), f"x{len(checks)}"
            checks.append(f"type({x} := {value}) is kind_{x} and len({x}) == {len(children)}")
            names[f"kind_{x}"] = kind
            names.update({f"key_{x}_{i}": key for i, key in enumerate(keys or range(len(children)))})
            return all(read(child, f"{x}[key_{x}_{i}]") for i, child in enumerate(children))
        else:
            return False
        return True

    if not read(tree, "call"):
        return None
    found: Callable[[Any], list[Any] | None] = eval(
        f"lambda call: [{', '.join(leaves)}] if {' and '.join(checks) or 'True'} else None", names
    )
    return found


def _is_named_tuple(kind: type) -> bool:
    """Whether a class is a named tuple that JAX opens as one, and not as a node with rules of its own."""
    places = [*range(len(getattr(kind, "_fields", ())))]
    return issubclass(kind, tuple) and hasattr(kind, "_make") and jax.tree.leaves(kind._make(places)) == places
