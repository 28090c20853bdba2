"""Reductions over windows: pooling. The dims in which windows move must be whole; nothing is communicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import as_ints, is_number, lift
from shtypes.ops.whole import apply_whole, function

#: What a function that combines two elements is called, in JAX or here, and the reduction that JAX knows.
_COMBINE: Final[dict[str, Callable[..., Any]]] = {
    "add": lax.add,
    "max": lax.max,
    "maximum": lax.max,
    "min": lax.min,
    "minimum": lax.min,
    "mul": lax.mul,
    "multiply": lax.mul,
}


@public
def reduce_window(
    operand: ArrayLike,
    init_value: Any,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """Every window of a value reduced to one element, as `jax.lax.reduce_window`: sums, means and maxima of windows.

    Per axis: every state is kept, unreduced too for sums from 0; a dim in which windows move must be whole.

    Args:
        operand (...): A value.
        init_value: The number from which each reduction starts: 0 for sums, ``-inf`` for maxima.
        computation: ``add``, ``max``, ``min`` or ``mul`` of `jax.lax`, or the function of this library.
        window_dimensions: The size of a window in each dim.
        window_strides: Its steps; 1 by default.
        padding: ``"SAME"``, ``"VALID"``, or a pair for each dim.
        base_dilation: How far apart the elements are put.
        window_dilation: How far apart those of a window lie.

    Raises:
        ShardingTypeError: a dim in which windows move is sharded; the value is unreduced and this is no sum.

    Communicates: nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([operand])
    t = jax.typeof(x)
    known = getattr(computation, "__name__", "")
    if known not in _COMBINE:
        raise ShardingTypeError(
            f"`reduce_window` cannot combine elements by {computation!r:.60}",
            hints=["sh.add", "jax.lax.max", "sh.local_map for any function of shards"],
        )
    if not (is_number(init_value) or isinstance(init_value, np.generic) or np.ndim(init_value) == 0):
        raise ShardingTypeError(f"`reduce_window` starts from a number, not {init_value!r:.40}")
    start = init_value if is_number(init_value) else np.asarray(init_value).item()
    windows = as_ints(window_dimensions, "the window of `reduce_window`")
    params: dict[str, Any] = {
        "window_dimensions": windows,
        "window_strides": (
            (1,) * len(windows) if window_strides is None else as_ints(window_strides, "the strides of `reduce_window`")
        ),
        "padding": padding if isinstance(padding, str) else tuple(tuple(map(int, pair)) for pair in padding),
        "base_dilation": None if base_dilation is None else as_ints(base_dilation, "a dilation"),
        "window_dilation": None if window_dilation is None else as_ints(window_dilation, "a dilation"),
    }
    still = [(n, s) == (1, 1) for n, s in zip(windows, params["window_strides"], strict=False)]
    pads = [(0, 0)] * t.ndim if isinstance(padding, str) else params["padding"]
    base = params["base_dilation"] or (1,) * t.ndim
    along = [d for d, s in enumerate(still[: t.ndim]) if not s or pads[d] != (0, 0) or base[d] != 1]
    linear = _COMBINE[known] is lax.add and start == 0
    fn = function("reduce_window", _windows, linear=linear, combine=known, start=start, **params)
    return apply_whole("reduce_window", fn, x, along)


def _windows(x: Any, combine: str, start: Any, **params: Any) -> Any:
    return lax.reduce_window(x, np.asarray(start, x.dtype)[()], _COMBINE[combine], **params)
