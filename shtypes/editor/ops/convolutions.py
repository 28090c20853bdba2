"""Convolutions: the sizes of their results, and which dims are what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shtypes.editor.call import Call, held
from shtypes.editor.dtypes import together
from shtypes.editor.ops.elementwise import cast, dtype_of
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules.conv import conv_plan, pointwise
from shtypes.rules.labelled import contraction
from shtypes.types import ShType


class _Numbers(NamedTuple):
    """Which dim is what: the batch and the features, then the spatial dims in the order of the kernel's."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def _numbers(given: Any, ndim: int) -> _Numbers:
    if given is None:
        return _Numbers(*[tuple(range(ndim))] * 3)
    if not isinstance(given, (tuple, list)) or len(given) != 3 or not all(isinstance(s, str) for s in given):
        raise Unknown
    lhs, kernel, out = given
    pairs = (lhs, "NC"), (kernel, "OI"), (out, "NC")
    spaces = [{c for c in spec if c not in pair} for spec, pair in pairs]
    if any(len(spec) != ndim or len(set(spec)) != ndim or not set(pair) < set(spec) for spec, pair in pairs):
        raise Unknown
    if spaces[0] != spaces[1] or spaces[0] != spaces[2]:
        raise Unknown
    space = [c for c in kernel if c in spaces[1]]
    return _Numbers(*(tuple(spec.index(c) for c in (*pair, *space)) for spec, pair in pairs))


def _along(size: int, window: int, step: int, padding: Any, apart: tuple[int, int]) -> int:
    """The size of a spatial dim of the result."""
    if (stands_for_a_name(size) and (step, apart[0]) != (1, 1)) or stands_for_a_name(window) or 0 in (size, window):
        raise Unknown
    size, window = (size - 1) * apart[0] + 1, (window - 1) * apart[1] + 1
    if padding in ("SAME", "SAME_LOWER"):
        return -(-size // step)
    before, after = (0, 0) if padding == "VALID" else padding
    return max(0, (size + before + after - window) // step + 1)


def _operands(call: Call) -> tuple[tuple[ShType, ShType], str]:
    """The operands in one dtype, and that of the result."""
    x, w = call.array("lhs"), call.array("rhs")
    if x.ndim != w.ndim or x.ndim < 2 or not x.differentiable or not w.differentiable:
        raise Unknown
    dtype = together([x, w])
    asked = call.static("preferred_element_type", None)
    return (cast(call, x, dtype), cast(call, w, dtype)), dtype if asked is None else dtype_of(asked)


def _paddings(given: Any, count: int) -> Sequence[Any]:
    if isinstance(given, str):
        if given.upper() not in ("SAME", "VALID", "SAME_LOWER"):
            raise Unknown
        return [given.upper()] * count
    pairs = [ints(pair) for pair in given]
    if len(pairs) != count or any(len(pair) != 2 for pair in pairs):
        raise Unknown
    return pairs


@op("conv_general_dilated", "conv")
def _convolution(call: Call) -> ShType:
    (x, w), dtype = _operands(call)
    numbers = _numbers(call.static("dimension_numbers", None), x.ndim)
    count = x.ndim - 2
    steps, ones = ints(call.static("window_strides")), (1,) * count
    spread, apart = (ints(call.static(n, None) or ones) for n in ("lhs_dilation", "rhs_dilation"))
    features, batches = (call.static(f"{n}_group_count", 1) for n in ("feature", "batch"))
    padding = call.static("padding")
    pads = _paddings(padding, count)
    if any(len(v) != count for v in (steps, spread, apart)) or type(features) is not int or type(batches) is not int:
        raise Unknown
    batch, taken, *space = (x.shape[d] for d in numbers.lhs_spec)
    made, wanted, *windows = (w.shape[d] for d in numbers.rhs_spec)
    if taken != wanted * features or batch % batches or made % features or made % batches:
        raise Unknown
    sizes = map(_along, space, windows, steps, pads, zip(spread, apart, strict=True))
    shape = dict(zip(numbers.out_spec, (batch // batches, made, *sizes), strict=True))
    alone = pointwise(windows, steps, padding, call.static("lhs_dilation", None))
    plan = conv_plan(numbers, [shape[d] for d in range(x.ndim)], features, batches, alone)
    constants, name = held((x, w)), "conv_general_dilated"
    return finished(call, call.typed(name, lambda ts: contraction(name, ts, plan, dtype, constants), x, w))
