"""Types for the arrays of a pytree: by rules on paths, and by Flax's names of dims."""

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
    """Converts each array of a pytree to a typed value: `shtypes.array` for models.

    The first rule whose pattern matches a leaf's path sets its type. A path is the keys joined by ``/``, such as
    ``layers/0/up/kernel``, for any kind of pytree. A pattern is a glob, in which ``**`` is any number of keys and ``*``
    one key or a part of one, or a compiled regular expression for the full path.

    An array without a rule uses the names of its dims in Flax's module (NNX's variables and linen's boxes): each is a
    mesh axis, or has its axes by `dim_axes`.

    Args:
        tree: A pytree: dicts, dataclasses, named tuples; modules and states of NNX, variables of linen, modules of
            Equinox, states of optax. Its arrays are numpy's or JAX's; a `jax.ShapeDtypeStruct` becomes an abstract
            value. A typed value must have the type already; see `reshard`. Other leaves are unchanged.
        rules: A mapping of patterns to types, or pairs of them. A type is a string, which may omit the dtype and sizes;
            a `ShType`; a `jax.P`; or None: by the names of the dims, replicated without any.
        mesh: The mesh of types as strings; by default the one in context.

    Returns:
        The pytree with typed values, without linen's boxes, whose names are in the types.

    Raises:
        ShardingTypeError: no rule matches an array, and it has no names; a rule other than ``**`` matches none; a type
            does not fit its array, a typed value has another one, or a name has no axis.

    Communicates: nothing (each device is sent only its shard).

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
    return _map_by_rules(tree, rules, lambda leaf, target: _typed_leaf(leaf, target, on), on)


@public
def reshard(tree: Any, rules: Rules = ()) -> Any:
    """Reshards each typed value of a pytree to the type in its rule: `shtypes.reshard` for models.

    Args:
        tree: A pytree of typed arrays; other leaves are unchanged.
        rules: As for `array`; types as strings as for `shtypes.reshard`.

    Returns:
        The pytree with these types, without linen's boxes.

    Raises:
        ShardingTypeError: as for `array`; an array is plain.

    Communicates: what the reshards need. Transpose: the reshards between the cotangent types.
    """

    def moved(leaf: Leaf, target: Target | None) -> Any:
        if leaf.type is None:
            raise ShardingTypeError(f"{leaf} has no sharding type", hints=["sh.tree.array(tree, rules)"])
        return leaf.value if target is None else moves.reshard(leaf.value, target)

    return _map_by_rules(tree, rules, moved, None)


@public
def types(tree: Any, rules: Rules | None = None, *, mesh: Any = None) -> Any:
    """A pytree of types: those of its arrays, or those that rules give them.

    Args:
        tree: A pytree, as for `array`.
        rules: As for `array`; ``()`` for only the names of dims. By default each typed value's type, and JAX's type of
            each plain array.
        mesh: The mesh of types as strings; by default the one in context.

    Returns:
        The pytree of types; other leaves are unchanged.

    Raises:
        ShardingTypeError: with rules, as `array`.
    """
    if rules is None:
        return jax.tree.map(_type_of_leaf, tree)
    on = None if mesh is None else to_mesh(mesh)
    return _map_by_rules(tree, rules, lambda leaf, target: _type(leaf, target, on), on)


def _type_of_leaf(x: Any) -> Any:
    if isinstance(x, ShType):
        return x
    try:
        return jax.typeof(x)
    except TypeError:  # not a JAX type
        return x


def _map_by_rules(tree: Any, rules: Rules, make: Callable[[Leaf, Target | None], Any], mesh: Mesh | None) -> Any:
    """Replaces each array by ``make(leaf, target)``, by the rules."""
    read = read_rules(rules)

    def result_of(leaf: Leaf, rule: tuple[Pattern, Target | None] | None) -> Any:
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

    def all_results(leaves: list[Leaf]) -> Sequence[Any]:
        pairs = [*zip(leaves, first_matches(read, leaves), strict=True)]
        lost = [leaf for leaf, i in pairs if leaf.is_array and i is None and leaf.names is None]
        if lost:
            raise unmatched(lost, read)
        return [result_of(leaf, None if i is None else read[i]) if leaf.is_array else leaf.value for leaf, i in pairs]

    return mapped(tree, all_results)


def _typed_leaf(leaf: Leaf, target: Target | None, mesh: Mesh | None) -> Any:
    if leaf.type is not None:
        _type(leaf, target, mesh)
        return leaf.value
    if isinstance(leaf.value, jax.ShapeDtypeStruct):
        return conversion.abstract_array(_type(leaf, target, mesh))
    return conversion.array(leaf.value, target, mesh=mesh)


def _type(leaf: Leaf, target: Target | None, mesh: Mesh | None) -> HiShType:
    """The type of a leaf; a typed one must have it already."""
    t = leaf.type
    if t is not None:
        target_type = t if target is None else as_jax_type(type_of(target, t.mesh, like=t))
        if target_type != t:
            hints = ["sh.tree.reshard(tree, rules)"]
            raise ShardingTypeError(f"it has the type {t} already, not {target_type}", hints=hints)
        return t
    target_type = conversion.type_for(leaf.value, target, mesh)
    dtype = dtypes.from_numpy(leaf.value.dtype)
    if target_type.dtype_name != dtype:  # refuses what is refused with data
        converted(np.zeros((), None if dtypes.is_key(dtype) else leaf.value.dtype), dtype, target_type)
    return target_type
