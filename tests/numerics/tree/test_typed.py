"""Types for whole trees: by rules, for every kind of array, once more, and moved."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.errors import ShardingTypeError

UP = np.arange(16 * 32, dtype=np.float64).reshape(16, 32) % 256
RULES: dict[Any, Any] = {
    "**/up/kernel": "bf16[embed, mlp@tp]",
    "**/up/bias": "[mlp@tp]",
    re.compile(r"layers/\d+/down"): jax.P("tp", None),
    "**/scale": None,
    "**": "[...]",
}


def model() -> dict[str, Any]:
    layers = [
        {"up": {"kernel": UP, "bias": jnp.ones(32)}, "down": np.ones((32, 16), np.float32), "act": jax.nn.gelu}
        for _ in range(2)
    ]
    return {"layers": layers, "scale": np.float32(2), "key": jax.random.key(0), "name": "mlp", "depth": 2, "off": None}


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 4})


def test_each_array_has_the_type_of_its_rule() -> None:
    plain = model()
    typed = sh.tree.array(plain, RULES)
    structure: Any = jax.tree.structure(typed)
    assert structure == jax.tree.structure(plain)
    for layer in typed["layers"]:
        assert str(layer["up"]["kernel"].type) == "bf16[embed, mlp@tp]"
        assert str(layer["up"]["bias"].type) == "f32[mlp@tp]"
        assert layer["down"].type == "f32[32@tp,16]"
        assert layer["act"] is jax.nn.gelu
        np.testing.assert_array_equal(np.asarray(layer["up"]["kernel"].astype("f32")), UP)  # up to 256, exact in bf16
        np.testing.assert_array_equal(np.asarray(layer["down"]), 1)
    assert typed["scale"].type == "f32[]"
    assert typed["key"].type == "key<fry>[]"
    assert (typed["name"], typed["depth"], typed["off"]) == ("mlp", 2, None)


def test_the_types_that_rules_would_give_are_those_that_they_give() -> None:
    would = sh.tree.types(model(), RULES)
    typed = sh.tree.array(model(), list(RULES.items()))
    assert would["name"] == "mlp"
    arrays = [x for x in jax.tree.leaves(typed) if isinstance(x, sh.Array)]
    types = [t for t in jax.tree.leaves(would) if isinstance(t, sh.ShType)]
    assert len(types) == 8
    assert [x.type for x in arrays] == types
    assert [x.type.names for x in arrays] == [t.names for t in types]


def test_what_has_only_a_shape_becomes_what_has_only_a_type() -> None:
    plain = {k: v for k, v in model().items() if k not in ("name", "depth")}
    arrays = jax.tree.map(lambda x: None if callable(x) else x, plain)
    shapes = jax.eval_shape(lambda: arrays)
    typed = sh.tree.array(shapes, RULES)
    assert [x.type for x in jax.tree.leaves(typed)] == jax.tree.leaves(sh.tree.types(shapes, RULES))
    assert all(x.data is None for x in jax.tree.leaves(typed))
    signature = sh.check(lambda p: p["layers"][0]["down"] + 1.0, typed)
    assert "f32[32@tp,16]" in str(signature)


def test_where_data_could_not_take_a_dtype_a_shape_cannot_either() -> None:
    for x in (np.ones(4, np.float32), jax.ShapeDtypeStruct((4,), "float32")):
        for call in (sh.tree.array, sh.tree.types):
            with pytest.raises(ShardingTypeError) as raised:
                call({"w": x}, {"w": "i32[4]"})
            assert raised.value.what == "leaf `w` (rule `w`): an array of dtype `f32` cannot become i32[4]"


def test_a_mesh_may_be_given() -> None:
    mesh = sh.make_mesh({"x": 8})
    typed = sh.tree.array({"w": np.ones(8)}, {"w": "[_@x]"}, mesh=mesh)
    assert typed["w"].type.mesh == sh.tree.types({"w": np.ones(8)}, {"w": "[_@x]"}, mesh=mesh)["w"].mesh
    assert typed["w"].type.local_shape == (1,)


def test_under_jit_traced_arrays_get_types_too() -> None:
    f = jax.jit(lambda tree: sh.tree.array(tree, {"w": "[_@dp, _]"}))
    assert f({"w": jnp.ones((8, 4))})["w"].type == "f32[8@dp,4]"


# typed values


def test_a_value_that_has_the_type_stays() -> None:
    once = sh.tree.array(model(), RULES)
    again = sh.tree.array(once, RULES)
    for x, y in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        assert x is y


def test_a_value_of_another_type_is_not_moved_unasked() -> None:
    once = sh.tree.array({"w": UP}, {"w": "[_@dp, _]"})
    with pytest.raises(ShardingTypeError) as raised:
        sh.tree.array(once, {"w": "[_, _@tp]"})
    assert raised.value.what == ("leaf `w` (rule `w`): it has the type f32[16@dp,32] already, not f32[16,32@tp]")
    assert raised.value.hints == ("sh.tree.reshard(tree, rules)",)


def test_a_tree_is_resharded_by_rules() -> None:
    once = sh.tree.array({"w": UP, "b": UP[0], "name": "x"}, {"w": "[_@dp, _]", "b": "[_@tp]"})
    moved = sh.tree.reshard(once, {"w": "[_, _@tp]", "**": None})
    assert moved["w"].type == "f32[16,32@tp]"
    assert moved["b"] is once["b"]
    assert moved["name"] == "x"
    np.testing.assert_array_equal(np.asarray(moved["w"]), UP)
    (entry,) = sh.ledger(lambda w: sh.tree.reshard({"w": w}, {"w": "[_, _]"}), once["w"])
    assert (entry.kind, entry.axes) == ("all-gather", ("dp",))
    with sh.no_comm(), pytest.raises(ShardingTypeError):
        sh.tree.reshard(once, {"w": "[_, _]", "**": None})


def test_what_is_plain_cannot_be_resharded() -> None:
    with pytest.raises(ShardingTypeError, match=r"leaf `w`, f32\[4\] has no sharding type"):
        sh.tree.reshard({"w": jnp.ones(4)}, {"w": "[_@dp]"})


def test_one_set_of_rules_serves_every_mesh_by_the_axes_of_names() -> None:
    rules = {"**/kernel": "[embed, mlp]"}
    for axes, local in (({"mlp": "tp"}, (16, 8)), ({"embed": "dp", "mlp": "tp"}, (8, 8)), ({}, (16, 32))):
        with sh.dim_axes(axes):
            typed = sh.tree.array({"up": {"kernel": UP}}, rules)
        assert typed["up"]["kernel"].type.local_shape == local


# types without rules


def test_types_without_rules_are_those_that_values_have() -> None:
    typed = sh.tree.array({"w": UP}, {"w": "[_@dp, _]"})
    found = sh.tree.types({**typed, "plain": jnp.ones(3), "f": len, "t": typed["w"].type, "name": "x"})
    assert found["w"] == "f32[16@dp,32]"
    assert found["t"] == found["w"]
    assert found["plain"] == jax.typeof(jnp.ones(3))
    assert found["f"] is len
    assert found["name"] == "x"
