"""What a tree takes on each device: compared with what its devices hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import shtypes as sh

RULES = {"**/up": "[_, _@tp]", "**/down": "bf16[_@(dp,tp), _]", "**": "[...]"}


@pytest.fixture
def tree() -> Any:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 4}))
    layer = {"up": np.ones((16, 32), np.float32), "down": np.ones((32, 16), np.float32)}
    return sh.tree.array({"layers": [layer, layer], "scale": np.ones(16, np.float32)}, RULES)


def held(tree: Any) -> int:
    """What the first device holds."""
    first = jax.devices()[0]
    parts = [s for x in jax.tree.leaves(tree) for s in x.data.addressable_shards if s.device == first]
    return sum(s.data.nbytes for s in parts)


def test_bytes_are_those_that_a_device_holds(tree: Any) -> None:
    assert sh.tree.bytes(tree) == {"layers": held(tree["layers"]), "scale": held(tree["scale"])}
    assert sh.tree.bytes(tree).total == held(tree)
    assert sh.tree.bytes(tree, 0) == {"": held(tree)}
    assert sh.tree.bytes(tree, 2) == {
        "layers/0": held(tree["layers"][0]), "layers/1": held(tree["layers"][1]), "scale": held(tree["scale"]),
    }  # fmt: skip
    each = sh.tree.bytes(tree, None)
    assert each["layers/1/down"] == held(tree["layers"][1]["down"]) == 32 * 16 * 2 // 8
    assert each.total == held(tree)
    assert sh.tree.bytes(sh.tree.types(tree), None) == each
    assert sh.tree.bytes({"f": len, "none": None}) == {}


def test_plain_arrays_take_what_they_take(tree: Any) -> None:
    seen: list[Any] = []
    plain = sh.tree.to_jax(tree)
    assert sh.tree.bytes(plain, None) == sh.tree.bytes(tree, None)
    assert sh.tree.bytes({"n": np.ones((4, 2)), "s": jax.ShapeDtypeStruct((4,), "int8")}) == {"n": 64, "s": 4}
    assert sh.tree.bytes(sh.tree.types(plain)).total > 0
    jax.make_jaxpr(lambda x: seen.append(sh.tree.bytes({"x": x})))(jnp.ones(4))
    assert seen == [{"x": 16}]


SHOWN = """\
5 arrays
  path           type                 elements  B/device
  layers/0/down  bf16[32@(dp,tp),16]       512       128
  layers/0/up    f32[16,32@tp]             512       512
  layers/1/down  bf16[32@(dp,tp),16]       512       128
  layers/1/up    f32[16,32@tp]             512       512
  scale          f32[16]                    16        64
  total                                  2,064     1,344"""

SHORT = """\
5 arrays
  path    type      elements  B/device
  layers  4 arrays     2,048     1,280
  scale   f32[16]         16        64
  total                2,064     1,344"""


def test_a_tree_shows_as_a_table(tree: Any) -> None:
    shown = sh.tree.show(tree)
    assert str(shown) == repr(shown) == SHOWN
    assert str(sh.tree.show(tree, 1)) == SHORT
    assert str(sh.tree.show(sh.tree.types(tree), depth=1)) == SHORT
    assert shown.bytes == held(tree)
    assert shown.elements == sum(x.size for x in jax.tree.leaves(tree))
    console = Console(width=100)
    with console.capture() as said:
        console.print(shown)
    assert "f32[16,32@tp]" in said.get()
    assert "<td>f32[16,32@tp]</td>" in shown._repr_html_()
    assert shown.to_html().startswith("<!doctype html>")


def test_a_value_alone_and_plain_ones_show_too() -> None:
    assert str(sh.tree.show(np.ones((2, 3), np.int8))).splitlines()[2] == "  .      i8[2,3], plain         6         6"
    assert str(sh.tree.show({})) == "0 arrays\n  path   type  elements  B/device\n  total               0         0"


@pytest.mark.parametrize("depth", [-1, 1.5, "a", True])
def test_a_depth_is_a_number_of_keys(depth: Any) -> None:
    for call in (sh.tree.bytes, sh.tree.show):
        with pytest.raises(sh.ShardingTypeError, match="`depth` is a number of keys from 0"):
            call({}, depth)
