"""Cases of keys and random bits, and of calls to the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

from tests.lifting.row_cases.case import Case, case

_TOGETHER: Final = "all bits are made together"


def _key(seed: Any) -> Any:
    return jax.random.key(seed)


def _words(key: Any) -> Any:
    return jax.random.key_data(key)


def _keys() -> Iterator[Case]:
    seed, seeds = np.uint32(7), np.arange(8, dtype=np.uint32)
    yield case("random_seed", "one", lambda s: _words(_key(s)), seed)
    yield case("random_seed", "many", lambda s: _words(jax.vmap(_key)(s)), seeds)
    yield case("random_seed", "a negative seed", lambda s: _words(_key(s)), np.int32(-5))
    yield case(
        "random_wrap",
        "one",
        lambda w: jax.random.bits(jax.random.wrap_key_data(w), (3,)),
        np.asarray([1, 2**32 - 1], np.uint32),
    )
    yield case("random_wrap", "many", lambda w: _words(jax.random.wrap_key_data(w)), "u32[8,2]!")
    yield case("random_unwrap", "many", lambda s: _words(jax.vmap(_key)(s)), seeds)
    yield case("random_split", "one", lambda s: _words(jax.random.split(_key(s), 3)), seed)
    yield case("random_split", "a shape", lambda s: _words(jax.random.split(_key(s), (2, 4))), seed)
    yield case("random_split", "many", lambda s: _words(jax.vmap(jax.random.split)(jax.vmap(_key)(s))), seeds)
    yield case("random_fold_in", "one", lambda s, n: _words(jax.random.fold_in(_key(s), n)), seed, np.uint32(9))
    yield case(
        "random_fold_in",
        "many",
        lambda s, n: _words(jax.vmap(jax.random.fold_in)(jax.vmap(_key)(s), n)),
        seeds,
        "u32[8]!",
    )
    yield case(
        "random_fold_in", "one key", lambda n: _words(jax.vmap(lambda i: jax.random.fold_in(_key(3), i))(n)), "u32[8]!"
    )
    yield case("random_fold_in", "each key with each number", lambda s, n: _words(jax.vmap(lambda k: jax.vmap(
        lambda i: jax.random.fold_in(k, i))(n))(jax.vmap(_key)(s))), seeds, "u32[8]!")  # fmt: skip
    yield case("random_clone", "one", lambda s: _words(jax.random.clone(_key(s))), seed)
    yield case("random_clone", "many", lambda s: _words(jax.random.clone(jax.vmap(_key)(s))), seeds)
    for width in (8, 16, 32, 64):
        dtype = f"uint{width}"
        yield case(
            "random_bits", f"{width}", lambda s, d=dtype: jax.random.bits(_key(s), (8, 4), d), seed, x64=width == 64
        )
        yield case("random_bits", f"{width}, many", lambda s, d=dtype: jax.vmap(lambda k: jax.random.bits(k, (4,), d))(jax.vmap(_key)(s)),
                   seeds, x64=width == 64)  # fmt: skip
    yield case("random_bits", "no elements", lambda s: jax.random.bits(_key(s), (0, 4)), seed)
    yield case(
        "random_bits", "another generator", lambda s: jax.random.bits(jax.random.key(s, impl="rbg"), (8, 4)), seed
    )
    yield case(
        "random_gamma",
        "one key",
        lambda a: jax.random.gamma(_key(3), a),
        "f32[8,4]+",
        close="ulps",
        orders=1,
        whole=_TOGETHER,
    )
    yield case("random_gamma", "its logarithm", lambda a: jax.random.loggamma(_key(3), a), "f32[8,4]+", close="ulps", orders=1,
               whole=_TOGETHER)  # fmt: skip
    yield case("random_gamma", "many keys", lambda s, a: jax.vmap(jax.random.gamma)(jax.vmap(_key)(s), a), seeds, "f32[8]+", close="ulps",
               orders=1)  # fmt: skip
    yield case("threefry2x32", "words", lambda a, b, c, d: threefry2x32_p.bind(a, b, c, d), *["u32[8,4]!"] * 4)
    yield case("threefry2x32", "beside scalars", lambda c, d: threefry2x32_p.bind(*jnp.broadcast_arrays(np.uint32(5), np.uint32(6), c, d)),
               "u32[8,4]!", "u32[8,4]!")  # fmt: skip
    for algorithm in lax.RandomAlgorithm.RNG_DEFAULT, lax.RandomAlgorithm.RNG_THREE_FRY:
        f = lambda k, a=algorithm: lax.rng_bit_generator(k, (8, 4), algorithm=a)
        yield case("rng_bit_generator", algorithm.name, f, "u32[4]!", whole=_TOGETHER)
    yield case(
        "rng_bit_generator",
        "u8",
        lambda k: lax.rng_bit_generator(k, (8, 4), dtype=np.uint8),
        "u32[4]!",
        whole=_TOGETHER,
    )


def _calls() -> Iterator[Case]:
    def doubled(x: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.asarray(x) * np.asarray(2, x.dtype)

    whole = "the host's function gets whole arrays"
    shape = jax.ShapeDtypeStruct((8, 4), np.float32)
    yield case(
        "pure_callback", "f32", lambda a: jax.pure_callback(doubled, shape, a), "f32[8,4]!", orders=0, whole=whole
    )
    yield case("pure_callback", "two results", lambda a: jax.pure_callback(lambda x: (doubled(x), doubled(x)[0]), (
        shape, jax.ShapeDtypeStruct((4,), np.float32)), a), "f32[8,4]!", orders=0, whole=whole)  # fmt: skip
    yield case("pure_callback", "mapped", lambda a: jax.vmap(lambda x: jax.pure_callback(doubled, jax.ShapeDtypeStruct((4,), np.float32), x,
               vmap_method="expand_dims"))(a), "f32[8,4]!", orders=0, whole=whole)  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them."""
    for part in (_keys, _calls):
        yield from part()
