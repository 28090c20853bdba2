"""What reads the leaves of calls of one structure: the leaves that JAX lists, and none of another structure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import pytest

from shtypes.programs.program import reader


class Pair(NamedTuple):
    """A named tuple with the size of a list in `TREES`."""

    a: Any
    b: Any


class Swapped(NamedTuple):
    """A named tuple that JAX is told to open in an order of its own."""

    a: Any
    b: Any


jax.tree_util.register_pytree_node(Swapped, lambda x: ((x.b, x.a), None), lambda _, x: Swapped(x[1], x[0]))

TREES: list[Any] = [
    (),
    [],
    {},
    [1],
    (1, 2),
    [1, 2],
    Pair(1, 2),
    {"a": 1},
    {"b": 1},
    {"b": 1, "a": 2},
    {"b": 1, "c": 2},
    {2: 1, 1: [2, 3]},
    (None, 1),
    (1, None),
    (1, None, {"a": None}),
    ((1, 2), 3),
    ({"w": {"b": 1, "a": (2, Pair(3, [4]))}, "v": None}, {}),
]
IDS = [str(tree) for tree in TREES]


def leaves(structure: Any, value: Any) -> list[Any] | None:
    read = reader(jax.tree.structure(structure))
    assert read is not None
    try:
        return read(value)
    except KeyError:
        return None


@pytest.mark.parametrize("tree", TREES, ids=IDS)
def test_leaves_are_those_that_jax_lists(tree: Any) -> None:
    assert leaves(tree, tree) == jax.tree.leaves(tree)


@pytest.mark.parametrize("tree", TREES, ids=IDS)
def test_a_value_of_another_structure_is_refused(tree: Any) -> None:
    for other in TREES:
        found = leaves(tree, other)
        if str(jax.tree.structure(other)) != str(jax.tree.structure(tree)):
            # what it took for a leaf is none
            assert found is None or not all(isinstance(x, int) for x in found), (tree, other)


@pytest.mark.parametrize("node", [OrderedDict(a=1), jax.tree_util.Partial(abs, 1), Swapped(1, 2)], ids=repr)
def test_nodes_of_other_classes_are_left_to_jax(node: Any) -> None:
    assert reader(jax.tree.structure([1, node])) is None


def test_a_dict_of_another_class_is_another_structure() -> None:
    assert leaves({"a": 1}, OrderedDict(a=1)) is None


def test_many_leaves_are_read() -> None:
    tree = {f"layer{i}": {"w": [i, -i], "b": (i,)} for i in range(300)}
    assert leaves(tree, tree) == jax.tree.leaves(tree)
