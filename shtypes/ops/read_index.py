"""Reading what stands between the brackets of ``x[...]``: one entry for each dim, and the arrays of positions."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.errors import ShardingTypeError
from shtypes.ops.dispatch import is_number, is_typed
from shtypes.rules.index import IndexEntry, New, Position, Slice
from shtypes.types import ShType


def parse_index(t: ShType, key: Any, *, clip: bool) -> tuple[tuple[IndexEntry, ...], list[Any]]:
    """An index as entries, one for each dim and each new one, and its arrays of positions.

    Args:
        t: The type of what is indexed.
        key: What stands between the brackets.
        clip: Whether static positions out of range are brought into it; else they are arrays.
    """
    parts = _flat(key)
    used = sum(_dims_of(p) for p in parts)
    if used > t.ndim:
        raise ShardingTypeError(f"an index of {used} dims does not fit {t}, which has {t.ndim}")
    gap = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(gap) > 1:
        raise ShardingTypeError("an index can have `...` only once")
    where_ = gap[0] if gap else len(parts)
    parts[where_ : where_ + len(gap)] = [slice(None)] * (t.ndim - used)
    entries: list[IndexEntry] = []
    arrays: list[Any] = []
    dim = 0
    for part in parts:
        if part is None:
            entries.append(New())
            continue
        entries.append(_entry(t, dim, part, arrays, clip))
        dim += 1
    return tuple(entries), arrays


def _flat(key: Any) -> list[Any]:
    """The parts of an index; masks that are known become the positions where they hold."""
    parts: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, (list, tuple)):
            part = np.asarray(part)
            part = part.astype(np.int32) if not part.size else part
        if isinstance(part, (bool, np.bool_)):
            raise ShardingTypeError("a bool is no index", hints=["sh.where chooses elements", "None makes a new dim"])
        if _is_mask(part):
            if is_typed(part) or isinstance(part, jax.core.Tracer):
                raise ShardingTypeError(
                    "an index cannot be a mask that is typed or traced",
                    why="how many elements it chooses is not known when types are checked",
                    hints=["sh.where(mask, x, 0) keeps the shape"],
                )
            parts += np.nonzero(np.asarray(part))
        else:
            parts.append(part)
    return parts


def _is_mask(part: Any) -> bool:
    return hasattr(part, "dtype") and part.dtype == np.bool_


def _dims_of(part: Any) -> int:
    return 0 if part is None or part is Ellipsis else 1


def _entry(t: ShType, dim: int, part: Any, arrays: list[Any], clip: bool) -> IndexEntry:
    size = t.shape[dim]
    if isinstance(part, slice):
        return _span(part, size)
    if is_number(part) or isinstance(part, np.integer):
        try:
            at = operator.index(part)
        except TypeError:
            raise _no_index(part) from None
        at = at + size if at < 0 else at
        if 0 <= at < size or (clip and size):
            return Position(min(max(at, 0), size - 1))
        part = np.asarray(part, np.int32)
    if not hasattr(part, "dtype") or not jnp.issubdtype(part.dtype, jnp.integer):
        raise _no_index(part)
    arrays.append(part)
    return Position(operand=len(arrays) - 1)


def _no_index(part: Any) -> ShardingTypeError:
    kind = f"of dtype {part.dtype}" if hasattr(part, "dtype") else f"{part!r:.40}"
    return ShardingTypeError(f"an index has integers, slices, None, `...` and integer arrays, not one {kind}")


def _span(part: slice, size: int) -> Slice:
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError, ShardingTypeError):
        raise ShardingTypeError(
            f"a slice needs integers that are known, not {part}",
            hints=["sh.dynamic_slice takes positions known at run time", "sh.dynamic_index_in_dim"],
        ) from None
    count = len(range(start, stop, step))
    return Slice(start, count, step) if count > 1 else Slice(start if count else 0, count)
