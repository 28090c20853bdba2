"""Programs that people write for `jax.shard_map`, as they are, against one device and against what is compiled.

The patterns are those of the chapter on programming TPUs of "How to Scale Your Model" (jax-ml.github.io/scaling-book)
and of ring attention (arXiv 2310.01889); the code is our own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import close, host
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

P = jax.P
SIZES = {"x": 4, "y": 2}
N = SIZES["x"]
RIGHT = [(i, (i + 1) % N) for i in range(N)]
LEFT = [(i, (i - 1) % N) for i in range(N)]


pytestmark = pytest.mark.mesh(SIZES)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


# averages of slices


def slice_and_average(x: Any) -> Any:
    return lax.pmean(x[:4], ("x", "y"))


def average_of_each_shard(x: Any) -> Any:
    return jnp.mean(x, 0, keepdims=True)


def rolled_in_each_shard(x: Any, shift: Any) -> Any:
    return jnp.roll(x, 2, 0) - jnp.mean(x, 0) * shift


# matrices that travel while they are multiplied


def gathered_and_multiplied(x: Any, w: Any) -> Any:
    """`[rows@x, k] @ [k, n@x]`: each device multiplies the rows that it has, and passes them on."""
    rows = x.shape[0]
    here = lax.axis_index("x")

    def step(i: Any, carry: Any) -> Any:
        y, chunk = carry
        y = lax.dynamic_update_slice(y, chunk @ w, ((here + i) % N * rows, 0))
        return y, lax.ppermute(chunk, "x", LEFT)

    return lax.fori_loop(0, N, step, (jnp.zeros((rows * N, w.shape[1])), x))[0]


def gathered_and_multiplied_unrolled(x: Any, w: Any) -> Any:
    here, rows = lax.axis_index("x"), x.shape[0]
    y = lax.pcast(jnp.zeros((rows * N, w.shape[1])), "x", to="varying")
    for i in range(N):
        y = lax.dynamic_update_slice(y, x @ w, ((here + i) % N * rows, 0))
        if i < N - 1:
            x = lax.ppermute(x, "x", LEFT)
    return y


def contracted_in_pieces(x: Any, w: Any) -> Any:
    """`[rows, k@x] @ [k, n@x]`: columns of `x` travel, and each device takes the rows of `w` that are theirs."""
    depth = x.shape[1]
    here = lax.axis_index("x")

    def step(carry: Any, i: Any) -> Any:
        y, chunk = carry
        mine = lax.dynamic_slice_in_dim(w, (here - i) % N * depth, depth)
        return (y + chunk @ mine, lax.ppermute(chunk, "x", RIGHT)), None

    return lax.scan(step, (jnp.zeros((x.shape[0], w.shape[1])), x), jnp.arange(N))[0][0]


def multiplied_and_scattered(x: Any, w: Any) -> Any:
    """`[rows, k@x] @ [k@x, n]`, scattered over rows: the sum of a chunk travels, and each device adds its term."""
    rows = x.shape[0] // N
    here = lax.axis_index("x")

    def step(i: Any, total: Any) -> Any:
        mine = lax.dynamic_slice_in_dim(x, (here - i - 1) % N * rows, rows)
        return lax.ppermute(total, "x", RIGHT) + mine @ w

    return lax.fori_loop(0, N, step, jnp.zeros((rows, w.shape[1])))


def tensor_parallel(x: Any, up: Any, down: Any) -> Any:
    return lax.psum_scatter(jax.nn.silu(lax.all_gather(x, "x", tiled=True) @ up) @ down, "x", tiled=True)


# attention over a ring


def ring(q: Any, k: Any, v: Any, start: Callable[[Any], Any], causal: bool) -> Any:
    length, here = q.shape[0], lax.axis_index("x")
    scale = q.shape[-1] ** -0.5

    def step(carry: Any, i: Any) -> Any:
        total, weight, top, k, v = carry
        scores = jnp.einsum("qhd,khd->hqk", q, k) * scale
        if causal:
            query, key = here * length + jnp.arange(length), (here - i) % N * length + jnp.arange(length)
            scores = jnp.where(query[:, None] >= key[None, :], scores, -jnp.inf)
        higher = lax.stop_gradient(jnp.maximum(top, jnp.max(scores, -1)))
        p = jnp.exp(scores - higher[..., None])
        decay = jnp.exp(top - higher)
        total = total * decay.T[..., None] + jnp.einsum("hqk,khd->qhd", p, v)
        weight = weight * decay + jnp.sum(p, -1)
        return (total, weight, higher, *(lax.ppermute(each, "x", RIGHT) for each in (k, v))), None

    heads = q.shape[1]
    carry = start(jnp.zeros(q.shape)), start(jnp.zeros((heads, length))), start(jnp.full((heads, length), -jnp.inf))
    (total, weight, *_), _ = lax.scan(jax.checkpoint(step), (*carry, k, v), jnp.arange(N))
    return total / weight.T[..., None]


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = jnp.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -jnp.inf)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1), v)


def varying(x: Any) -> Any:
    return lax.pcast(x, "x", to="varying")


class Pattern(NamedTuple):
    body: Callable[..., Any]
    one_device: Callable[..., Any]
    args: tuple[tuple[str, tuple[int, ...]], ...]  # the type and shape of each
    out: Any


Q = ("[8@x,2,4]", (8, 2, 4))
PATTERNS = {
    "slice_and_average": Pattern(
        slice_and_average, lambda x: x.reshape(8, 16)[:, :4].mean(0), (("[128@(x,y)]", (128,)),), P()
    ),
    "average of each shard": Pattern(
        average_of_each_shard, lambda x: x.reshape(4, 4, 6).mean(1), (("[16@x,6]", (16, 6)),), P("x")
    ),
    "rolls": Pattern(
        rolled_in_each_shard,
        lambda x, s: (
            jnp.roll(x.reshape(4, 4, 6), 2, 1) - x.reshape(4, 4, 6).mean(1, keepdims=True) * s
        ).reshape(16, 6),
        (("[16@x,6]", (16, 6)), ("[6]", (6,))),
        P("x"),
    ),
    "gathered and multiplied": Pattern(
        gathered_and_multiplied, jnp.matmul, (("[8@x,6]", (8, 6)), ("[6,8@x]", (6, 8))), P(None, "x")
    ),
    "gathered and multiplied, unrolled": Pattern(
        gathered_and_multiplied_unrolled, jnp.matmul, (("[8@x,6]", (8, 6)), ("[6,8@x]", (6, 8))), P(None, "x")
    ),
    "contracted in pieces": Pattern(
        contracted_in_pieces, jnp.matmul, (("[3,8@x]", (3, 8)), ("[8,4@x]", (8, 4))), P(None, "x")
    ),
    "multiplied and scattered": Pattern(
        multiplied_and_scattered, jnp.matmul, (("[8,8@x]", (8, 8)), ("[8@x,3]", (8, 3))), P("x")
    ),
    "tensor parallel": Pattern(
        tensor_parallel,
        lambda x, up, down: jax.nn.silu(x @ up) @ down,
        (("[8@x,6]", (8, 6)), ("[6,8@x]", (6, 8)), ("[8@x,6]", (8, 6))),
        P("x"),
    ),
    "ring attention": Pattern(
        lambda q, k, v: ring(q, k, v, lambda x: x, False), lambda q, k, v: attention(q, k, v, False), (Q, Q, Q), P("x")
    ),
    "causal ring attention, cast": Pattern(
        lambda q, k, v: ring(q, k, v, varying, True), lambda q, k, v: attention(q, k, v, True), (Q, Q, Q), P("x")
    ),
}  # fmt: skip


def loss_of(op: Callable[..., Any], lib: Any) -> Callable[..., Any]:
    """The sum of the sines of what `op` returns."""

    def loss(*args: Any) -> Any:
        total = lib.sum(lib.sin(op(*args)))
        return sh.all_reduce(total, to="I") if lib is sh else total

    return loss


@pytest.mark.one_in(37)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", PATTERNS)
def test_it_is_the_program_of_one_device_and_the_ledger_has_what_it_sends(name: str, policy: Any) -> None:
    case = PATTERNS[name]
    arrays = [numbers(*shape) for _, shape in case.args]
    argnums = tuple(range(len(arrays)))
    with sh.policy(policy):
        args = [sh.array(a, spec) for a, (spec, _) in zip(arrays, case.args, strict=True)]
        op = sh.shard_map(case.body, out_specs=case.out)
        close(host(sh.jit(op)(*args)), case.one_device(*arrays), "value")
        step = sh.jit(sh.grad(loss_of(op, sh), argnums=argnums))
        wanted = jax.jit(jax.grad(loss_of(case.one_device, jnp), argnums=argnums))(*arrays)
        for mine, theirs in zip(step(*args), wanted, strict=True):
            close(host(mine), theirs, "gradient")
        assert sent_by_compiled(compiled_text(step, *args)) == sent_by_ledger(sh.ledger(step, *args))
