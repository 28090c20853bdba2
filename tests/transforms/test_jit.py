"""`jax.jit` of typed programs: values, caches, donation, ahead-of-time compilation, policies and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import small_models as p

#: Both ways to compile a function.
JITS = [pytest.param(jax.jit, id="jax.jit"), pytest.param(sh.jit, id="sh.jit")]


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


@pytest.mark.core
def test_eager_code_computes_what_one_device_computes() -> None:
    p.assert_close(p.mlp(*p.values()), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))


@pytest.mark.core
@pytest.mark.parametrize("jit", JITS)
def test_jit_computes_what_one_device_computes(jit: Callable[..., Any]) -> None:
    found = jit(p.mlp)(*p.values())
    p.assert_close(found, p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))
    assert found.type == sh.ShType.parse("f32[4@dp,8]")


@pytest.mark.parametrize("jit", JITS)
def test_jit_traces_again_only_for_other_types(jit: Callable[..., Any]) -> None:
    traces = []

    def f(x: Any, w: Any) -> Any:
        traces.append(x.type)
        return x @ w

    compiled = jit(f)
    x, w, _ = p.values()
    for operand in (x, sh.array(p.X + 1, p.X_TYPE), x):
        compiled(operand, w).block_until_ready()
    assert len(traces) == 1
    compiled(sh.array(p.X, "f32[4,8]"), w).block_until_ready()
    assert len(traces) == 2


@pytest.mark.parametrize("jit", JITS)
def test_jit_nests_with_static_arguments(jit: Callable[..., Any]) -> None:
    inner = jax.jit(sh.einsum, static_argnums=0)

    def f(x: Any, w: Any, n: int) -> Any:
        return inner("bh,hi->bi", x * float(n), w)

    x, w, _ = p.values()
    p.assert_close(jit(f, static_argnums=2)(x, w, 3), 3 * p.X @ p.W_IN)


@pytest.mark.parametrize("jit", JITS)
def test_a_closed_over_value_is_a_constant_of_the_program(jit: Callable[..., Any]) -> None:
    x, w, _ = p.values()
    p.assert_close(jit(lambda x: x @ w)(x), p.X @ p.W_IN)


@pytest.mark.parametrize("jit", JITS)
def test_a_donated_argument_is_freed(jit: Callable[..., Any]) -> None:
    donated = sh.array(p.X, p.X_TYPE)
    found = jit(lambda x: x * 2.0, donate_argnums=0)(donated)
    p.assert_close(found, 2 * p.X)
    assert donated.is_deleted()


def test_compiled_ahead_of_time_it_takes_typed_values() -> None:
    args = p.values()
    compiled = jax.jit(p.mlp).lower(*args).compile()
    p.assert_close(compiled(*args), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))
    assert str(compiled.as_text()).count(" all-reduce(") == 1


def test_compiled_from_types_alone_it_takes_typed_values() -> None:
    args = p.values()
    compiled = jax.jit(p.mlp).lower(*[sh.abstract_array(x.type) for x in args]).compile()
    p.assert_close(compiled(*args), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))


def test_a_trace_shows_the_types_of_results() -> None:
    traced = jax.jit(p.mlp).trace(*p.values())
    assert traced.jaxpr.out_avals == [sh.ShType.parse("f32[4@dp,8]")]


# the policy is a part of every cache key


def gathered(x: Any) -> str:
    """The type that a gather ends in: the policy's replicated state."""
    return str(sh.typeof(sh.all_gather(x, "dp")).canonical())


REDUCED, INVARIANT = "f32[4,8]{R:(dp,tp)}", "f32[4,8]{R:tp, I:dp}"


@pytest.fixture
def x() -> Any:
    return sh.array(p.X, "f32[batch@dp, hidden]{R:tp}")


def in_jit(seen: list[str]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        seen.append(gathered(x))
        return sh.all_gather(x, "dp")

    return jax.jit(f)


def in_nested_jit(seen: list[str]) -> Callable[[Any], Any]:
    inner = in_jit(seen)
    return jax.jit(lambda x: inner(x * 1.0))


def in_scan(seen: list[str]) -> Callable[[Any], Any]:
    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        seen.append(gathered(carry))
        return carry, sh.all_gather(carry, "dp")

    return jax.jit(lambda x: jax.lax.scan(body, x, None, length=2)[1])


@pytest.mark.parametrize("program", [in_jit, in_nested_jit, in_scan])
def test_no_trace_outlives_its_policy(program: Callable[..., Any], x: Any) -> None:
    seen: list[str] = []
    compiled = program(seen)
    compiled(x).block_until_ready()
    with sh.policy("jax"):
        invariant = compiled(x).block_until_ready()
    reduced = compiled(x).block_until_ready()
    assert set(seen[:1]) == {REDUCED}
    assert set(seen[-1:]) == {INVARIANT}
    assert invariant.type.state("dp") is sh.State.INVARIANT
    assert reduced.type.state("dp") is sh.State.REDUCED
    before = len(seen)
    with sh.policy("jax"):
        compiled(x).block_until_ready()
    assert len(seen) == before, "the trace for this policy is kept"


def test_no_trace_reaches_a_thread_with_another_policy(x: Any) -> None:
    compiled = in_jit([])
    compiled(x).block_until_ready()
    found: dict[str, Any] = {}
    mesh = sh.make_mesh(p.AXES)

    def work(name: str) -> None:
        with sh.use_mesh(mesh), sh.policy(name):
            found[name] = compiled(x).block_until_ready().type.state("dp")

    threads = [threading.Thread(target=work, args=(name,)) for name in ("jax", "partial")]
    for thread in threads:
        thread.start()
        thread.join()
    assert found == {"jax": sh.State.INVARIANT, "partial": sh.State.REDUCED}


def test_a_global_policy_reaches_other_threads(x: Any) -> None:
    compiled = in_jit([])
    compiled(x).block_until_ready()
    sh.set_policy("jax")
    mesh, found = sh.make_mesh(p.AXES), []

    def work() -> None:
        with sh.use_mesh(mesh):
            found.append(compiled(x).block_until_ready().type.state("dp"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [sh.State.INVARIANT]


def test_threads_compute_side_by_side() -> None:
    args, mesh, found = p.values(), sh.make_mesh(p.AXES), []
    lock = threading.Lock()  # one program with collectives at a time: the CPU devices share their threads

    def work() -> None:
        with sh.use_mesh(mesh):
            traced = jax.make_jaxpr(sh.grad(p.loss))(*args)
            with lock:
                found.append((str(traced), np.asarray(p.mlp(*args))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for text, _ in found}) == 1
    assert len(found) == 4
    p.assert_close(found[0][1], p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))


# without a mesh in context


def test_values_know_their_mesh_where_none_is_in_context() -> None:
    args = p.values()
    jax.set_mesh(None)
    p.assert_gradients(sh.grad(p.loss, argnums=(0, 1, 2))(*args), args, p.expected()[1])
    p.assert_close(jax.jit(p.mlp)(*args), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))


def test_plain_arrays_mix_with_typed_values() -> None:
    x, _, _ = p.values()
    row = jnp.arange(float(p.HIDDEN))
    p.assert_close(jax.jit(lambda x, row: x * row + 1)(x, row), p.X * np.arange(float(p.HIDDEN)) + 1)
