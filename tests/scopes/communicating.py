"""Programs that communicate in JAX's explicit mode, or might: each is refused inside `no_comm`, or needs nothing.

The first part is the ops that insert a collective nobody wrote; the second the ways out of the typed world.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shtypes as sh
from tests.traced.random_programs import AXES

P = jax.P
ROWS, COLS, PENDING, WHOLE = "f32[8@dp,8]", "f32[8,8@tp]", "f32[8,8]{U:dp}", "f32[8,8]"


class Case(NamedTuple):
    """A program.

    Attributes:
        f: A function of the arguments.
        arguments: Types in text; of a plain array that is sharded over dp, ``"plain"``; of an index, ``"index"``.
        says: What the error says; None where the program is typed, and sends nothing.
    """

    f: Callable[..., Any]
    arguments: tuple[str, ...]
    says: str | None = None


def values(case: Case) -> list[Any]:
    """Arguments with data."""
    held()  # made before anything is traced
    return [_value(text, i) for i, text in enumerate(case.arguments)]


def _value(text: str, seed: int) -> Any:
    host = np.random.default_rng(seed).uniform(0.5, 1.5, (8, 8)).astype(np.float32)
    if text == "plain":
        return jax.device_put(host, placed("dp", None))
    if text == "index":
        return jnp.int32(2)
    value = sh.array(host, WHOLE)
    return jax.jit(lambda x: sh.reshard(x, sh.ShType.parse(text)))(value)


@functools.cache
def held() -> Any:
    """A sharded plain array, for programs that capture one."""
    return _value("plain", 0)


def placed(*spec: Any) -> Any:
    """A sharding on the mesh of the tests."""
    return jax.NamedSharding(sh.make_mesh(AXES), P(*spec))


ALONG = "along dim 0, which is sharded on mesh axis `dp`"
REDUCES = "reduces dim 0, which is sharded on mesh axis `dp`"
FORBIDS = "`no_comm` forbids"
VOUCH = "`no_comm` cannot vouch for"
SHARDS = "is no function of shards"


def _convolved(x: Any) -> Any:
    """A convolution along dim 1."""
    return sh.conv_general_dilated(sh.reshape(x, (8, 1, 8)), sh.ones("f32[1,1,3]"), (1,), "SAME")


OPS: dict[str, Case] = {
    # of the nineteen, those that shtypes types without communication
    "one-sided contraction": Case(lambda x: sh.einsum("ij,jk->ik", x, sh.ones(WHOLE)), (COLS,)),
    "contraction to the other side": Case(lambda x: sh.ones(WHOLE) @ x, (ROWS,)),
    "same axis on contraction and output": Case(lambda x, y: x @ y, (COLS, COLS), "meets two different dims"),
    "sum": Case(lambda x: sh.sum(x, 0), (ROWS,)),
    "mean": Case(sh.mean, (ROWS,)),
    "trace": Case(sh.trace, (ROWS,)),
    "a row": Case(lambda x: x[0], (ROWS,)),
    "a traced row": Case(lambda x, i: x[i], (ROWS, "index")),
    "rows by position": Case(lambda x: sh.take(x, np.array([1, 2]), 0), (ROWS,)),
    "scatter": Case(lambda x: x.at[1].set(2.0), (ROWS,)),
    "top_k of a whole dim": Case(lambda x: sh.top_k(x, 2)[0], (ROWS,)),
    "a pending sum and a number": Case(lambda x: x + 1.0, (PENDING,)),
    "split of a sharded dim": Case(lambda x: sh.reshape(x, (2, 4, 8)), (ROWS,)),
    # and those that need communication
    "max": Case(lambda x: sh.max(x, 0), (ROWS,), REDUCES),
    "argmax": Case(lambda x: sh.argmax(x, 0), (ROWS,), REDUCES),
    "prod": Case(lambda x: sh.prod(x, 0), (ROWS,), REDUCES),
    "softmax": Case(lambda x: sh.softmax(x, 0), (ROWS,), REDUCES),
    "logsumexp": Case(lambda x: sh.logsumexp(x, 0), (ROWS,), REDUCES),
    "var": Case(lambda x: sh.var(x, 0), (ROWS,), ALONG),
    "norm": Case(sh.linalg.norm, (ROWS,), ALONG),
    "median": Case(lambda x: sh.median(x, 0), (ROWS,), REDUCES),
    "concatenate": Case(lambda x: sh.concatenate([x, x], 0), (ROWS,), ALONG),
    "pad": Case(lambda x: sh.pad(x, ((1, 1), (0, 0))), (ROWS,), ALONG),
    "slice": Case(lambda x: x[1:5], (ROWS,), ALONG),
    "split": Case(lambda x: sh.split(x, 2, 0)[0], (ROWS,), ALONG),
    "flip": Case(lambda x: sh.flip(x, 0), (ROWS,), ALONG),
    "roll": Case(lambda x: sh.roll(x, 1, 0), (ROWS,), ALONG),
    "tile": Case(lambda x: sh.tile(x, (2, 1)), (ROWS,), ALONG),
    "dynamic_slice": Case(lambda x, i: sh.dynamic_slice(x, (i, 0), (2, 8)), (ROWS, "index"), ALONG),
    "dynamic_update_slice": Case(lambda x, i: sh.dynamic_update_slice(x, sh.ones("f32[2,8]"), (i, 0)), (ROWS, "index")),
    "fft": Case(lambda x: sh.fft.fft(x, axis=0), (ROWS,), ALONG),
    "sort": Case(lambda x: sh.sort(x, 0), (ROWS,), ALONG),
    "top_k": Case(lambda x: sh.top_k(x, 2)[0], (COLS,), "along dim 1, which is sharded on mesh axis `tp`"),
    "cumsum": Case(lambda x: sh.cumsum(x, 0), (ROWS,), ALONG),
    "svd": Case(lambda x: sh.linalg.svd(x)[1], (ROWS,), ALONG),
    "a merging reshape": Case(lambda x: sh.reshape(x, (64,)), (COLS,), "merges dim 1"),
    "a product of pending sums": Case(lambda x: x * x, (PENDING,), "unreduced"),
    "out=": Case(lambda x: sh.sum(x, 0, out="[8]"), (ROWS,), FORBIDS),
    "max with out=": Case(lambda x: sh.max(x, 0, out="[8]"), (ROWS,), FORBIDS),
    "softmax with out=": Case(lambda x: sh.softmax(x, 0, out="[8@dp,8]"), (ROWS,), FORBIDS),
    "var with out=": Case(lambda x: sh.var(x, 0, out="[8]"), (ROWS,), FORBIDS),
    "a halo of a convolution": Case(_convolved, (COLS,), "`conv_general_dilated` acts along dim 2"),
    "a convolution of whole images": Case(_convolved, (ROWS,)),
}

with_rule = jax.custom_vjp(sh.sin)
with_rule.defvjp(lambda x: (sh.sin(x), None), lambda _, ct: (sh.reshard(sh.reshard(ct, dp="R"), dp=0),))
with_tangents = jax.custom_jvp(sh.sin)
with_tangents.defjvp(lambda x, t: (sh.sin(x[0]), sh.reshard(sh.flip(sh.reshard(t[0], dp="R"), 0), dp=0)))


def _of_shards(f: Callable[..., Any]) -> Callable[..., Any]:
    mapped: Callable[..., Any] = sh.local_map(f, out=lambda *types: types[0])
    return mapped


def _boundary(jit: Any, name: str) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return jit(lambda x: x * 2.0, **{name: placed(None, None)})(x)

    return call


def _plain_sum(a: Any) -> Any:
    return jnp.sum(a)


def _gathered(x: Any) -> Any:
    return sh.all_gather(x, "dp")


def _mapped(a: Any) -> Any:
    return jax.shard_map(lambda s: lax.psum(s, "dp"), in_specs=P("dp"), out_specs=P())(a)


def _from_the_host(a: Any) -> Any:
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(a.shape, a.dtype), a)


def _printed(x: Any, a: Any) -> Any:
    jax.debug.print("{}", a)
    return x


DOORS: dict[str, Case] = {
    "to_jax": Case(lambda x: jnp.sum(x.to_jax()), (ROWS,), VOUCH),
    "from_jax": Case(lambda a: sh.from_jax(a, WHOLE), ("plain",), FORBIDS),
    "from_jax as it lies": Case(lambda a: sh.from_jax(a, "f32[8@dp,8]{I:tp}"), ("plain",)),
    "from_jax to another dim": Case(lambda a: sh.from_jax(a, "f32[8,8@dp]"), ("plain",), FORBIDS),
    "array": Case(lambda a: sh.array(a, WHOLE), ("plain",), FORBIDS),
    "array of a captured one": Case(lambda x: x + sh.array(held(), WHOLE), (ROWS,), FORBIDS),
    "a captured one": Case(lambda x: x + held(), (ROWS,)),
    "a host array": Case(lambda x: x * np.ones((8, 8), np.float32), (COLS,)),
    "plain arithmetic": Case(lambda x, a: x + sh.constant(jnp.sum(a)), (ROWS, "plain"), "for `reduce_sum`"),
    "plain arithmetic in a loop": Case(
        lambda x, a: x + sh.constant(lax.fori_loop(0, 3, lambda _, s: s + jnp.sum(a), jnp.float32(0))),
        (ROWS, "plain"),
        "for `reduce_sum`",
    ),
    "plain arithmetic alone": Case(_plain_sum, ("plain",), "for `reduce_sum`"),
    "plain arithmetic on scalars": Case(lambda x, i: x * sh.constant(jnp.exp(i * 0.1)), (ROWS, "index")),
    "JAX's reshard": Case(lambda a: jax.reshard(a, P(None, None)), ("plain",), "for `reshard`"),
    "device_put": Case(lambda a: jax.device_put(a, placed(None, None)), ("plain",), "for `device_put`"),
    "shard_map": Case(_mapped, ("plain",), "for `shard_map`"),
    "shard_map of a typed value": Case(_mapped, (ROWS,), "takes plain arrays only"),
    "JAX's reshard of a typed value": Case(lambda x: jax.reshard(x, P(None, None)), (ROWS,), "takes plain arrays only"),
    "constraint on a typed value": Case(
        lambda x: lax.with_sharding_constraint(x, placed(None, None)), (ROWS,), "takes plain arrays only"
    ),
    "out_shardings": Case(_boundary(jax.jit, "out_shardings"), ("plain",), "for `jit`"),
    "in_shardings": Case(_boundary(jax.jit, "in_shardings"), ("plain",), "for `jit`"),
    "out_shardings of a typed value": Case(_boundary(jax.jit, "out_shardings"), (ROWS,), "do not go with typed"),
    "sh.jit with out_shardings": Case(_boundary(sh.jit, "out_shardings"), (ROWS,), "do not go with typed"),
    "jax.jit inside": Case(jax.jit(_gathered), (ROWS,), FORBIDS),
    "sh.jit inside": Case(sh.jit(_gathered), (ROWS,), FORBIDS),
    "a callback": Case(
        lambda x, i: x * sh.constant(sh.from_jax(_from_the_host(i * 1.0))), (ROWS, "index"), "for `pure_callback`"
    ),
    "printing a sharded array": Case(_printed, (ROWS, "plain"), "for `debug_"),
    "printing a scalar": Case(_printed, (ROWS, "index")),
    "random": Case(lambda x: x + sh.random.normal(jax.random.key(0), ROWS), (ROWS,)),
    "JAX's random": Case(lambda x: x + sh.constant(jax.random.normal(jax.random.key(0), (8, 8))), (ROWS,)),
    "a function of shards": Case(_of_shards(jnp.sin), (ROWS,)),
    "one with a custom call": Case(_of_shards(lambda v: jnp.linalg.inv(v @ v.T + jnp.eye(4)) @ v), (ROWS,)),
    "one that is jitted": Case(_of_shards(jax.jit(jnp.sin)), (ROWS,)),
    "one with a collective": Case(_of_shards(lambda v: lax.psum(v, "dp")), (ROWS,), SHARDS),
    "one with a shard_map": Case(
        _of_shards(jax.shard_map(lambda s: lax.psum(s, "dp"), in_specs=P(), out_specs=P())), (ROWS,), SHARDS
    ),
    "one that reshards": Case(_of_shards(lambda v: jax.reshard(v, P(None, None))), (ROWS,), SHARDS),
    "one that puts": Case(_of_shards(lambda v: jax.device_put(v, placed(None, None))), (ROWS,), SHARDS),
    "one that captures": Case(_of_shards(lambda v: v + jnp.sum(held())), (ROWS,), SHARDS),
    "one with out_shardings": Case(_of_shards(_boundary(jax.jit, "out_shardings")), (ROWS,), SHARDS),
    "JAX's custom_vjp": Case(with_rule, (ROWS,), "in the backward function of a `custom_vjp`"),
    "JAX's custom_vjp in a jit": Case(jax.jit(with_rule), (ROWS,), "in the backward function of a `custom_vjp`"),
    "JAX's custom_jvp": Case(with_tangents, (ROWS,), FORBIDS),
    "JAX's custom_jvp in a jit": Case(jax.jit(with_tangents), (ROWS,), FORBIDS),
}
