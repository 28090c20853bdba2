"""Random bits of a shard that equal those of the same elements in `jax.random`'s global array.

JAX's threefry generator hashes the key and each element's flat index, so a device can compute the bits of its elements
alone. This is another generator for JAX: its keys have the words of a threefry key and the start of the shard. Each of
JAX's distributions then samples a part of the global array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import define_prng_impl, threefry2x32_p

from shtypes.caches import CACHE_SIZE

IMPL: Final = "threefry2x32"
_WORD: Final = 2**32
_HALF: Final = 0xFFFF


def part_key(key: Any, shape: tuple[int, ...], starts: Sequence[Any]) -> Any:
    """A threefry key whose samples are parts of samples of a global shape.

    Its sample of shape ``(*more, *local)`` is the part at ``starts`` of the sample of ``(*more, *shape)`` by ``key``;
    its splits are those of ``key``.
    """
    words = [jax.random.key_data(key), jnp.stack([jnp.asarray(s, jnp.uint32) for s in starts])]
    return jax.random.wrap_key_data(jnp.concatenate(words), impl=_generator(shape))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _generator(shape: tuple[int, ...]) -> Any:
    """The generator for parts of arrays of one shape."""

    def threefry(key: Any) -> Any:
        return jax.random.wrap_key_data(key[:2], impl=IMPL)

    def split(key: Any, count: tuple[int, ...]) -> Any:
        words = jax.random.key_data(jax.random.split(threefry(key), count))
        starts = jnp.broadcast_to(key[2:], (*count, len(shape)))
        return jnp.concatenate([words, starts], axis=-1)

    def fold_in(key: Any, data: Any) -> Any:
        return jnp.concatenate([jax.random.key_data(jax.random.fold_in(threefry(key), data)), key[2:]])

    def random_bits(key: Any, width: int, local: tuple[int, ...]) -> Any:
        more = len(local) - len(shape)
        starts = [0] * more + [key[2 + d] for d in range(len(shape))]
        high, low = flat_indices(local, (*local[:more], *shape), starts)
        first, second = threefry2x32_p.bind(key[0], key[1], high, low)
        if width == 64:
            return (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
        return (first ^ second).astype(jnp.dtype(f"uint{width}"))

    def seed(_: Any) -> Any:
        raise NotImplementedError("a part of a draw has the key of the full draw")

    return define_prng_impl(
        key_shape=(2 + len(shape),), seed=seed, split=split, random_bits=random_bits, fold_in=fold_in,
        name=f"{IMPL} part of {shape}", tag="part",
    )  # fmt: skip


def flat_indices(local: Sequence[int], shape: Sequence[int], starts: Sequence[Any]) -> tuple[Any, Any]:
    """The flat indices of a part's elements in an array of a global shape, as high and low words."""
    high, low = jnp.zeros(local, jnp.uint32), jnp.zeros(local, jnp.uint32)
    wide = math.prod(shape) > _WORD
    for d, start in enumerate(starts):
        index = lax.broadcasted_iota(jnp.uint32, tuple(local), d) + jnp.asarray(start, jnp.uint32)
        stride = math.prod(shape[d + 1 :])
        if not wide:
            low = low + index * jnp.uint32(stride % _WORD)
            continue
        more, term = _times(index, stride)
        low = low + term
        high = high + more + (low < term).astype(jnp.uint32)
    return high, low


def _times(x: Any, factor: int) -> tuple[Any, Any]:
    """The high and low words of a word times a number below 2 to the 64, without a 64-bit dtype."""
    a, b = x & _HALF, x >> 16
    c, d = jnp.uint32(factor & _HALF), jnp.uint32((factor >> 16) & _HALF)
    below = b * c + ((a * c) >> 16)
    middle = a * d + (below & _HALF)
    high = b * d + (below >> 16) + (middle >> 16)
    upper, lower = jnp.uint32((factor >> 32) % _WORD), jnp.uint32(factor % _WORD)
    return high + x * upper, x * lower
