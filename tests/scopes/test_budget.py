"""A budget bounds the sum of all that runs in its scope, forward and backward, loops counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax import lax

import shtypes as sh
from tests.traced.random_programs import AXES

PENDING = "f32[8]{U:tp}"  # all-reduced: 2 * 3/4 * 32 B = 48 B


pytestmark = pytest.mark.mesh(AXES)


def reduced(x: Any) -> Any:
    return sh.all_reduce(x, to="I")  # silent backward


def both(x: Any) -> Any:
    return sh.all_reduce(x, to="R")  # an all-reduce backward too


def again(x: Any) -> Any:
    return sh.reshard(sh.sin(reduced(x)), tp="U")


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, _: (again(c), None), x, None, length=5)[0]


def looped(x: Any) -> Any:
    return sh.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, again(s[1])), (0, x))[1]


jitted = jax.jit(reduced)


def cast_backward(a: Any, b: Any) -> Any:
    """Two casts that are summed backward; the one of ``a`` is used twice, and made once."""
    w = sh.ones("f32[8@tp]")
    return a * w + a * w + b * w


def remat(checkpoint: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = checkpoint(lambda x: sh.sin(f(x)))
    return found


X = (PENDING,)
INVARIANT = ("f32[8]{I:tp}",) * 2
#: Program, types, a budget that it just meets, and one that it exceeds by one, with what it comes to.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...], dict[str, Any], dict[str, Any], str]] = {
    "two": (lambda x: reduced(x) + reduced(x * 2), X, {"bytes": 96}, {"bytes": 95}, "96"),
    "loop": (scanned, X, {"bytes": 240, "launches": 5}, {"bytes": 239}, "240"),
    "sh.scan": (
        lambda x: sh.scan(lambda c, _: (again(c), None), x, None, 5)[0],
        X,
        {"launches": 5},
        {"launches": 4},
        "5",
    ),
    "loops": (
        lambda x: sh.fori_loop(0, 3, lambda _, c: scanned(c), x),
        X,
        {"bytes": 720, "launches": 15},
        {"launches": 14},
        "15",
    ),
    "a jitted function": (
        lambda x: jitted(x) + jitted(x * 2) + jitted(x * 3),
        X,
        {"bytes": 144},
        {"bytes": 143},
        "144",
    ),
    "the backward pass": (lambda x: both(x) * reduced(x * 2) * both(x * 3), X, {"launches": 3}, {"launches": 2}, "3"),
    "casts": (cast_backward, INVARIANT, {"launches": 2}, {"launches": 1}, "2"),
    "a gradient inside": (
        sh.grad(lambda x: sh.sum(sh.sin(both(x)))),
        X,
        {"launches": 1},
        {"launches": 0},
        "1",
    ),
    "checkpoint": (remat(sh.checkpoint, both), X, {"launches": 2}, {"launches": 1}, "2"),
    "JAX's checkpoint": (remat(jax.checkpoint, both), X, {"launches": 2}, {"launches": 1}, "2"),
    "branches": (lambda x: sh.cond(True, again, again, x), X, {"launches": 1}, {"launches": 0}, "1"),
    "vmap": (sh.vmap(reduced), ("f32[3,8]{U:tp}",), {"launches": 1, "bytes": 144}, {"bytes": 143}, "144"),
}


def inside(scope: Any, f: Callable[..., Any], *args: Any) -> None:
    jax.eval_shape(scope(f), *args)


def around(scope: Any, f: Callable[..., Any], *args: Any) -> None:
    with scope:
        jax.eval_shape(f, *args)


def jitted_inside(scope: Any, f: Callable[..., Any], *args: Any) -> None:
    sh.jit(scope(f)).trace(*args)


@pytest.mark.parametrize("run", [inside, around, jitted_inside], ids=["inside", "around", "sh.jit"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_budget_bounds_the_sum(name: str, run: Callable[..., None]) -> None:
    f, types, enough, less, comes_to = PROGRAMS[name]
    args = [sh.abstract_array(t) for t in types]
    if name == "vmap" and run is around:
        pytest.skip("a scope around sees one of the mapped values")
    run(sh.comm_budget(**enough), f, *args)
    with pytest.raises(sh.ShardingTypeError, match=f"`comm_budget` allows .* {comes_to}\\b") as caught:
        run(sh.comm_budget(**less), f, *args)
    assert "test_budget.py" in caught.value.where


@pytest.mark.parametrize("run", [inside, around], ids=["inside", "around"])
def test_how_often_a_while_loop_runs_nobody_knows(run: Callable[..., None]) -> None:
    x = sh.abstract_array(PENDING)
    run(sh.comm_budget(kinds="all-reduce"), looped, x)
    with pytest.raises(sh.ShardingTypeError, match="is in a loop of unknown length"):
        run(sh.comm_budget(bytes=1 << 30), looped, x)


def test_a_budget_is_of_one_call_and_eager_calls_count() -> None:
    x = sh.reshard(sh.ones("f32[8]"), tp="U")

    @sh.comm_budget(launches=2)
    def f(n: int) -> None:
        for _ in range(n):
            reduced(x).block_until_ready()

    for _ in range(3):
        f(2)
    with pytest.raises(sh.ShardingTypeError, match=r"allows 2 collectives in the forward pass, and .* makes it 3"):
        f(3)


def test_each_call_of_a_compiled_function_counts() -> None:
    x = sh.reshard(sh.ones("f32[8]"), tp="U")
    f = sh.jit(reduced)
    f(x).block_until_ready()
    with sh.comm_budget(launches=2):
        for _ in range(2):
            f(x).block_until_ready()
        with pytest.raises(sh.ShardingTypeError, match=r"allows 2 collectives in the forward pass.* comes to 3"):
            f(x)


def test_the_message_says_what_makes_it_too_much_and_how_often_that_runs() -> None:
    def f(x: Any) -> Any:
        return lax.scan(lambda c, _: (again(c), None), x, None, length=5)[0]

    with pytest.raises(sh.ShardingTypeError) as caught:
        inside(sh.comm_budget(bytes=200), f, sh.abstract_array(PENDING))
    assert str(caught.value).replace(f"test_budget.py:{reduced.__code__.co_firstlineno + 1}", "HERE") == (
        "`comm_budget` allows 200 B/device in the forward pass, and all-reduce over `tp` makes it 240: "
        "`all_reduce` takes f32[8]{U:tp} to f32[8]{I:tp}\n"
        "  where: HERE in reduced: all_reduce(f32[8]{U:tp})\n"
        "  why:   each device would send 48 B, 5 times\n"
        '  try:   sh.all_reduce(x, to="I") before the scope'
    )
