"""Dim names and the sizes that they stand for; names and sizes as they are written, ``dp=2,tp=4``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import Sizes, current_settings
from shtypes.errors import ShardingTypeError, short
from shtypes.types.mesh import whole

#: A size: more digits than that are of no array.
_SIZE: Final = re.compile(r"[0-9]{1,18}")


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
    return changed(lambda s: s._replace(dims=tuple(sorted({**dict(s.dims), **dict(own)}.items()))))


def current_dims() -> Sizes:
    """The dim names in scope and their sizes, sorted by name."""
    return current_settings().dims


def read_sizes(text: str) -> dict[str, int]:
    """The names and sizes of a text such as ``dp=2,tp=4``, in its order."""
    found: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, equals, size = part.partition("=")
        if not name or not equals:
            raise ShardingTypeError(f"`{short(part)}` is not like `{(name and short(name)) or 'dp'}=2`")
        if not _SIZE.fullmatch(size):
            raise ShardingTypeError(
                f"the size of `{short(name)}` is a whole number, as in `{short(name)}=2`, not `{short(size)}`"
            )
        if name in found:
            raise ShardingTypeError(f"`{short(name)}` is given twice")
        found[name] = int(size)
    return found


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """The sizes, checked."""
    for name in sizes:
        if not name.isidentifier() or name == "_":
            raise ShardingTypeError(f"a dim needs a name like `batch`, not `{name}`")
    return tuple(sorted((name, whole(size, 0, f"dim `{name}`")) for name, size in sizes.items()))
