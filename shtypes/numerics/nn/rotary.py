"""Rotary embeddings."""

from __future__ import annotations

from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.ops.jax_functions import JaxFunction


def _rotated(x: Any, at: Any, base: float) -> Any:
    if x.ndim < 3 or x.shape[-1] % 2:
        raise TypeError(f"the last dims are positions, heads and an even size, not {list(x.shape)}")
    at = jnp.arange(x.shape[-3]) if at is None else at
    if not jnp.issubdtype(at.dtype, jnp.integer):
        raise TypeError(f"positions are integers, not {at.dtype}")
    half, dtype = x.shape[-1] // 2, jnp.promote_types(x.dtype, np.float32)
    frequencies = base ** (-np.arange(half, dtype=np.float32) / half)
    angles = at[..., None, None].astype(dtype) * frequencies.astype(dtype)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half].astype(dtype), x[..., half:].astype(dtype)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


_ROTATED: Final = JaxFunction("nn.rotary_embedding", _rotated, takes_out=False)


@public
def rotary_embedding(x: ArrayLike, at: Any = None, *, base: float = 10_000.0) -> Array:
    """Rotary position embedding: rotates pairs ``(x[i], x[i + H/2])`` by ``position * base ** (-2i/H)``.

    Linear, so every state is preserved; the default positions are global.

    Args:
        x (..., T, N, H): Queries or keys; H is even and unsharded.
        at (..., T): Integer positions; 0 to T - 1 by default.
        base: The base of the frequencies.

    Returns:
        (..., T, N, H): The result, of the type of ``x``.

    Raises:
        ShardingTypeError: H is sharded or odd; positions are floats, or sharded differently from ``x``.

    Communicates: nothing. Transpose: the inverse rotation.
    """
    rotated: Array = _ROTATED(x, at, float(base))
    return rotated
