"""Losses, attention and gated layers: composed of other ops, as they are when they run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes import rules
from shtypes.editor.call import Call, Number, held
from shtypes.editor.dtypes import together
from shtypes.editor.ops.elementwise import added, cast, chosen, linear, nonlinear, product
from shtypes.editor.ops.moves import finished
from shtypes.editor.ops.products import contract_pair
from shtypes.editor.ops.reductions import along, sized, summed, whole
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import expanded, one_dim, reshaped
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Unknown
from shtypes.rules import reasons
from shtypes.types import ShType

_WIDE: Final = {"bf16": "f32", "f16": "f32", "f32": "f32"}


def _wide(x: ShType) -> str:
    """The dtype that statistics are computed in."""
    if x.dtype_name not in _WIDE:
        raise Unknown
    return _WIDE[x.dtype_name]


@op("nn.cross_entropy")
def _cross_entropy(call: Call) -> ShType:
    logits, labels = call.array("logits"), call.array("labels")
    dim = one_dim("cross_entropy", logits, call.static("axis", -1))
    dense = labels.differentiable
    rest = logits.shape if dense else logits.shape[:dim] + logits.shape[dim + 1 :]
    if rest != labels.shape or (not dense and labels.dtype_name[0] not in "iu"):
        raise Unknown
    asked = call.static("out", None) is not None
    if dense and (labels.dims[dim].axes or logits.dims[dim].axes):
        raise Unknown
    if any(labels.dim_of(axis) is not None for axis in logits.dims[dim].axes):
        raise Unknown  # each device would compare its rows with its own classes
    for axis in () if asked else logits.dims[dim].axes:
        raise reasons.along("cross_entropy", logits, axis)
    x = along(call, cast(call, logits, _wide(logits)), [dim])
    dtype = x.dtype_name
    most = call.typed("max", lambda ts: rules.reduce_nonlinear("max", ts[0], (dim,), True, dtype), x)
    shifted = added(call, "sub", [x, most])
    if dense:
        weights = cast(call, labels, _wide(labels))
        terms = [product(call, [shifted, weights]), weights]
    else:
        hit = nonlinear(call, "equal", [expanded(call, labels, dim)], "bool")
        terms = [chosen(call, hit, [shifted, Number("int", 0)])]
    sums = [summed(call, "sum", t, (dim,), False, t.dtype_name) for t in (nonlinear(call, "exp", [shifted]), *terms)]
    normal: ShType = nonlinear(call, "log", sums[:1])
    normal = product(call, [normal, sums[2]]) if dense else normal
    return finished(call, added(call, "sub", [normal, sums[1]]))


@op("nn.glu")
def _glu(call: Call) -> ShType:
    x = call.array("x")
    dim = one_dim("glu", x, call.static("axis", -1))
    if stands_for_a_name(x.shape[dim]) or x.shape[dim] % 2 or not x.differentiable:
        raise Unknown
    half = sized(call, "split", x, dim, x.shape[dim] // 2, linear=True)
    return product(call, [half, nonlinear(call, "sigmoid", [half])])


@op("nn.dot_product_attention")
def _attention(call: Call) -> ShType:
    q, k, v = (call.array(n) for n in ("query", "key", "value"))
    call.only("query", "key", "value", "bias", "mask", "scale", "is_causal", "local_window_size", "out")
    heads, kept = q.shape[-2] if q.ndim > 1 else 0, k.shape[-2] if k.ndim > 1 else 0
    fits = min(q.ndim, k.ndim, v.ndim) >= 3 and q.shape[-1] == k.shape[-1] and k.shape[-3:-1] == v.shape[-3:-1]
    if not fits or not kept or heads % kept or (heads != kept and stands_for_a_name(heads)):
        raise Unknown
    if call.static("out", None) is not None and (k.dims[-3].axes or v.dims[-3].axes):
        raise Unknown
    for operand in (k, v):
        for axis in operand.dims[-3].axes:
            raise reasons.along("dot_product_attention", operand, axis)
    k, v = (_with_heads(call, t, q) for t in (k, v))
    if k.shape[-2] != v.shape[-2]:
        raise Unknown
    kept = k.shape[-2]
    groups, dtype = "" if heads == kept else "g", _wide(q)
    extra = [call.array(n) for n in ("bias", "mask") if call.given_as_value(n)]
    if groups:
        q = _grouped(call, q, -2, kept)
        extra = [_grouped(call, t, -3, kept) for t in extra]
    lead = "abcdef"[: k.ndim - 3]
    equation = f"{lead}tk{groups}h,{lead}skh->{lead}k{groups}ts"
    scores = contract_pair(call, equation, (q, k), dtype, held((q, k)))
    scores = _masked(call, linear(call, "mul", scores, dtype), extra)
    if call.static("out", None) is not None and scores.dims[-1].axes:
        raise Unknown  # a bias or mask shards the keys, and `out` allows to communicate along them
    weights = cast(call, whole(call, "softmax", scores, [scores.ndim - 1], linear=False), k.dtype_name)
    mixed = together([weights, v])
    equation = f"{lead}k{groups}ts,{lead}skh->{lead}tk{groups}h"
    y = contract_pair(call, equation, (weights, v), mixed, held((weights, v)))
    return finished(call, reshaped(call, y, (*y.shape[:-3], heads, y.shape[-1])) if groups else y)


def _with_heads(call: Call, x: ShType, query: ShType) -> ShType:
    """Keys or values with so many heads that the axes of the queries' heads divide them."""
    kept, heads = x.dims[-2], query.dims[-2]
    if kept.size in (1, heads.size) or kept.axes or not heads.axes:
        return x
    if not call.knows(heads.axes):
        raise Unknown
    if kept.size % query.mesh.product(heads.axes) == 0:
        return x
    return call.typed("repeat", lambda ts: rules.repeat(ts[0], x.ndim - 2, heads.size // kept.size), x)


def _grouped(call: Call, x: ShType, dim: int, kept: int) -> ShType:
    """A dim of heads in two: one for each head of keys, and those that share it."""
    at = x.ndim + dim
    if at < 0:
        return x
    parts = (1, 1) if x.shape[at] == 1 else (kept, x.shape[at] // kept)
    return reshaped(call, x, (*x.shape[:at], *parts, *x.shape[at + 1 :]))


def _masked(call: Call, scores: ShType, extra: Sequence[ShType]) -> ShType:
    """Scores with a bias and a mask; masks by position change no type."""
    dtype = scores.dtype_name
    for t in extra:
        if t.dtype_name == "bool":
            scores = chosen(call, t, [scores, Number("float", -1e30)])
        else:
            scores = cast(call, added(call, "add", [scores, t]), dtype)
    return scores
