"""`sh.lift`: plain JAX programs on typed values, against one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.evaluation.table import ROWS
from tests.random_checks import denoted
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 4}
RNG = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def _mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def _scanned(x: Any, up: Any, down: Any) -> Any:
    def step(total: Any, row: Any) -> Any:
        return total + row, jnp.tanh(row)

    y = jax.nn.relu(x @ up)
    total, rows = jax.lax.scan(step, jnp.zeros(y.shape), jnp.stack([y, 2 * y, y - 1]))
    return (total + rows[1]) @ down


def _branched(x: Any, up: Any, down: Any) -> Any:
    y = x @ up
    return jax.lax.cond(up.shape[0] > 3, jnp.zeros_like, lambda y: y * 2, y) @ down + _mlp(x, up, down)


def _recomputed(x: Any, up: Any, down: Any) -> Any:
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(_mlp, policy=policy)(x, up, down)


@jax.custom_vjp
def _doubled(x: Any) -> Any:
    return x * 2


_doubled.defvjp(lambda x: (x * 2, jnp.cos(x)), lambda kept, ct: (ct * kept,))


@jax.custom_jvp
def _halved(x: Any) -> Any:
    return x / 2


_halved.defjvp(lambda primals, tangents: (primals[0] / 2, tangents[0] * jnp.sin(primals[0])))


def _own_rules(x: Any, up: Any, down: Any) -> Any:
    return _halved(_doubled(x) @ up) @ down


@pytest.mark.one_in(9)
@pytest.mark.core
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("f", [_mlp, _scanned, _branched, _recomputed, _own_rules])
def test_values_and_gradients_are_those_of_one_device(f: Callable[..., Any], policy: str) -> None:
    arrays = [_array(8, 16), _array(16, 32), _array(32, 8)]

    def loss(*args: Any) -> Any:
        return jnp.sum(jnp.cos(jnp.arange(64.0)).reshape(8, 8) * f(*args))

    wanted = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*arrays)
    with sh.use_mesh(sh.make_mesh(MESH)), sh.policy(policy):
        types = ["[batch@dp, model]", "[model, hidden@tp]", "[hidden@tp, model]"]
        typed = [sh.array(x, t) for x, t in zip(arrays, types, strict=True)]

        @sh.jit
        def run(*args: Any) -> Any:
            total = lambda *args: sh.all_reduce(sh.lift(loss)(*args))  # noqa: E731
            return sh.value_and_grad(total, argnums=(0, 1, 2))(*args)

        value, gradients = run(*typed)
        assert_close(denoted(value), wanted[0], 400)
        for found, right, x in zip(gradients, wanted[1], typed, strict=True):
            assert found.type == x.type.cotangent()
            assert_close(denoted(found), right, 400)


def test_a_pending_sum_is_refused_at_the_line_of_the_plain_program() -> None:
    def f(x: Any, w: Any) -> Any:
        return jax.nn.softmax(x @ w)

    with sh.use_mesh(sh.make_mesh(MESH)):
        x, w = sh.ones("f32[8@dp, 16@tp]"), sh.ones("f32[16@tp, 8]")
        with pytest.raises(sh.ShardingTypeError) as error:
            sh.lift(f)(x, w)
    assert "test_lift.py" in str(error.value)
    assert "in f: jax.nn.softmax, by max(f32[8@dp,8]{U:tp})" in str(error.value)
    assert error.value.fixes


def test_arguments_that_are_no_arrays_reach_the_function_as_they_are() -> None:
    def f(x: Any, mode: str, times: int, activation: Any) -> Any:
        assert isinstance(times, int)
        return activation(x) * times if mode == "train" else x

    with sh.use_mesh(sh.make_mesh(MESH)):
        x = sh.ones("f32[8@dp]")
        assert sh.lift(f)(x, "train", 3, jnp.tanh).type == x.type
        np.testing.assert_allclose(np.asarray(sh.lift(f)(x, "train", 3, jnp.tanh)), np.tanh(np.ones(8)) * 3, rtol=1e-6)


@pytest.mark.parametrize("wrap", [sh.lift, sh.implicit_comm, lambda f: sh.implicit_comm(sh.lift(f))])
def test_results_that_are_no_arrays_are_what_the_function_returns(wrap: Callable[..., Any]) -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        x = sh.array(np.ones((8,), np.float32), "[8@dp]")
    rows = np.arange(3)

    def f(x: Any) -> Any:
        return {"y": x * 2, "rest": (2, 0.5, True, "text", None, jnp.float32, rows, jax.nn.relu)}

    for _ in range(2):  # the second call runs what the first compiled
        result = wrap(f)(x)
        assert result["rest"] == f(x)["rest"]
        assert result["rest"][-2] is rows
        assert type(result["y"]) is sh.Array


def test_the_results_of_each_call_are_those_of_that_call() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        calls.append(len(calls))
        return ([x * 2] if len(calls) > 2 else {"y": x * 2}), len(calls)  # one program, whatever is around its arrays

    with sh.use_mesh(sh.make_mesh(MESH)):
        x, run = sh.array(np.ones(8, np.float32), "[8@dp]"), sh.lift(f)
        found = [run(x) for _ in range(4)]
    assert [(type(y), n) for y, n in found] == [(dict, 1), (dict, 2), (list, 3), (list, 4)]


def test_zeros_like_a_typed_value_is_typed_like_it() -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        tree = {"w": sh.ones("f32[8@dp, 16@tp]"), "b": sh.ones("bf16[16@tp]")}
        made = sh.lift(lambda tree: jax.tree.map(jnp.zeros_like, tree))(tree)
        assert {k: v.type for k, v in made.items()} == {k: v.type for k, v in tree.items()}
    assert jax.lax.full_like.__module__.startswith("jax.")


def test_plain_constants_meet_invariant_values_without_a_change_of_type() -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        x = sh.ones("f32[8, 8]{I:(dp,tp)}")
        mask = lambda x: jnp.where(jnp.tril(jnp.ones((8, 8))) > 0, x * jnp.arange(8.0), 0.0)  # noqa: E731
        assert sh.lift(mask)(x).type == x.type
        assert sh.jit(sh.lift(mask))(x).type == x.type


def test_nothing_of_a_sharded_dim_is_free() -> None:
    """As `jnp.roll` by a whole turn takes it: a part without elements, and all the others."""
    with sh.use_mesh(sh.make_mesh(MESH)):
        x = sh.array(np.arange(64.0, dtype=np.float32).reshape(8, 8), "[_@dp, _@tp]")
        rolled, grad = sh.value_and_grad(
            lambda x: sh.all_reduce(sh.lift(lambda x: jnp.sum(jnp.roll(x, 8, 0) ** 2))(x))
        )(x)
        assert sh.lift(lambda x: jnp.roll(x, (0, 8), (0, 1)))(x).type == x.type
        assert denoted(rolled) == np.sum(np.arange(64.0) ** 2)
        np.testing.assert_array_equal(denoted(grad), 2 * np.arange(64.0).reshape(8, 8))


def test_a_number_to_the_power_of_a_typed_integer_is_a_float() -> None:
    with sh.use_mesh(sh.make_mesh(MESH)):
        count = sh.array(np.int32(3), "i32[]")
        found = sh.lift(lambda n: 0.9**n)(count)
        assert found.type.dtype_name == "f32"
        np.testing.assert_allclose(np.asarray(found), 0.9**3, rtol=1e-6)


def test_an_equation_of_one_value_twice_is_told_from_one_of_two() -> None:
    """What an equation bound is bound again for the next one like it: `x * x` is not like `x * y`."""

    def f(x: Any, y: Any) -> Any:
        return x * x, y * y, x * y, jnp.stack([x, y, x]), jnp.stack([x, x, y]), jnp.stack([y, x, y])

    x, y = _array(4, 8), _array(4, 8)
    with sh.use_mesh(sh.make_mesh(MESH)):
        found = sh.jit(sh.lift(f))(sh.array(x, "f32[4@dp,8]"), sh.array(y, "f32[4@dp,8]"))
    for mine, wanted in zip(found, f(x, y), strict=True):
        np.testing.assert_array_equal(denoted(mine), np.asarray(wanted))


def test_a_value_is_sent_once_whatever_was_lifted_before() -> None:
    """What a reshard bound is bound again for the next one like it, but of a value that is there already."""

    def f(x: Any) -> Any:
        once: Any = sh.reshard(x, "[_, _]")
        return jnp.sin(once) * sh.reshard(x, "[_, _]")

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        x = sh.abstract_array("f32[8@tp, 24]")
        one = sh.ledger(sh.lift(lambda x: sh.reshard(x, "[_, _]")), x)
        assert [e.kind for e in one] == ["all-gather"]
        assert sh.ledger(sh.lift(f), x).total == one.total


def test_reductions_of_several_operands_and_casts_to_other_widths() -> None:
    def pair(x: Any, y: Any) -> Any:
        return jnp.maximum(x[0], y[0]), jnp.where(x[0] > y[0], x[1], y[1])

    def f(x: Any, n: Any) -> Any:
        least = jax.lax.reduce((x, n), (-jnp.inf, np.int32(0)), pair, (1,))
        windows = jax.lax.reduce_window((x, n), (-jnp.inf, np.int32(0)), pair, (1, 3), (1, 2), "VALID")
        parts = jax.lax.bitcast_convert_type(x, jnp.int16)
        return *least, *windows, parts, jax.lax.bitcast_convert_type(parts, jnp.float32)

    x, n = _array(4, 8), np.arange(32, dtype=np.int32).reshape(4, 8)
    with sh.use_mesh(sh.make_mesh(MESH)):
        found = sh.jit(sh.lift(f))(sh.array(x, "f32[4@dp,8]"), sh.array(n, "i32[4@dp,8]"))
        for mine, wanted in zip(found, f(x, n), strict=True):
            np.testing.assert_array_equal(denoted(mine), np.asarray(wanted))
        assert [y.type.dims[0].axes for y in found] == [("dp",)] * 6
        with pytest.raises(sh.ShardingTypeError, match="`reduce` acts along dim 1, which is sharded"):
            sh.lift(f)(sh.array(x, "f32[4,8@tp]"), sh.array(n, "i32[4,8@tp]"))


def _root(v: Any) -> Any:
    """A cube root and how many steps it took, which differs between elements."""

    def step(state: Any) -> Any:
        x, n = state
        return x - (x**3 - v) / (3 * x * x), n + 1

    return jax.lax.while_loop(lambda state: abs(state[0] ** 3 - v) > 1e-3, step, (v, 0))


def test_a_mapped_loop_runs_on_each_device_until_its_own_elements_are_done() -> None:
    x = np.linspace(1, 200, 8, dtype=np.float32)

    def both(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda v: jax.jvp(f, (v,), (jnp.ones_like(v),))

    programs = (jax.vmap(_root), both(lambda v: jax.vmap(_root)(v)[0]), lambda v: [jax.scipy.special.exp1(v / 50)])
    with sh.use_mesh(sh.make_mesh(MESH)):
        typed = sh.array(x, "f32[8@(dp,tp)]")
        for f in programs:
            assert not sh.ledger(sh.lift(f), typed)
            for mine, wanted in zip(sh.jit(sh.lift(f))(typed), f(x), strict=True):
                assert mine.type.dims[0].axes == ("dp", "tp")
                np.testing.assert_allclose(denoted(mine), wanted, rtol=1e-5)


def test_a_mapped_loop_that_communicates_needs_one_predicate_for_all() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(row: Any) -> Any:
            return row + sh.all_reduce(jnp.sum(w))

        return jax.vmap(lambda row: jax.lax.while_loop(lambda row: row[0] < 5, step, row))(x)

    rows = abs(_array(4, 8))
    wanted = f(jnp.asarray(rows), jnp.ones(8))
    with sh.use_mesh(sh.make_mesh(MESH)):
        x, w = sh.array(rows, "f32[4@dp,8]"), sh.ones("f32[8@tp]")
        with pytest.raises(sh.ShardingTypeError, match="`any` reduces dim 0, which is sharded on mesh axis `dp`"):
            sh.lift(f)(x, w)
        with sh.implicit_comm():
            assert_close(denoted(sh.lift(f)(x, w)), wanted, 100)


@pytest.mark.parametrize(("first", "shape"), [("gradient", "f32[4@dp, 3]"), ("value", "f32[4@dp, 5]")])
def test_an_equation_is_typed_once_for_all_layers_in_a_gradient_and_outside(
    first: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is traced first, and no other test has it of this shape: a program that is trained is evaluated too."""

    def f(x: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x))))

    programs: dict[str, Callable[..., Any]] = {"gradient": sh.grad(sh.lift(f)), "value": sh.lift(f)}
    row = Mock(side_effect=ROWS["tanh"])
    monkeypatch.setitem(ROWS, "tanh", row)
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        for program in (programs[first], *programs.values()):
            jax.make_jaxpr(program)(sh.abstract_array(shape))
    assert row.call_count == 1


@pytest.mark.parametrize("scope", [lambda f: f, sh.implicit_comm])
def test_the_branch_of_a_platform_is_that_of_the_devices_of_the_mesh(
    scope: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are GPUs, they are JAX's default devices, and a mesh may be of CPUs."""
    x = np.arange(8, dtype=np.float32)
    run = scope(sh.lift(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos, default=jnp.tanh)))
    with sh.use_mesh(sh.make_mesh(MESH)):
        typed = sh.array(x, "f32[8@dp]")
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        np.testing.assert_allclose(denoted(sh.jit(run)(typed)), np.sin(x), rtol=1e-6)
