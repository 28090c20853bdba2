"""The names of parameters' dims in Flax modules, read from attributes without importing Flax.

NNX has names in the metadata of its variables (`nnx.with_partitioning`); linen wraps values in boxes
(`nn.with_logical_partitioning`, `nn.with_partitioning`). Both are pytree nodes that contain the value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from shtypes.context.settings import DimAxes
from shtypes.errors import ShardingTypeError, quoted
from shtypes.types.mesh import Mesh
from shtypes.types.notation.printing import show_axes

#: The metadata keys of names in NNX's variables, the newest first.
_OF_VARIABLES = ("out_sharding", "sharding_names", "sharding")


class Names(NamedTuple):
    """The names of dims in a box."""

    of_dims: tuple[Any, ...]  # a name, several, or None for each dim
    rules: Mapping[str, Any]  # the mesh axes of names, by the module's rules

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.of_dims))})"


def is_box(x: Any) -> bool:
    """Whether it is a variable of NNX or a box of linen."""
    return hasattr(type(x), "get_metadata") or is_dropped(x)


def is_dropped(x: Any) -> bool:
    """Whether it is a box of linen, which applies constraints when the value is unboxed."""
    return hasattr(type(x), "replace_boxed") and hasattr(x, "value")


def names_of(box: Any) -> Names | None:
    """The names in a box, or None."""
    if is_dropped(box):
        names, rules = getattr(box, "names", None), getattr(box, "rules", None)
    else:
        metadata = box.get_metadata()
        names = next((metadata[key] for key in _OF_VARIABLES if metadata.get(key)), None)
        rules = metadata.get("sharding_rules")
    names = getattr(names, "sharding", names)  # the sharding of a layout
    names = getattr(names, "spec", names)  # the spec of a sharding
    # the first of several rules for a name applies
    return None if names is None else Names(tuple(names), dict(reversed([*rules])) if rules else {})


def text_of(names: Names, mesh: Mesh, scope: DimAxes) -> str:
    """The dims of a type for these names.

    A name has the axes of the module's rules; else it is a mesh axis; else it has those of a `dim_axes` scope.
    """
    dims = [_dim(entry, i, names, mesh, dict(scope)) for i, entry in enumerate(names.of_dims)]
    return f"[{', '.join([*dims, '_...'])}]"


def _dim(entry: Any, index: int, names: Names, mesh: Mesh, scope: Mapping[str, tuple[str, ...]]) -> str:
    entries = entry if isinstance(entry, (tuple, list)) else () if entry is None else (entry,)
    axes = [axis for name in entries for axis in _axes(name, index, names, mesh, scope)]
    # a unique name that is not a mesh axis also becomes the dim's name
    named = isinstance(entry, str) and entry.isidentifier() and entry not in mesh.shape
    head = entry if named and names.of_dims.count(entry) == 1 else "_"
    return f"{head}@{show_axes(axes)}" if axes else f"{head}@()"


def _axes(name: Any, index: int, names: Names, mesh: Mesh, scope: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if name in names.rules:
        axes = names.rules[name]
        return (axes,) if isinstance(axes, str) else tuple(axes or ())
    if name in mesh.shape:
        return (name,)
    if name in scope:
        return scope[name]
    similar = difflib.get_close_matches(str(name), [*mesh.axis_names, *scope], n=1, cutoff=0.6)
    raise ShardingTypeError(
        f"dim {index} is named `{name}`, which is neither a mesh axis nor a name in `sh.dim_axes`",
        why=f"the mesh has {quoted(mesh.axis_names) or 'no axes'}; in scope: {quoted(scope) or 'no names'}",
        hints=[*(f"`{n}`" for n in similar), f'sh.dim_axes({{"{name}": None}}), or the mesh axis in place of None'],
    )
