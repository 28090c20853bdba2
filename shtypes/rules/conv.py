"""Which dims of a convolution run together, as `shtypes.rules.labelled` types them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shtypes.rules.labelled import ProductDims


def pointwise(
    windows: Sequence[int], strides: Sequence[int], padding: Any, dilation: Sequence[int] | None = None
) -> list[int]:
    """The spatial dims, by their places among these, in which each element of the result needs its own one only."""
    pads = [(0, 0)] * len(windows) if isinstance(padding, str) else [tuple(pair) for pair in padding]
    apart = [1] * len(windows) if dilation is None else dilation
    found = enumerate(zip(windows, strides, apart, pads, strict=False))
    return [i for i, what in found if what == (1, 1, 1, (0, 0))]


def conv_plan(
    numbers: Any,
    shape: Sequence[int],
    feature_groups: int = 1,
    batch_groups: int = 1,
    alone: Sequence[int] = (),
) -> ProductDims:
    """The labels of a convolution: the batch and the made features are kept, the others summed, the rest whole.

    Groups are the major part of the dims that have them. The made features run together with the grouped dim of the
    input: each group of it makes its own. The spatial dims in ``alone``, by their places among these, are kept
    too: each element of the result needs the one at its own place.
    """
    batch, feature, *space = numbers.lhs_spec
    made_, taken, *window = numbers.rhs_spec
    out_batch, out_feature, *out_space = numbers.out_spec
    lhs: list[Any] = [None] * len(numbers.lhs_spec)
    rhs: list[Any] = list(lhs)
    out: list[Any] = list(lhs)
    lhs[batch], lhs[feature], rhs[made_], rhs[taken] = "batch", "features", "made", "features"
    out[out_batch], out[out_feature] = "batch", "made"
    whole: set[Any] = {("space", d) for d in space} | {("window", d) for d in window}
    for places, dims, kind in ((lhs, space, "space"), (rhs, window, "window"), (out, out_space, "result")):
        for d in dims:
            places[d] = kind, d
    for i in alone:
        lhs[space[i]] = out[out_space[i]] = "place", i
    groups: tuple[tuple[Any, int], ...] = ()
    if feature_groups > 1:
        lhs[feature], rhs[taken], groups = "made", "in a group", (("made", feature_groups),)
        whole.add("in a group")
    if batch_groups > 1:
        lhs[batch], out[out_batch], groups = "made", "of a group", (("made", batch_groups),)
    result = tuple(zip(out, map(int, shape), strict=True))
    return ProductDims((tuple(lhs), tuple(rhs)), result, frozenset(whole), groups)
