"""Where a typed value lies, as those hear who ask an array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding

import shtypes as sh
from shtypes.types import ShType

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(autouse=True)
def mesh() -> Iterator[jax.sharding.Mesh]:
    made = sh.make_mesh({"dp": 2, "tp": 4})
    with sh.use_mesh(made):
        yield made


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("f32[8,4]", jax.P()),
        ("f32[8,4@tp]", jax.P(None, "tp")),
        ("f32[8@dp,4@tp]", jax.P("dp", "tp")),
        ("f32[8@(dp,tp),4]", jax.P(("dp", "tp"))),
    ],
)
def test_a_value_lies_as_the_array_that_it_becomes(policy: str, text: str, spec: Any, mesh: Any) -> None:
    with sh.policy(policy):
        x = sh.array(X, text)
        wanted = NamedSharding(mesh, spec)
        assert isinstance(x.sharding, NamedSharding)
        for found in (x.sharding, x.type.sharding, sh.abstract_array(text).sharding, x.to_jax().sharding):
            assert found.is_equivalent_to(wanted, 2)
            assert found.mesh is mesh


def test_a_pure_type_says_it_as_well() -> None:
    t = ShType.parse("f32[8@dp,4]")
    assert type(t) is ShType
    assert t.sharding.spec == jax.P("dp", None)


def test_without_devices_the_mesh_is_abstract() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 64})):
        for found in (ShType.parse("f32[64@x]").sharding, sh.abstract_array("f32[64@x]").sharding):
            assert isinstance(found.mesh, AbstractMesh)
            assert found == NamedSharding(found.mesh, jax.P("x"))
            assert found.shard_shape((64,)) == (1,)
    elsewhere = sh.abstract_array("f32[64@x]", sh.abstract_mesh({"x": 32}))  # under another mesh
    assert elsewhere.sharding.shard_shape((64,)) == (2,)


def test_a_value_lies_on_its_own_devices_under_another_mesh(mesh: Any) -> None:
    x = sh.array(X, "[8@dp,4]")
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4}, devices=jax.devices()[::-1])):
        assert x.sharding.mesh is mesh


@pytest.mark.parametrize(
    ("text", "why"),
    [("f32[8,4]{U:tp}", "it is unreduced over `tp`"), ("f32[8,4]{V:dp}", "it varies over `dp`")],
)
def test_what_no_sharding_says_has_none(text: str, why: str) -> None:
    x = sh.abstract_array(text)
    asked: list[Any] = [lambda: x.sharding, lambda: x.type.sharding, lambda: ShType.parse(text).sharding]
    for ask in [*asked, lambda: hasattr(x, "sharding")]:  # one that would be silent if this were an AttributeError
        with pytest.raises(sh.ShardingTypeError, match=why) as caught:
            ask()
        assert not isinstance(caught.value, AttributeError)
        assert caught.value.where.startswith("test_placement.py:")


def test_a_pending_sum_is_told_what_finishes_it() -> None:
    x = sh.sum(sh.array(X, "[8,4@tp]"), 1)
    with pytest.raises(sh.ShardingTypeError) as caught:
        print(x.sharding)
    line = caught.value.where
    assert str(caught.value).replace(line, "LINE") == (
        "f32[8]{U:tp} cannot have a `sharding`: it is unreduced over `tp`\n"
        "  where: LINE\n"
        "  why:   each device holds one term of a sum that is still pending\n"
        '  fix:   sh.reshard(x, "[8@tp]")   [forward: reduce-scatter over `tp`, all-gather over `dp`, 16 B/device; '
        "backward: none]\n"
        '  fix:   sh.reshard(x, "[8]")   [forward: all-reduce over `tp`, 48 B/device; backward: none]'
    )


def test_a_value_shows_the_parts_of_its_carrier_and_a_pending_one_none() -> None:
    x = sh.array(X, "[8@dp,4@tp]")
    np.testing.assert_array_equal(x.addressable_data(0), X[:4, :1])
    assert {s.data.shape for s in x.addressable_shards} == {(4, 1)} == {s.data.shape for s in x.global_shards}
    assert x.devices() == set(jax.devices())
    assert x.committed is True
    assert x.on_device_size_in_bytes() == X.nbytes
    for refused in (sh.sum(x, 0), sh.abstract_array("f32[8]")):
        with pytest.raises(sh.ShardingTypeError, match=r"addressable_shards|only a type"):
            print(refused.addressable_shards)


def test_jax_is_refused_as_ever() -> None:
    with pytest.raises(sh.ShardingTypeError, match="has no `sharding`"):
        jax.debug.visualize_array_sharding(sh.array(X, "[8@dp,4@tp]"))


def test_a_traced_value_has_none_and_its_type_has() -> None:
    def f(x: Any) -> Any:
        assert not hasattr(x, "sharding")
        assert x.type.sharding.spec == jax.P("dp", None)
        return x

    sh.jit(f)(sh.array(X, "[8@dp,4]"))


def test_an_array_that_is_placed_by_a_value_lies_as_it() -> None:
    x = sh.array(X, "[8@dp,4@tp]")
    plain = jax.device_put(X, x.sharding)
    assert sh.from_jax(plain).type == "f32[8@dp,4@tp]{}"
