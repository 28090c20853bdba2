"""Local functions are shared by equality, so equal ones must do the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.dim_fns import Broadcast, Composite, ShardStep, Spread, Sum, ZerosLike
from shtypes.core.elementwise_fns import (
    Add,
    AddNumber,
    Cast,
    Divide,
    DivideBy,
    Full,
    Identity,
    Mul,
    NamedFn,
    Permute,
    Scale,
)
from shtypes.core.shard_fn import DIFFERENTIABLE, ShardFn, check_transpose, program_of
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


#: Functions that say themselves that JAX has their derivatives, and their numbers of operands.
DIFFERENTIABLES: list[tuple[ShardFn, int]] = [
    *((fn, 2) for fn in (Add(), Add(minus=True), Mul(), Divide())),
    *((fn, 1) for fn in (Identity(), Scale(2), DivideBy(2.0), AddNumber(2), Cast("c64"), Permute((1, 0)), Sum((0,)))),
    *((fn, 1) for fn in (Sum((1,), keepdims=True, count=8), Spread((4, 2, 3), (2,)), Broadcast((4, 2, 3), (0, 1)))),
    *(
        (fn, 1)
        for fn in (ZerosLike(), Composite("two", (ShardStep(Scale(2), (0,)), ShardStep(Add(), (0, 1))), (2,), (True,)))
    ),
    (Full(1.0, (4, 2), "f32"), 0),
]


@pytest.mark.parametrize("dtype", ["f32", "c64"])
@pytest.mark.parametrize(("fn", "arity"), DIFFERENTIABLES, ids=str)
def test_a_function_that_says_so_has_the_derivatives_that_a_trace_would_find(
    fn: ShardFn, arity: int, dtype: str
) -> None:
    assert fn.is_differentiable
    operands = (ShType.parse(f"{dtype}[4, 2]", Mesh({"x": 2})),) * arity
    program = program_of(fn, operands, shards=True)
    assert {eqn.primitive.name for eqn in program.eqns if eqn.primitive.name not in ("jit", "pjit")} <= DIFFERENTIABLE
    values = [jnp.ones(t.shape, t.dtype) for t in operands]
    out, pullback = jax.vjp(fn, *values)
    assert len(pullback(out)) == arity


def test_a_sequence_has_the_derivatives_that_each_of_its_steps_has() -> None:
    steps = ShardStep(Scale(2), (0,)), ShardStep(NamedFn("sort", jnp.sort), (1,))
    assert not Composite("both", steps, (2,), (True,)).is_differentiable
