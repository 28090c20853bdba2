"""Convolutions and pooling: the sizes of their results, and which dims are what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from shtypes.editor.call import Call, held
from shtypes.editor.dtypes import together
from shtypes.editor.ops.elementwise import cast, dtype_of
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.reductions import resized, whole
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


@op("conv_general_dilated", "conv", "conv_with_general_padding")
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


#: Which dim is what in a transposed convolution, by how many are spatial.
_CHANNELS_LAST: Final = {
    1: ("NHC", "HIO", "NHC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NHWDC", "HWDIO", "NHWDC"),
}


def _spread(size: int, window: int, step: int, padding: Any, apart: int) -> int:
    """The size of a spatial dim of a transposed convolution."""
    if stands_for_a_name(window) or 0 in (size, window):
        raise Unknown
    window = (window - 1) * apart + 1
    if padding in ("SAME", "VALID"):
        return size * step + (max(window - step, 0) if padding == "VALID" else 0)
    around: int = sum(padding)
    return max(0, (size - 1) * step + around - window + 2)


@op("conv_transpose")
def _transposed(call: Call) -> ShType:
    (x, w), dtype = _operands(call)
    count = x.ndim - 2
    given = call.static("dimension_numbers", None)
    specs = _CHANNELS_LAST.get(count) if given is None else given
    turned, padding = call.static("transpose_kernel", False), call.static("padding")
    if specs is None or type(turned) is not bool or call.static("use_consistent_padding", False):
        raise Unknown
    numbers, pads = _numbers(specs, x.ndim), _paddings(padding, count)
    steps, apart = ints(call.static("strides")), ints(call.static("rhs_dilation", None) or (1,) * count)
    if len(steps) != count or len(apart) != count or min((*steps, *apart), default=1) < 1 or "SAME_LOWER" in pads:
        raise Unknown
    alone = pointwise([w.shape[d] for d in numbers.rhs_spec[2:]], steps, padding)
    if turned:
        made, taken, *space = numbers.rhs_spec
        numbers = numbers._replace(rhs_spec=(taken, made, *space))
    batch, features, *space = (x.shape[d] for d in numbers.lhs_spec)
    made, taken, *windows = (w.shape[d] for d in numbers.rhs_spec)
    if features != taken:
        raise Unknown
    sizes = map(_spread, space, windows, steps, pads, apart)
    shape = dict(zip(numbers.out_spec, (batch, made, *sizes), strict=True))
    plan = conv_plan(numbers, [shape[d] for d in range(x.ndim)], alone=alone)
    constants, name = held((x, w)), "conv_transpose"
    return finished(call, call.typed(name, lambda ts: contraction(name, ts, plan, dtype, constants), x, w))


# pooling


#: How the elements of a window may be combined.
_COMBINED: Final = frozenset(("add", "max", "maximum", "min", "minimum", "mul", "multiply"))


def _is_sum(call: Call, x: ShType) -> bool:
    """Whether windows are summed, from 0."""
    known = call.given["computation"][0].function() if call.has("computation") else ""
    if known not in _COMBINED or (x.dtype_name[0] in "bc" and x.dtype_name != "bf16"):
        raise Unknown
    try:
        start = call.static("init_value")
    except Unknown:  # an infinity
        if known == "add" or not x.differentiable:
            raise
        return False
    if type(start) not in (int, float) or not (x.differentiable or start in (0, 1)):
        raise Unknown
    return known == "add" and start == 0


@op("reduce_window")
def _windows(call: Call) -> ShType:
    x, name = call.array("operand"), "reduce_window"
    windows, steps = ints(call.static("window_dimensions")), ints(call.static("window_strides"))
    padding = call.static("padding")
    pads = _paddings(padding, x.ndim)
    base, apart = (ints(call.static(n, None) or (1,) * x.ndim) for n in ("base_dilation", "window_dilation"))
    each = windows, steps, base, apart
    spread = isinstance(padding, str) and max(base, default=1) > 1
    if any(len(v) != x.ndim or min(v, default=1) < 1 for v in each) or spread:
        raise Unknown
    around = [(0, 0)] * x.ndim if isinstance(padding, str) else pads
    if any(min(pair) < 0 for pair in around):
        raise Unknown
    linear = _is_sum(call, x)
    still = (1, 1, 1, (0, 0))
    along = [d for d, what in enumerate(zip(windows, steps, base, around, strict=True)) if what != still]
    try:
        sizes = list(map(_along, x.shape, windows, steps, pads, zip(base, apart, strict=True)))
    except Unknown:
        whole(call, name, x, along, linear=linear)  # which may be refused all the same
        raise
    return resized(call, name, x, along, sizes, linear=linear)
