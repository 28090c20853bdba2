"""gather and scatter by dimension numbers, as `jax.lax` has them. Nothing here communicates.

They say in numbers what ``x[...]`` and ``x.at[...]`` say in brackets, and are typed alike.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.context.user_line import named
from shtypes.core.array import Array, ArrayLike
from shtypes.core.functions.basics import NamedFn
from shtypes.core.localfn import Linear, LocalFn
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, as_ints, lift
from shtypes.ops.elementwise import greater_equal, less_equal, logical_and
from shtypes.ops.extremes import all as all_
from shtypes.ops.index import CLIP, DROP, GET_MODES, bound_of, filled
from shtypes.ops.lookup import as_positions
from shtypes.ops.positions import Bound, brought, past
from shtypes.ops.scatter import _CHANGES, _of_dtype
from shtypes.ops.shape import expand_dims
from shtypes.ops.whole import made
from shtypes.rules.gather import Numbers
from shtypes.rules.gather import gather as _gather_rule
from shtypes.rules.gather import scatter as _scatter_rule
from shtypes.types import ShType

_CLIP, _DROP = CLIP._replace(negative=False), DROP._replace(negative=False)
_SCATTER_MODES = {**GET_MODES, "none": DROP, "promise_in_bounds": DROP}


class Component(NamedTuple):
    """One component of a position: its dim, the size of that, the window there, and the axes that shard it."""

    dim: int
    size: int
    window: int
    axes: tuple[str, ...]


def _components(t: ShType, numbers: Numbers, sizes: Sequence[int]) -> tuple[Component, ...]:
    return tuple(Component(d, t.shape[d], sizes[d], t.dims[d].axes) for d in numbers.indexed)


#: The size of a window that takes all of a dim: on a device, all that it has.
_ALL: Final = -1


def _windows(t: ShType, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(_ALL if n == m else n for n, m in zip(sizes, t.shape, strict=True))


def _found(x: Any, ids: Any, components: Sequence[Component], bound: Bound) -> tuple[list[Any], Any]:
    """The starts of this device's windows, and which of them it has; None where it has all."""
    starts, present = [], []
    for j, (dim, size, window, axes) in enumerate(components):
        at = brought(ids[..., j], size - window + 1, bound)
        if not bound.clip:
            present.append(at <= size - window)
        if window == size:
            starts.append(jnp.zeros_like(at))
            continue
        local = x.shape[dim]
        if axes:
            at = at - lax.axis_index(axes) * local
            present.append((at >= 0) & (at < local))
        starts.append(jnp.clip(at, 0, local - window))
    return starts, functools.reduce(jnp.logical_and, present) if present else None


def _together(starts: Sequence[Any], ids: Any) -> Any:
    return jnp.stack(starts, -1) if starts else jnp.zeros(ids.shape, jnp.int32)


@dataclass(frozen=True)
class Gather(LocalFn):
    """Windows of a device's own part; zero where another device has the window, or none."""

    numbers: Numbers
    sizes: tuple[int, ...]
    components: tuple[Component, ...]
    bound: Bound
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"gather[{','.join(map(str, self.sizes))}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, ids: Any) -> Any:
        starts, present = _found(x, ids, self.components, self.bound)
        y = _gathered(x, _together(starts, ids), self.numbers, self.sizes)
        return y if present is None else jnp.where(_aligned(present, self.numbers), y, jnp.zeros((), y.dtype))


def _gathered(x: Any, starts: Any, numbers: Numbers, sizes: Sequence[int]) -> Any:
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    whole = tuple(n if size == _ALL else size for n, size in zip(x.shape, sizes, strict=True))
    return lax.gather(x, starts, lax.GatherDimensionNumbers(*numbers), whole, mode=mode)


def _aligned(present: Any, numbers: Numbers) -> Any:
    """Which windows are present, for each element of them."""
    return jnp.expand_dims(present, numbers.window)


@dataclass(frozen=True)
class ScatterWindows(LocalFn):
    """Windows of a device's own part changed; ``once``: none is changed twice, so that setting is linear."""

    how: str
    numbers: Numbers
    sizes: tuple[int, ...]
    components: tuple[Component, ...]
    bound: Bound
    once: bool

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the change
        adds = self.how in ("add", "subtract") or (self.how == "set" and self.once)
        return Linear.BESIDE if adds else Linear.NO

    def __str__(self) -> str:
        return f"scatter_{self.how}[{','.join(map(str, self.sizes))}]"

    def __call__(self, x: Any, ids: Any, updates: Any) -> Any:
        starts, present = _found(x, ids, self.components, self.bound)
        numbers = lax.ScatterDimensionNumbers(*self.numbers)
        how, single = self.how, math.prod(ids.shape[:-1]) == 1
        if single and present is not None:
            # Read, choose and write: XLA before JAX 0.12 writes to a wrong row where a scatter to one row drops it.
            window = _gathered(x, _together(starts, ids), self.numbers, self.sizes)
            changed = _CHANGES[how](window, updates)
            updates, how = jnp.where(_aligned(present, self.numbers), changed, window), "set"
        elif present is not None:
            starts = [
                jnp.where(present, at, past(at, x.shape[c.dim])) for at, c in zip(starts, self.components, strict=True)
            ]
        mode = lax.GatherScatterMode.FILL_OR_DROP
        unique = self.once or single
        return _SCATTERS[how](x, _together(starts, ids), updates, numbers, unique_indices=unique, mode=mode)


_SCATTERS: Final[dict[str, Callable[..., Any]]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "subtract": lax.scatter_sub,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


@public
def gather(
    operand: ArrayLike,
    start_indices: Any,
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Array:
    """Windows of an array, each at its own position, as `jax.lax.gather`.

    Per axis: dims that are taken whole and dims that run together with those of the positions keep their axes; one that
    shards a dim of which windows have one element makes the result unreduced, since each device finds its own rows;
    sharded positions make the result sharded.

    Args:
        operand (...): What is looked up.
        start_indices (..., k): Positions: integers, never unreduced; the last dim, of their components, must be whole.
        dimension_numbers: `jax.lax.GatherDimensionNumbers`: which dim is what.
        slice_sizes: The size of a window in each dim of ``operand``.
        unique_indices: Accepted for compatibility; ignored.
        indices_are_sorted: Likewise.
        mode: For windows that do not fit: ``"clip"`` (the default) moves them inside, ``"fill"`` gives ``fill_value``.
        fill_value: The value for ``"fill"``; NaN, or the least integer.

    Returns:
        (...): The windows.

    Raises:
        ShardingTypeError: a window of several elements, but not all, of a sharded dim; positions sharded on an axis
            that shards the operand elsewhere; the numbers do not fit.

    Communicates: nothing. Transpose: a scatter-add of the cotangent.
    """
    (x, ids), constants = lift([operand, as_positions(start_indices, "gather")])
    t = jax.typeof(x)
    given = dimension_numbers
    numbers = Numbers(
        tuple(given.offset_dims),
        tuple(given.collapsed_slice_dims),
        tuple(given.start_index_map),
        tuple(given.operand_batching_dims),
        tuple(given.start_indices_batching_dims),
    )
    sizes = as_ints(slice_sizes, "the sizes of `gather`")
    _check(Gather(numbers, sizes, (), _CLIP), lambda x, i: _gathered(x, i, numbers, sizes), x, ids)
    bound = _CLIP if bound_of(mode, GET_MODES).clip else _DROP
    windows = _windows(t, sizes)

    def local(types: tuple[ShType, ...]) -> Gather:
        return Gather(numbers, windows, _components(types[0], numbers, sizes), bound)

    y = apply("gather", local, lambda types: _gather_rule("gather", types, numbers, sizes, constants), x, ids)
    return y if bound.clip else filled(_inside(ids, t, numbers, sizes), y, fill_value)


def _inside(ids: Any, t: ShType, numbers: Numbers, sizes: Sequence[int]) -> Array:
    """Which windows fit, for each element of them."""
    dtype = jax.typeof(ids).dtype
    last = [min(t.shape[d] - sizes[d], np.iinfo(dtype).max) for d in numbers.indexed]
    fits = logical_and(greater_equal(ids, 0), less_equal(ids, np.asarray(last, dtype)))
    return expand_dims(all_(fits, -1), numbers.window)


def _check(fn: LocalFn, whole: Callable[..., Any], *operands: Any) -> None:
    """Refuses numbers that do not fit, in JAX's words."""
    made(NamedFn(str(fn), whole), *((jax.typeof(x).shape, jax.typeof(x).dtype_name) for x in operands))


def _scatter(how: str, name: str) -> Callable[..., Array]:
    def op(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: lax.ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
    ) -> Array:
        (x, ids, update), constants = lift([operand, as_positions(scatter_indices, name), updates])
        t = jax.typeof(x)
        update = _of_dtype(update, t, how)
        given = dimension_numbers
        numbers = Numbers(
            tuple(given.update_window_dims),
            tuple(given.inserted_window_dims),
            tuple(given.scatter_dims_to_operand_dims),
            tuple(given.operand_batching_dims),
            tuple(given.scatter_indices_batching_dims),
        )
        native = lax.ScatterDimensionNumbers(*numbers)
        whole = lambda x, i, u: _SCATTERS[how](x, i, u, native)  # noqa: E731  # one expression, used once
        _check(NamedFn(name, whole), whole, x, ids, update)
        windows = iter([jax.typeof(update).shape[d] for d in numbers.window])
        of_windows = numbers.windowed(t.ndim)
        sizes = tuple(next(windows) if d in of_windows else 1 for d in range(t.ndim))
        bound = _CLIP if bound_of(mode, _SCATTER_MODES).clip else _DROP
        own = _windows(t, sizes)
        once = unique_indices or math.prod(jax.typeof(ids).shape[:-1]) == 1

        def local(types: tuple[ShType, ...]) -> ScatterWindows:
            return ScatterWindows(how, numbers, own, _components(types[0], numbers, sizes), bound, once)

        def rule(types: tuple[ShType, ...]) -> Any:
            return _scatter_rule(name, how, types, numbers, sizes, constants)

        return apply(name, local, rule, x, ids, update)

    return public(
        named(
            op,
            name,
            f"""Windows of an array changed at positions, as `jax.lax.{name}`.

    Per axis as ``x.at[...].{how}``: each device changes the rows that it has. {_NOTES[how]}

    Args:
        operand (...): What is changed.
        scatter_indices (..., k): Positions: integers, never unreduced; the last dim must be whole.
        updates (...): The windows, with the dims of the positions where ``dimension_numbers`` puts them.
        dimension_numbers: `jax.lax.ScatterDimensionNumbers`: which dim is what.
        indices_are_sorted: Accepted for compatibility; ignored.
        unique_indices: No window is changed twice.
        mode: ``"drop"`` (the default) or ``"clip"``, for windows that do not fit.

    Returns:
        (...): The array with its windows changed.

    Raises:
        ShardingTypeError: a window of several elements, but not all, of a sharded dim; updates and operand that do not
            meet; the numbers do not fit.

    Communicates: nothing. Transpose: {"the windows of the cotangent" if how in _LINEAR else "by JAX"}.
    """,
        )
    )


_LINEAR: Final = ("add", "subtract", "set")
_NOTES: Final = {
    "add": "Updates that are sharded as their positions are make the result unreduced.",
    "subtract": "Updates that are sharded as their positions are make the result unreduced.",
    "set": "The positions must not be sharded.",
    "multiply": "The positions must not be sharded; linear in ``operand`` only.",
    "min": "Nonlinear; the positions must not be sharded.",
    "max": "Nonlinear; the positions must not be sharded.",
}

scatter = _scatter("set", "scatter")
scatter_add, scatter_sub = _scatter("add", "scatter_add"), _scatter("subtract", "scatter_sub")
scatter_mul = _scatter("multiply", "scatter_mul")
scatter_min, scatter_max = _scatter("min", "scatter_min"), _scatter("max", "scatter_max")
