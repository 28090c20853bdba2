"""What programs along sharded dims hold on each device: shares of constants, updates and moved elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as jsl

import shtypes as sh
from tests.end_to_end import host
from tests.lifting.windows import gradients
from tests.tolerance import SERIES, assert_close
from tests.traced.compiled import assert_compiled_as_said

RNG = np.random.default_rng(0)


def f32(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


class Held(NamedTuple):
    """A function, its arguments and their types; the bytes that a device sends, and those that it holds meanwhile."""

    f: Callable[..., Any]
    args: Sequence[Any]
    types: Sequence[str]
    sent: int
    held: int


#: Bytes of a shard of `TABLE`, and of a row.
TABLE, SHARD, ROW = f32(512, 16), 64 * 16 * 4, 16 * 4
IDS = RNG.integers(0, 512, 24).astype(np.int32)
SQUARE, VECTOR = f32(256, 256), f32(256)
LOGITS, TOKENS = f32(2, 128, 64), RNG.integers(0, 64, (2, 128)).astype(np.int32)
BLOCKS = [f32(64, 64) for _ in range(4)]
ALL: dict[str, Held] = {
    "a loss of the next token": Held(
        lambda x, i: jax.grad(
            lambda x: -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x[:, :-1]), i[:, 1:, None], -1))
        )(x),
        (LOGITS, TOKENS),
        ("[2,128@x,64]", "[2,128@x]"),
        2 * 4,
        LOGITS.nbytes // 8 + 2048,
    ),
    "rows set": Held(gradients(lambda x, i: x.at[i].set(2.0), 1), (TABLE, IDS), ("[512@x,16]", "[24]"), 0, 3 * SHARD),
    "rows set by values": Held(
        lambda x, i, v: jax.grad(lambda x, v: jnp.sum(jnp.sin(x.at[i].set(v))), (0, 1))(x, v),
        (TABLE, IDS, f32(24, 16)),
        ("[512@x,16]", "[24]", "[24,16]"),
        0,
        4 * SHARD,
    ),
    "rows set to one row": Held(
        lambda x, i, v: jax.grad(lambda x, v: jnp.sum(jnp.sin(x.at[i].set(v))), (0, 1))(x, v),
        (TABLE, IDS, f32(16)),
        ("[512@x,16]", "[24]", "[16]"),
        0,
        4 * SHARD,
    ),
    "a diagonal": Held(
        gradients(lambda x: jnp.fill_diagonal(x, 2.0, inplace=False), 1),
        (SQUARE,),
        ("[256@x,256]",),
        0,
        SQUARE.nbytes // 8 + 4 * 256 * 8,
    ),
    "a Toeplitz matrix": Held(
        lambda c: jsl.toeplitz(c, c), (VECTOR,), ("[256@x]",), 7 * VECTOR.nbytes // 8, 3 * SQUARE.nbytes // 8
    ),
    "a block diagonal": Held(
        jsl.block_diag,
        BLOCKS,
        ("[64@x,64]",) * 4,
        5 * BLOCKS[0].nbytes // 8,
        SQUARE.nbytes // 8 + 8 * BLOCKS[0].nbytes // 8,
    ),
    "blocks beside one another": Held(
        lambda *a: jnp.hstack(a), [f32(512), f32(512)], ("[512@x]",) * 2, 2 * 4 * 64, 6 * 4 * 64
    ),
    "the gradient of a roll": Held(
        gradients(lambda x: jnp.roll(x, 3, 0), 1), (TABLE,), ("[512@x,16]",), 2 * 3 * ROW, SHARD + 8 * ROW
    ),
    "two selections of one row": Held(
        lambda x: jnp.partition(x, 8), (f32(512),), ("[512@x]",), 7 * 64 * 4, 32 * 64 * 4
    ),
    "parts of rows": Held(
        lambda x: [y[:, 4 * k : 4 * k + 4] for k, y in enumerate(jnp.split(x, 4))],
        (TABLE,),
        ("[512@x,16]",),
        5 * SHARD // 16,
        SHARD + 8 * ROW,
    ),
    "the gradient of a pad by its edges": Held(
        gradients(lambda x: jnp.pad(x, ((2, 2), (0, 0)), mode="edge")[4:] * x, 1),
        (TABLE,),
        ("[512@x,16]",),
        2 * 7 * 4 * ROW,
        2 * SHARD + 8 * ROW,
    ),
    "a quantile of what is a number": Held(
        lambda x: jnp.nanquantile(x, 0.3, 0), (TABLE,), ("[512@x,16]",), 7 * SHARD // 8, 2 * SHARD + 8 * ROW
    ),
}


@pytest.mark.nightly
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_a_device_holds_a_few_shares(case: Held) -> None:
    lifted = sh.implicit_comm(sh.lift(case.f))
    typed = [sh.array(x, t) for x, t in zip(case.args, case.types, strict=True)]
    compiled: Any = jax.jit(lifted).lower(*typed).compile()
    for a, b in zip(*(jax.tree.leaves(each) for each in (compiled(*typed), jax.jit(case.f)(*case.args))), strict=True):
        assert_close(host(a), b, SERIES)
    assert sh.ledger(lifted, *typed).total.bytes == case.sent
    assert compiled.memory_analysis().temp_size_in_bytes <= case.held
    assert_compiled_as_said(lifted, *typed, jits=[jax.jit])


OVERWRITTEN: dict[str, tuple[Callable[[Any, Any, Any], Any], Any, Any]] = {
    "a row several times": (lambda x, i, v: x.at[i].set(v), np.array([3, 3, 70, 3]), f32(4, 16)),
    "rows beyond the ends": (lambda x, i, v: x.at[i].set(v), np.array([600, 2, 600, -1, 511, 511]), f32(6, 16)),
    "rows at the ends": (
        lambda x, i, v: x.at[i].set(v, mode="clip"),
        np.array([600, 2, 700, 511, -900, 0]),
        f32(6, 16),
    ),
    "one of each row": (lambda x, i, v: x.at[jnp.arange(512), i].set(v), RNG.integers(0, 16, 512), f32(512)),
    "rows of rows": (lambda x, i, v: x.at[i[:, None], jnp.arange(8)].set(v), np.array([3, 3, 70, 3]), f32(4, 8)),
    "a diagonal": (lambda x, i, v: x.at[jnp.arange(16), jnp.arange(16)].set(v), np.array([0]), f32(16)),
    "elements": (lambda x, i, v: x.at[i, i % 16].set(v), np.array([3, 19, 3, 35, 19]), f32(5)),
    "parts of rows": (lambda x, i, v: x.at[i, :7].set(v), np.array([[3, 3], [4, 3]]), f32(2, 2, 7)),
    "an element of each row": (
        lambda x, i, v: jnp.put_along_axis(x, i, v, 1, inplace=False),
        RNG.integers(0, 16, (512, 5)),
        f32(512, 5),
    ),
    "windows that overlap": (
        lambda x, i, v: jax.vmap(lambda j, u: lax.dynamic_update_slice(x, u, (j, 0)))(i, v).sum(0),
        np.array([3, 4]),
        f32(2, 3, 16),
    ),
}


@pytest.mark.one_in(12)
@pytest.mark.mesh({"x": 8})
@pytest.mark.parametrize("t", ["[512@x,16]", "[512,16@x]"])
@pytest.mark.parametrize(("f", "ids", "updates"), OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_the_last_of_several_updates_of_an_element_has_its_gradient(f: Any, ids: Any, updates: Any, t: str) -> None:
    ids = ids.astype(np.int32)
    step = jax.grad(lambda x, v, i: jnp.sum(jnp.sin(f(x, i, v))), (0, 1))
    found = jax.jit(sh.implicit_comm(sh.lift(step)))(sh.array(TABLE, t), updates, ids)
    for a, b in zip(found, jax.jit(step)(TABLE, updates, ids), strict=True):
        assert_close(host(a), b, SERIES)


@pytest.mark.mesh({"x": 8})
def test_updates_of_rows_that_are_sharded_as_their_indices_stay_on_their_devices() -> None:
    def put(x: Any, v: Any, i: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.put_along_axis(x, i, v, 1, inplace=False)))

    args = [sh.abstract_array(t) for t in ("f32[512@x,16]", "f32[512@x,3]", "i32[512@x,3]")]
    assert sh.ledger(sh.implicit_comm(sh.lift(jax.grad(put, (0, 1)))), *args).total.bytes == 0
