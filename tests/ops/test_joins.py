"""Joins and splits against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh

pytestmark = pytest.mark.one_in(4)

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def test_gradients_of_joins_and_splits_print_as_what_they_are() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a, b = sh.array(arr(4, 4), "[4@x,4]"), sh.array(arr(4, 2), "[4@x,2]")

        def loss(a: Any, b: Any) -> Any:
            joined = sh.concatenate([a, b], 1)
            return sh.all_reduce(sh.sum(joined * joined), to="I").to_jax()

        text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(a, b))
    assert "transpose(concatenate)" in text
    assert "jvp(" not in text


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda a: sh.concatenate([a, a]), "`concatenate` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.concatenate([]), "`concatenate` does not take these arguments"),
        (lambda a: sh.concatenate([sh.sum(a)]), "`concatenate` does not take these arguments"),
        (lambda a: sh.split(a, 2), "`split` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.split(a, 3, 1), "`split` does not take these arguments"),
        (sh.unstack, "`unstack` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.unstack(sh.sum(a)), "`unstack` does not take these arguments"),
    ],
)
def test_a_join_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4), "[4@x,4]"))
    assert info.value.what == what
    assert "test_joins.py" in info.value.where


def test_a_join_along_a_sharded_dim_offers_priced_fixes() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a = sh.array(arr(4, 4), "[4@x,4]")
        with pytest.raises(sh.ShardingTypeError) as info:
            sh.concatenate([a, a])
    assert 'sh.reshard(lhs, "[4,4@x]"); sh.reshard(rhs, "[4,4@x]")' in [f.code for f in info.value.fixes]
