"""Convolutions, pools and their derivatives along sharded dims, by exchanging the borders that windows reach.

The windows of a device begin ``results * stride`` elements after those of the device before, and reach
``reach - stride`` elements further than that: the border, which is sent by permutes. The operands are shards, or moved
along a dim, as joins and pads by reflection are: then each device gets what its windows reach from where the elements
come from, and computes the results that it is asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from jax import lax

from shtypes.core.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.rows.families import ints
from shtypes.lifting.rows.reductions import windows_of
from shtypes.lifting.ways.moved import Layout, Moved, Results
from shtypes.ops.arithmetic import add
from shtypes.ops.arranged import Shard, arranged
from shtypes.ops.shards import Axes, as_unreduced, axes_of, bound, least_or_most, type_of
from shtypes.rules.einsum_like import Window

CONV: Final = lax.conv_general_dilated_p.name
REDUCE_WINDOWS: Final = ("reduce_window_sum", "reduce_window_max", "reduce_window_min")
SCATTER: Final = "select_and_scatter_add"
#: Pools and their derivatives.
POOLS: Final = (*REDUCE_WINDOWS, "select_and_gather_add", SCATTER)


class Place(NamedTuple):
    """The dims along which windows move: of the operand, of the result and of the kernel."""

    operand: int
    result: int
    kernel: int | None = None


def places(eqn: Any) -> list[Place]:
    """Where the windows of an equation move, in the order of its parameters; none of others."""
    if eqn.primitive.name == CONV:
        numbers = eqn.params["dimension_numbers"]
        specs = (spec[2:] for spec in (numbers.lhs_spec, numbers.out_spec, numbers.rhs_spec))
        return [Place(*dims) for dims in zip(*specs, strict=True)]
    return [Place(d, d) for d in range(eqn.outvars[0].aval.ndim)] if eqn.primitive.name in POOLS else []


def window_dims(eqn: Any) -> frozenset[int]:
    """The dims along which windows move, and their results or their kernel lie, too."""
    return frozenset(d for d, *others in places(eqn) if d in others)


def result_dims(eqn: Any) -> frozenset[int]:
    """The dims along which windows move, and their results lie, too."""
    return frozenset(d for d, result, _ in places(eqn) if d == result)


def windows_along(eqn: Any) -> list[Window]:
    """The windows of an equation, along each dim along which they move."""
    p = eqn.params
    if eqn.primitive.name != CONV:
        return windows_of(p)
    moves = zip(ints(p["window_strides"]), p["padding"], ints(p["lhs_dilation"]), ints(p["rhs_dilation"]), strict=True)
    sizes = [eqn.invars[1].aval.shape[place.kernel] for place in places(eqn)]
    return [
        Window(size, stride, (int(low), int(high)), base, gaps)
        for size, (stride, (low, high), base, gaps) in zip(sizes, moves, strict=True)
    ]


def fill_of(eqn: Any) -> Any:
    """What is beyond the ends of an operand: what is never selected, and adds nothing."""
    p, name = eqn.params, eqn.primitive.name
    selects = p["select_prim"].name if "select_prim" in p else name
    if name == CONV or selects.endswith("sum"):
        return 0
    return least_or_most(eqn.invars[-1].aval.dtype, most=selects in ("le", "reduce_window_min"))


# borders


class Border(NamedTuple):
    """The elements of a dim that windows of each device reach: so many from the start of a device on."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    padding: tuple[int, int] = (0, 0)  # of the windows; never negative: JAX cannot transpose pools with such

    @property
    def size(self) -> int:
        """How many elements each device has, needed or not."""
        return max(self.counts)


def _unit_of(w: Window) -> int:
    """Of how many results the first have the same padding."""
    return w.base_dilation // math.gcd(w.stride, w.base_dilation)


def _border_along(w: Window, first: Sequence[int], counts: Sequence[int]) -> Border | None:
    """The border of so many windows of each device, from its first on; None if their padding differs."""
    low, reach = w.padding[0], (w.size - 1) * w.window_dilation
    ends = [(count - 1) * w.stride - low + reach for count in counts]
    return _border([start * w.stride for start in first], low, ends, w.base_dilation)


def _border_of_sharded_window(w: Window, window: Layout, results: int) -> Border | None:
    """The border for windows that are sharded: each device sums over its part of the window.

    Element ``j`` of the window of result ``i`` is at ``i * stride + j * window_dilation - low`` of the dilated dim.
    """
    low, reach = w.padding[0], (max(window.counts) - 1) * w.window_dilation
    starts = [start * w.window_dilation for start in window.first]
    return _border(starts, low, [(results - 1) * w.stride - low + reach] * len(starts), w.base_dilation)


def _border(starts: Sequence[int], low: int, ends: Sequence[int], gap: int) -> Border | None:
    """The border of windows from ``-low`` to an end after each start, of a dim that is dilated by ``gap``."""
    before, counts = low // gap, tuple(max(end // gap + low // gap + 1, 0) for end in ends)
    even = max(counts) > 0 and not any(start % gap for start in starts)
    return Border(tuple(s // gap - before for s in starts), counts, (low % gap, max(ends) % gap)) if even else None


class _Reach(NamedTuple):
    """What the windows of an equation reach along a sharded dim.

    Attributes:
        nth: Which of its windows.
        place: Where they move.
        axes: The axes that shard the dim.
        device: The index of the device along the axes.
        border: The border.
    """

    nth: int
    place: Place
    axes: Axes
    device: Any
    border: Border

    def bordered(self, x: Moved, fill: Any = 0) -> Array:
        """A moved value, on each device with its border; ``fill`` beyond the ends."""
        border, nth = self.border, np.arange(self.border.size)
        at = np.add.outer(border.starts, nth)
        there = (at >= 0) & (at < x.size) & np.less.outer(nth, border.counts).T
        filled = np.array([len(x.sources) if np.any(fill) else -1, 0])
        taken = np.where(there[..., None], x.origin[np.clip(at, 0, x.size - 1)], filled)
        return arranged(self.device, [*x.sources, fill], taken.reshape(-1, 2), self.place.operand, self.axes)

    def unbordered(self, x: Any, first: Sequence[int], size: int) -> Array:
        """Adds the elements of shards with borders where they came from, ``size`` from the first of each device on."""
        starts, held, n = np.array(self.border.starts), self.border.size, len(first)
        place, device = np.add.outer(first, np.arange(size)).reshape(-1), np.repeat(np.arange(n), size)
        terms = []
        for hop in range(1 - n, n):  # from the device ``hop`` further on
            at = place - starts[np.clip(device + hop, 0, n - 1)]
            is_there = (at >= 0) & (at < held) & (device + hop >= 0) & (device + hop < n)
            if is_there.any():
                origin = np.stack([np.where(is_there, 0, -1), (device + hop) * held + at], -1)
                terms.append(arranged(self.device, [Shard(x, n * held)], origin, self.place.operand, self.axes))
        result: Array = functools.reduce(add, terms)
        return result


def _windowed(eqn: Any, reach: _Reach, x: Any, others: Sequence[Any]) -> Any:
    """What the windows of an equation compute of operands with their borders: of ``x``, and kernels or cotangents."""
    name, fill = eqn.primitive.name, fill_of(eqn)
    padding = [tuple(map(int, pads)) for pads in eqn.params["padding"]]
    padding[reach.nth] = reach.border.padding
    x = reach.bordered(x, fill)
    others = others if name in (CONV, SCATTER) else list(map(reach.bordered, others))
    return bound(eqn, padding=tuple(padding))(*((x, *others) if name == CONV else (*others, x)))


def _operands(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """What windows move along, and the others: the second operand of a derivative selects."""
    return operands if eqn.primitive.name == CONV else (operands[-1], *operands[:-1])


def crossing(eqn: Any, operands: Sequence[Any]) -> tuple[int, Axes, bool] | None:
    """The first windows that cross shards, the axes that shard the dim, and whether they too are sharded: a kernel."""
    x, *others = _operands(eqn, operands)
    t = type_of(x)
    if not t.size or not all(eqn.outvars[0].aval.shape):
        return None
    for nth, (w, place) in enumerate(zip(windows_along(eqn), places(eqn), strict=True)):
        axes, of_kernel = t.dims[place.operand].axes, () if place.kernel is None else axes_of(others[0], place.kernel)
        if axes and (of_kernel or not w.stays_within(t.local_shape[place.operand])):
            return (nth, axes, bool(of_kernel)) if of_kernel in ((), axes) else None
    return None


# of moved values


def windows_of_moved(
    eqn: Any,
    operands: Sequence[Any],
    nth: int,
    axes: Axes,
    device: Any,
    block: Callable[[Moved], Any],
) -> Any:
    """What windows along a dim compute: their results, or of a kernel that is moved a pending sum.

    Args:
        eqn: The equation.
        operands: Moved values, and other kernels.
        nth: Which of its windows.
        axes: The axes that shard the dim.
        device: The index of the device along the axes.
        block: Materializes a moved value, with zeros beyond its end.
    """
    x, *others = _operands(eqn, operands)
    name, n = eqn.primitive.name, type_of(device).mesh.product(axes)
    sums, scatters = name == CONV and isinstance(others[0], Moved), name == SCATTER
    w, place, size = windows_along(eqn)[nth], places(eqn)[nth], eqn.outvars[0].aval.shape[places(eqn)[nth].result]

    def reach(border: Border | None) -> _Reach:
        if border is None:
            raise ShardingTypeError(f"the padding of `{name}` is another one on each device")
        return _Reach(nth, place, axes, device, border)

    if sums:
        border = _border_of_sharded_window(w, Layout.even(others[0].size, n), size)
        return as_unreduced(_windowed(eqn, reach(border), x, [block(others[0])]), axes)

    @functools.cache
    def compute(first: Sequence[int], counts: Sequence[int]) -> Any:
        if not scatters:
            return _windowed(eqn, reach(_border_along(w, first, counts)), x, others)
        layout = Layout.even(others[0].size, n)
        of_source = reach(_border_along(w, layout.first, layout.counts))
        return of_source.unbordered(_windowed(eqn, of_source, x, [block(others[0])]), first, max(counts))

    beside = _beside(w, others[0].size if scatters else x.size, n, scatters=scatters)
    return Results(size, beside, _unit_of(w), compute)


def _beside(w: Window, size: int, n: int, *, scatters: bool) -> tuple[int, ...]:
    """The first result of each device whose windows lie mostly on it, or which lies mostly in its windows."""
    offset = w.padding[0] - Fraction((w.size - 1) * w.window_dilation, 2)
    starts = [Fraction(d * size, n) for d in range(1, n)]
    if scatters:
        return (0, *(round(start * w.stride - offset) for start in starts))
    return (0, *(round((start * w.base_dilation + offset) / w.stride) for start in starts))
