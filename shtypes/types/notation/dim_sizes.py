"""Dim names and the sizes that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

from shtypes.context.ambient import Sizes, current_ambient
from shtypes.context.scope import Scope, changed
from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import whole


def dims(**sizes: int) -> Scope:
    """A scope in which dim names have these sizes; nests, the inner wins, and it holds for this thread.

    A context manager or a decorator.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> from shtypes.types.target import parse
        >>> with dims(seq=4, batch=8):
        ...     parse("f32[seq, batch@dp]", Mesh({"dp": 2})).shape
        (4, 8)
    """
    own = sorted_sizes(sizes)
    return changed(lambda now: now._replace(dims=tuple(sorted({**dict(now.dims), **dict(own)}.items()))))


def current_dims() -> Sizes:
    """The dim names in scope and their sizes, sorted by name."""
    return current_ambient().dims


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """The sizes, checked."""
    for name in sizes:
        if not name.isidentifier() or name == "_":
            raise ShardingTypeError(f"a dim needs a name like `batch`, not `{name}`")
    return tuple(sorted((name, whole(size, 0, f"dim `{name}`")) for name, size in sizes.items()))
