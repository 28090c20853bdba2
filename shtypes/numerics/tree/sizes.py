"""Bytes per device of a pytree's arrays: by prefix of their paths, and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from shtypes.context.user_line import public
from shtypes.errors import ShardingTypeError, how_many
from shtypes.numerics.tree.leaves import leaves_of
from shtypes.types import ShType, dtypes
from shtypes.types.tables import Report, Table

_BYTES: Final = "B/device"


class BytesByPrefix(dict[str, int]):
    """Bytes per device by the prefix of a path."""

    @property
    def total(self) -> int:
        """Bytes per device of all arrays."""
        return sum(self.values())


class Row(NamedTuple):
    """An array, or all arrays whose paths have a common prefix."""

    path: str  # the path or prefix
    type: str  # the type of an array; the number of several
    elements: int  # of the global arrays
    bytes: int  # on each device


@dataclass(frozen=True, repr=False)
class Overview(Report):
    """The types of a pytree's arrays, and their bytes on each device, as a report.

    Attributes:
        rows: The arrays, or the prefixes of their paths, in the order of the pytree.
        count: The number of arrays.
    """

    rows: tuple[Row, ...]
    count: int

    @property
    def bytes(self) -> int:
        """Bytes per device of all arrays."""
        return sum(row.bytes for row in self.rows)

    @property
    def elements(self) -> int:
        """The number of elements of the global arrays."""
        return sum(row.elements for row in self.rows)

    @property
    def title(self) -> str:
        """The heading of its page."""
        return "Types of a tree"

    def tables(self) -> list[Table]:
        """The table."""
        total = Row("total", "", self.elements, self.bytes)
        cells = ((row.path or ".", row.type, f"{row.elements:,}", f"{row.bytes:,}") for row in (*self.rows, total))
        headings = ("path", "type", "elements", _BYTES)
        return [Table(how_many(self.count, "array"), headings, tuple(cells), frozenset(headings[2:]))]

    def __repr__(self) -> str:
        return str(self)


@public
def bytes(tree: Any, depth: int | None = 1) -> BytesByPrefix:
    """Bytes per device of the arrays of a pytree, by the prefix of their paths.

    Args:
        tree: A pytree of typed values, types, plain arrays (by their sharding), or objects with a shape and a dtype
            (unsharded). Other leaves count as zero.
        depth: The number of keys in a prefix; 0 for one number, None for each array.

    Returns:
        A dict from prefixes, in the order of the pytree, to bytes; ``total`` is their sum.

    Raises:
        ShardingTypeError: ``depth`` is not a number of keys.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> mesh = sh.abstract_mesh({"dp": 2, "tp": 4})
        >>> up, down = (sh.ShType.parse(t, mesh) for t in ("f32[16, 32@tp]", "f32[32@tp, 16]"))
        >>> sh.tree.bytes({"mlp": {"up": up, "down": down}, "scale": sh.ShType.parse("f32[16]", mesh)})
        {'mlp': 1024, 'scale': 64}
    """
    return BytesByPrefix({row.path: row.bytes for row in _grouped([*_rows(tree)], depth)})


@public
def show(tree: Any, depth: int | None = None) -> Overview:
    """A table of the arrays of a pytree: path, type, elements and bytes per device, with the total.

    Args:
        tree: As for `bytes`. To see the effect of rules, show ``sh.tree.types(tree, rules)``.
        depth: The number of keys in a path; by default all, so a row for each array.

    Returns:
        A report that prints as text, with `rich`, and as a table in a notebook; ``to_html`` makes a page.

    Raises:
        ShardingTypeError: ``depth`` is not a number of keys.

    Communicates: nothing.
    """
    rows = [*_rows(tree)]
    return Overview(tuple(_grouped(rows, depth)), len(rows))


def _rows(tree: Any) -> Iterator[Row]:
    for leaf in leaves_of(tree):
        x = leaf.value
        t = x if isinstance(x, ShType) else leaf.type
        if t is not None:
            yield Row(leaf.path, str(t), t.size, t.local_bytes)
        elif hasattr(x, "shape") and hasattr(x, "dtype"):
            name, shape = dtypes.from_numpy(x.dtype), tuple(x.shape)
            described = f"{name}[{','.join(map(str, shape))}], plain"
            size = math.prod(_shard_shape(x, shape)) * dtypes.itemsize(name)
            yield Row(leaf.path, described, math.prod(shape), size)


def _shard_shape(x: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a device's shard of a plain array."""
    sharding = getattr(jax.typeof(x) if isinstance(x, jax.core.Tracer) else x, "sharding", None)
    return tuple(sharding.shard_shape(shape)) if isinstance(sharding, jax.sharding.Sharding) else shape


def _grouped(rows: Sequence[Row], depth: int | None) -> Iterator[Row]:
    """Merges rows with a common prefix; a single array keeps its type."""
    if depth is not None and (isinstance(depth, bool) or not hasattr(depth, "__index__") or depth < 0):
        raise ShardingTypeError(f"`depth` is a number of keys from 0, or None for all, not {depth!r:.60}")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.path if depth is None else "/".join(row.path.split("/")[:depth]), []).append(row)
    for prefix, group in groups.items():
        of_one = len(group) == 1 and group[0].path == prefix
        kind = group[0].type if of_one else how_many(len(group), "array")
        yield Row(prefix, kind, sum(row.elements for row in group), sum(row.bytes for row in group))
