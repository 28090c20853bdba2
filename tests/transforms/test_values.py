"""Typed values among JAX's tree functions, in Python's protocols, and where they do not belong."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import small_models as p


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


@pytest.fixture
def x() -> Any:
    return sh.array(p.X, p.X_TYPE)


# trees


def test_a_value_is_a_leaf_of_every_tree(x: Any) -> None:
    _, w, _ = p.values()
    leaves = jax.tree.leaves({"a": x, "b": [w]})
    assert leaves[0] is x
    assert leaves[1] is w
    doubled = sh.tree.map(lambda v: v * 2.0, {"a": x})
    p.assert_close(doubled["a"], 2 * p.X)
    jax.block_until_ready(doubled)
    assert sh.tree.types({"a": x, "n": jnp.ones(3)})["a"] == x.type


def test_a_tree_goes_to_other_libraries_and_comes_back(x: Any) -> None:
    tree = {"x": x, "step": jnp.int32(1), "none": None, "w": sh.array(p.W_IN, p.IN_TYPE)}
    plain = sh.tree.to_jax(tree)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(plain))
    assert plain["x"] is x.data
    updated = jax.tree.map(lambda leaf: leaf + 1, plain)
    back = sh.tree.from_jax(updated, like=tree)
    assert back["x"].type == x.type
    p.assert_close(back["x"], p.X + 1)
    assert not isinstance(back["step"], sh.Array)
    by_type = sh.tree.from_jax(plain, like=sh.tree.types(tree))
    assert by_type["w"].type == tree["w"].type
    inside = jax.jit(lambda tree: sh.tree.from_jax(sh.tree.to_jax(tree), like=tree))(tree)
    assert inside["x"].type == x.type


def test_a_tree_of_another_structure_is_refused(x: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="another structure"):
        sh.tree.from_jax({"x": x.data}, like=[x])
    with pytest.raises(sh.ShardingTypeError, match="unreduced over `tp`"):
        sh.tree.to_jax([sh.reshard(x, tp="U")])


# Python's protocols


@pytest.mark.parametrize("text", ["f32[4@dp,8]", "f32[4@(dp,tp),8]", "f32[4,8]{I:dp}"])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))], ids=["copy", "deepcopy", "pickle"]
)
def test_values_and_types_are_copied_and_pickled(duplicate: Callable[[Any], Any], text: str) -> None:
    value = sh.array(p.X, text)
    found = duplicate({"v": value, "t": value.type})
    assert found["v"].type == value.type
    assert found["t"] is value.type
    p.assert_close(found["v"], p.X)


def test_a_value_becomes_a_host_array_or_a_number(x: Any) -> None:
    np.testing.assert_array_equal(np.asarray(x), p.X)
    np.testing.assert_array_equal(jax.device_get(x), p.X)
    np.testing.assert_array_equal(jax.device_get({"a": x})["a"], p.X)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    number = sh.array(1.5)
    assert float(number) == number.item() == 1.5
    assert f"{number:.2f}" == "1.50"
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((4, 8), 2, 32)


@pytest.mark.parametrize("convert", [np.asarray, jax.device_get, lambda v: v.to_jax()], ids=["numpy", "get", "to_jax"])
def test_a_pending_sum_has_no_host_value_and_says_how_to_get_one(convert: Callable[[Any], Any], x: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="unreduced over `tp`") as caught:
        convert(sh.reshard(x, tp="U"))
    assert caught.value.fixes


def test_values_and_tracers_are_instances_of_array_and_have_its_attributes(x: Any) -> None:
    def f(x: Any) -> Any:
        assert isinstance(x, sh.Array)
        assert (x.shape, x.ndim, x.size, x.dtype, len(x)) == ((4, 8), 2, 32, np.float32, 4)
        assert str(x.type) == "f32[batch@dp, hidden]"
        assert jax.typeof(x) == sh.typeof(x) == x.type
        return x

    f(x)
    jax.jit(f)(x)
    sh.grad(lambda x: sh.sum(f(x)))(x)
    assert not isinstance(x.data, sh.Array)
    assert isinstance(x, jax.Array)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, w: (x + x) * 2.0,
    "matmul": lambda x, w: x @ w,
    "scale": lambda x, w: 2.0 * x,
    "sub": lambda x, w: 1.0 - x,
    "neg": lambda x, w: -x,
    "div": lambda x, w: x / 2.0,
    "pow": lambda x, w: x**2,
    "T": lambda x, w: w.T,
    "compare": lambda x, w: x > 0,
    "sum": lambda x, w: x.sum(1),
    "numpy on the left": lambda x, w: np.ones((4, 8), np.float32) + x,
    "numpy on the right": lambda x, w: x * np.ones((4, 8), np.float32),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators_work_on_values_and_on_tracers(name: str) -> None:
    x, w, _ = p.values()
    f = OPERATORS[name]
    eager, compiled, wanted = f(x, w), jax.jit(f)(x, w), f(p.X, p.W_IN)
    assert eager.type == compiled.type
    p.assert_close(eager, wanted)
    p.assert_close(compiled, wanted)


def test_a_plain_array_on_either_side_of_an_operator_is_a_constant(x: Any) -> None:
    row = jnp.arange(8.0)
    p.assert_close(row * x, p.X * np.arange(8.0))
    p.assert_close(x * row, p.X * np.arange(8.0))
    p.assert_close(jax.jit(lambda x: x * row)(x), p.X * np.arange(8.0))


# where typed values do not belong

MISUSES: dict[str, Callable[[Any], Any]] = {
    "jnp.sin": jnp.sin,
    "jax.nn.silu": jax.nn.silu,
    "jnp.zeros_like": jnp.zeros_like,
    "jnp.ones_like": jnp.ones_like,
    "jnp.full_like": lambda x: jnp.full_like(x, 2),
    "jnp.linalg.norm": jnp.linalg.norm,
    "pure_callback": lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4, 8), np.float32), x),
}
#: Refused by JAX in its own words, which name our type.
NATIVE_REFUSALS: dict[str, Callable[[Any], Any]] = {
    "lax.sin": jax.lax.sin,
    "device_put": jax.device_put,
    "with_sharding_constraint": lambda x: jax.lax.with_sharding_constraint(x, jax.P()),
    "debug.print": lambda x: jax.debug.print("{}", x),
    "shard_map": jax.shard_map(lambda x: x, in_specs=jax.P("dp"), out_specs=jax.P("dp")),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", list(MISUSES))
def test_a_function_of_jax_explains_that_it_takes_plain_arrays(name: str, compiled: bool, x: Any) -> None:
    f = MISUSES[name]
    with pytest.raises(sh.ShardingTypeError, match=r"a typed value, f32\[batch@dp, hidden\], was given to") as caught:
        (jax.jit(f) if compiled else f)(x)
    assert any("to_jax" in hint for hint in caught.value.hints)


@pytest.mark.parametrize("name", list(NATIVE_REFUSALS))
def test_a_primitive_of_jax_names_the_type_that_it_refuses(name: str, x: Any) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=r"f32\[batch@dp, hidden\]"):
        NATIVE_REFUSALS[name](x)


@pytest.mark.parametrize("f", [jax.lax.stop_gradient, lambda x: jax.debug.print("{}", x)], ids=["stop", "print"])
def test_a_primitive_that_knows_no_types_is_caught_when_it_is_lowered(f: Callable[[Any], Any], x: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="a typed value"):
        jax.block_until_ready(jax.jit(lambda x: (f(x), x))(x))


def test_a_plain_view_can_be_printed_from_compiled_code(x: Any, capsys: Any) -> None:
    @jax.jit
    def f(x: Any) -> Any:
        jax.debug.print("sum {}", p.to_plain(sh.sum(x)))
        return x * 2.0

    f(x).block_until_ready()
    jax.effects_barrier()
    assert capsys.readouterr().out.startswith("sum ")


@pytest.mark.parametrize(
    "ask", [bool, int, float, complex, lambda v: [1, 2][v]], ids=["bool", "int", "float", "complex", "index"]
)
def test_a_traced_value_has_no_number_and_says_so(ask: Callable[[Any], Any]) -> None:
    number = sh.array(np.int32(1))
    with pytest.raises(sh.ShardingTypeError, match=r"a traced value, i32\[\], has no"):
        jax.jit(ask)(number)


def test_a_traced_value_has_no_data_and_a_value_without_data_is_not_computed(x: Any) -> None:
    with pytest.raises(sh.ShardingTypeError, match="has no data while it is traced"):
        jax.jit(lambda x: x.data)(x)
    with pytest.raises(sh.ShardingTypeError, match="a value that has only a type"):
        jax.jit(sh.silu)(sh.abstract_array(x.type))
    with pytest.raises(sh.ShardingTypeError, match="not made by"):
        sh.Array(x.type, x.data)


@pytest.mark.parametrize("key", ["in_shardings", "out_shardings"])
def test_shardings_given_to_jax_jit_for_typed_values_are_refused_at_the_latest_where_the_value_is_used(
    key: str, x: Any, on_a_mesh: Any
) -> None:
    options: dict[str, Any] = {key: jax.NamedSharding(on_a_mesh, jax.P())}
    with pytest.raises((sh.ShardingTypeError, ValueError, NotImplementedError)):
        sh.silu(jax.jit(lambda x: x * 2.0, **options)(x))
