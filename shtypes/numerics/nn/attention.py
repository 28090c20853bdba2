"""Dot-product attention: batch, heads and queries may be sharded, and keys if communication is allowed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_operands, located
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.numerics.nn.positions import positions
from shtypes.ops.arithmetic import add, astype, multiply, subtract
from shtypes.ops.cross_shard import may_communicate
from shtypes.ops.einsum import einsum
from shtypes.ops.elementwise import greater_equal, less, less_equal, logical_and
from shtypes.ops.exponentials import softmax
from shtypes.ops.functions import expand_dims, repeat, reshape, where
from shtypes.ops.sharded_reductions import wide
from shtypes.rules import messages
from shtypes.types import ShType


@public
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    out: Any = None,
) -> Array:
    """Softmax attention, as `jax.nn.dot_product_attention`, with grouped or single key heads.

    Per axis: batch and heads may be sharded, equally in all operands; replicated operands are sliced, for free. Queries
    may be sharded if keys are replicated, and are masked by their global positions. Keys that are sharded by position
    need communication. Scores are computed in at least 32 bits.

    Args:
        query (..., T, N, H): Queries.
        key (..., S, K, H): Keys; K divides N.
        value (..., S, K, H): Values.
        bias (..., N, T, S): Added to the scores, such as an additive mask; broadcasts.
        mask (..., N, T, S): A bool array of the keys that count; broadcasts.
        scale: The factor of the scores; ``1 / sqrt(H)`` by default.
        is_causal: Whether a query attends only to keys at its position and before.
        query_seq_lengths (...): The number of queries in each row of the batch; the others give zeros.
        key_value_seq_lengths (...): The number of keys in each row of the batch.
        local_window_size: The number of keys before and after its position to which a query attends; one number for
            both.
        out: A type for the result; allows communication if keys are sharded by position.

    Returns:
        (..., T, N, H): Unreduced where the values are, and if keys are sharded by position; else sharded as the
        queries.

    Raises:
        ShardingTypeError: keys are sharded by position and communication is not allowed, the shapes do not fit, or
            queries or keys are unreduced.

    Communicates: nothing; with keys sharded by position, all-reduces of the maximum and of the sum of each row of
    scores, one backward, and the reshard of the pending result to ``out``. Transpose: einsums, and that of `softmax`.
    """
    (query, key, value), _ = as_operands([query, key, value])
    types = tuple(jax.typeof(x) for x in (query, key, value))
    _check_shapes(*types)
    factor = 1 / math.sqrt(types[0].shape[-1]) if scale is None else float(scale)
    inputs = _MaskInputs(bias, mask, is_causal, local_window_size, query_seq_lengths, key_value_seq_lengths)

    def attend(query: Any, key: Any, value: Any, may_send: bool = True) -> Array:
        return _attend(query, key, value, factor, inputs, may_send)

    for operand in types[1:]:
        for axis in () if may_communicate(out) else operand.dims[-3].axes:
            error = located(messages.along("dot_product_attention", operand, axis), "dot_product_attention", types)
            raise with_out_fixes(error, "nn.dot_product_attention", attend, *types)
    return finished(attend(query, key, value, may_send=may_communicate(out)), out)


class _MaskInputs(NamedTuple):
    """The arguments that mask or shift scores."""

    bias: Any
    mask: Any
    is_causal: bool
    window: int | tuple[int, int] | None
    queries: Any
    keys: Any


def _attend(query: Any, key: Any, value: Any, factor: float, inputs: _MaskInputs, may_send: bool) -> Array:
    """Attention; ``may_send``: whether the softmax may communicate."""
    q, k, v = (jax.typeof(x) for x in (query, key, value))
    key, value = (_with_heads(x, q) for x in (key, value))
    kv_heads = jax.typeof(key).shape[-2]
    groups = "" if kv_heads == q.shape[-2] else "g"
    if groups:
        query = _grouped(query, -2, kv_heads)
        inputs = inputs._replace(bias=_grouped(inputs.bias, -3, kv_heads), mask=_grouped(inputs.mask, -3, kv_heads))
    wider = wide(q.dtype_name)
    scores = einsum(f"...tk{groups}h,...skh->...k{groups}ts", query, key, preferred_element_type=wider)
    scores = _masked(multiply(scores, factor), inputs)
    weights = softmax(scores, out=jax.typeof(scores) if may_send else None)
    y = einsum(f"...k{groups}ts,...skh->...tk{groups}h", astype(weights, k.dtype_name), value)
    y = reshape(y, (*q.shape[:-1], v.shape[-1])) if groups else y
    for real in _within(jax.typeof(y), inputs.queries, -3):
        y = where(real, y, 0)
    return y


def _masked(scores: Array, inputs: _MaskInputs) -> Array:
    """Adds the bias to scores, and replaces masked ones by a very negative number."""
    t: ShType = jax.typeof(scores)
    if inputs.bias is not None:
        scores = astype(add(scores, inputs.bias), t.dtype_name)
    masks = [] if inputs.mask is None else [inputs.mask]
    masks += _positional(t, inputs.is_causal, inputs.window)
    masks += _within(t, inputs.queries, -2) + _within(t, inputs.keys, -1)
    for mask in masks:
        # not infinity, since a row of these has no softmax
        scores = where(mask, scores, -0.7 * float(np.finfo(t.dtype).max))
    return scores


def _within(t: ShType, lengths: Any, dim: int) -> list[Array]:
    """The mask of the positions along a dim below each row's length."""
    if lengths is None:
        return []
    ((lengths,), _) = as_operands([lengths])
    batch = jax.typeof(lengths).ndim
    at = expand_dims(positions(t, dim), tuple(d for d in range(t.ndim) if d != t.ndim + dim))
    return [less(at, expand_dims(lengths, tuple(range(batch, t.ndim))))]


def _check_shapes(q: ShType, k: ShType, v: ShType) -> None:
    fits = min(q.ndim, k.ndim, v.ndim) >= 3 and q.shape[-1] == k.shape[-1] and k.shape[-3:-1] == v.shape[-3:-1]
    if not fits or not k.shape[-2] or q.shape[-2] % k.shape[-2]:
        raise ShardingTypeError(
            f"`dot_product_attention` cannot pair queries {q} with keys {k} and values {v}",
            why="their dims are (..., positions, heads, size), and the heads of keys divide those of queries",
        )


def _with_heads(x: Array, query: ShType) -> Array:
    """Repeats keys or values for each query head, if the axes of query heads do not divide the number of key heads.

    A single head is broadcast, and sharded heads stay.
    """
    t = jax.typeof(x)
    kv_heads, heads = t.dims[-2], query.dims[-2]
    if kv_heads.size == 1 or kv_heads.size % query.mesh.product(heads.axes) == 0 or kv_heads.axes:
        return x
    return repeat(x, heads.size // kv_heads.size, axis=-2)


def _grouped(x: Any, dim: int, kv_heads: int) -> Any:
    """Splits a dim of heads in two: key heads, and the query heads that share one."""
    if x is None:
        return None
    ((x,), _) = as_operands([x])
    shape = jax.typeof(x).shape
    at = len(shape) + dim
    if at < 0:
        return x
    return reshape(
        x, (*shape[:at], *((1, 1) if shape[at] == 1 else (kv_heads, shape[at] // kv_heads)), *shape[at + 1 :])
    )


def _positional(scores: ShType, is_causal: bool, window: int | tuple[int, int] | None) -> list[Array]:
    """The masks of positions: causal, and of the window."""
    if not is_causal and window is None:
        return []
    rows, columns = (positions(scores, d) for d in (-2, -1))
    ahead = subtract(expand_dims(columns, 0), expand_dims(rows, 1))
    if window is None:
        return [less_equal(ahead, 0)]
    before, after = (window, window) if isinstance(window, int) else window
    return [
        logical_and(less_equal(ahead, 0 if is_causal else int(after)), greater_equal(ahead, -int(before))),
    ]
