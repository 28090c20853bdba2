"""What a lifted program sets holds for the equations that it binds there, whatever opens it, and for no others."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import shtypes as sh
from shtypes.context.settings import current_settings
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
#: Without fusion, so that each operation has its own name.
UNFUSED: Any = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion,fusion-wrapper"}
POLICIES = pytest.mark.parametrize("policy", ["partial", "jax"])


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def arguments() -> tuple[Any, Any]:
    return sh.array(X, "f32[8@dp, 16@tp]"), sh.array(W, "f32[16@tp, 8]")


def reduced(x: Any, w: Any) -> Any:
    return sh.all_reduce(x @ w, "tp")


def pending(x: Any, w: Any) -> Any:
    return x @ w


def _block(scope: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    def program(x: Any, w: Any) -> Any:
        with scope:
            return f(x, w)

    return program


def _in_scan(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: jax.lax.scan(lambda c, _: (c, f(x, w)), 0.0, None, length=2)[1][0]


def _in_custom_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    g = jax.custom_vjp(f)
    g.defvjp(lambda x, w: (f(x, w), (x, w)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct))
    return g


def _in_custom_jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), f(*tangents)))
    return g


#: What a function with a scope stands in: from it to a program.
AROUND: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "itself": lambda f: f,
    "a function": lambda f: lambda x, w: (lambda: f(x, w))(),
    "jit": jax.jit,
    "jit in jit": lambda f: jax.jit(jax.jit(f)),
    "scan": _in_scan,
    "while": lambda f: (
        lambda x, w: jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, f(x, w)), (0, 0 * X @ W))
    ),
    "fori_loop": lambda f: lambda x, w: jax.lax.fori_loop(0, 2, lambda i, c: f(x, w), jnp.zeros((8, 8))),
    "cond": lambda f: lambda x, w: jax.lax.cond(True, f, f, x, w),
    "switch": lambda f: lambda x, w: jax.lax.switch(1, [f, f], x, w),
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: jax.vmap(f, in_axes=(0, None)),
    "custom_vjp": _in_custom_vjp,
    "custom_jvp": _in_custom_jvp,
    "grad": lambda f: lambda x, w: jax.grad(lambda w: jnp.sum(sh.all_reduce(f(x, w))))(w),
    "value and pullback": lambda f: lambda x, w: jax.vjp(f, x, w)[0],
    "forward derivative": lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w)),
}
SCOPES: dict[str, Callable[[], Any]] = {
    "no_comm": sh.no_comm,
    "no_comm forward": lambda: sh.no_comm("forward"),
    "comm_budget": lambda: sh.comm_budget(bytes=10),
    "comm_budget of kinds": lambda: sh.comm_budget(kinds="all-gather"),
}


@pytest.mark.one_in(7)
@POLICIES
@pytest.mark.parametrize("around", AROUND)
def test_a_scope_that_a_program_opens_forbids_what_it_forbids(around: str, policy: str) -> None:
    with sh.policy(policy):
        x, w = arguments()
        for name, scope in SCOPES.items():
            for opened in (scope()(reduced), _block(scope(), reduced)):
                with pytest.raises(sh.ShardingTypeError, match=r"no_comm|comm_budget") as caught:
                    jax.eval_shape(sh.lift(AROUND[around](opened)), x, w)
                assert "test_in_force.py" in caught.value.where, name
        for allowed in (sh.no_comm("forward")(pending), sh.comm_budget(bytes=10_000)(pending)):
            if around not in ("grad", "while", "fori_loop", "cond", "switch"):  # these need a whole carry or loss
                jax.eval_shape(sh.lift(AROUND[around](allowed)), x, w)


def test_what_comes_after_a_scope_is_not_in_it() -> None:
    def program(x: Any, w: Any) -> Any:
        with sh.no_comm():
            y = x @ w
        return sh.all_reduce(y, "tp")

    x, w = arguments()
    assert_close(np.asarray(sh.lift(program)(x, w)), X @ W, 100)
    assert_close(np.asarray(sh.jit(sh.lift(program))(x, w)), X @ W, 100)


def test_each_budget_that_a_program_opens_is_its_own() -> None:
    sent = sh.ledger(sh.lift(reduced), *arguments()).total.bytes

    def program(x: Any, w: Any, *, each: int, times: int) -> Any:
        total = 0.0
        for _ in range(2):
            with sh.comm_budget(bytes=each):
                for _ in range(times):
                    total = total + reduced(x, w)
                    w = w * 2
        return total

    x, w = arguments()
    sh.lift(functools.partial(program, each=sent, times=1))(x, w)
    sh.lift(functools.partial(program, each=2 * sent, times=2))(x, w)
    with pytest.raises(sh.ShardingTypeError, match="comm_budget"):
        sh.lift(functools.partial(program, each=2 * sent - 1, times=2))(x, w)


def test_a_policy_that_a_program_sets_says_what_its_annotations_mean() -> None:
    def program(x: Any, w: Any) -> Any:
        with sh.policy("jax"):
            inside = jax.reshard(x @ w, jax.P())
        return inside, jax.reshard(x @ w, jax.P())

    with sh.policy("partial"):
        inside, outside = sh.lift(program)(*arguments())
    assert (inside.type.axes(sh.State.INVARIANT), outside.type.axes(sh.State.REDUCED)) == (("dp", "tp"),) * 2


def test_names_of_dims_that_a_program_binds_hold_in_it() -> None:
    def program(x: Any, w: Any) -> Any:
        with sh.dim_axes({"batch": "dp"}), sh.dims(batch=8):
            return sh.reshard(x @ w, "[batch, 8]")

    assert sh.lift(program)(*arguments()).type.canonical() == "f32[8@dp,8]{R:tp}"


def test_implicit_comm_that_a_program_opens_inserts_there_and_nowhere_else() -> None:
    def program(x: Any, w: Any) -> Any:
        with sh.implicit_comm():
            return jnp.sin(x @ w)

    x, w = arguments()
    assert_close(np.asarray(sh.lift(program)(x, w)), np.sin(X @ W), 100)
    decorated = sh.implicit_comm(lambda x, w: jnp.sin(x @ w))
    assert_close(np.asarray(sh.lift(decorated)(x, w)), np.sin(X @ W), 100)
    with pytest.raises(sh.ShardingTypeError, match="nonlinear"):
        sh.lift(lambda x, w: (program(x, w), jnp.sin(x @ w)))(x, w)


def _seen_in_local_map(seen: list[Any], look: Callable[[], Any]) -> Callable[[Any], Any]:
    """A program that notes what holds where its local function runs."""

    def body(a: Any) -> Any:
        seen.append(look())
        return a

    found: Callable[[Any], Any] = sh.local_map(body, out="[_@dp, _]")
    return found


def test_a_cost_model_that_a_program_uses_is_that_of_its_equations() -> None:
    model = sh.cost_model("h100-nvlink", dp="infiniband-ndr")
    seen: list[Any] = []

    def program(x: Any) -> Any:
        with sh.use_cost_model(model):
            y = _seen_in_local_map(seen, lambda: current_settings().model)(x)
        return y, _seen_in_local_map(seen, lambda: current_settings().model)(x)

    sh.lift(program)(sh.array(X, "f32[8@dp, 16]"))
    assert model in seen
    assert None in seen


def test_checks_that_a_program_asks_for_run_in_it() -> None:
    x = sh.array(X, "f32[8@dp, 16]")
    seen: list[Any] = []

    def noting(x: Any) -> Any:
        with sh.debug_checks():
            y = _seen_in_local_map(seen, lambda: current_settings().checks)(x)
        return y, _seen_in_local_map(seen, lambda: current_settings().checks)(x)

    sh.lift(noting)(x)
    assert {True, False} <= set(seen)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("around", ["itself", "jit", "scan", "cond", "checkpoint", "vmap", "custom_jvp", "custom_vjp"])
def test_x64_that_a_program_enables_is_that_of_its_equations(around: str) -> None:
    def double(x: Any, w: Any) -> Any:
        return x.astype(jnp.float64) @ w.astype(jnp.float64) + 1e-12

    double = jax.enable_x64(True)(double)
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    program = AROUND[around](double)
    try:
        wanted = jax.tree.leaves(jax.jit(program)(X, W))
    except (TypeError, ValueError) as error:  # JAX itself has no such program
        pytest.skip(str(error)[:80])
    found = jax.tree.leaves(sh.jit(sh.lift(program))(x, w))
    for mine, right in zip(found, wanted, strict=True):
        assert mine.dtype == right.dtype
        assert_close(np.asarray(sh.to_jax(mine)), np.asarray(right), 100)


#: What makes numbers of 64 bits beside the program's operands, in x64 only inside of the program.
WIDE: dict[str, Callable[[Any], Any]] = {
    "a constant": lambda x: (x * (jnp.full((16,), 1e-200) * 1e200)).astype(jnp.float32),
    "zeros": lambda x: x + jnp.zeros((16,)),
    "a branch of where": lambda x: jnp.where(x > 0, x, 0.0),
    "a padding": lambda x: jnp.pad(x, ((0, 0), (1, 1))),
    "an update": lambda x: x.at[:, 0].set(1.0),
    "positions": lambda x: x + (jnp.arange(16) + 2**40),
    "an array of numpy": lambda x: (x * np.full((16,), 1e-200) * 1e200).astype(jnp.float32),
    "integers of numpy": lambda x: (x * 4).astype(jnp.int64) * np.array([2**40] * 16) // 2**40,
    "a cotangent": jax.grad(lambda x: jnp.sum(jnp.sin(x) * 1e-200) * 1e200),
    "a counter": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (jnp.int64(0), x)),
    "a carry": lambda x: jax.lax.scan(lambda c, r: (c + r.sum(), c), jnp.float64(0), x)[0],
}


@pytest.mark.one_in(13)
@pytest.mark.parametrize("name", WIDE)
def test_numbers_that_a_program_makes_in_x64_have_64_bits(name: str) -> None:
    def program(x: Any) -> Any:
        with jax.enable_x64(True):
            return WIDE[name](x.astype(jnp.float64))

    wanted = jax.jit(program)(X)
    for typed in (sh.lift(program), sh.jit(sh.lift(program)), jax.jit(sh.lift(program))):
        for mine, right in zip(jax.tree.leaves(typed(sh.array(X, "f32[8, 16]"))), jax.tree.leaves(wanted), strict=True):
            assert mine.dtype == right.dtype
            assert_close(np.asarray(sh.to_jax(mine) if isinstance(mine, sh.Array) else mine), np.asarray(right), 100)


def test_constants_of_64_bits_stay_so_in_typed_code() -> None:
    def program(x: Any) -> Any:
        with jax.enable_x64(True):
            return (x.astype("float64") * np.full((16,), 1e-200) * 1e200).astype("float32")

    x = sh.array(X, "f32[8@dp, 16]")
    assert np.array_equal(np.asarray(sh.jit(program)(x)), np.asarray(program(x)))
    assert np.asarray(sh.all_reduce(sh.jit(sh.grad(lambda x: sh.all_reduce(sh.sum(program(x)))))(x))).min() > 0.99


@pytest.mark.one_in(7)
@pytest.mark.parametrize("around", ["itself", "jit", "scan", "cond", "checkpoint", "vmap"])
def test_random_bits_are_those_that_a_program_asks_for(around: str) -> None:
    def program(x: Any, w: Any) -> Any:
        with jax.threefry_partitionable(False):
            return x @ w + jax.random.uniform(jax.random.key(0), (w.shape[1],))

    program = AROUND[around](program)
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    wanted = jax.jit(program)(X, W)
    for typed in (sh.lift(program), sh.jit(sh.lift(program))):
        assert_close(
            np.asarray(sh.to_jax(jax.tree.leaves(typed(x, w))[0])), np.asarray(jax.tree.leaves(wanted)[0]), 100
        )


def test_a_matmul_precision_that_a_program_sets_is_that_of_its_products() -> None:
    def program(x: Any, w: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            y = x @ w
        return y + x @ w

    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    mine = sh.jit(sh.lift(program)).lower(x, w).as_text()
    plain = jax.jit(program).lower(X, W).as_text()
    assert mine.count("HIGHEST") == plain.count("HIGHEST") > 0


def _opened(scopes: Sequence[Callable[[], Any]], f: Callable[..., Any]) -> Callable[..., Any]:
    """A function with scopes around it, the outermost first."""

    def call(*args: Any) -> Any:
        with contextlib.ExitStack() as entered:
            for scope in scopes:
                entered.enter_context(scope())
            return f(*args)

    return call


def _replicated() -> tuple[Any, Any]:
    return sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]{I:(dp,tp)}")


def _refused(f: Callable[..., Any]) -> bool:
    try:
        jax.eval_shape(lambda x, w: jax.vjp(f, x, w)[0], *_replicated())
    except sh.ShardingTypeError as error:
        return "no_comm" in error.what or "comm_budget" in error.what
    return False


#: Two scopes, and a function that tells whether both are in force where a product is compiled.
NESTED: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[..., bool]]] = {
    "no_comm and a policy": (lambda: sh.no_comm("backward"), lambda: sh.policy("jax"), _refused),
    "a budget and a policy": (lambda: sh.comm_budget(bytes=10), lambda: sh.policy("jax"), _refused),
    "no_comm and a precision": (
        lambda: sh.no_comm("backward"),
        lambda: jax.default_matmul_precision("highest"),
        _refused,
    ),
    "a precision and a policy": (
        lambda: jax.default_matmul_precision("highest"),
        lambda: sh.policy("partial"),
        lambda f: "HIGHEST" in sh.jit(f).lower(*_replicated()).as_text(),
    ),
    "a policy and a precision": (
        lambda: sh.policy("jax"),
        lambda: jax.default_matmul_precision("highest"),
        lambda f: "HIGHEST" in sh.jit(f).lower(*_replicated()).as_text(),
    ),
}


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("name", NESTED)
def test_programs_that_differ_in_what_began_them_are_apart(name: str, first: int) -> None:
    """The body of `jnp.matmul` is traced once for each: what it notes is relative to the program's start."""
    outer, inner, holds = NESTED[name]
    programs = [
        _opened([outer], sh.lift(_opened([inner], jnp.matmul))),
        sh.lift(_opened([outer, inner], jnp.matmul)),
        _opened([outer, inner], sh.lift(jnp.matmul)),
    ]
    jax.clear_caches()
    for program in (*programs[first:], *programs[:first]):
        assert holds(program)


def _debugs_nans() -> bool:
    return bool(jax.config.jax_debug_nans)  # type: ignore[attr-defined]  # each flag is an attribute


def test_flags_for_debugging_hold_where_the_program_set_them() -> None:
    seen: list[Any] = []

    def program(x: Any) -> Any:
        with jax.debug_nans(True):
            y = _seen_in_local_map(seen, _debugs_nans)(x)
        return y, _seen_in_local_map(seen, _debugs_nans)(x)

    sh.lift(program)(sh.array(X, "f32[8@dp, 16]"))
    assert {True, False} <= set(seen)


def test_named_scopes_of_a_program_name_what_it_sends() -> None:
    def program(x: Any, w: Any) -> Any:
        with jax.named_scope("layer"), sh.comm_budget(bytes=10_000):
            return reduced(x, w)

    x, w = arguments()
    text = sh.jit(sh.lift(program)).lower(x, w).compile().as_text()
    (line,) = [line for line in text.splitlines() if " all-reduce(" in line]
    assert "layer" in line
    assert "InForce" not in text


@pytest.mark.parametrize("around", ["itself", "jit", "jit in jit", "scan", "checkpoint", "grad", "cond"])
def test_named_scopes_name_what_is_computed_under_implicit_comm_too(around: str) -> None:
    inner = AROUND[around](lambda x, w: jax.jit(jnp.sin)(x @ w))

    def program(x: Any, w: Any) -> Any:
        with jax.named_scope("layer"):
            return inner(x, w)

    args = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    lifted = sh.lift(program)
    for jitted in (sh.jit(lifted), sh.jit(sh.implicit_comm(lifted))):
        text = jitted.lower(*args).compile(compiler_options=UNFUSED).as_text()
        computed = [line for line in text.splitlines() if re.search(r" (sine|dot|cosine)\(", line)]
        assert len(computed) > 1
        assert all("layer" in line for line in computed)


@pytest.mark.parametrize("around", ["itself", "jit", "scan", "checkpoint", "vmap", "custom_vjp", "custom_jvp", "cond"])
def test_metadata_for_xla_that_a_program_sets_is_that_of_its_operations(around: str) -> None:
    def program(x: Any, w: Any) -> Any:
        with set_xla_metadata(kept="here"):
            return jnp.sin(x) @ w

    program = AROUND[around](program)
    x, w = sh.array(X, "f32[8@dp, 16]"), sh.array(W, "f32[16, 8]")
    text = sh.jit(sh.lift(lambda x, w: jnp.cos(program(x, w)))).lower(x, w).as_text()
    assert [op for op in ("sine", "dot_general", "cosine") if _has_metadata(text, op)] == ["sine", "dot_general"]


def _has_metadata(text: str, op: str) -> bool:
    lines = [line for line in text.splitlines() if f"stablehlo.{op} " in line]
    assert lines
    return all('kept = "here"' in line for line in lines)


def test_what_is_evaluated_while_a_program_is_traced_is_typed_as_elsewhere() -> None:
    def typed(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            row = sh.reshard(sh.ones("f32[8]"), "[8@dp]")
            total = sh.all_reduce(sh.sum(row * 2))
        return x * row + total

    def plain(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            total = jnp.sum(jnp.arange(8.0))
            y = jnp.where(x > 1, x, jnp.zeros(8))  # of a traced value, which is not evaluated
        return y + total

    with sh.use_mesh(sh.make_mesh({"dp": 2})):
        x = sh.array(np.arange(8, dtype=np.float32), "[8@dp]")
        for f, expected in ((typed, np.arange(8) + 16), (sh.lift(plain), plain(jnp.arange(8.0)))):
            for run in (f, jax.jit(f)):
                np.testing.assert_allclose(np.asarray(run(x)), expected)
