"""Typed values in the frameworks of JAX: taken for the arrays that they are, or refused in words; never left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import shtypes as sh

W = np.arange(32, dtype=np.float32).reshape(8, 4) / 7
B = np.arange(4, dtype=np.float32)
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)

#: The gradients of `loss`.
_ERRORS = 2 * (X @ W + B) / 16
WANTED = {"w": X.T @ _ERRORS, "b": _ERRORS.sum(0)}


pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.mesh({"dp": 2, "tp": 4})]


def w() -> Any:
    return sh.array(W, "f32[8,4@tp]")


def b() -> Any:
    return sh.array(B, "f32[4@tp]")


def x() -> Any:
    return sh.array(X, "f32[4@dp,8]")


def loss(found: Any) -> Any:
    return sh.mean(sh.square(found))


def assert_gradients(grads: dict[str, Any]) -> None:
    """The gradients are typed, of the parameters' cotangent types, and those of JAX."""
    assert sh.tree.types(grads) == {"w": w().type.cotangent(), "b": b().type.cotangent()}
    for name, g in grads.items():
        np.testing.assert_allclose(np.asarray(sh.all_reduce(g)), WANTED[name], rtol=1e-5, atol=1e-6)


@pytest.fixture
def eqx() -> Any:
    return pytest.importorskip("equinox")


@pytest.fixture
def nnx() -> Any:
    return pytest.importorskip("flax.nnx")


@pytest.fixture
def linen() -> Any:
    return pytest.importorskip("flax.linen")


@pytest.fixture
def hk() -> Any:
    return pytest.importorskip("haiku")


# equinox


def module(eqx: Any) -> Any:
    def call(self: Any, x: Any) -> Any:
        return x @ self.w + self.b

    body = {"__annotations__": {"w": Any, "b": Any, "n": Any}, "__call__": call}
    return type(eqx.Module)("Layer", (eqx.Module,), body)(w(), b(), 3)


def questions(eqx: Any) -> list[Callable[[Any], bool]]:
    return [eqx.is_array, eqx.is_inexact_array, eqx.is_array_like, eqx.is_inexact_array_like]


@pytest.mark.parametrize("inside", ["eager", "jax.jit", "sh.jit", "sh.grad", "sh.vmap"])
def test_a_typed_value_is_an_array_to_equinox(eqx: Any, inside: str) -> None:
    answers = []

    def ask(v: Any) -> Any:
        answers.append([question(v) for question in questions(eqx)])
        return sh.sum(v)

    modes: dict[str, Callable[..., Any]] = {"eager": ask, "jax.jit": jax.jit(ask), "sh.jit": sh.jit(ask)}
    modes |= {"sh.grad": sh.grad(ask), "sh.vmap": sh.vmap(ask)}
    modes[inside](w())
    assert answers[0] == [True] * 4
    assert [question(sh.array(1, "i32[]")) for question in questions(eqx)] == [True, False, True, False]


def test_equinox_parts_typed_modules_and_puts_them_together(eqx: Any) -> None:
    arrays, rest = eqx.partition(module(eqx), eqx.is_array)
    assert sh.tree.types((arrays.w, arrays.b)) == (w().type, b().type)
    assert (rest.w, rest.b, rest.n, arrays.n) == (None, None, 3, None)
    assert eqx.combine(arrays, rest)(x()).type == "f32[4@dp,4@tp]{}"


@pytest.mark.parametrize("within", ["eager", "filter_jit", "sh.jit"])
def test_equinox_differentiates_every_typed_parameter(eqx: Any, within: str) -> None:
    grad = eqx.filter_grad(lambda m, v: loss(m(v)))
    if within == "filter_jit":
        grad = eqx.filter_jit(grad)
    m = module(eqx)
    if within == "sh.jit":
        arrays, rest = eqx.partition(m, eqx.is_array)
        found = sh.jit(lambda arrays, v: grad(eqx.combine(arrays, rest), v))(arrays, x())
    else:
        found = grad(m, x())
    assert_gradients({"w": found.w, "b": found.b})
    assert found.n is None


def test_equinox_checkpoints_and_evaluates_shapes_of_typed_functions(eqx: Any) -> None:
    def remat(p: Any) -> Any:
        return eqx.filter_checkpoint(lambda p, v: loss(v @ p["w"] + p["b"]))(p, x())

    assert_gradients(sh.grad(remat)({"w": w(), "b": b()}))
    assert eqx.filter_eval_shape(lambda v: v * 2, w()) == w().type


# flax


def model(nnx: Any) -> Any:
    class Model(nnx.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.w, self.b = nnx.Param(w()), nnx.Param(b())
            self.calls = nnx.Variable(sh.array(0, "i32[]"))

        def __call__(self, v: Any) -> Any:
            return v @ self.w[...] + self.b[...]

    return Model


def of_state(state: Any) -> dict[str, Any]:
    return {name: state[name][...] for name in ("w", "b")}


def test_flax_splits_and_merges_typed_models(nnx: Any) -> None:
    graph, params, rest = nnx.split(model(nnx)(), nnx.Param, ...)
    assert sh.tree.types(of_state(params)) == {"w": w().type, "b": b().type}
    assert [leaf.type for leaf in jax.tree.leaves(rest)] == ["i32[]"]
    assert nnx.merge(graph, params, rest)(x()).type == "f32[4@dp,4@tp]{}"


def by_sh(nnx: Any) -> Any:
    graph, params, rest = nnx.split(model(nnx)(), nnx.Param, ...)
    return sh.jit(sh.grad(lambda params, v: loss(nnx.merge(graph, params, rest)(v))))(params, x())


WAYS: dict[str, Callable[[Any], Any]] = {
    "nnx.grad": lambda nnx: nnx.grad(lambda m, v: loss(m(v)))(model(nnx)(), x()),
    "nnx.jit": lambda nnx: nnx.jit(nnx.value_and_grad(lambda m, v: loss(m(v))))(model(nnx)(), x())[1],
    "nnx.remat": lambda nnx: nnx.grad(nnx.remat(lambda m: loss(m(x()))))(model(nnx)()),
    "sh.grad": by_sh,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", WAYS)
def test_flax_differentiates_every_typed_parameter(nnx: Any, way: str) -> None:
    assert_gradients(of_state(WAYS[way](nnx)))


def test_flax_changes_typed_variables_in_place(nnx: Any) -> None:
    m = model(nnx)()

    def step(m: Any) -> None:
        m.w[...] = m.w[...] * 2
        m.calls[...] = m.calls[...] + 1

    nnx.jit(step)(m)
    np.testing.assert_array_equal(np.asarray(m.w[...]), 2 * W)
    assert int(m.calls[...]) == 1
    assert m.w[...].type == w().type


def test_flax_keeps_the_types_of_a_model_that_it_only_evaluates(nnx: Any) -> None:
    """A type has a sharding; flax makes something of its own of what has none."""
    abstract = nnx.eval_shape(model(nnx))
    assert (abstract.w.get_value(), abstract.b.get_value()) == (w().type, b().type)


def test_a_typed_model_of_flax_is_saved_and_restored_from_its_types(nnx: Any, tmp_path: Any) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    graph, state = nnx.split(model(nnx)())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", state)
        checkpointer.wait_until_finished()
        _, types = nnx.split(nnx.eval_shape(model(nnx)))
        restored = checkpointer.restore(tmp_path / "model", jax.tree.map(sh.abstract_array, types))
    found = nnx.merge(graph, restored)(x())
    np.testing.assert_allclose(np.asarray(found), X @ W + B, rtol=1e-6)


@pytest.mark.parametrize("lifted", ["as it is", "remat", "jit"])
def test_linen_holds_typed_parameters(linen: Any, lifted: str) -> None:
    class Layer(linen.Module):  # type: ignore[misc]
        def setup(self) -> None:
            self.w, self.b = self.param("w", lambda _: w()), self.param("b", lambda _: b())

        def __call__(self, v: Any) -> Any:
            return v @ self.w + self.b

    layer = {"as it is": Layer, "remat": linen.remat(Layer), "jit": linen.jit(Layer)}[lifted]()
    variables = layer.init(jax.random.key(0), x())
    assert sh.tree.types(variables["params"]) == {"w": w().type, "b": b().type}
    assert_gradients(sh.grad(lambda v: loss(layer.apply(v, x())))(variables)["params"])


# haiku


@pytest.mark.parametrize("lifted", [False, True])
def test_haiku_holds_typed_parameters(hk: Any, lifted: bool) -> None:
    def layer(v: Any) -> Any:
        return v @ hk.get_parameter("w", (8, 4), init=lambda *_: w()) + hk.get_parameter("b", (4,), init=lambda *_: b())

    net = hk.without_apply_rng(hk.transform(lambda v: hk.remat(layer)(v) if lifted else layer(v)))
    params = net.init(jax.random.key(0), x())
    assert sh.tree.types(params["~"]) == {"w": w().type, "b": b().type}
    assert_gradients(sh.jit(sh.grad(lambda p, v: loss(net.apply(p, v))))(params, x())["~"])
    chosen, rest = hk.data_structures.partition(lambda *_: True, params)
    assert jax.tree.leaves(rest) == []
    assert hk.data_structures.tree_size(chosen) == W.size + B.size


# what takes plain arrays only


def dense(name: str) -> Any:
    params = {"kernel": w(), "bias": b()}
    if name == "linen.Dense":
        return pytest.importorskip("flax.linen").Dense(4).apply({"params": params}, x())
    if name == "nnx.Linear":
        nnx = pytest.importorskip("flax.nnx")
        layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
        layer.kernel, layer.bias = nnx.Param(w()), nnx.Param(b())
        return layer(x())
    hk = pytest.importorskip("haiku")

    def linear(v: Any) -> Any:
        return hk.Linear(4)(v)

    return hk.transform(linear).apply({"linear": {"w": w(), "b": b()}}, None, x())


@pytest.mark.parametrize("name", ["linen.Dense", "nnx.Linear", "hk.Linear"])
def test_stock_layers_of_plain_arrays_refuse_typed_parameters(name: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"was given to `jax\.numpy"):
        dense(name)


@pytest.mark.parametrize(
    "annotate",
    [
        lambda nnx: nnx.Param(w(), sharding_names=("dp", None)),
        lambda nnx: nnx.Param(nnx.with_partitioning(w, ("dp", None))()),
        lambda nnx: nnx.shard_map(lambda v: v, mesh=jax.sharding.get_mesh(), in_specs=jax.P(), out_specs=jax.P())(w()),
    ],
)
def test_shardings_that_flax_would_give_are_refused(nnx: Any, annotate: Callable[[Any], Any]) -> None:
    with pytest.raises(sh.ShardingTypeError, match="takes plain arrays only"):
        annotate(nnx)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "clip_by_global_norm"])
def test_an_optimizer_that_is_not_applied_to_shards_refuses(optimizer: str) -> None:
    params = {"w": w()}
    made = getattr(optax, optimizer)(0.1)
    with pytest.raises(sh.ShardingTypeError, match=r"was given to `jax\.numpy"):
        optax.apply_updates(params, made.update(params, made.init(params), params)[0])


def test_a_tree_of_typed_values_is_what_it_is_to_jax_and_optax() -> None:
    tree = {"w": w(), "rest": [b(), None]}
    assert sh.tree.types(jax.tree.map(lambda v: v * 2, tree)) == sh.tree.types(tree)
    assert [v.type for v in jax.tree.leaves(tree)] == [b().type, w().type]
    assert sh.tree.types(optax.tree.cast(tree, "bfloat16"))["w"] == "bf16[8,4@tp]{}"
    np.testing.assert_array_equal(jax.device_get(tree)["w"], W)


def test_bytes_of_flax_hold_the_value_and_give_back_a_host_array() -> None:
    """As of a plain array; what lies on devices is orbax's."""
    serialization = pytest.importorskip("flax.serialization")
    restored = serialization.from_bytes({"w": w()}, serialization.to_bytes({"w": w()}))["w"]
    assert type(restored) is np.ndarray
    np.testing.assert_array_equal(restored, W)
    with pytest.raises(sh.ShardingTypeError, match="it is unreduced over `tp`"):
        serialization.to_bytes({"w": sh.sum(w(), 1)})
