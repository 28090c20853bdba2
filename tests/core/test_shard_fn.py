"""Local functions are shared by equality, so equal ones must do the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.elementwise_fns import AddNumber, DivideBy, Full, NamedFn, Scale
from shtypes.core.shard_fn import ShardFn

MAKERS: list[Callable[[Any], ShardFn]] = [
    Scale,
    DivideBy,
    AddNumber,
    lambda n: Full(n, (2,), "f32"),
    lambda n: NamedFn("power", jnp.power, numbers=(None, n)),
    lambda n: NamedFn("leaky_relu", jnp.abs, (("negative_slope", n),)),
]


@pytest.mark.parametrize("make", MAKERS, ids=["scale", "divide", "add", "full", "with_numbers", "params"])
def test_numbers_that_compare_equal_but_act_differently_are_told_apart(make: Callable[[Any], ShardFn]) -> None:
    for a, b in ((1, 1.0), (0.0, -0.0), (True, 1)):
        assert make(a) != make(b)
        assert make(a) == make(a)
        assert hash(make(a)) == hash(make(a))
    assert make(float("nan")) == make(math.nan)  # or each call would be compiled anew


def test_eager_results_do_not_depend_on_earlier_numbers() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        ones = sh.array(np.ones(4, np.float32), "f32[4@x]")
        whole = sh.array(np.ones(4, np.int32), "i32[4@x]")
        assert not np.signbit(np.asarray(ones * 0.0)).any()
        assert np.signbit(np.asarray(ones * -0.0)).all()
        assert [(whole * n).type.dtype_name for n in (-1, -1.0, 2, 2.0)] == ["i32", "f32", "i32", "f32"]
        assert [(whole + n).type.dtype_name for n in (1, 1.0)] == ["i32", "f32"]
