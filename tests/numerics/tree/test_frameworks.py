"""Models of Flax, Equinox and optax: their paths, and Flax's own names for dims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.errors import ShardingTypeError
from shtypes.numerics.tree.leaves import leaves_of

AXES = {"embed": None, "mlp": "tp", "batch": "dp"}


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def paths(tree: Any) -> list[str]:
    return [leaf.path for leaf in leaves_of(tree) if leaf.is_array]


# Flax NNX


@pytest.fixture
def nnx() -> Iterator[Any]:
    found = pytest.importorskip("flax.nnx")
    with found.use_eager_sharding(False):  # else Flax wants names of mesh axes, or its own rules
        yield found


def network(nnx: Any, names: Any = ("embed", "mlp"), **metadata: Any) -> Any:
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names, **metadata)

    class Net(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(8, 16, rngs=rngs, kernel_init=init)])
            self.out = nnx.Linear(16, 8, rngs=rngs)
            self.act = jax.nn.gelu

    return Net(nnx.Rngs(0))


PATHS = ["layers/0/bias", "layers/0/kernel", "out/bias", "out/kernel"]


def test_modules_and_states_of_nnx_have_the_paths_of_attributes(nnx: Any) -> None:
    net = network(nnx)
    assert paths(nnx.state(net)) == paths(net) == PATHS
    assert paths(nnx.eval_shape(lambda: nnx.state(network(nnx)))) == PATHS


def test_names_of_nnx_are_axes_by_the_scope(nnx: Any) -> None:
    net = network(nnx)
    with sh.dim_axes(AXES):
        state = sh.tree.array(nnx.state(net), {"**/bias": "[...]", "out/kernel": "[mlp, embed]"})
    assert isinstance(state, nnx.State)
    kernel = state["layers"][0]["kernel"]
    assert isinstance(kernel, nnx.Param)
    assert str(kernel.get_value().type) == "f32[embed, mlp@tp]"
    assert state["out"]["kernel"].get_value().type == "f32[16@tp,8]"
    np.testing.assert_array_equal(
        np.asarray(kernel.get_value()), np.asarray(nnx.state(net)["layers"][0]["kernel"].get_value())
    )


def test_a_module_of_nnx_is_typed_as_it_is(nnx: Any) -> None:
    with sh.dim_axes(AXES):
        net = sh.tree.array(network(nnx), {"**/bias": "[...]", "out/*": "[...]"})
    x = sh.array(np.ones((4, 8), np.float32), "[_@dp, _]")
    y = x @ net.layers[0].kernel.get_value()
    assert y.type == "f32[4@dp,16@tp]"
    assert net.act is jax.nn.gelu
    jax.block_until_ready(y)


def test_shapes_of_nnx_get_types_without_data(nnx: Any) -> None:
    shapes = nnx.eval_shape(lambda: nnx.state(network(nnx)))
    with sh.dim_axes(AXES):
        typed = sh.tree.array(shapes, {"**": None})
        types = sh.tree.types(shapes, {"**": None})
    kernel = typed["layers"][0]["kernel"].get_value()
    assert kernel.data is None
    assert str(kernel.type) == "f32[embed, mlp@tp]"
    assert types["layers"][0]["kernel"].get_value() == kernel.type
    assert typed["out"]["kernel"].get_value().type == "f32[16,8]"  # no names: replicated, since the rule says None


def test_an_array_without_a_rule_and_without_names_is_refused(nnx: Any) -> None:
    with sh.dim_axes(AXES), pytest.raises(ShardingTypeError) as raised:
        sh.tree.array(nnx.state(network(nnx)))
    assert raised.value.what.startswith("no rule matches leaf `layers/0/bias`, f32[16]; nor does one match 2 more")


NAMED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "mesh axes": (("dp", "tp"), {}, "f32[8@dp,16@tp]"),
    "a mesh axis and none": ((None, "tp"), {}, "f32[8,16@tp]"),
    "fewer names than dims": (("dp",), {}, "f32[8@dp,16]"),
    "several axes": ((None, ("dp", "tp")), {}, "f32[8,16@(dp,tp)]"),
    "several names": ((None, ("batch", "mlp")), {}, "f32[8,16@(dp,tp)]"),
    "a spec": (jax.P("dp", "mlp"), {}, "f32[8@dp,16@tp]"),
    "a name twice, without axes": (("embed", "embed"), {}, "f32[8,16]"),
    "rules of its own": (("embed", "heads"), {"sharding_rules": (("heads", "tp"), ("embed", "dp"))}, "f32[8@dp,16@tp]"),
    "of two rules for a name the first": (("x", None), {"sharding_rules": (("x", "tp"), ("x", None))}, "f32[8@tp,16]"),
}


@pytest.mark.parametrize(("names", "metadata", "meaning"), NAMED.values(), ids=NAMED)
def test_a_name_is_a_mesh_axis_or_has_its_axes(nnx: Any, names: Any, metadata: Any, meaning: str) -> None:
    net = network(nnx, names, **metadata)
    with sh.dim_axes(AXES):
        types = sh.tree.types(nnx.state(net), {"**": None})
    assert types["layers"][0]["kernel"].get_value() == meaning


def test_a_name_that_stands_for_no_axis_is_an_error(nnx: Any) -> None:
    state = nnx.state(network(nnx, ("embed", "mpl")))
    with sh.dim_axes(AXES), pytest.raises(ShardingTypeError) as raised:
        sh.tree.array(state, {"**": None})
    assert "leaf `layers/0/kernel` (named (embed, mpl)): dim 1 is named `mpl`, which is neither" in raised.value.what
    assert raised.value.hints[0] == "`mlp`"


def test_rules_go_before_names(nnx: Any) -> None:
    with sh.dim_axes(AXES):
        types = sh.tree.types(nnx.state(network(nnx)), {"**": "[_@dp, ...]"})
    assert types["layers"][0]["kernel"].get_value() == "f32[8@dp,16]"


def test_names_say_where_a_model_moves(nnx: Any) -> None:
    rules = {"**": None}
    with sh.dim_axes(AXES):
        state = sh.tree.array(nnx.state(network(nnx)), rules)
    with sh.dim_axes({"embed": "tp", "mlp": None}):
        moved = sh.tree.reshard(state, rules)
    assert moved["layers"][0]["kernel"].get_value().type == "f32[8@tp,16]"


# Flax linen


@pytest.fixture
def variables() -> Any:
    nn: Any = pytest.importorskip("flax.linen")
    init = nn.initializers.lecun_normal()

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(16, kernel_init=nn.with_logical_partitioning(init, ("embed", "mlp")))(x)
            return nn.Dense(8, kernel_init=nn.with_partitioning(init, ("tp", None)))(x)

    with sh.use_mesh(sh.make_mesh({})):
        return jax.eval_shape(Net().init, jax.random.key(0), jnp.ones((2, 8)))


OF_LINEN = {
    "params/Dense_0/bias": "f32[16]",
    "params/Dense_0/kernel": "f32[8,16@tp]",
    "params/Dense_1/bias": "f32[8]",
    "params/Dense_1/kernel": "f32[16@tp,8]",
}


def test_boxes_of_linen_say_the_types_and_are_gone(variables: Any) -> None:
    assert paths(variables) == [*OF_LINEN]
    with sh.dim_axes(AXES):
        typed = sh.tree.array(variables, {"**": None})
        types = sh.tree.types(variables, {"**": None})
    assert isinstance(typed["params"]["Dense_0"]["kernel"], sh.Array)
    assert {leaf.path: leaf.type for leaf in leaves_of(typed)} == OF_LINEN
    structure: Any = jax.tree.structure(types)
    assert structure == jax.tree.structure(typed)


def test_a_state_of_optax_keeps_the_names_of_its_parameters(variables: Any) -> None:
    optax = pytest.importorskip("optax")
    state = jax.eval_shape(optax.adamw(1e-3).init, variables)
    with sh.dim_axes(AXES):
        types = sh.tree.types(state, {"**": None})
    assert types[0].mu["params"]["Dense_0"]["kernel"] == OF_LINEN["params/Dense_0/kernel"]
    assert types[0].count == "i32[]"
    assert "0/mu/params/Dense_1/kernel" in paths(state)


# Equinox


def test_modules_of_equinox_keep_their_functions() -> None:
    eqx = pytest.importorskip("equinox")
    net = eqx.nn.MLP(8, 8, 16, 2, key=jax.random.key(0))
    assert paths(net) == [f"layers/{i}/{name}" for i in range(3) for name in ("weight", "bias")]
    typed = sh.tree.array(net, {"layers/1/weight": "[_@tp, _]", "**/weight": "[_, _@tp]", "**": "[...]"})
    assert type(typed) is type(net)
    assert [layer.weight.type for layer in typed.layers] == ["f32[16,8@tp]", "f32[16@tp,16]", "f32[8,16@tp]"]
    assert typed.activation is net.activation
    assert sh.tree.bytes(typed, 2)["layers/0"] == (16 * 8 // 4 + 16) * 4
    np.testing.assert_array_equal(np.asarray(typed.layers[0].weight), np.asarray(net.layers[0].weight))
