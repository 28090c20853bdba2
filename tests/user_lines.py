"""What type checkers see of lines that users write; `make check` reads this file with mypy and with pyright.

A line that reveals another type is an error of the checker, and so is a mistake at the end that it does not see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp

import shtypes as sh
from shtypes.core.jax_type import HiShType


def arrays(x: sh.Array, w: sh.Array, i: sh.Array) -> None:
    assert_type(x.type, HiShType)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.ndim, int)
    assert_type(x.T, sh.Array)
    assert_type(x.real, sh.Array)
    assert_type(x @ w, sh.Array)
    assert_type(x + 1, sh.Array)
    assert_type(2.0 * x, sh.Array)
    assert_type(-x, sh.Array)
    assert_type(x == w, sh.Array)
    assert_type(x[0], sh.Array)
    assert_type(x[i, None, ...], sh.Array)
    assert_type(divmod(x, w), tuple[sh.Array, sh.Array])
    assert_type(x.sum(), sh.Array)
    assert_type(x.mean(0, keepdims=True), sh.Array)
    assert_type(x.reshape(4, -1), sh.Array)
    assert_type(x.astype("bf16"), sh.Array)
    assert_type(x.reshard("f32[8@dp, 4]"), sh.Array)
    assert_type(x.at[0].set(w), sh.Array)
    assert_type(x.nonzero(size=3), tuple[sh.Array, ...])


def trees(model: dict[str, list[sh.Array]], rules: dict[str, str]) -> None:
    assert_type(sh.tree.bytes(model)["layers"], int)
    assert_type(sh.tree.bytes(sh.tree.array(model, rules)).total, int)
    assert_type(str(sh.tree.show(model, depth=1)), str)
    sh.tree.reshard(model, [("**/kernel", "[_, _@tp]"), (re.compile(".*"), None)])
    sh.tree.types(model, {re.compile(".*"): jax.P("tp")})
    with sh.dim_axes({"mlp": "tp", "batch": ("dp", "fsdp"), "embed": None}):
        pass


def functions(x: sh.Array, w: sh.Array, i: sh.Array) -> None:
    assert_type(sh.einsum("sb,bh->sh", x, w), sh.Array)
    assert_type(sh.matmul(x, w, out="f32[8, 4]"), sh.Array)
    assert_type(sh.exp(x), sh.Array)
    assert_type(sh.add(x, 1.0), sh.Array)
    assert_type(sh.maximum(x, w), sh.Array)
    assert_type(sh.gelu(x, approximate=False), sh.Array)
    assert_type(sh.nan_to_num(x, nan=0.0), sh.Array)
    assert_type(sh.max(x, axis=0), sh.Array)
    assert_type(sh.var(x, ddof=1), sh.Array)
    assert_type(sh.softmax(x, axis=-1), sh.Array)
    assert_type(sh.logsumexp(x), sh.Array)
    assert_type(sh.where(x > 0, x, 0.0), sh.Array)
    assert_type(sh.fft.rfft(x, n=8, axis=0), sh.Array)
    assert_type(sh.fft.fft2(x, axes=(0, 1)), sh.Array)
    assert_type(sh.fft.fftfreq(8, d=0.5), sh.Array)
    assert_type(sh.linalg.inv(x), sh.Array)
    assert_type(sh.linalg.norm(x, ord=2, axis=0), sh.Array)
    assert_type(sh.linalg.eigh(x, UPLO="U").eigenvalues, sh.Array)
    assert_type(sh.linalg.qr(x)[0], sh.Array)
    assert_type(sh.linalg.svd(x, compute_uv=False), sh.Array)
    assert_type(sh.linalg.slogdet(x).sign, sh.Array)
    assert_type(sh.nn.relu(x), sh.Array)
    assert_type(sh.nn.initializers.he_normal()(i, "f32[8, 4]"), sh.Array)
    assert_type(sh.random.beta(i, 1.0, 2.0, type="f32[8]"), sh.Array)
    assert_type(sh.random.normal(i, "f32[8@dp]"), sh.Array)
    assert_type(sh.take(x, i, axis=0), sh.Array)
    assert_type(sh.concatenate([x, w], axis=0), sh.Array)
    assert_type(sh.split(x, 2), list[sh.Array])
    assert_type(sh.reshard(x, "[8@dp, 4]"), sh.Array)
    assert_type(sh.all_reduce(x, "tp"), sh.Array)
    assert_type(sh.zeros("f32[8, 4]"), sh.Array)
    assert_type(sh.arange(8), sh.Array)
    assert_type(sh.array([1.0], "f32[1]"), sh.Array)
    assert_type(sh.segment_sum(x, i, num_segments=4), sh.Array)
    assert_type(sh.cumsum(x, axis=0), sh.Array)
    assert_type(sh.nn.rms_norm(x), sh.Array)
    assert_type(sh.random.normal(sh.random.key(0), "f32[8]"), sh.Array)
    assert_type(sh.lax.psum(x, "tp"), sh.Array)
    assert_type(sh.linalg.norm(x), sh.Array)
    assert_type(sh.fft.fft(x), sh.Array)


def loss(w: sh.Array, x: sh.Array) -> sh.Array:
    return sh.sum(x @ w)


@sh.jit
def step(w: sh.Array, x: sh.Array) -> tuple[sh.Array, int]:
    return loss(w, x), 1


@sh.no_comm
def silent(x: sh.Array) -> sh.Array:
    return x


def added(i: int, c: sh.Array) -> sh.Array:
    return c + i


def carried(c: sh.Array, x: sh.Array) -> tuple[sh.Array, int]:
    return c + x, 1


@sh.shard_map(out_specs="[_@dp]")
def of_a_device(x: sh.Array, scale: float) -> sh.Array:
    return x * scale


@sh.local_map(out="[_@dp]")
def sorted_shard(x: jax.Array) -> jax.Array:
    return jnp.sort(x)


def transformations(x: sh.Array, w: sh.Array) -> None:
    assert_type(of_a_device(x, 2.0), sh.Array)
    assert_type(sh.shard_map(loss, out_specs="[]")(w, x), sh.Array)
    assert_type(sh.local_map(jnp.tanh, out="[_@dp]")(x), sh.Array)
    assert_type(step(w, x), tuple[sh.Array, int])
    assert_type(silent(x), sh.Array)
    assert_type(sh.checkpoint(loss)(w, x), sh.Array)
    assert_type(sh.vmap(loss)(w, x), sh.Array)
    assert_type(sh.value_and_grad(loss)(w, x), tuple[sh.Array, Any])
    assert_type(sh.grad(loss)(w, x), Any)
    assert_type(sh.vjp(loss, w, x), tuple[sh.Array, Callable[..., Any]])
    assert_type(sh.jit(sh.grad(lambda w: sh.sum(w * w)))(w), Any)
    assert_type(sh.cond(True, lambda: x, lambda: w), sh.Array)
    assert_type(sh.fori_loop(0, 3, added, x), sh.Array)
    assert_type(sh.while_loop(lambda c: True, silent, x), sh.Array)
    assert_type(sh.scan(carried, x, w), tuple[sh.Array, int])
    assert_type(sh.map(silent, x), sh.Array)


def descriptions(x: sh.Array) -> None:
    assert_type(sh.typeof(x), HiShType)
    assert_type(sh.typeof(x).cotangent(), HiShType)
    assert_type(sh.ledger(loss, x, x), sh.Ledger)
    assert_type(sh.check(loss, "f32[8]", "f32[8]"), sh.Signature)
    assert_type(sh.make_mesh({"dp": 2}), jax.sharding.Mesh)
    assert_type(sh.current_policy(), str)


def mistakes(x: sh.Array) -> None:
    sh.softmx(x)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    sh.exp(x, axis=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sh.nn.rleu(x)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    sh.linalg.inv(x, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    sh.einsum()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    x.reshard_to("f32[8]")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    step(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    silent(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sh.no_comm("up")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
