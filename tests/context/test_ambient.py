"""What is traced first never decides what is accepted later: all state around the code is in the key of traces."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh

JITS: dict[str, Callable[..., Any]] = {"jax.jit": jax.jit, "sh.jit": sh.jit}


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


class Kind(NamedTuple):
    """A kind of state: two scopes, and a function of typed values whose outcome differs between them."""

    scopes: tuple[Callable[[], Any], Callable[[], Any]]
    f: Callable[..., Any]
    arguments: tuple[str, ...]


def nothing() -> Any:
    return contextlib.nullcontext()


def pending_sine(p: Any) -> Any:
    return sh.sin(p)


def reduced(p: Any) -> Any:
    return sh.all_reduce(p, "x", to="R")


def gradient_of_step(w: Any, x: Any) -> Any:
    return sh.all_reduce(jax.vjp(lambda w: w * x, w)[1](sh.ones_like(w * x))[0], "x")


def cast_of(w: Any, x: Any) -> Any:
    return w * x


PENDING, WHOLE = "f32[4]{U:x}", "f32[4]"
KINDS: dict[str, Kind] = {
    "policy": Kind(
        (lambda: sh.policy("jax"), lambda: sh.policy("partial")), lambda x: x + sh.zeros("f32[4]"), (WHOLE,)
    ),
    "dims": Kind((lambda: sh.dims(n=4), lambda: sh.dims(n=8)), lambda x: sh.zeros("f32[n]"), (WHOLE,)),
    "no_comm": Kind((nothing, sh.no_comm), reduced, (PENDING,)),
    "no_comm forward": Kind((nothing, lambda: sh.no_comm("forward")), reduced, (PENDING,)),
    "no_comm backward": Kind((nothing, lambda: sh.no_comm("backward")), cast_of, ("f32[4]{I:(x,y)}", "f32[4@x]")),
    "one no_comm or another": Kind(
        (lambda: sh.no_comm("backward"), sh.no_comm), lambda p: sh.all_reduce(p, to="I"), (PENDING,)
    ),
    "comm_budget": Kind((lambda: sh.comm_budget(launches=1), lambda: sh.comm_budget(launches=0)), reduced, (PENDING,)),
    "kinds of a budget": Kind((nothing, lambda: sh.comm_budget(kinds="all-gather")), reduced, (PENDING,)),
    "implicit_comm": Kind((nothing, sh.implicit_comm), pending_sine, (PENDING,)),
    "implicit_comm in no_comm": Kind((sh.implicit_comm, sh.no_comm), pending_sine, (PENDING,)),
    "mesh": Kind((nothing, lambda: sh.use_mesh(sh.make_mesh({"x": 3}))), lambda: sh.ones("f32[8@x]"), ()),
}


def outcome(run: Callable[[], Any]) -> str:
    try:
        found = run()
    except sh.ShardingTypeError as error:
        return error.what
    t = sh.typeof(found) if isinstance(found, sh.Array) else found
    return f"{t} of shape {t.shape}"


def around(kind: Kind) -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """What the function may be in, jitted or not."""
    inside: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        "": lambda f: f,
        "scan": lambda f: lambda *args: sh.scan(lambda c, _: (c, f(*args)), 0, None, 2)[1],
        "cond": lambda f: lambda *args: sh.cond(True, f, f, *args),
        "checkpoint": sh.checkpoint,
        "custom_vjp": _with_rule,
    }
    if kind.arguments:
        inside["vmap"] = lambda f: sh.vmap(f, None, axis_size=2)
        inside["shard_map"] = lambda f: sh.shard_map(f, out_specs="[...]", axis_names="y")
    return inside


def _with_rule(f: Callable[..., Any]) -> Callable[..., Any]:
    found = sh.custom_vjp(f)
    found.defvjp(lambda *args: (f(*args), None), lambda _, ct: (None,))
    return found


@pytest.mark.one_in(23)
@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("name", KINDS)
def test_both_orders_have_the_outcomes_of_fresh_functions(name: str, jit: str) -> None:
    kind = KINDS[name]
    args = [sh.abstract_array(text) for text in kind.arguments]

    def run(f: Callable[..., Any], scope: Callable[[], Any]) -> str:
        with scope():
            return outcome(lambda: jax.make_jaxpr(f)(*args).out_avals[0])

    for label, make in around(kind).items():
        alone = [run(JITS[jit](make(kind.f)), scope) for scope in kind.scopes]
        assert alone[0] != alone[1], label
        for order in itertools.permutations((0, 1)):
            f = JITS[jit](make(kind.f))
            for i in (*order, *order):
                assert run(f, kind.scopes[i]) == alone[i], (label, order)


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("order", ["first in shard_map", "first in vmap"])
def test_a_step_of_vmap_is_no_device_of_shard_map(jit: str, order: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    w, x = sh.ones("f32[4]"), sh.array(np.arange(8.0, dtype=np.float32).reshape(2, 4), "f32[2@x,4]")
    f = JITS[jit](gradient_of_step)
    runs: dict[str, Callable[[], Any]] = {
        "shard_map": functools.partial(sh.shard_map(f, out_specs="[...]"), w, x),
        "vmap": functools.partial(sh.vmap(f, (None, 0)), w, x),
    }
    names = list(runs)[:: 1 if "first in shard_map" in order else -1]
    found = {name: outcome(runs[name]) for name in (*names, *names)}
    assert found["shard_map"] == "f32[4] of shape (4,)"
    assert found["vmap"].startswith("a gradient inside `vmap` would be summed over mesh axis `x`")


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("explicit", [False, True])
def test_casts_that_must_be_written_are_asked_for_in_any_order(jit: str, explicit: bool) -> None:
    w, x = sh.ones("f32[4]"), sh.ones("f32[4@x]")
    f = JITS[jit](lambda w, x: w[:2] * x)
    for each in (explicit, not explicit, explicit, not explicit):
        mapped = sh.shard_map(f, out_specs="[_@x]", explicit=each)
        found = outcome(functools.partial(mapped, w, x))
        assert ("must be written" in found) == each


@pytest.mark.parametrize("first", [False, True])
def test_debug_checks_are_of_the_call(first: bool) -> None:
    rng = np.random.default_rng(0)  # another number for each device that asks for one
    drawn = jax.ShapeDtypeStruct((1,), np.dtype("float32"))
    draw = lambda _: jax.pure_callback(lambda: rng.normal(size=1).astype(np.float32), drawn)  # noqa: E731
    wrong = sh.local_map(draw, out="[_]", name="wrong")
    f = sh.jit(lambda x: wrong(x) * 2.0)
    x = sh.array(np.arange(4.0, dtype=np.float32), "f32[4@x]")
    for on in (first, not first, first, not first):
        with sh.debug_checks(on):
            found = outcome(lambda: jax.block_until_ready(f(x)))
            found = found if "wrong" in found else outcome(lambda: jax.block_until_ready(sh.ones("f32[]")))
        assert ("not the same" in found) == on


@pytest.mark.parametrize("first", ["auto", "require"])
def test_a_region_that_is_required_is_required_in_each_call(first: Any) -> None:
    def two_parts(x: Any) -> Any:
        return x * sh.from_jax(jnp.cumsum(jax.reshard((x * 2).to_jax(), jax.P(None))), "f32[4@x]{I:y}")

    f, x = sh.jit(two_parts), sh.ones("f32[4@x]{I:y}")
    second: Any = "require" if first == "auto" else "auto"
    try:
        for mode in (first, second, first, second):
            sh.set_region(mode)
            assert ("does not fit in one region" in outcome(lambda: f(x))) == (mode == "require")
    finally:
        sh.set_region("auto")


def test_a_scope_that_is_left_out_of_order_says_so_and_leaves_nothing_behind() -> None:
    first, second = sh.policy("jax"), sh.no_comm()
    first.__enter__()
    second.__enter__()
    with pytest.raises(sh.ShardingTypeError, match="left in another order"):
        first.__exit__(None, None, None)
    assert sh.current_policy() == "partial"
    assert str(sh.typeof(sh.all_reduce(sh.zeros(PENDING)))) == WHOLE
    with pytest.raises(sh.ShardingTypeError, match="left in another order"):
        second.__exit__(None, None, None)
    assert jax.jit(lambda: sh.zeros(WHOLE))().type.state("x") is sh.State.REDUCED


def test_each_thread_has_scopes_of_its_own() -> None:
    found: list[str] = []
    with sh.policy("jax"), sh.no_comm():
        thread = threading.Thread(target=lambda: found.append(sh.current_policy()))
        thread.start()
        thread.join()
    assert found == ["partial"]


@pytest.mark.parametrize("make", [lambda: sh.policy("jax"), lambda: sh.dims(n=4), sh.no_comm, sh.debug_checks])
def test_a_scope_decorates_functions_and_nothing_else(make: Any) -> None:
    for wrong in (3, type("Model", (), {})):
        with pytest.raises(sh.ShardingTypeError, match="decorates functions"):
            make()(wrong)


def test_a_generator_has_its_policy_while_it_runs_and_not_while_it_waits() -> None:
    @sh.policy("jax")
    def steps() -> Any:
        yield sh.current_policy()
        yield sh.current_policy()

    running = steps()
    assert [next(running), sh.current_policy(), next(running), sh.current_policy()] == ["jax", "partial"] * 2
