"""Finds the results of a function that are next values of its arguments: new parameters, an optimizer's next state.

Under `implicit_comm` these results get the types of the arguments, so that the function can be called with them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from shtypes.core.physical import hidden_axes
from shtypes.dispatch.apply import finished_type
from shtypes.evaluation.value_info import cast_to_type, type_of
from shtypes.types import ShType


class NextValue(NamedTuple):
    """A result that is the next value of an argument, or its gradient."""

    argument: int  # the index of the array argument
    is_gradient: bool  # computed from it by a backward pass alone: it may stay a pending sum


#: For each result, the argument whose next value it is, or None.
Next = tuple[NextValue | None, ...]


def next_values(
    arguments: Any, results: Any, arrays: Sequence[Any], avals: Sequence[Any], is_gradient: Callable[[int, int], bool]
) -> Next:
    """Matches results to arguments: subtrees of the structure of an argument, then leaves at the same names.

    Args:
        arguments: ``(args, kwargs)``, with the index of each array in its place, and None for other leaves.
        results: The results, with the index of each in its place.
        arrays: The types of the arrays, sharding types or JAX's.
        avals: JAX's types of the results.
        is_gradient: Whether a result does not depend on an array but through a backward pass.
    """
    sources: list[int | None] = [None] * len(avals)
    containers: list[Any] = [
        jax.tree.flatten_with_path(x) for x in (*arguments[0], *arguments[1].values()) if _children(x)
    ]
    containers = [(leaves, tree) for leaves, tree in containers if not any(hides(arrays[i]) for _, i in leaves)]

    def match(subtree: Any) -> None:
        leaves, structure = jax.tree.flatten(subtree)
        for at, (container, other) in enumerate(containers):
            if structure == other and all(
                _same_shape_and_dtype(arrays[i], avals[j]) for (_, i), j in zip(container, leaves, strict=True)
            ):
                for (_, i), j in zip(container, leaves, strict=True):
                    sources[j] = i
                containers.append(containers.pop(at))  # prefer another argument for the next subtree like this
                return
        for child in _children(subtree):
            match(child)

    match(results)
    named = [(path, i) for container, _ in containers for path, i in container if any(map(_is_name, path))]
    for path, j in jax.tree.leaves_with_path(results):
        if sources[j] is None:
            ends = [(p, i) for p, i in named if path[-len(p) :] == p and _same_shape_and_dtype(arrays[i], avals[j])]
            sources[j] = max(ends, key=lambda end: len(end[0]), default=((), None))[1]
    return tuple([None if i is None else NextValue(i, is_gradient(j, i)) for j, i in enumerate(sources)])


def _children(x: Any) -> Sequence[Any]:
    flat = jax.tree_util.default_registry.flatten_one_level(x)
    return () if flat is None else tuple(flat[0])


def _is_name(key: Any) -> bool:
    return isinstance(key, (jax.tree_util.DictKey, jax.tree_util.GetAttrKey))


def _same_shape_and_dtype(one: Any, other: Any) -> bool:
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def in_types_before(results: Sequence[Any], following: Next, arguments: Sequence[Any]) -> list[Any]:
    """Reshards next values to their arguments' types, but for gradients that are pending sums.

    Sums of which plain arguments are the next values are finished.
    """
    outs = []
    for y, at in zip(results, following, strict=True):
        t, now = None, type_of(y)
        if at is not None and not (at.is_gradient and hides(now)):
            t = type_of(arguments[at.argument]) or (now and finished_type(now))
        outs.append(y if t is None else cast_to_type(y, t, "step"))
    return outs


def hides(t: Any) -> bool:
    """Whether a type is unreduced or varying over a mesh axis."""
    return isinstance(t, ShType) and bool(hidden_axes(t))
