"""Indexing: ``x[...]``. Nothing here communicates.

A partial slice of a sharded dim is an error. A position in a sharded dim is a lookup: the result is unreduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike, install
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, lift
from shtypes.ops.positions import (
    Bound,
    LocalEntry,
    LocalPosition,
    brought,
    local_entries,
    local_index,
    only_where,
    shown,
)
from shtypes.ops.read_index import parse_index
from shtypes.ops.select import where
from shtypes.ops.shape import expand_dims
from shtypes.rules.index import IndexEntry, result_labels
from shtypes.rules.index import index as _index_rule
from shtypes.types import ShType, dtypes

CLIP, DROP = Bound(), Bound(clip=False)


#: What the modes of ``x.at[...].get`` mean.
GET_MODES = {"none": CLIP, "promise_in_bounds": CLIP, "clip": CLIP, "fill": DROP, "drop": DROP, "fill_or_drop": DROP}


@dataclass(frozen=True)
class Index(LocalFn):
    """``x[...]`` of a device's own part; zero where another device has the row, or none."""

    entries: tuple[LocalEntry, ...]
    bound: Bound
    after: int

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the entries
        arrays = any(isinstance(e, LocalPosition) and e.operand is not None for e in self.entries)
        return Linear.EACH if arrays else Linear.JOINTLY

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __str__(self) -> str:
        return f"index[{shown(self.entries)}]"

    def __call__(self, x: Any, *ids: Any) -> Any:
        index, present = local_index(self.entries, ids, self.bound, past_end=False)
        return only_where(present, x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False), self.after)


@dataclass(frozen=True)
class InRange(LocalFn):
    """Whether positions are in dims of these sizes, all of them."""

    sizes: tuple[int, ...]
    bound: Bound

    def __str__(self) -> str:
        return f"in_range[{','.join(map(str, self.sizes))}]"

    def __call__(self, *ids: Any) -> Any:
        inside = jnp.bool_(True)
        for at, size in zip(ids, self.sizes, strict=True):
            inside = inside & (brought(at, size, self.bound) < size)
        return inside


def bound_of(mode: Any, modes: dict[str, Bound]) -> Bound:
    """What an index mode by name means."""
    name = str(getattr(mode, "name", mode)).lower()
    if name not in modes:
        known = ", ".join(f'"{m}"' for m in modes if m not in ("none", "fill_or_drop"))
        raise ShardingTypeError(f"there is no index mode {mode!r}", hints=[known])
    return modes[name]


def get(x: Array, key: Any, bound: Bound = CLIP, fill_value: Any = None, name: str = "index") -> Array:
    """``x[key]``, with positions out of range treated as ``bound`` says."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    entries, arrays = parse_index(t, key, clip=bound.clip or bound.modulo)
    if len(entries) == t.ndim and all(e == (0, n, 1) for e, n in zip(entries, t.shape, strict=True)):
        return x
    return gather(x, entries, arrays, bound, fill_value, name)


def gather(
    x: Any, entries: tuple[IndexEntry, ...], arrays: Sequence[Any], bound: Bound, fill_value: Any, name: str
) -> Array:
    """An index that is read already."""
    operands, constants = lift([x, *arrays])
    t = jax.typeof(operands[0])
    shape = np.broadcast_shapes(*[jax.typeof(a).shape for a in operands[1:]]) if _agree(operands[1:]) else ()
    labels = result_labels(entries, [("dim", d) for d in range(t.ndim)], len(shape))
    ids = [i for i, label in enumerate(labels) if label[0] == "ids"]  # type: ignore[index]
    after = len(labels) - ids[-1] - 1 if ids else 0

    def local(types: tuple[ShType, ...]) -> Index:
        return Index(local_entries(entries, types[0]), bound, after)

    y = apply(name, local, lambda types: _index_rule(name, types, entries, constants), *operands)
    if bound.clip or bound.modulo or not arrays:
        return y
    return _filled(y, local((t,)), operands[1:], after, fill_value)


def _agree(ids: Sequence[Any]) -> bool:
    try:
        np.broadcast_shapes(*[jax.typeof(a).shape for a in ids])
    except ValueError:
        return False  # the rule says so in other words
    return True


def _filled(y: Any, fn: Index, ids: Sequence[Any], after: int, fill_value: Any) -> Array:
    """The fill value where positions are out of range; a pending sum has it once."""
    sizes = [e.size for e in fn.entries if isinstance(e, LocalPosition) and e.operand is not None]
    inside = InRange(tuple(sizes), fn.bound)
    valid = apply("in_range", inside, lambda types: rules.nonlinear("in_range", types, "bool"), *ids)
    return filled(valid if not after else expand_dims(valid, tuple(range(-after, 0))), y, fill_value)


def filled(valid: Any, y: Any, fill_value: Any) -> Array:
    """``y`` where ``valid`` holds, elsewhere a value that marks what is missing, by default that of JAX."""
    t = jax.typeof(y)
    value = default_fill(t) if fill_value is None else np.asarray(fill_value).astype(t.dtype)
    return where(valid, y, value.item() if t.differentiable and t.dtype_name[0] != "c" else value)


def default_fill(t: ShType) -> np.ndarray[Any, Any]:
    """What JAX puts where positions are out of range: NaN, the least integer, the greatest unsigned one, or True."""
    dtype = t.dtype
    if dtypes.is_key(t.dtype_name):
        raise ShardingTypeError("keys have no value for positions out of range", hints=['mode="clip"'])
    if t.differentiable:
        return np.asarray(np.nan, dtype)
    if t.dtype_name == "bool":
        return np.asarray(True)
    bits = dtypes.bits(t.dtype_name)
    return np.asarray(2**bits - 1 if t.dtype_name[0] == "u" else -(2 ** (bits - 1)), dtype)


@public
def getitem(x: ArrayLike, key: Any) -> Array:
    """``x[key]``, with integers, slices, ``None``, ``...``, integer arrays and known masks, as in `jax.numpy`.

    Per axis: an axis that shards a dim which is sliced whole is kept; one that shards a dim indexed by positions makes
    the result unreduced, since each device finds the rows that it has; sharded positions make the result sharded.
    Positions out of range are brought to the nearest end, for the gradient too; negative ones count from the end.

    Args:
        x (...): A value.
        key: The index.

    Raises:
        ShardingTypeError: a partial slice of a sharded dim; positions sharded on an axis that shards a dim of ``x``; a
            mask that is not known.

    Transpose: a scatter-add of the cotangent. Communicates: nothing.
    """
    return get(lift([x])[0][0], key)


def _iterate(x: Any) -> Iterator[Any]:
    """The rows of a value; of a sharded dim each would be a lookup."""
    if not jax.typeof(x).ndim:
        raise TypeError("iteration over a value without dims")
    return iter([getitem(x, i) for i in range(jax.typeof(x).shape[0])])


install({"getitem": getitem, "iter": _iterate}, {}, {})
