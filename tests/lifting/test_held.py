"""What programs along sharded dims hold on each device: shares of constants, updates and moved elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import linalg as jsl

import shtypes as sh
from tests.end_to_end import host
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


#: A table, and the bytes of a shard of it.
TABLE, SHARD = f32(512, 16), 64 * 16 * 4
BLOCKS = [f32(64, 64) for _ in range(4)]
ALL: dict[str, Held] = {
    "a block diagonal": Held(
        jsl.block_diag,
        BLOCKS,
        ("[64@x,64]",) * 4,
        5 * BLOCKS[0].nbytes // 8,
        256 * 256 * 4 // 8 + 8 * BLOCKS[0].nbytes // 8,
    ),
    "blocks beside one another": Held(
        lambda *a: jnp.hstack(a), [f32(512), f32(512)], ("[512@x]",) * 2, 2 * 4 * 64, 6 * 4 * 64
    ),
    "parts of rows": Held(
        lambda x: [y[:, 4 * k : 4 * k + 4] for k, y in enumerate(jnp.split(x, 4))],
        (TABLE,),
        ("[512@x,16]",),
        5 * SHARD // 16,
        4 * SHARD,
    ),
}


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
