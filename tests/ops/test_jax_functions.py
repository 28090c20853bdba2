"""Functions of JAX as rows: typed as a whole, one operation where all of a call is local, and never another meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.dim_fns import Composite, ShardStep
from shtypes.core.shard_fn import Linear
from shtypes.evaluation.bound_primitive import Bound
from shtypes.ops import jax_functions as functions
from shtypes.ops.jax_functions import JaxFunction
from shtypes.ops.traced_calls import typed_call
from tests.end_to_end import Case, check, host

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


def operations(f: Callable[..., Any], *types: str) -> list[str]:
    """What the equations of a function of typed values are."""
    jaxpr = jax.make_jaxpr(f)(*map(sh.abstract_array, types))
    return [str(e.params.get("operation", e.primitive)) for e in jaxpr.eqns]


@pytest.mark.parametrize(
    ("f", "shown"),
    [
        (lambda x: sh.median(x, 1), "median[1]"),
        (lambda x: sh.quantile(x, 0.3, axis=1), "quantile[0.3, 1]"),
        (JaxFunction("halved", lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y / 2, x)), "halved"),
        (lambda x: x.at[:, 1].add(2.0), "at_add[(:, 1), 2.0]"),
        (lambda x: sh.cumsum(x, 1), "cumsum[1]"),
        (sh.transpose, "transpose[1,0]"),
    ],
    ids=["median", "quantile", "a loop", "an update", "one primitive", "one that moves dims"],
)
def test_a_local_call_is_one_operation(f: Callable[..., Any], shown: str) -> None:
    assert operations(f, "f32[4@x,8]")[-1] == shown


def test_a_call_that_changes_nothing_gives_its_operand() -> None:
    x = sh.array(X, "[4@x,8]")
    assert sh.reshape(x, (4, 8)) is x
    assert sh.tile(x, 1) is x


def test_a_call_with_a_derivative_rule_keeps_the_rule() -> None:
    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return x * 2

    @doubled.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return doubled(*primals), tangents[0] * 5

    typed = JaxFunction("doubled", doubled)
    gradient = jax.grad(lambda x: sh.all_reduce(sh.sum(typed(x))).to_jax())(sh.array(X, "[4@x,8]"))
    np.testing.assert_array_equal(host(sh.reshard(gradient, "[...]")), np.full((4, 8), 5.0))


@pytest.fixture(params=["partial", "jax"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    with sh.policy(request.param):
        yield request.param


def test_an_operand_that_is_taken_in_two_types_is_evaluated_equation_by_equation(policy: str) -> None:
    def spread(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y + x.sum()

    typed = JaxFunction("spread", spread)
    assert len(operations(typed, "f32[8]{I:x}", "f32[8@x]")) > 2
    types = ("[8]{I:x}", "[8@x]")
    check(
        sh.make_mesh({"x": 2, "y": 2}),
        [Case(lambda m, x, y: (typed if m is sh else spread)(x, y), (X[0], X[1]), types)],
    )


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "f",
    [
        lambda m, x: m.where(x > 0, x, 2.0),
        lambda m, x: m.pad(x, ((0, 0), (1, 2)), constant_values=3.0),
        lambda m, x: m.concatenate([x, np.ones((4, 2), np.float32)], 1),
        lambda m, x: m.gradient(x, axis=1),
        lambda m, x: m.interp(x, np.arange(3.0), np.array([1.0, 5.0, 2.0])),
        lambda m, x: m.take(x, np.array([1, 9]), 1),
    ],
    ids=["where", "pad", "concatenate", "gradient", "interp", "take"],
)
def test_a_call_that_adds_constants_has_the_derivatives_of_one_device(f: Callable[..., Any], policy: str) -> None:
    check(sh.make_mesh({"x": 2, "y": 2}), [Case(f, (X,), (t,)) for t in ("[4@x,8]", "[4,8]{I:x}")])


def test_constants_beside_a_pending_sum_count_once() -> None:
    with sh.policy("partial"):
        x = sh.array(X, "[4,8]{U:x}")
        found = sh.where(np.arange(8) > 3, x, 2.0)
    np.testing.assert_allclose(host(sh.reshard(found, "[...]")), np.where(np.arange(8) > 3, X, 2.0), rtol=1e-6)


def test_a_composite_is_linear_in_what_its_steps_are() -> None:
    add, mul = Bound(jax.lax.add_p, {}), Bound(jax.lax.mul_p, {})
    twice = Composite("twice", (ShardStep(add, (0, 0)),), (1,), (True,))
    square = Composite("square", (ShardStep(mul, (0, 0)),), (1,), (True,))
    masked = Composite("masked", (ShardStep(mul, (0, 1)),), (2,), (True, False))
    assert [f.linear for f in (twice, square, masked)] == [Linear.JOINTLY, Linear.NO, Linear.IN_DIFFERENTIABLE]
    assert square.linear_part is None
    assert float(twice(jnp.float32(3))) == 6


def test_arguments_that_jax_wants_to_know_may_be_arrays_of_the_host_or_values_that_each_device_has() -> None:
    x = sh.array(X, "[4@x,8]")
    for counts in (np.array([1, 2, 0, 1, 1, 0, 0, 3]), sh.array(np.array([1, 2, 0, 1, 1, 0, 0, 3]))):
        np.testing.assert_array_equal(
            host(sh.reshard(sh.repeat(x, counts, 1), "[...]")), np.repeat(X, np.asarray(counts), 1)
        )
    with pytest.raises(sh.ShardingTypeError, match="must know the values") as refused:
        sh.repeat(x, sh.array(np.array([1, 2, 0, 1, 1, 0, 0, 3]), "[8@y]"), 1)
    assert "total_repeat_length=" in str(refused.value)


def test_what_a_release_to_come_refuses_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="cannot safely cast"):
        sh.zeros("i32[4]").at[0].set(1.5)


def test_a_refusal_names_the_call_and_the_primitive_inside_it() -> None:
    with pytest.raises(sh.ShardingTypeError) as refused:
        sh.kron(sh.array(X, "[4@x,8]"), sh.array(X[0], "[8]{U:x}"))
    where = refused.value.where
    assert where.startswith("test_jax_functions.py:")
    assert "kron(f32[4@x,8], f32[8]{U:x}), by mul(" in where
    assert any(fix.code.startswith("sh.kron(..., out=") for fix in refused.value.fixes)


def test_the_shapes_of_a_call_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def fn(x: Any) -> Any:
        traced.append(x.shape)
        return x + 1

    typed = JaxFunction("fn", fn)
    for t in ("[4@x,8]", "[4,8@x]", "[4@x,8]"):
        typed(sh.array(X, t))
    assert traced == [(4, 8)]
    typed(sh.array(X[:2], "[2,8]"))
    assert traced == [(4, 8), (2, 8)]


def test_an_operand_that_is_cast_for_one_use_stays_as_it_is_for_the_other() -> None:
    """A slice of what is replicated meets what is sharded; its sine is of all of it."""
    typed = JaxFunction("fn", lambda x, y: (x + y, jnp.sin(x)))
    both, alone = typed(sh.array(X, "[4,8]{R:x}"), sh.array(X, "[4@x,8]"))
    assert (both.type, alone.type) == ("f32[4@x,8]", "f32[4,8]{R:x}")
    np.testing.assert_allclose(host(both), 2 * X)
    np.testing.assert_allclose(host(alone), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("name", ["cumprod", "cummax"])
def test_the_fixes_of_a_call_type_each_candidate_once_and_linearize_it_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[str] = []

    def refusal(t: str) -> tuple[sh.Fix, ...]:
        with pytest.raises(sh.ShardingTypeError) as refused:
            getattr(sh, name)(sh.array(X, t), axis=0)
        return refused.value.fixes

    first = refusal("[4@x,8]{U:y}")

    def noting(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            traced.append(name)
            return f(*args, **options)

        return noted

    monkeypatch.setattr(jax, "vjp", noting("linearized", jax.vjp))
    monkeypatch.setattr(functions, "typed_call", noting("typed", typed_call))
    assert refusal("[4@x,8]{U:y}") == first
    assert traced.count("typed") <= 1
    written = [fix for fix in first if "out=" in fix.code]
    assert written
    assert traced.count("linearized") <= 1 + 3  # the call, and the reshard to each of at most three types
