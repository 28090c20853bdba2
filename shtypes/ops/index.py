"""Indexing: ``x[...]``, slices, and slices at positions known at run time. Nothing here communicates.

A partial slice of a sharded dim is an error. A position in a sharded dim is a lookup: the result is unreduced.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import dtypes
from shtypes.array import install
from shtypes.errors import ShardingTypeError
from shtypes.localfn import Linear, LocalFn
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, as_ints, is_number, is_typed, lift
from shtypes.ops.positions import Bound, LocalEntry, Place, brought, local_entries, local_index, only_where, shown
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.rules.index import At, Entry, New, Span, result_labels
from shtypes.ops.rules.index import dynamic_slice as _dynamic_slice_rule
from shtypes.ops.rules.index import dynamic_update_slice as _dynamic_update_slice_rule
from shtypes.ops.rules.index import index as _index_rule
from shtypes.ops.select import where
from shtypes.ops.shape import expand_dims
from shtypes.types import ShType
from shtypes.where import public

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
        arrays = any(isinstance(e, Place) and e.operand is not None for e in self.entries)
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


# reading an index


def parse_index(t: ShType, key: Any, *, clip: bool) -> tuple[tuple[Entry, ...], list[Any]]:
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
    entries: list[Entry] = []
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


def _entry(t: ShType, dim: int, part: Any, arrays: list[Any], clip: bool) -> Entry:
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
            return At(min(max(at, 0), size - 1))
        part = np.asarray(part, np.int32)
    if not hasattr(part, "dtype") or not jnp.issubdtype(part.dtype, jnp.integer):
        raise _no_index(part)
    arrays.append(part)
    return At(operand=len(arrays) - 1)


def _no_index(part: Any) -> ShardingTypeError:
    kind = f"of dtype {part.dtype}" if hasattr(part, "dtype") else f"{part!r:.40}"
    return ShardingTypeError(f"an index has integers, slices, None, `...` and integer arrays, not one {kind}")


def _span(part: slice, size: int) -> Span:
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError, ShardingTypeError):
        raise ShardingTypeError(
            f"a slice needs integers that are known, not {part}",
            hints=["sh.dynamic_slice takes positions known at run time", "sh.dynamic_index_in_dim"],
        ) from None
    count = len(range(start, stop, step))
    return Span(start, count, step) if count > 1 else Span(start if count else 0, count)


# getting


def bound_of(mode: Any, modes: dict[str, Bound]) -> Bound:
    """What an index mode by name means."""
    name = str(getattr(mode, "name", mode)).lower()
    if name not in modes:
        known = ", ".join(f'"{m}"' for m in modes if m not in ("none", "fill_or_drop"))
        raise ShardingTypeError(f"there is no index mode {mode!r}", hints=[known])
    return modes[name]


def get(x: Any, key: Any, bound: Bound = CLIP, fill_value: Any = None, name: str = "index") -> Any:
    """``x[key]``, with positions out of range treated as ``bound`` says."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    entries, arrays = parse_index(t, key, clip=bound.clip or bound.modulo)
    if len(entries) == t.ndim and all(e == (0, n, 1) for e, n in zip(entries, t.shape, strict=True)):
        return x
    return gather(x, entries, arrays, bound, fill_value, name)


def gather(x: Any, entries: tuple[Entry, ...], arrays: Sequence[Any], bound: Bound, fill_value: Any, name: str) -> Any:
    """An index that is read already."""
    operands, constants = lift([x, *arrays])
    t = jax.typeof(operands[0])
    shape = np.broadcast_shapes(*[jax.typeof(a).shape for a in operands[1:]]) if _agree(operands[1:]) else ()
    labels = result_labels(entries, [("dim", d) for d in range(t.ndim)], len(shape))
    ids = [i for i, label in enumerate(labels) if label[0] == "ids"]  # type: ignore[index]
    after = len(labels) - ids[-1] - 1 if ids else 0
    fn = Index(local_entries(entries, t), bound, after)
    y = apply(name, fn, lambda types: _index_rule(name, types, entries, constants), *operands)
    if bound.clip or bound.modulo or not arrays:
        return y
    return _filled(y, fn, operands[1:], after, fill_value)


def _agree(ids: Sequence[Any]) -> bool:
    try:
        np.broadcast_shapes(*[jax.typeof(a).shape for a in ids])
    except ValueError:
        return False  # the rule says so in other words
    return True


def _filled(y: Any, fn: Index, ids: Sequence[Any], after: int, fill_value: Any) -> Any:
    """The fill value where positions are out of range; a pending sum has it once."""
    sizes = [e.size for e in fn.entries if isinstance(e, Place) and e.operand is not None]
    inside = InRange(tuple(sizes), fn.bound)
    valid = apply("in_range", inside, lambda types: rules.nonlinear("in_range", types, "bool"), *ids)
    return filled(valid if not after else expand_dims(valid, tuple(range(-after, 0))), y, fill_value)


def filled(valid: Any, y: Any, fill_value: Any) -> Any:
    """``y`` where ``valid`` holds, elsewhere a value that marks what is missing, by default that of JAX."""
    t = jax.typeof(y)
    value = default_fill(t) if fill_value is None else np.asarray(fill_value).astype(t.dtype)
    return where(valid, y, value.item() if t.differentiable and t.dtype_name[0] != "c" else value)


def default_fill(t: ShType) -> Any:
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
def getitem(x: Any, key: Any) -> Any:
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
    return get(x, key)


def _iterate(x: Any) -> Iterator[Any]:
    """The rows of a value; of a sharded dim each would be a lookup."""
    if not jax.typeof(x).ndim:
        raise TypeError("iteration over a value without dims")
    return iter([getitem(x, i) for i in range(jax.typeof(x).shape[0])])


# slices by functions


@public
def slice_in_dim(x: Any, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0) -> Any:
    """A slice of one dim, as `jax.lax.slice_in_dim`; typed as ``x[...]``."""
    ((x,), _) = lift([x])
    (dim,) = normalize_dims(axis, jax.typeof(x).ndim, "slice_in_dim")
    return get(x, (*[slice(None)] * dim, slice(start_index, limit_index, stride)), name="slice_in_dim")


def _sliced(
    x: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """A slice of each dim, as `jax.lax.slice`; typed as ``x[...]``.

    Args:
        x (...): A value.
        start_indices: The first position in each dim.
        limit_indices: The end in each dim, not included.
        strides: The steps; 1 by default.

    Communicates: nothing. Transpose: padding with zeros.
    """
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    starts, limits = as_ints(start_indices, "the starts of `slice`"), as_ints(limit_indices, "the limits of `slice`")
    steps = (1,) * t.ndim if strides is None else as_ints(strides, "the strides of `slice`")
    given = list(zip(starts, limits, steps, strict=False))
    fits = len(starts) == len(limits) == len(steps) == t.ndim
    if not fits or any(not 0 <= a <= b <= n or s < 1 for (a, b, s), n in zip(given, t.shape, strict=True)):
        raise ShardingTypeError(f"`slice` from {starts} to {limits} by {steps} does not fit {t}")
    return get(x, tuple(map(slice, starts, limits, steps)), name="slice")


_sliced.__name__ = "slice"
slice_ = public(_sliced)


@public
def index_in_dim(x: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """One position of a dim, as `jax.lax.index_in_dim`; a sharded dim is looked up."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "index_in_dim")
    at = operator.index(index)
    if not -t.shape[dim] <= at < t.shape[dim]:
        raise ShardingTypeError(f"`index_in_dim` at {at} is not in dim {dim} of {t}")
    return dynamic_index_in_dim(x, at, dim, keepdims)


@public
def dynamic_index_in_dim(x: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """One position of a dim, known at run time, as `jax.lax.dynamic_index_in_dim`; a sharded dim is looked up.

    Args:
        x (...): A value.
        index: A position, a number or a scalar integer value; brought into range.
        axis: The dim.
        keepdims: Keeps the dim, with size 1.

    Communicates: nothing. Transpose: the cotangent at that position, zeros elsewhere.
    """
    ((x,), _) = lift([x])
    (dim,) = normalize_dims(axis, jax.typeof(x).ndim, "dynamic_index_in_dim")
    y = get(x, (*[slice(None)] * dim, index), name="dynamic_index_in_dim")
    return expand_dims(y, dim) if keepdims else y


@dataclass(frozen=True)
class DynamicSlice(LocalFn):
    """A slice at run-time positions of the dims that are not sliced whole; None in ``starts`` marks an operand."""

    sizes: tuple[int, ...]
    starts: tuple[int | None, ...]
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"dynamic_slice[{','.join(map(str, self.sizes))}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, *starts: Any) -> Any:
        return lax.dynamic_slice(x, _starts(self.starts, starts), self.sizes)


@dataclass(frozen=True)
class DynamicUpdateSlice(LocalFn):
    """A slice replaced at run-time positions; None in ``starts`` marks an operand."""

    starts: tuple[int | None, ...]
    linear = Linear.BESIDE

    def __str__(self) -> str:
        return "dynamic_update_slice"

    def __call__(self, x: Any, *rest: Any) -> Any:
        *starts, update = rest
        return lax.dynamic_update_slice(x, update, _starts(self.starts, starts))


def _starts(static: Sequence[int | None], given: Sequence[Any]) -> list[Any]:
    rest = iter(given)
    return [jnp.int32(s) if s is not None else next(rest).astype(jnp.int32) for s in static]


def _start_parts(t: ShType, starts: Any, sizes: Sequence[int], name: str) -> tuple[tuple[int | None, ...], list[Any]]:
    """Start positions as static ones and scalar operands; a dim that is taken whole starts at 0."""
    parts = [starts[i] for i in range(starts.shape[0])] if getattr(starts, "ndim", 0) == 1 else list(starts)
    if len(parts) != t.ndim or len(sizes) != t.ndim:
        raise ShardingTypeError(f"`{name}` needs a start and a size for each dim of {t}")
    if any(not 0 <= n <= m for n, m in zip(sizes, t.shape, strict=True)):
        raise ShardingTypeError(f"`{name}` of sizes {tuple(sizes)} does not fit {t}")
    static: list[int | None] = []
    operands: list[Any] = []
    for part, n, m in zip(parts, sizes, t.shape, strict=True):
        known = 0 if n == m else operator.index(part) if is_number(part) or isinstance(part, np.integer) else None
        if known is None:
            operands.append(part)
        static.append(known)
    return tuple(static), operands


@public
def dynamic_slice(x: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Any:
    """A slice of given sizes at positions known at run time, as `jax.lax.dynamic_slice`.

    Per axis: every state is kept, unreduced too; a sharded dim must be taken whole.

    Args:
        x (...): A value.
        start_indices: One position for each dim: numbers or scalar integer values, replicated; brought into range.
        slice_sizes: The sizes.

    Raises:
        ShardingTypeError: a sharded dim is not taken whole; the sizes do not fit.

    Communicates: nothing. Transpose: the cotangent at these positions, zeros elsewhere.
    """
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    sizes = as_ints(slice_sizes, "the sizes of `dynamic_slice`")
    static, starts = _start_parts(t, start_indices, sizes, "dynamic_slice")
    operands, constants = lift([x, *starts])
    local = tuple(k if n == m else n for n, m, k in zip(sizes, t.shape, t.local_shape, strict=True))
    return apply(
        "dynamic_slice",
        DynamicSlice(local, static),
        lambda types: _dynamic_slice_rule("dynamic_slice", types, sizes, constants),
        *operands,
    )


@public
def dynamic_slice_in_dim(x: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """A slice of one dim at a position known at run time; see `dynamic_slice`."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "dynamic_slice_in_dim")
    starts, sizes = [0] * t.ndim, list(t.shape)
    starts[dim], sizes[dim] = start_index, slice_size
    return dynamic_slice(x, starts, sizes)


@public
def dynamic_update_slice(x: Any, update: Any, start_indices: Any) -> Any:
    """``x`` with a slice replaced at positions known at run time, as `jax.lax.dynamic_update_slice`.

    Per axis: typed as a sum of ``x`` and the update; a sharded dim must be replaced whole.

    Args:
        x (...): A value.
        update (...): The new slice, of the dtype of ``x``.
        start_indices: One position for each dim: numbers or scalar integer values, replicated; brought into range.

    Raises:
        ShardingTypeError: a sharded dim is not replaced whole; one of the values is unreduced and the other sharded.

    Communicates: nothing. Transpose: the cotangent with zeros in the slice, and the slice of it.
    """
    ((x, update), _) = lift([x, update])
    t, u = jax.typeof(x), jax.typeof(update)
    if t.dtype_name != u.dtype_name:
        raise ShardingTypeError(f"`dynamic_update_slice` of {t} needs an update of its dtype, not {u}")
    static, starts = _start_parts(t, start_indices, u.shape, "dynamic_update_slice")
    operands, constants = lift([x, *starts, update])
    return apply(
        "dynamic_update_slice",
        DynamicUpdateSlice(static),
        lambda types: _dynamic_update_slice_rule("dynamic_update_slice", types, constants),
        *operands,
    )


@public
def dynamic_update_slice_in_dim(x: Any, update: Any, start_index: Any, axis: int) -> Any:
    """A slice of one dim replaced at a position known at run time; see `dynamic_update_slice`."""
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    (dim,) = normalize_dims(axis, t.ndim, "dynamic_update_slice_in_dim")
    starts: list[Any] = [0] * t.ndim
    starts[dim] = start_index
    return dynamic_update_slice(x, update, starts)


install({"getitem": getitem, "iter": _iterate}, {}, {})
