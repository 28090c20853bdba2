"""Debug checks: wrong claims are found at run time, however a program runs; off, nothing is checked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

X = np.arange(32, dtype=np.float32).reshape(8, 4)
_calls = itertools.count()


def _from_the_host(_: Any) -> Any:
    """A row that is another one for each device that asks for it, where no function of shards shows that."""
    row = jax.ShapeDtypeStruct((1, 4), np.dtype("float32"))
    return jax.pure_callback(lambda: np.full(row.shape, next(_calls), row.dtype), row)


first_row = sh.local_map(_from_the_host, out="[_,_]", name="first_row")


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    yield
    sh.set_debug_checks(False)


def x() -> Any:
    return sh.array(X, "f32[batch@dp, hidden]")


def wrong(x: Any) -> Any:
    doubled = x * 2
    return first_row(doubled) + 1


def wrong_in_a_loop(x: Any) -> Any:
    return sh.scan(lambda c, _: (c + 1, first_row(c)), x, None, length=3)[1]


def wrong_in_a_branch(x: Any) -> Any:
    return sh.cond(sh.constant(np.bool_(True)), first_row, lambda x: first_row(x) * 2, x)


def wrong_gradient(x: Any) -> Any:
    return sh.grad(lambda x: sh.sum(sh.sin(wrong(x)) * x))(x)  # the gradient reads the wrong value


def right(x: Any) -> Any:
    total = sh.all_reduce(sh.sum(sh.sin(x)))
    return total, sh.random.key(0), sh.arange(4) > 2, sh.full("f32[3]", np.nan) * total


MESSAGE = """\
`first_row` made a value that is not the same along mesh axis `dp`
  where: HERE: first_row -> f32[1,4]
  why:   its type says that each device along `dp` has the same value; elements differ by up to N
  try:   a result that differs from device to device is sharded, unreduced or varying: claim that
  try:   a function of shards whose result is made whole by a collective belongs in sh.shard_map"""


@pytest.mark.core
@pytest.mark.parametrize("run", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
def test_a_wrong_claim_is_an_error_that_names_the_function_and_its_line(run: Callable[..., Any]) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught, sh.debug_checks():
        jax.block_until_ready(run(wrong)(x()))
    message = re.sub(r"test_checks.py:\d+ in wrong", "HERE", str(caught.value))
    assert re.sub(r"by up to \d+", "by up to N", message) == MESSAGE


@pytest.mark.one_in(13)
@pytest.mark.parametrize("program", [wrong_in_a_loop, wrong_in_a_branch, wrong_gradient])
@pytest.mark.parametrize("run", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
def test_a_wrong_claim_is_found_in_loops_branches_and_backward_passes(
    program: Callable[..., Any], run: Callable[..., Any]
) -> None:
    with pytest.raises(sh.ShardingTypeError, match="not the same along mesh axis `dp`"), sh.debug_checks():
        jax.block_until_ready(run(program)(x()))


@pytest.mark.parametrize("run", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
def test_right_programs_pass_whatever_their_dtypes_and_nans(run: Callable[..., Any]) -> None:
    with sh.debug_checks():
        total, *_ = run(right)(x())
    assert_close(host(total), np.sin(X).sum())


def test_a_call_of_an_sh_jit_function_raises_itself_and_its_program_stays_usable() -> None:
    step = sh.jit(wrong)
    with sh.debug_checks():
        with pytest.raises(sh.ShardingTypeError, match="first_row"):
            step(x())
        with pytest.raises(sh.ShardingTypeError, match="first_row"):
            step(x())
        with sh.debug_checks(False):
            step(x())
    step(x())


def test_no_program_is_reused_with_the_checks_of_another() -> None:
    steps = sh.jit(wrong), jax.jit(wrong), wrong
    for step in steps:
        for _ in range(2):
            jax.block_until_ready(step(x()))
            with pytest.raises(sh.ShardingTypeError), sh.debug_checks():
                step(x())


def test_nothing_is_added_to_a_program_when_they_are_off() -> None:
    def text() -> str:
        return str(sh.jit(right).lower(x()).as_text())

    before = text()
    with sh.debug_checks():
        inside = text()
    assert text() == before
    assert "callback" in inside
    assert "callback" not in before


def test_they_can_be_set_for_all_code_and_outlive_a_change_of_the_policy() -> None:
    sh.set_debug_checks(True)
    sh.set_policy("jax")
    with pytest.raises(sh.ShardingTypeError, match="first_row"):
        wrong(x())
    sh.set_debug_checks(False)
    wrong(x())


def test_a_failure_is_not_left_for_other_code_when_a_scope_ends_by_another_error() -> None:
    def failing() -> None:
        jax.block_until_ready(jax.jit(wrong)(x()))
        jax.effects_barrier()
        raise KeyError("mine")

    with pytest.raises(KeyError), sh.debug_checks():
        failing()
    with sh.debug_checks():
        right(x())


def test_the_axis_that_differs_is_the_one_named() -> None:
    value = sh.from_jax(unequal(along_dp=0))
    for run in (sh.sum, sh.jit(sh.sum)):
        with pytest.raises(sh.ShardingTypeError, match="along mesh axis `tp`"), sh.debug_checks():
            jax.block_until_ready(run(value))


def unequal(along_dp: int = 2) -> Any:
    """A JAX array that says that its copies are equal, and they are not."""
    whole = np.asarray(jax.make_mesh((2, 2), ("dp", "tp")).devices)
    where = jax.sharding.NamedSharding(jax.sharding.Mesh(whole, ("dp", "tp")), jax.P())
    values = [i * along_dp + j for i in range(2) for j in range(2)]
    parts = [jax.device_put(np.full(4, n, np.float32), d) for n, d in zip(values, whole.ravel(), strict=True)]
    return jax.make_array_from_single_device_arrays((4,), where, parts)


def test_what_comes_from_jax_is_compared() -> None:
    with pytest.raises(sh.ShardingTypeError, match="`from_jax` was given a value") as caught, sh.debug_checks():
        sh.from_jax(unequal())
    assert "test_checks.py" in caught.value.where


@pytest.mark.parametrize("run", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
@pytest.mark.parametrize(
    "use",
    [
        sh.sum,
        lambda w: sh.reshard(w, "[4@dp]"),
        lambda w: w * sh.ones("f32[8@(dp,tp), 4]"),  # the result has no copies to compare
    ],
    ids=["sum", "slice", "product"],
)
def test_copies_that_were_wrong_before_are_found_where_they_are_used(use: Any, run: Callable[..., Any]) -> None:
    weights = sh.from_jax(unequal())
    with pytest.raises(sh.ShardingTypeError, match="was given a value that is not the same"), sh.debug_checks():
        jax.block_until_ready(run(use)(weights))


@pytest.mark.parametrize("run", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
def test_values_without_elements_have_no_copies_to_compare(run: Callable[..., Any]) -> None:
    with sh.debug_checks():
        run(sh.local_map(lambda x: x[:0], out="[_,_]", name="none"))(x())


# terms of pending sums


def infinite_slope(w: Any) -> Any:
    return sh.grad(lambda w: sh.sum(sh.sqrt(w)))(w)


RUNS = [lambda f: f, jax.jit, sh.jit, lambda f: sh.jit(f, region="off")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("run", RUNS, ids=["eager", "jax.jit", "sh.jit", "op by op"])
def test_zero_terms_that_meet_an_infinite_factor_are_an_error_that_names_the_line(run: Any) -> None:
    w = sh.array(np.array([0.0, 1.0], np.float32), "f32[2]")
    assert np.isnan(host(sh.all_reduce(infinite_slope(w)))[0])
    with pytest.raises(sh.ShardingTypeError, match=r"`jvp\(sqrt\)` made terms of a sum nan.*`dp`, `tp`") as caught:  # noqa: SIM117
        with sh.debug_checks():
            run(infinite_slope)(w)
    assert "test_checks.py:" in caught.value.where


@pytest.mark.one_in(5)
@pytest.mark.parametrize("run", RUNS, ids=["eager", "jax.jit", "sh.jit", "op by op"])
def test_what_is_nan_on_one_device_too_is_no_error(run: Any) -> None:
    def of_nan(w: Any, p: Any) -> Any:
        return (
            sh.grad(lambda w: sh.sum(sh.sqrt(w)))(w),
            p * sh.constant(np.float32(2)),
            p * sh.constant(np.float32(np.nan)),
        )

    nan = np.array([np.nan, 1.0], np.float32)
    with sh.debug_checks():
        run(of_nan)(sh.array(nan, "f32[2]"), sh.reshard(sh.array(nan, "f32[2]"), dp="U"))


def test_an_invariant_value_has_the_gradient_of_one_device() -> None:
    w = sh.array(np.array([0.0, 1.0], np.float32), "f32[2]{I:(dp,tp)}")
    with sh.debug_checks():
        assert np.isposinf(host(infinite_slope(w))[0])
