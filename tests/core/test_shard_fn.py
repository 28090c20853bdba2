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
from shtypes.core.shard_fn import ShardFn, check_transpose, program_of
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

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


def test_whether_a_function_has_a_derivative_is_known_from_the_trace_that_prices_it() -> None:
    traced = []

    def sorted_rows(x: Any) -> Any:
        traced.append(x.shape)
        return jnp.sort(x)

    fn, operands = NamedFn("sorted_rows", sorted_rows), (ShType.parse("f32[4@x, 8]", Mesh({"x": 2})),)
    check_transpose(fn, operands, fn, operands)
    assert program_of(fn, operands, shards=True) is not None
    assert traced == [(2, 8)]
