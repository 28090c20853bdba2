"""Dim names and the sizes that they stand for."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping

from shtypes.ambient import Sizes, scope
from shtypes.errors import ShardingTypeError
from shtypes.policy import current_ambient


@contextlib.contextmanager
def dims(**sizes: int) -> Iterator[None]:
    """A scope in which dim names have these sizes; nests, the inner wins, and it holds for this thread.

    Example:
        >>> from shtypes.mesh import Mesh
        >>> from shtypes.notation import parse
        >>> with dims(seq=4, batch=8):
        ...     parse("f32[seq, batch@dp]", Mesh({"dp": 2})).shape
        (4, 8)
    """
    merged = sorted_sizes({**dict(current_dims()), **sizes})
    with scope(current_ambient()._replace(dims=merged)):
        yield


def current_dims() -> Sizes:
    """The dim names in scope and their sizes, sorted by name."""
    return current_ambient().dims


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """The sizes, checked."""
    for name, size in sizes.items():
        if not name.isidentifier() or name == "_":
            raise ShardingTypeError(f"a dim needs a name like `batch`, not `{name}`")
        try:
            if operator.index(size) < 0:
                raise TypeError
        except TypeError:
            raise ShardingTypeError(f"dim `{name}` needs a size of at least 0, not `{size!r}`") from None
    return tuple(sorted((name, operator.index(size)) for name, size in sizes.items()))
