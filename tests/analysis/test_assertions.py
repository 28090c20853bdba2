"""`assert_comm` passes what was expected and shows the difference where it was not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh

FORWARD = {("all-reduce", "tp"): 1}


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    with sh.use_mesh(sh.abstract_mesh({"dp": 2, "tp": 4})):
        yield


def types() -> list[Any]:
    return [sh.ShType.parse(t) for t in ("f32[8@dp,8]", "f32[8,16@tp]", "f32[16@tp,8]")]


def block(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.all_reduce(sh.silu(x @ w_in) @ w_out, "tp", to="R")


def twice(x: Any, *ws: Any) -> Any:
    return sh.scan(lambda c, _: (block(c, *ws), None), x, None, 2)[0]


@pytest.mark.parametrize(
    "expected",
    [
        {"forward": FORWARD},
        {"forward": {"all-reduce": 1}},
        {"forward": {("all-reduce", ("tp",)): 1}, "backward": {}},
        {"forward": FORWARD, "backward": FORWARD, "grad": True},
        {"bytes": 192},
        {"bytes": 384, "grad": True},
        {},
    ],
    ids=["kind and axis", "kind", "axes as a tuple", "with gradient", "bytes", "bytes of both", "nothing asked"],
)
def test_an_expectation_that_holds_returns_the_ledger(expected: Any) -> None:
    assert len(sh.assert_comm(block, *types(), **expected)) == (2 if expected.get("grad") else 1)


def test_loops_are_counted() -> None:
    sh.assert_comm(twice, *types(), forward={"all-reduce": 2}, backward={("all-reduce", "tp"): 2}, grad=True)


def test_a_gradient_function_needs_no_more() -> None:
    step = sh.grad(lambda *args: sh.sum(sh.sin(block(*args))))
    sh.assert_comm(step, *types(), forward=FORWARD, backward=FORWARD)


def test_the_difference_names_counts_and_lines() -> None:
    line = block.__code__.co_firstlineno + 1
    with pytest.raises(AssertionError) as caught:
        sh.assert_comm(twice, *types(), forward={("all-reduce", "tp"): 1, "all-gather": 3}, bytes=10)
    assert str(caught.value) == (
        "the communication of `twice` is not what was expected\n"
        "forward: all-reduce over tp: expected 1, found 2\n"
        f"    test_assertions.py:{line} in block: all-reduce over tp 2 times, 192 B/device: "
        "f32[8@dp,8]{U:tp} -> f32[8@dp,8]\n"
        "forward: all-gather: expected 3, found 0\n"
        "bytes: expected at most 10 B/device, found 384"
    )


def test_what_was_not_expected_is_a_difference() -> None:
    with pytest.raises(AssertionError, match=r"backward: all-reduce over tp: expected 0, found 1"):
        sh.assert_comm(block, *types(), forward=FORWARD, backward={}, grad=True)


def test_a_loop_of_unknown_length_meets_no_count() -> None:
    def f(x: Any) -> Any:
        return sh.while_loop(lambda s: sh.all_reduce(sh.sum(s)) > 1, lambda s: s * 0.5, x)

    with pytest.raises(AssertionError, match="expected 1, found 1 or more"):
        sh.assert_comm(f, types()[0], forward={"all-reduce": 1})


def test_what_the_ledger_cannot_see_is_a_difference() -> None:
    with pytest.raises(AssertionError, match=r"not covered: .*sin"):
        sh.assert_comm(lambda x: jnp.sin(x.to_jax()), types()[0], forward={})


def test_plain_and_integer_results_are_left_out_of_the_backward_pass() -> None:
    def f(x: Any, n: Any) -> Any:
        return {"sum": sh.all_reduce(sh.sum(x, 0), to="R"), "plain": jnp.sin(n * 1.0), "count": n}

    sh.assert_comm(f, types()[0], np.int32(3), forward={"all-reduce": 1}, backward={"all-reduce": 1}, grad=True)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="there is no collective 'psum'"):
        sh.assert_comm(block, *types(), forward={"psum": 1})


def test_the_returned_ledger_answers_more() -> None:
    found = sh.assert_comm(jax.jit(twice), *types())
    assert found.by_axes()["tp",].launches == 2
