"""Convolutions, pools and their derivatives along sharded dims, by exchanging the borders that windows reach.

The windows of a device begin ``results * stride`` elements after those of the device before, and reach
``reach - stride`` elements further than that: the border, which is sent by permutes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.array import Array
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.rows.families import ints
from shtypes.lifting.rows.reductions import windows_of
from shtypes.lifting.ways.choice import way
from shtypes.ops.arithmetic import add
from shtypes.ops.arranged import Shard, arranged, origin_in
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    Axes,
    as_sharded,
    as_unreduced,
    axes_of,
    axis_index,
    axis_size,
    bound,
    least_or_most,
    of_all,
    of_device,
    type_of,
)
from shtypes.rules.einsum_like import Window

CONV: Final = lax.conv_general_dilated_p.name
REDUCE_WINDOWS: Final = ("reduce_window_sum", "reduce_window_max", "reduce_window_min")
SCATTER: Final = "select_and_scatter_add"
#: Pools and their derivatives.
POOLS: Final = (*REDUCE_WINDOWS, "select_and_gather_add", SCATTER)


class Border(NamedTuple):
    """The elements of a dim that windows of each device reach: so many from the start of a device on."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    padding: tuple[int, int] = (0, 0)  # of the windows; never negative: JAX cannot transpose pools with such

    @property
    def size(self) -> int:
        """How many elements each device has, needed or not."""
        return max(self.counts)

    def sent(self, size: int) -> int:
        """About how many elements each device sends to its neighbours, from shards of ``size``."""
        reached = list(zip(itertools.count(0, size), self.starts, self.counts, strict=False))
        before = max(shard - start for shard, start, _ in reached)
        after = max(start + count - (shard + size) for shard, start, count in reached)
        return max(before, 0) + max(after, 0)


def bordered(
    sources: Sequence[Any], origin: np.ndarray, device: Any, dim: int, axes: Axes, border: Border, fill: Any = 0
) -> Array:
    """Shards with their borders, from their neighbours; ``fill`` beyond the ends. Operands as of `arranged`."""
    nth = np.arange(border.size)
    places = np.add.outer(border.starts, nth)
    there = (places >= 0) & (places < len(origin)) & np.less.outer(nth, border.counts).T
    filled = np.array([len(sources) if np.any(fill) else -1, 0])
    taken = np.where(there[..., None], origin[np.clip(places, 0, len(origin) - 1)], filled)
    return arranged(device, [*sources, fill], taken.reshape(-1, 2), dim, axes)


def _of_shards(x: Any, dim: int, axes: Axes, border: Border, fill: Any = 0) -> Array:
    size = type_of(x).shape[dim] * axis_size(x, axes)
    return bordered([Shard(x, size)], origin_in(0, np.arange(size)), axis_index(x, axes), dim, axes, border, fill)


def unbordered(x: Any, dim: int, axes: Axes, border: Border, first: Sequence[int], size: int) -> Array:
    """Adds the elements of shards with borders where they came from, ``size`` from the first of each device on."""
    n = axis_size(x, axes)
    place, device = np.add.outer(first, np.arange(size)).reshape(-1), np.repeat(np.arange(n), size)
    terms = []
    for hop in range(1 - n, n):  # from the device ``hop`` further on
        at = place - np.array(border.starts)[np.clip(device + hop, 0, n - 1)]
        is_there = (at >= 0) & (at < border.size) & (device + hop >= 0) & (device + hop < n)
        if is_there.any():
            origin = np.stack([np.where(is_there, 0, -1), (device + hop) * border.size + at], -1)
            terms.append(arranged(axis_index(x, axes), [Shard(x, n * border.size)], origin, dim, axes))
    result: Array = functools.reduce(add, terms)
    return result


def windows_along(eqn: Any) -> list[Window]:
    """The windows of an equation, along each dim along which they move."""
    p = eqn.params
    if eqn.primitive.name != CONV:
        return windows_of(p)
    moves = zip(ints(p["window_strides"]), p["padding"], ints(p["lhs_dilation"]), ints(p["rhs_dilation"]), strict=True)
    sizes = [eqn.invars[1].aval.shape[d] for d in p["dimension_numbers"].rhs_spec[2:]]
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


def unit_of(w: Window) -> int:
    """Of how many results the first have the same padding."""
    return w.base_dilation // math.gcd(w.stride, w.base_dilation)


def border_along(w: Window, first: Sequence[int], counts: Sequence[int]) -> Border | None:
    """The border of so many windows of each device, from its first on; None if their padding differs."""
    low, reach = w.padding[0], (w.size - 1) * w.window_dilation
    ends = [(count - 1) * w.stride - low + reach for count in counts]
    return _border([start * w.stride for start in first], low, ends, w.base_dilation)


def _border(starts: Sequence[int], low: int, ends: Sequence[int], gap: int) -> Border | None:
    """The border of windows from ``-low`` to an end after each start, of a dim that is dilated by ``gap``."""
    before, counts = low // gap, tuple(max(end // gap + low // gap + 1, 0) for end in ends)
    even = max(counts) > 0 and not any(start % gap for start in starts)
    return Border(tuple(s // gap - before for s in starts), counts, (low % gap, max(ends) % gap)) if even else None


class Part(NamedTuple):
    """The results of each device along a dim: an even share, from the first of a device on, and what they reach."""

    share: Fraction
    first: tuple[int, ...]
    border: Border


def part_of(w: Window, size: int, results: int, devices: int, sizes: tuple[int, int]) -> Part | None:
    """The results of windows that each device computes; None if it has none, or the padding would differ.

    Where the devices do not divide their number, shares are even, or begin where shards do, or are of complete rows,
    whichever sends less.

    Args:
        w: The window.
        size: The size of a shard.
        results: The number of results of all devices.
        devices: The number of devices.
        sizes: The sizes of the operand and of the result.
    """
    if not results or not size:
        return None
    unit, even, aligned = unit_of(w), Fraction(results, devices), Fraction(size * w.base_dilation, w.stride)
    rows = sizes[0] // (size * devices), sizes[1] // results

    def part(share: Fraction) -> tuple[Any, Part | None]:
        first = tuple(min(int(d * share), results - 1) // unit * unit for d in range(devices))
        counts = [min(math.ceil((d + 1) * share), results) - start for d, start in enumerate(first)]
        border = border_along(w, first, counts)
        sent = border and border.sent(size) * rows[0] + (devices - 1) * math.ceil(share * rows[1])
        return sent, border and Part(share, first, border)

    shares = {even, max(even, aligned), Fraction(math.ceil(even))} if results % devices else {even}
    return min((part(share) for share in sorted(shares)), key=lambda each: each[0] or 0)[1]


@of_device("slice")
def _of_device(y: Any, device: Any, starts: Sequence[int], count: int, dim: int) -> Any:
    return lax.dynamic_slice_in_dim(y, jnp.asarray(starts)[device], count, dim)


def _joined(y: Any, dim: int, axes: Axes, part: Part, size: int) -> Any:
    """The results from those of the devices: sharded, or all of them where the devices do not divide their number."""
    first, n = part.first, len(part.first)
    if size % n:
        return of_all(y, first, part.share, size, dim, axes)
    starts = [d * size // n - start for d, start in enumerate(first)]
    if type_of(y).shape[dim] * n > size:
        y = _of_device(y, axis_index(y, axes), starts, size // n, dim)
    return as_sharded(y, dim, axes)


# convolutions


@way(CONV)
def convolved(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Exchanges a border of ``reach - stride`` rows for each sharded spatial dim; backward as much."""
    if not all(map(is_typed, operands)):
        return None
    x, kernel = operands
    p, t, k = eqn.params, type_of(x), type_of(kernel)
    numbers, out = p["dimension_numbers"], eqn.outvars[0].aval.shape
    padding = [tuple(map(int, pads)) for pads in p["padding"]]
    crossed: list[tuple[int, Axes, Border, Part | None]] = []  # the last is None where results are summed
    for i, w in enumerate(windows_along(eqn)):
        d, e, o = (spec[2 + i] for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
        axes, kernel_axes = t.dims[d].axes, k.dims[e].axes
        if not axes and not kernel_axes:
            continue
        n = t.mesh.product(axes)
        if kernel_axes:  # the gradient of a kernel: a window of all the dim, each device has a term of the sum
            if axes != kernel_axes:
                return None
            part, border = None, border_of_sharded_window(w, k.local_shape[e], out[o], n)
        elif n == 1 or w.stays_within(t.local_shape[d]):
            continue
        else:
            part = part_of(w, t.local_shape[d], out[o], n, (t.size, math.prod(out)))
            border = part and part.border
        if border is None or any(a in kernel_dim.axes for a in axes for j, kernel_dim in enumerate(k.dims) if j != e):
            return None
        crossed.append((i, axes, border, part))
    if not crossed:
        return None
    x = as_varying(x, tuple(a for _, axes, *_ in crossed for a in axes))
    if summed := tuple(a for _, axes, _, part in crossed if not part for a in axes):
        kernel = as_varying(kernel, summed)
    for i, axes, border, _ in crossed:
        x = _of_shards(x, numbers.lhs_spec[2 + i], axes, border)
        padding[i] = border.padding
    y = bound(eqn, padding=tuple(padding))(x, kernel)
    for i, axes, _, part in crossed:
        o = numbers.out_spec[2 + i]
        y = _joined(y, o, axes, part, out[o]) if part else as_unreduced(y, axes)
    return [y]


def border_of_sharded_window(w: Window, window: int, results: int, devices: int) -> Border | None:
    """The border for windows that are sharded as the dim: each device sums over its part of the window.

    Element ``j`` of the window of result ``i`` is at ``i * stride + j * window_dilation - low`` of the dilated dim.
    """
    low, reach = w.padding[0], (window - 1) * w.window_dilation
    starts = [d * window * w.window_dilation for d in range(devices)]
    return _border(starts, low, [(results - 1) * w.stride - low + reach] * devices, w.base_dilation)


# pools


def _crossed(p: Any, x: Any, results: Sequence[int]) -> list[tuple[int, Axes, Part]] | None:
    """The dims along which windows cross shards, with their axes and parts; None if no border does."""
    t, crossed = type_of(x), []
    for d, (w, dim, n) in enumerate(zip(windows_of(p), t.dims, results, strict=True)):
        if not dim.axes or w.stays_within(t.local_shape[d]):
            continue
        part = part_of(w, t.local_shape[d], n, t.mesh.product(dim.axes), (t.size, math.prod(results)))
        if part is None:
            return None
        crossed.append((d, dim.axes, part))
    return crossed or None


@way(*POOLS)
def pooled(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Exchanges a border of ``reach - stride`` elements; backward as much, and the cotangent that falls on it.

    The second operand of a derivative selects. The ends are padded with what is never selected, as the primitives do.
    """
    name, p, (*others, x) = eqn.primitive.name, eqn.params, operands
    scatters = name == SCATTER
    crossed = _crossed(p, x, (eqn.invars if scatters else eqn.outvars)[0].aval.shape) if is_typed(x) else None
    if crossed is None or not all(is_typed(y) and axes_of(y, d) == axes for y in others for d, axes, _ in crossed):
        return None
    fill, t = fill_of(eqn), type_of(x)
    padding = [(int(a), int(b)) for a, b in p["padding"]]
    x, *others = (as_varying(y, tuple(a for _, axes, _ in crossed for a in axes)) for y in (x, *others))
    for d, axes, (*_, border) in crossed:
        x = _of_shards(x, d, axes, border, fill)
        others = others if scatters else [_of_shards(y, d, axes, border) for y in others]
        padding[d] = border.padding
    y = bound(eqn, padding=tuple(padding))(*others, x)
    for d, axes, part in reversed(crossed):
        if scatters:
            size = t.local_shape[d]
            first = range(0, size * len(part.first), size)
            y = as_sharded(unbordered(y, d, axes, part.border, first, size), d, axes)
        else:
            y = _joined(y, d, axes, part, eqn.outvars[0].aval.shape[d])
    return [y]
