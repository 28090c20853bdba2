"""Types for the arrays of a tree: by rules on paths, and by Flax's names of dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shtypes.context.user_line import public
from shtypes.core import conversion
from shtypes.core.device_put import type_of
from shtypes.core.host import converted
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.meshes import to_mesh
from shtypes.dispatch import reshard as moves
from shtypes.errors import ShardingTypeError
from shtypes.numerics.tree.flax_names import text_of
from shtypes.numerics.tree.leaves import Leaf, mapped
from shtypes.numerics.tree.rules import Pattern, Rules, first_matches, pattern_text, read_rules, unmatched
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.notation.dim_names import current_dim_axes
from shtypes.types.target import Target


@public
def array(tree: Any, rules: Rules = (), *, mesh: Any = None) -> Any:
    """The tree with each array as a typed value: `shtypes.array` for whole models.

    The first rule whose pattern matches a leaf's path gives its type. A path is the keys with ``/`` between them, such
    as ``layers/0/up/kernel``, whatever the tree is made of. A pattern is a glob, in which ``**`` is any number of keys,
    ``*`` one key or a part of one, or a compiled regular expression of the whole path.

    An array that no rule matches gets the names that Flax's module gives its dims (NNX's variables and linen's boxes):
    each is a mesh axis, or has its axes by `dim_axes`.

    Args:
        tree: A tree: dicts, dataclasses, named tuples; modules and states of NNX, variables of linen, modules of
            Equinox, states of optax. Its arrays are numpy's or JAX's; a `jax.ShapeDtypeStruct` becomes a value that has
            only a type. A typed value stays if it has the type; see `reshard`. What is no array stays as it is.
        rules: A mapping of patterns to types, or pairs of them. A type is a text, which may leave the dtype and sizes
            to the array; a `ShType`; a `jax.P`; or None: what the names of its dims say, and replicated without any.
        mesh: The mesh of the texts; by default the one in context.

    Returns:
        The tree with typed values; linen's boxes are gone, since the types say what they said.

    Raises:
        ShardingTypeError: no rule matches an array, and it has no names; a rule other than ``**`` matches none; a type
            does not fit its array, a typed value has another one, or a name stands for no axis.

    Communicates: nothing (each device is sent its own part).

    Examples:
        >>> import numpy as np
        >>> import shtypes as sh
        >>> sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 4}))
        >>> model = {"up": {"kernel": np.ones((16, 32)), "bias": np.ones(32)}}
        >>> rules = {"**/kernel": "[embed, mlp@tp]", "**": "[...]"}
        >>> sh.tree.array(model, rules)["up"]["kernel"].type
        f32[embed, mlp@tp]
    """
    on = None if mesh is None else to_mesh(mesh)
    return _each(tree, rules, lambda leaf, target: _typed_leaf(leaf, target, on), on)


@public
def reshard(tree: Any, rules: Rules = ()) -> Any:
    """The tree with each typed value in the type that its rule says: `shtypes.reshard` for whole models.

    Args:
        tree: A tree. Its arrays are typed; what is no array stays as it is.
        rules: As for `array`; a text says of each dim whether it is kept or whole, as for `shtypes.reshard`.

    Returns:
        The tree with these types; linen's boxes are gone.

    Raises:
        ShardingTypeError: as for `array`; an array is plain.

    Communicates: what the reshards need. Transpose: the reshards between the cotangent types.
    """

    def moved(leaf: Leaf, target: Target | None) -> Any:
        if leaf.type is None:
            raise ShardingTypeError(f"{leaf} has no sharding type", hints=["sh.tree.array(tree, rules)"])
        return leaf.value if target is None else moves.reshard(leaf.value, target)

    return _each(tree, rules, moved, None)


@public
def types(tree: Any, rules: Rules | None = None, *, mesh: Any = None) -> Any:
    """The tree with types in place of its arrays: those that they have, or those that rules would give them.

    Args:
        tree: A tree, as for `array`.
        rules: As for `array`, where it is given; ``()`` for the names of dims alone. By default each typed value's own
            type, and JAX's own type of each plain array.
        mesh: The mesh of the rules' texts; by default the one in context.

    Returns:
        The tree of types; what is no array stays as it is.

    Raises:
        ShardingTypeError: with rules, as `array`.
    """
    if rules is None:
        return jax.tree.map(_type_of_leaf, tree)
    on = None if mesh is None else to_mesh(mesh)
    return _each(tree, rules, lambda leaf, target: _type(leaf, target, on), on)


def _type_of_leaf(x: Any) -> Any:
    if isinstance(x, ShType):
        return x
    try:
        return jax.typeof(x)
    except TypeError:  # JAX has no type of it
        return x


def _each(tree: Any, rules: Rules, make: Callable[[Leaf, Target | None], Any], mesh: Mesh | None) -> Any:
    """The tree with ``make(leaf, target)`` in place of each array, by the rules."""
    read = read_rules(rules)

    def one(leaf: Leaf, rule: tuple[Pattern, Target | None] | None) -> Any:
        target = None if rule is None else rule[1]
        by = "" if rule is None else f" (rule `{pattern_text(rule[0])}`)"
        try:
            if target is None and leaf.names is not None:
                by = f" (named {leaf.names})"
                where = leaf.type.mesh if leaf.type is not None else mesh or current_mesh()
                target = text_of(leaf.names, where, current_dim_axes())
            return make(leaf, target)
        except ShardingTypeError as error:
            error.what = f"leaf `{leaf.path}`{by}: {error.what}"
            raise

    def every(leaves: list[Leaf]) -> Sequence[Any]:
        chosen = first_matches(read, leaves)
        pairs = [*zip(leaves, chosen, strict=True)]
        lost = [leaf for leaf, i in pairs if leaf.is_array and i is None and leaf.names is None]
        if lost:
            raise unmatched(lost, read)
        return [one(leaf, None if i is None else read[i]) if leaf.is_array else leaf.value for leaf, i in pairs]

    return mapped(tree, every)


def _typed_leaf(leaf: Leaf, target: Target | None, mesh: Mesh | None) -> Any:
    if leaf.type is not None:
        _type(leaf, target, mesh)
        return leaf.value
    if isinstance(leaf.value, jax.ShapeDtypeStruct):
        return conversion.abstract_array(_type(leaf, target, mesh))
    return conversion.array(leaf.value, target, mesh=mesh)


def _type(leaf: Leaf, target: Target | None, mesh: Mesh | None) -> HiShType:
    """The type of a leaf; a typed one has it already."""
    t = leaf.type
    if t is not None:
        target_type = t if target is None else as_jax_type(type_of(target, t.mesh, like=t))
        if target_type != t:
            hints = ["sh.tree.reshard(tree, rules)"]
            raise ShardingTypeError(f"it has the type {t} already, not {target_type}", hints=hints)
        return t
    target_type = conversion.type_for(leaf.value, target, mesh)
    dtype = dtypes.from_numpy(leaf.value.dtype)
    if target_type.dtype_name != dtype:  # refused here as it is where there is data
        converted(np.zeros((), None if dtypes.is_key(dtype) else leaf.value.dtype), dtype, target_type)
    return target_type
