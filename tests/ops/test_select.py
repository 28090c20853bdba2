"""`where` and `select` against JAX on one device, over random types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host
from tests.tolerance import assert_close

rng = np.random.default_rng(0)
A, B, ROW = (rng.normal(size=s).astype(np.float32) for s in ((4, 8), (4, 8), (8,)))
P = A > 0


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_choices_have_the_types_that_the_law_gives(policy: Any) -> None:
    mesh = sh.make_mesh({"x": 2})

    def two(m: Any, p: Any, a: Any, b: Any) -> Any:
        return m.where(p, a, b)

    def beside(m: Any, p: Any, a: Any) -> Any:
        return m.where(p, a, 2.5)

    with sh.policy(policy):
        check(
            mesh,
            [
                Case(two, (P, A, B), ("[4,8]", "[4,8]{U:x}", "[4,8]{R:x}"), out="[4,8]{U:x}"),
                Case(two, (P, A, B), ("[4,8]", "[4,8]{R:x}", "[4,8]{U:x}"), out="[4,8]{U:x}"),
                Case(two, (P, A, B), ("[4@x,8]", "[4,8]{R:x}", "[4,8]{I:x}"), out="[4@x,8]"),
                Case(beside, (P, A), ("[4,8]", "[4,8]{U:x}"), out="[4,8]{U:x}"),
                Case(lambda m, p: m.where(p, 1.5, 2.0), (P,), ("[4@x,8]",), out="[4@x,8]"),
                Case(two, (P, A, B), (None, "[4@x,8]", "[4@x,8]"), out="[4@x,8]"),
                Case(two, (P, A, B), (None, "[4,8]{U:x}", None), out="[4,8]{U:x}"),
            ],
        )


def test_a_number_beside_an_unreduced_branch_counts_once() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        chosen = sh.where(P, sh.array(A, "[4,8]{U:x}"), 1.0)
        assert_close(host(chosen), np.where(P, A, 1.0))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (sh.where, "`where` does not take `x=f32[4,8]{U:x}`"),
        (lambda p, a: sh.where(p, a, 1.0), "`select_n` cannot combine sharded with unreduced on mesh axis `x`"),
        (
            lambda p, a: sh.where(a, 1.0, 0.0),
            "`where` is nonlinear in the operand, which is unreduced on mesh axis `x`",
        ),
        (lambda p, a: sh.select([p], [a, a]), "`select` does not take these arguments"),
    ],
    ids=["one branch", "sharded predicate", "unreduced predicate", "too few conditions"],
)
def test_a_choice_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        p, a = sh.array(P, "[4@x,8]"), sh.array(A, "[4,8]{U:x}")
        with pytest.raises(sh.ShardingTypeError) as info:
            call(p, a)
    assert info.value.what == what
    assert "test_select.py" in info.value.where


def test_a_choice_maps_and_transposes_readably() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        p, a = sh.array(P, "[4,8@x]"), sh.array(A, "[4,8@x]")
        mapped = sh.vmap(lambda q, b: sh.where(q, b, 0.0))(p, a)
        np.testing.assert_array_equal(host(mapped), np.where(P, A, 0))
        text = str(
            jax.make_jaxpr(jax.grad(lambda b: sh.sum(sh.where(p, b, 0.0), 1).reshard("[4]{I:x}").to_jax()[0]))(a)
        )
    assert text.count("transpose(where") == 1
    assert "jvp(" not in text


def test_the_gradient_of_a_choice_needs_the_condition_alone() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        p, a, b = sh.array(P, "[4,8@x]"), sh.array(A, "[4,8@x]"), sh.array(B, "[4,8@x]")

        def loss(a: Any, b: Any) -> Any:
            return sh.all_reduce(sh.sum(sh.where(p, a, b) + sh.where(p, 1.5, a)), to="I").to_jax()

        text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(a, b))
        tangent = jax.jvp(lambda v: v + np.arange(8), (a,), (a,))[1]
        np.testing.assert_array_equal(host(tangent), A)
    assert "jvp(" not in text
    assert re.findall(r"transpose\(where\S*\) (\w+) \w+\n", text) == ["a", "a"]
