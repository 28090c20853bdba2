"""Dot-product attention: batch, heads and queries may be sharded, and keys if communication is allowed."""

from __future__ import annotations

from typing import Any, Final

import jax

from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_operands
from shtypes.ops.functions import repeat
from shtypes.ops.jax_functions import JaxFunction
from shtypes.types import ShType

_ATTENTION: Final = JaxFunction("nn.dot_product_attention", jax.nn.dot_product_attention)


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
    need communication. If more devices share the query heads than there are key heads, these are repeated.

    Args:
        query (B, T, N, H): Queries; B may be left out, here and below.
        key (B, S, K, H): Keys; K divides N.
        value (B, S, K, H): Values.
        bias (B, N, T, S): Added to the scores, such as an additive mask; broadcasts.
        mask (B, N, T, S): A bool array of the keys that count; broadcasts.
        scale: The factor of the scores; ``1 / sqrt(H)`` by default.
        is_causal: Whether a query attends only to keys at its position and before.
        query_seq_lengths (...): The number of queries in each row of the batch; the others give zeros.
        key_value_seq_lengths (...): The number of keys in each row of the batch.
        local_window_size: The number of keys before and after its position to which a query attends; one number for
            both.
        out: A type for the result; allows communication if keys are sharded by position.

    Returns:
        (B, T, N, H): Unreduced where the values are, and if keys are sharded by position; else sharded as the
        queries.

    Raises:
        ShardingTypeError: keys are sharded by position and communication is not allowed, the shapes do not fit, or
            queries or keys are unreduced.

    Communicates: nothing; with keys sharded by position, all-reduces of the maximum and of the sum of each row of
    scores, one backward, and the reshard of the pending result to ``out``. Transpose: einsums, and that of `softmax`.
    """
    (query, key, value), _ = as_operands([query, key, value])
    key, value = (_with_heads(x, jax.typeof(query)) for x in (key, value))
    attended: Array = _ATTENTION.into(
        out,
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    return attended


def _with_heads(x: Array, query: ShType) -> Array:
    """Repeats keys or values for each query head, if the axes of query heads do not divide the number of key heads.

    A single head is broadcast.
    """
    t = jax.typeof(x)
    if min(t.ndim, query.ndim) < 2:
        return x
    kv_heads, heads = t.dims[-2], query.dims[-2]
    if kv_heads.size < 2 or kv_heads.size % query.mesh.product(heads.axes) == 0:
        return x
    return x if heads.size % kv_heads.size else repeat(x, heads.size // kv_heads.size, axis=-2)
