"""Slices of most of a dim: by slices, and of windows, whose results are a slice of those of windows that are padded.

``conv(x, k, padding="VALID")`` has some results less than ``x`` has elements; they are ``conv(x, k, "SAME")[1:-1]``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.lifting.ways.choice import CALLS
from shtypes.lifting.ways.windows import CONV, REDUCE_WINDOWS, places, windows_along
from shtypes.rules.einsum_like import Window


class Cut(NamedTuple):
    """A slice of most of a dim of ``size``."""

    start: int
    stop: int
    size: int

    def leaves_out(self, part: int) -> bool:
        """Whether it leaves out one in ``part`` positions at most."""
        return part * (self.size - (self.stop - self.start)) <= self.size


#: The slices of a value, by dim.
Cuts = Mapping[int, Cut]
#: Of how many positions one may be left out: of slices, and of windows, which then are computed of it, too.
_OF_SLICES: Final = 4
_OF_WINDOWS: Final = 8


class Sizes(NamedTuple):
    """The sizes of the dims whose slices may come later, and those of windows; None for any."""

    slices: frozenset[int] | None = None
    windows: frozenset[int] | None = None


OF_ANY_SIZE: Final = Sizes()


@functools.lru_cache(maxsize=256)
def slices_most(jaxpr: Any, sizes: Sizes) -> bool:
    """Whether a program, or one that it calls, slices most of a dim."""
    return any(
        slices_most(jaxpr_of(e.params["jaxpr"]), sizes) if e.primitive.name in CALLS else begins(e, sizes)
        for e in jaxpr.eqns
    )


def begins(eqn: Any, sizes: Sizes) -> bool:
    """Whether an equation slices most of a dim, or its windows do."""
    return bool(cuts_of(eqn, sizes.slices, {})) or cut_windows(eqn, sizes.windows, ({}, {})) is not None


def cuts_of(eqn: Any, sizes: frozenset[int] | None, before: Cuts) -> dict[int, Cut]:
    """The slices of most of a dim by an equation, and ``before`` it."""
    if eqn.primitive.name != "slice":
        return {}
    p, shape = eqn.params, eqn.invars[0].aval.shape
    cuts = {}
    for d, (start, stop, step) in enumerate(
        zip(p["start_indices"], p["limit_indices"], p["strides"] or [1] * len(shape), strict=True)
    ):
        outer = before.get(d, Cut(0, shape[d], shape[d]))
        cut = Cut(outer.start + start, outer.start + stop, outer.size)
        of_most = cut.leaves_out(_OF_SLICES) and step == 1
        if d in before and not of_most:
            return {}
        if d in before or (of_most and (start, stop) != (0, shape[d]) and _may_be_sharded(cut.size, sizes)):
            cuts[d] = cut
    return cuts


def _may_be_sharded(size: int, sizes: frozenset[int] | None) -> bool:
    return size % 2 == 0 and (sizes is None or size in sizes)


def _divides_less(size: int, whole: int) -> bool:
    """Whether fewer powers of two divide a size than another."""
    return size & -size < whole & -whole


class CutWindows(NamedTuple):
    """Windows as a slice of those of all of their operands.

    Attributes:
        results: The slices of the results.
        params: The parameters of the equation of all.
        beyond: For each operand, the dims of which windows read what is outside of the slices.
    """

    results: Mapping[int, Cut]
    params: Mapping[str, Any]
    beyond: Sequence[frozenset[int]]


def cut_windows(eqn: Any, sizes: frozenset[int] | None, before: Sequence[Cuts]) -> CutWindows | None:
    """Windows as slices of most of those of all of a dim, or of slices; None if they are not.

    ``before``: the slices of the operands. That of a kernel is one of a gradient, whose results are the same.
    """
    if eqn.primitive.name not in (CONV, *REDUCE_WINDOWS) or not eqn.outvars[0].aval.size:
        return None
    x, y, (of_x, of_kernel) = eqn.invars[0].aval, eqn.outvars[0].aval, (*before, {})[:2]
    padding, results, beyond = list(eqn.params["padding"]), dict[int, Cut](), (set[int](), set[int]())
    for nth, (w, (d, e, k)) in enumerate(zip(windows_along(eqn), places(eqn), strict=True)):
        cut = of_x.get(d, Cut(0, x.shape[d], x.shape[d]))
        if k is not None and k in of_kernel:
            if w.base_dilation != 1:
                return None
            padding[nth] = _padding_of_kernel(w, cut, of_kernel[k], y.shape[e])
            beyond[0].update({d} & of_x.keys())
            beyond[1].add(k)
            continue
        of_all = _of_all(w, cut, y.shape[e])
        is_of_most = of_all is not None and of_all[0].leaves_out(_OF_SLICES if d in of_x else _OF_WINDOWS)
        if d in of_x and not is_of_most:
            return None
        begins_here = _divides_less(y.shape[e], cut.size // w.stride) and _may_be_sharded(cut.size, sizes)
        if of_all is not None and is_of_most and (d in of_x or begins_here):
            whole, padding[nth] = of_all
            results |= {e: whole} if y.shape[e] != whole.size else {}
            beyond[0].update({d} if d in of_x and max(w.padding) > 0 else ())
    moved = {place.operand for place in places(eqn)}, {place.kernel for place in places(eqn)}
    if not (of_x.keys() <= moved[0] and of_kernel.keys() <= moved[1]) or not (results or of_x or of_kernel):
        return None
    return CutWindows(results, {**eqn.params, "padding": tuple(padding)}, list(map(frozenset, beyond)))


def _of_all(w: Window, cut: Cut, count: int) -> tuple[Cut, tuple[int, int]] | None:
    """The slice that ``count`` windows of a slice are of the windows of all, one for each stride, and their padding.

    It is never negative, and about as much at both ends; None if there is none such.
    """
    spare = (w.size - 1) * w.window_dilation + 1 - w.stride
    first = w.padding[0] - cut.start
    starts = [s for s in range(cut.size // w.stride - count + 1) if 0 <= first + s * w.stride <= spare]
    if w.base_dilation != 1 or cut.size % w.stride or not starts:
        return None
    start = min(starts, key=lambda s: abs(2 * (first + s * w.stride) - spare))
    low = first + start * w.stride
    return Cut(start, start + count, cut.size // w.stride), (low, spare - low)


def _padding_of_kernel(w: Window, cut: Cut, window: Cut, count: int) -> tuple[int, int]:
    """The padding of ``count`` windows over all of a dim and of a kernel, of which slices were read."""
    low = w.padding[0] - cut.start + window.start * w.window_dilation
    reach = (count - 1) * w.stride + (window.size - 1) * w.window_dilation + 1
    return low, reach - low - cut.size
