"""The Pallas kernel in local mode: the types that it has there, and the values of ordinary attention."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import shtypes as sh
from examples import pallas_attention as model
from tests.end_to_end import host
from tests.tolerance import assert_close


def test_the_kernel_runs_in_local_mode() -> None:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    rng = np.random.default_rng(0)
    operands = [sh.array(rng.uniform(-1, 1, (2, 4, 8, 4)).astype(np.float32), model.QKV) for _ in "qkv"]
    y = jax.block_until_ready(sh.jit(model.attention_in_local_mode, region="require")(*operands))
    assert str(y.type) == "f32[batch@dp, heads@tp, seq, features]"
    assert_close(host(y), host(model.reference(*operands)))


@pytest.mark.nightly
def test_the_kernel_has_the_gradients_of_attention_in_local_mode() -> None:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    rng = np.random.default_rng(0)
    operands = [sh.array(rng.uniform(-1, 1, (2, 4, 8, 4)).astype(np.float32), model.QKV) for _ in "qkv"]

    def gradients(run: object) -> object:
        f = sh.jit(sh.grad(lambda *qkv: sh.sum(sh.sin(run(*qkv))), argnums=(0, 1, 2)))  # type: ignore[operator]
        return jax.block_until_ready(f(*operands))

    for found, wanted in zip(gradients(model.attention_in_local_mode), gradients(model.reference), strict=True):  # type: ignore[call-overload]
        assert found.type == wanted.type
        assert_close(host(found), host(wanted))
