"""Rows reduced by segment, other than summed: the rows must be whole on every device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import published
from shtypes.ops.dispatch import lift
from shtypes.ops.labelled import labelled
from shtypes.ops.lookup import as_positions
from shtypes.ops.whole import function
from shtypes.rules.labelled import ProductDims


def _segment(name: str, what: str) -> Callable[..., Array]:
    native = getattr(jax.ops, name)

    def op(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
    ) -> Array:
        if num_segments is None:
            raise ShardingTypeError(f"`{name}` needs `num_segments`", why="the size of the result must be known")
        (rows, ids), _ = lift([data, as_positions(segment_ids, name)])
        if jax.typeof(ids).ndim != 1 or jax.typeof(rows).shape[:1] != jax.typeof(ids).shape:
            given = f"the rows are {jax.typeof(rows)}, their numbers {jax.typeof(ids)}"
            raise ShardingTypeError(f"`{name}` needs a number for each row: {given}")
        params = {"num_segments": operator.index(num_segments), "mode": mode, "unique_indices": bool(unique_indices)}
        fn = function(name, native, **params)

        def plan(shape: tuple[int, ...]) -> ProductDims:
            others = tuple(("dim", d) for d in range(1, len(shape)))
            labels = (("rows", *others), ("rows",))
            return ProductDims(labels, tuple(zip(("segments", *others), shape, strict=True)), frozenset({"rows"}))

        return labelled(name, fn, [rows, ids], plan)

    return published(
        op,
        name,
        f"""The {what} of the rows of each segment, as `jax.ops.{name}`.

    Per axis: every state but unreduced is kept; the rows must be whole, their other dims may be sharded.

    Args:
        data (n, ...): Rows.
        segment_ids (n): The segment of each row; rows with a number out of range are dropped.
        num_segments: The number of segments.
        indices_are_sorted: Accepted for compatibility; ignored.
        unique_indices: No segment has two rows; then JAX can differentiate.
        bucket_size: Accepted for compatibility; ignored.
        mode: As in JAX.

    Returns:
        (num_segments, ...): The results.

    Raises:
        ShardingTypeError: the rows are sharded or unreduced.

    Communicates: nothing.
    """,
    )


segment_max, segment_min = _segment("segment_max", "maximum"), _segment("segment_min", "minimum")
segment_prod = _segment("segment_prod", "product")
