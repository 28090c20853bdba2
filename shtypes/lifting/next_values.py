"""The results of a function that are the next values of its arguments: new parameters, an optimizer's next state.

A function that `implicit_comm` decides about may be called with what it returned: these keep their arguments' types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shtypes.core.physical import hidden_axes
from shtypes.evaluation.value_info import placed, type_of
from shtypes.types import ShType

#: For each result the number of the array among the arguments whose next value it is, or None.
Next = tuple[int | None, ...]


def next_values(arguments: Any, results: Any, arrays: Sequence[Any], avals: Sequence[Any]) -> Next:
    """Which results are next values: those in a container like one of the arguments, or at the same names in another.

    Args:
        arguments: ``(args, kwargs)``, with the number of each array in its place, and None for what is no array.
        results: The results, with their numbers in their places.
        arrays: The types of the arrays, typed or JAX's.
        avals: JAX's types of the results.
    """
    found: list[int | None] = [None] * len(avals)
    befores: list[Any] = [
        jax.tree.flatten_with_path(x) for x in (*arguments[0], *arguments[1].values()) if _children(x)
    ]
    befores = [(all_, tree) for all_, tree in befores if not any(hides(arrays[i]) for _, i in all_)]

    def is_next(before: Sequence[tuple[Any, int]], leaves: Sequence[int]) -> bool:
        return all(_alike(arrays[i], avals[number]) for (_, i), number in zip(before, leaves, strict=True))

    def note(part: Any) -> None:
        leaves, structure = jax.tree.flatten(part)
        for at, (before, other) in enumerate(befores):
            if structure == other and is_next(before, leaves):
                for (_, i), number in zip(before, leaves, strict=True):
                    found[number] = i
                befores.append(befores.pop(at))  # the next one of this structure is rather that of another
                return
        for child in _children(part):
            note(child)

    note(results)
    named = [(path, i) for before, _ in befores for path, i in before if any(map(_is_name, path))]
    for path, number in jax.tree.leaves_with_path(results):
        if found[number] is None:
            ends = [(p, i) for p, i in named if path[-len(p) :] == p and _alike(arrays[i], avals[number])]
            found[number] = max(ends, key=lambda each: len(each[0]), default=((), None))[1]
    return tuple(found)


def _children(x: Any) -> Sequence[Any]:
    found = jax.tree_util.default_registry.flatten_one_level(x)
    return () if found is None else tuple(found[0])


def _is_name(key: Any) -> bool:
    return isinstance(key, (jax.tree_util.DictKey, jax.tree_util.GetAttrKey))


def _alike(one: Any, other: Any) -> bool:
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def in_types_before(results: Sequence[Any], following: Next, arguments: Sequence[Any], *, gradients: bool) -> list[Any]:
    """The results, next values in their arguments' types; of a program with gradients no pending sum is one."""
    outs = []
    for y, at in zip(results, following, strict=True):
        t = None if at is None else type_of(arguments[at])
        outs.append(y if t is None or (gradients and hides(type_of(y))) else placed(y, t, "step"))
    return outs


def hides(t: Any) -> bool:
    """Whether a type is one of values that devices hold in part: of a pending sum, or of values of their own."""
    return isinstance(t, ShType) and bool(hidden_axes(t))
