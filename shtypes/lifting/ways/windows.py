"""Convolutions, pools and their derivatives along sharded dims, by exchanging the borders that windows reach.

The windows of a device begin ``results * stride`` elements after those of the device before, and reach
``reach - stride`` elements further than that: the border, which is sent by permutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.rows.families import ints
from shtypes.lifting.rows.reductions import windows_of
from shtypes.lifting.ways.choice import way
from shtypes.ops.sharded_reductions import as_varying
from shtypes.ops.shards import (
    Axes,
    Border,
    all_gather,
    as_sharded,
    as_unreduced,
    axes_of,
    axis_size,
    bordered,
    bound,
    least_or_most,
    part,
    type_of,
    unbordered,
)
from shtypes.rules.einsum_like import Window


def _border(low: int, end: int, step: int, gap: int) -> Border | None:
    """The border of windows from ``-low`` to ``end`` of a multiple of ``step``, of a dim that is dilated by ``gap``."""
    before, size = low // gap, end // gap + low // gap + 1
    return None if step % gap or size <= 0 else Border(step // gap, before, size, (low % gap, end % gap))


def border_of(w: Window, size: int, results: int, devices: int) -> Border | None:
    """The border of a shard for its part of the results; None if it is not the same on all devices."""
    if not results or not size:
        return None
    results = -(-results // devices)
    low, reach = w.padding[0], (w.size - 1) * w.window_dilation
    return _border(low, (results - 1) * w.stride - low + reach, results * w.stride, w.base_dilation)


def _joined(y: Any, dim: int, axes: Axes, size: int) -> Any:
    """The results from those of the devices: sharded, or all of them where the devices do not divide their number."""
    if type_of(y).shape[dim] * axis_size(y, axes) == size:
        return as_sharded(y, dim, axes)
    return part(all_gather(y, axes, dim), 0, size, dim)


# convolutions


@way(lax.conv_general_dilated_p.name)
def convolved(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Exchanges a border of ``reach - stride`` rows for each sharded spatial dim; backward as much."""
    if not all(map(is_typed, operands)):
        return None
    x, kernel = operands
    p, t, k = eqn.params, type_of(x), type_of(kernel)
    numbers, out = p["dimension_numbers"], eqn.outvars[0].aval.shape
    moves = zip(ints(p["window_strides"]), p["padding"], p["lhs_dilation"], p["rhs_dilation"], strict=True)
    padding = [tuple(map(int, pads)) for pads in p["padding"]]
    crossed: list[tuple[int, Axes, Border]] = []
    summed: list[tuple[int, Axes]] = []
    for i, (stride, pads, base, gaps) in enumerate(moves):
        d, e, o = (spec[2 + i] for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
        axes, kernel_axes = t.dims[d].axes, k.dims[e].axes
        w = Window(k.shape[e], stride, tuple(pads), base, gaps)
        if not axes and not kernel_axes:
            continue
        n = t.mesh.product(axes)
        if kernel_axes:  # the gradient of a kernel: a window of all the dim, each device has a term of the sum
            if axes != kernel_axes or stride != 1:
                return None
            border = _border_of_sharded_window(w, k.local_shape[e], out[o])
            summed.append((e, axes))
        elif n == 1 or w.stays_within(t.local_shape[d]):
            continue
        else:
            border = border_of(w, t.local_shape[d], out[o], n)
        if border is None or any(a in kernel_dim.axes for a in axes for j, kernel_dim in enumerate(k.dims) if j != e):
            return None
        crossed.append((i, axes, border))
    if not crossed:
        return None
    all_axes = tuple(a for _, axes, _ in crossed for a in axes)
    x = as_varying(x, all_axes)
    if summed:
        kernel = as_varying(kernel, tuple(a for _, axes in summed for a in axes))
    for i, axes, border in crossed:
        x = bordered(x, numbers.lhs_spec[2 + i], axes, border)
        padding[i] = border.padding
    y = bound(eqn, padding=tuple(padding))(x, kernel)
    for i, axes, _ in crossed:
        is_summed = any(axes == summed_axes for _, summed_axes in summed)
        o = numbers.out_spec[2 + i]
        y = as_unreduced(y, axes) if is_summed else _joined(y, o, axes, out[o])
    return [y]


def _border_of_sharded_window(w: Window, window: int, results: int) -> Border | None:
    """The border for windows that are sharded as the dim: each device sums over its part of the window.

    Element ``j`` of the window of result ``i`` is at ``i + j * window_dilation - low`` of the dilated dim.
    """
    low, reach = w.padding[0], (window - 1) * w.window_dilation
    return _border(low, results - 1 - low + reach, window * w.window_dilation, w.base_dilation)


# pools


def _crossed(p: Any, x: Any, results: Sequence[int]) -> list[tuple[int, Axes, Border]] | None:
    """The dims along which windows cross shards, with their axes and borders; None if no border does."""
    t, crossed = type_of(x), []
    for d, (w, dim, n) in enumerate(zip(windows_of(p), t.dims, results, strict=True)):
        if not dim.axes or w.stays_within(t.local_shape[d]):
            continue
        border = border_of(w, t.local_shape[d], n, t.mesh.product(dim.axes))
        if border is None:
            return None
        crossed.append((d, dim.axes, border))
    return crossed or None


@way(*(f"reduce_window_{kind}" for kind in ("sum", "max", "min")), "select_and_gather_add", "select_and_scatter_add")
def pooled(eqn: Any, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Exchanges a border of ``reach - stride`` elements; backward as much, and the cotangent that falls on it.

    The second operand of a derivative selects. The ends are padded with what is never selected, as the primitives do.
    """
    name, p, (*others, x) = eqn.primitive.name, eqn.params, operands
    scatters = name == "select_and_scatter_add"
    crossed = _crossed(p, x, (eqn.invars if scatters else eqn.outvars)[0].aval.shape) if is_typed(x) else None
    if crossed is None or not all(is_typed(y) and axes_of(y, d) == axes for y in others for d, axes, _ in crossed):
        return None
    selects = p["select_prim"].name if others else name
    most = selects in ("le", "reduce_window_min")
    fill = 0 if selects.endswith("sum") else least_or_most(type_of(x).dtype, most=most)
    padding = [(int(a), int(b)) for a, b in p["padding"]]
    t = type_of(x)
    x, *others = (as_varying(y, tuple(a for _, axes, _ in crossed for a in axes)) for y in (x, *others))
    for d, axes, border in crossed:
        x = bordered(x, d, axes, border, fill)
        others = others if scatters else [bordered(y, d, axes, border) for y in others]
        padding[d] = border.padding
    y = bound(eqn, padding=tuple(padding))(*others, x)
    for d, axes, border in reversed(crossed):
        y = unbordered(y, d, axes, border, t.local_shape[d]) if scatters else y
        y = _joined(y, d, axes, eqn.outvars[0].aval.shape[d])
    return [y]
