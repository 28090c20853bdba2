"""Global positions along a dim that may be sharded, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.dispatch.apply import apply, as_operands
from shtypes.errors import ShardingTypeError
from shtypes.ops.create import arange
from shtypes.ops.functions import expand_dims
from shtypes.ops.sharded_reductions import wide
from shtypes.rules import messages
from shtypes.types import Dim, ShType, State, dtypes


def positions(t: ShType, dim: int) -> Array:
    """The global positions along a dim of a type, sharded as it is."""
    d = t.dims[dim]
    states = {
        a: State.VARYING if t.state(a) is State.VARYING else State.REDUCED for a in t.mesh.axis_names if a not in d.axes
    }
    return arange(d.size, type=ShType(t.mesh, "i32", [Dim(d.size, d.axes)], states))


@dataclass(frozen=True)
class Rotary(ShardFn):
    """Rotates pairs of ``x``, one element from each half of the last dim, by angles from ``positions``."""

    base: float
    turn: int = 1
    linear = Linear.IN_DIFFERENTIABLE

    def __str__(self) -> str:
        return "rotary" if self.turn == 1 else "rotary[-1]"

    def __call__(self, at: Any, x: Any) -> Any:
        half = x.shape[-1] // 2
        frequencies = self.turn * self.base ** (-np.arange(half, dtype=np.float32) / half)
        dtype = dtypes.to_numpy(wide(dtypes.from_numpy(x.dtype)))
        angles = at.astype(dtype) * frequencies.astype(dtype)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = x[..., :half].astype(dtype), x[..., half:].astype(dtype)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        return Rotary(self.base, -self.turn)


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
        ShardingTypeError: H is sharded or odd; positions are sharded differently from ``x``.

    Communicates: nothing. Transpose: the inverse rotation.
    """
    ((x,), _) = as_operands([x])
    t = jax.typeof(x)
    if t.ndim < 3 or t.shape[-1] % 2:
        raise ShardingTypeError(f"`rotary_embedding` needs (positions, heads, an even size) as last dims, not {t}")
    (at, x), constants = as_operands([expand_dims(positions(t, -3) if at is None else at, (-2, -1)), x])
    if not jnp.issubdtype(jax.typeof(at).dtype, jnp.integer):
        raise ShardingTypeError(f"positions are integers, not {jax.typeof(at)}")

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        for axis in types[1].dims[-1].axes:
            raise messages.along("rotary_embedding", types[1], axis)
        for axis in types[0].axes(State.UNREDUCED):
            raise messages.nonlinear("rotary_embedding", axis, "the positions")
        return rules.multilinear("rotary_embedding", types, t.dtype_name, constants)

    return apply("rotary_embedding", Rotary(float(base)), rule, at, x)
