"""Primitives of third parties: registered rows, and what they run where there is none."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad

import shtypes as sh
from shtypes.context.settings import count_rows
from shtypes.evaluation.table import CHOICES, ROWS, WAYS
from tests.random_checks import denoted
from tests.tolerance import assert_close

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def _cube(name: str) -> Any:
    """A primitive with a derivative of its own, which is not that of what it computes."""
    p = Primitive(name)
    p.def_impl(lambda x: x * x * x)
    p.def_abstract_eval(lambda x: x)
    ad.defjvp(p, lambda t, x: 7 * t * jnp.cos(x))
    return p


@pytest.fixture(autouse=True)
def _on_a_mesh() -> Any:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})):
        tables: list[dict[str, Any]] = [ROWS, CHOICES, WAYS]
        known = [dict(table) for table in tables]
        yield
    for table, before in zip(tables, known, strict=True):
        table.clear()
        table.update(before)
    count_rows()


def test_a_primitive_without_a_row_is_evaluated_through_what_it_runs_and_keeps_its_derivative() -> None:
    cube = _cube("test_cube_run")
    x = sh.array(X, "f32[8@dp, 16@tp]")
    lifted = sh.lift(lambda x: cube.bind(2 * x))
    assert lifted(x).type == x.type
    assert_close(denoted(lifted(x)), (2 * X) ** 3, 100)
    total = lambda x: sh.all_reduce(sh.sum(lifted(x)))  # noqa: E731
    assert_close(denoted(sh.jit(sh.grad(total))(x)), 14 * np.cos(2 * X), 100)


def test_calls_with_typed_arrays_alone_are_one_program_that_is_typed_once() -> None:
    seen = []
    cube = _cube("test_cube_seen")

    @sh.lift.register(cube)
    def _row(x: Any) -> Any:
        seen.append(x)
        return x**3

    lifted, x = sh.lift(lambda x: cube.bind(2 * x)), sh.array(X, "f32[8@dp, 16@tp]")
    for _ in range(3):
        assert_close(denoted(jax.block_until_ready(lifted(x))), (2 * X) ** 3, 100)
    assert len(seen) == 1
    lifted(sh.array(X, "f32[8@dp, 16]"))
    assert len(seen) == 2
    with sh.policy("jax"):
        assert lifted(sh.array(X, "f32[8@dp, 16]")).type == sh.array(X, "f32[8@dp, 16]").type


def test_a_primitive_keeps_the_transpose_that_it_has() -> None:
    """It is another one than that of what it runs, which no other way of deriving it would find."""
    double = Primitive("test_double")
    double.def_impl(lambda x: jnp.where(x > 100, 0, x + x))
    double.def_abstract_eval(lambda x: x)
    ad.deflinear2(double, lambda ct, x: [5 * ct])
    x = sh.array(X, "f32[8@dp, 16@tp]")
    lifted = sh.lift(lambda x: double.bind(jnp.sin(x)))
    assert_close(denoted(lifted(x)), 2 * np.sin(X), 100)
    total = lambda x: sh.all_reduce(sh.sum(lifted(x)))  # noqa: E731
    assert_close(denoted(sh.jit(sh.grad(total))(x)), 5 * np.cos(X), 100)


def test_a_primitive_is_differentiated_by_the_operands_that_have_gradients() -> None:
    """Some refuse to be differentiated by the others, as solvers do by what they have factored."""

    def jvp(primals: Any, tangents: Any) -> Any:
        (a, x), (da, dx) = primals, tangents
        assert isinstance(da, ad.Zero)
        return solve.bind(a, x), solve.bind(a, dx)

    solve = Primitive("test_solve")
    solve.def_impl(lambda a, x: x / a)
    solve.def_abstract_eval(lambda a, x: x)
    ad.primitive_jvps[solve] = jvp
    ad.primitive_transposes[solve] = lambda ct, a, x: [None, solve.bind(a, ct)]
    a, x = sh.array(abs(X) + 1, "f32[8@dp, 16@tp]"), sh.array(X, "f32[8@dp, 16@tp]")
    lifted = sh.lift(lambda a, x: solve.bind(jax.lax.stop_gradient(a), x))
    total = lambda a, x: sh.all_reduce(sh.sum(lifted(a, x)))  # noqa: E731
    found = sh.jit(sh.grad(total, argnums=(0, 1)))(a, x)
    assert_close(denoted(found[0]), np.zeros_like(X), 1)
    assert_close(denoted(found[1]), 1 / (abs(X) + 1), 100)


def test_a_primitive_that_does_not_say_what_it_runs_needs_a_row() -> None:
    double = Primitive("test_double_unsaid")
    double.def_abstract_eval(lambda x: x)
    x = sh.array(X, "f32[8@dp, 16@tp]")
    with pytest.raises(sh.ShardingTypeError, match="no row for the primitive `test_double_unsaid`") as error:
        sh.lift(double.bind)(x)
    assert any("sh.lift.register" in hint for hint in error.value.hints)

    @sh.lift.register(double)
    def _(x: Any) -> Any:
        return 2 * x

    assert_close(denoted(sh.lift(double.bind)(x)), 2 * X, 100)


def test_a_registered_row_is_used_and_gets_the_parameters() -> None:
    scale = Primitive("test_scale")
    scale.def_abstract_eval(lambda x, *, by: x)

    @sh.lift.register("test_scale")
    def _(x: Any, *, by: float) -> Any:
        return x * by

    x = sh.array(X, "f32[8@dp, 16@tp]")
    assert_close(denoted(sh.jit(sh.lift(lambda x: scale.bind(x, by=3.0)))(x)), 3 * X, 100)


@pytest.mark.parametrize("communicates", [False, True])
def test_programs_that_were_typed_before_use_a_row_that_is_registered_later(communicates: bool) -> None:
    scale = Primitive("test_scale_again")
    scale.def_abstract_eval(lambda x: x)
    once = sh.lift(lambda x: jnp.flip(scale.bind(x), 1))
    loops = sh.lift(lambda x: jax.lax.scan(lambda c, _: (scale.bind(c), None), x, None, length=1)[0])
    with sh.implicit_comm() if communicates else contextlib.nullcontext():
        x, compiled = sh.array(X, "f32[8@dp, 16@tp]" if communicates else "f32[8@dp, 16]"), sh.jit(once)
        for by in (2, 3):
            sh.lift.register(scale)(lambda x, by=by: x * by)
            assert_close(denoted((compiled if communicates else once)(x)), by * X[:, ::-1])
        if communicates:
            sh.lift.register("rev")(lambda x, *, dimensions: x)
            assert_close(denoted(compiled(x)), by * X)
    assert_close(denoted(loops(x)), by * X)
    sh.lift.register(scale)(lambda x: x * 5)  # outside of the scope
    assert_close(denoted(loops(x)), 5 * X)


@pytest.mark.parametrize(
    ("row", "gave"),
    [
        (sh.sum, "f32[]{U:(dp,tp)}"),
        (lambda x: x.astype("bf16"), "bf16[8@dp,16@tp]"),
        (lambda x: (x, x), "f32[8@dp,16@tp], f32[8@dp,16@tp]"),
        (lambda x: None, "NoneType"),
        (lambda x: 2.0, "~float32[]"),
    ],
    ids=["shape", "dtype", "count", "nothing", "a number"],
)
def test_a_row_that_gives_what_the_primitive_does_not_is_at_fault(row: Any, gave: str) -> None:
    scale = Primitive("test_scale")
    scale.def_abstract_eval(lambda x: x)
    sh.lift.register(scale)(row)
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.lift(scale.bind)(sh.array(X, "f32[8@dp, 16@tp]"))
    assert caught.value.what == f"the row of `test_scale` gave {gave}, and the primitive gives float32[8,16]"


def test_what_is_no_primitive_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"`lift\.register` takes a primitive"):
        sh.lift.register(jax)


def test_lift_is_a_function_with_a_signature_and_a_text() -> None:
    lift: Any = sh.lift
    assert inspect.isfunction(lift)
    assert list(inspect.signature(lift).parameters) == ["f", "at", "pending"]
    assert "name scopes" in (inspect.getdoc(lift) or "")


def test_a_row_in_the_place_of_one_of_jax_is_asked_along_sharded_dims_too() -> None:
    @sh.lift.register("cumsum")
    def _row(x: Any, *, axis: int, reverse: bool) -> Any:
        return sh.flip(sh.flip(x, axis) + x, axis)  # which sends more than a running sum would

    lifted, x = sh.lift(lambda x: jax.lax.cumsum(x, 1)), sh.array(X, "f32[8@dp, 16@tp]")
    with sh.implicit_comm():
        assert_close(denoted(lifted(x)), X + X[:, ::-1], 2)


def test_a_row_in_the_place_of_one_that_moves_elements_is_asked_too() -> None:
    @sh.lift.register("rev")
    def _row(x: Any, *, dimensions: tuple[int, ...]) -> Any:
        gathered = sh.cumsum(sh.reshard(x, "[8@dp, 16]"), dimensions[0])
        return sh.reshard(gathered, x.type)  # which sends more than a flip would

    lifted, x = sh.lift(lambda x: jnp.flip(x, 1)), sh.array(X, "f32[8@dp, 16@tp]")
    with sh.implicit_comm():
        assert_close(denoted(lifted(x)), np.cumsum(X, 1), 32)
