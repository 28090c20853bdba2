"""`all_reduce` of trees: one collective for each group of axes and each dtype, and the values of one reduction each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.traced.compiled import compiled_text, sent_by_compiled, sent_by_ledger

TYPES = {
    "scale": "f32[16]{U:(dp,tp)}",
    "layers": ["f32[4, 16]{U:dp}", "f32[4, 16@tp]{U:dp}", "f32[8]{U:dp}", "i32[8]{U:dp}"],
    "done": "f32[8@dp]",
}


@pytest.fixture(autouse=True, params=["partial", "jax"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})), sh.policy(request.param):
        yield request.param


def values() -> Any:
    rng = np.random.default_rng(0)

    def one(text: str) -> Any:
        t = sh.ShType.parse(text)
        return sh.array(rng.integers(-9, 9, t.shape).astype(t.dtype), t)

    return jax.tree.map(one, TYPES)


def one_by_one(tree: Any) -> Any:
    return jax.tree.map(lambda x: sh.all_reduce(x) if sh.typeof(x).axes(sh.State.UNREDUCED) else x, tree)


def test_a_tree_is_finished_in_one_collective_for_each_group() -> None:
    tree = values()
    found = sh.ledger(sh.all_reduce, tree)
    assert sorted((e.axes, e.dtype) for e in found) == [(("dp",), "f32"), (("dp",), "i32"), (("dp", "tp"), "f32")]
    assert found.launches == 3
    assert found.bytes == sh.ledger(one_by_one, tree).bytes
    for run in (sh.all_reduce, sh.jit(sh.all_reduce)):
        finished, expected = jax.block_until_ready((run(tree), one_by_one(tree)))
        assert jax.tree.map(sh.typeof, finished) == jax.tree.map(sh.typeof, expected)
        for one, other in zip(jax.tree.leaves(finished), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(
                np.asarray(sh.reshard(one, "[_...]")), np.asarray(sh.reshard(other, "[_...]"))
            )
    text = compiled_text(sh.jit(sh.all_reduce), tree)
    assert sent_by_compiled(text) == sent_by_ledger(found)


def test_axes_and_the_state_can_be_named() -> None:
    tree = values()
    found = sh.all_reduce(tree, "tp", to="I")
    assert found["scale"].type == sh.ShType.parse("f32[16]{U:dp,I:tp}")
    assert found["layers"][0] is tree["layers"][0]


def test_what_is_no_typed_value_stays() -> None:
    x = sh.ones("f32[8]{U:dp}")
    assert sh.all_reduce({"step": 3, "x": x, "none": None})["step"] == 3
    assert sh.all_reduce([]) == []


@pytest.mark.parametrize("axis", ["tp", "nowhere"])
def test_an_axis_over_which_nothing_is_pending_is_refused(axis: str) -> None:
    with pytest.raises(sh.ShardingTypeError, match=f"no value of the tree that is pending over mesh axis `{axis}`"):
        sh.all_reduce([sh.ones("f32[8]{U:dp}")], axis)


def test_gradients_go_through_it() -> None:
    def loss(reduce: Any, tree: Any) -> Any:
        a, b = reduce([tree["layers"][0], tree["layers"][2]])
        return sh.sum(sh.sin(a)) + sh.sum(sh.sin(b))

    tree = {"layers": [sh.ones("f32[4, 8]{U:dp}"), None, sh.ones("f32[8]{U:dp}")]}
    found, expected = (
        jax.block_until_ready(sh.jit(sh.grad(lambda t, r=r: loss(r, t)))(tree)) for r in (sh.all_reduce, one_by_one)
    )
    assert jax.tree.map(sh.typeof, found) == jax.tree.map(sh.typeof, expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(sh.reshard(one, "[...]")), np.asarray(sh.reshard(other, "[...]")))
        np.testing.assert_allclose(np.asarray(sh.reshard(one, "[...]")), np.cos(1.0), rtol=1e-6)


def test_a_scope_forbids_it() -> None:
    with pytest.raises(sh.ShardingTypeError, match="no_comm"), sh.no_comm():
        sh.all_reduce(values())


@pytest.mark.nightly
def test_it_goes_by_the_cost_model_in_force() -> None:
    tree = [sh.array(np.ones((16, 256, 256), np.float32), "f32[_, _, _]")] * 2
    tree = [sh.reshard(x, "[_, _, _]{U:(dp,tp)}") for x in tree]
    with sh.use_cost_model(sh.cost_model("h100-nvlink", dp="infiniband-ndr")):
        found, alone = sh.ledger(sh.all_reduce, tree), sh.ledger(sh.all_reduce, tree[0])
        assert [(e.kind, e.axes) for e in found] == [(e.kind, e.axes) for e in alone]
        assert len(found) == 3
        assert found.bytes == 2 * alone.bytes
        assert sent_by_compiled(compiled_text(sh.jit(sh.all_reduce), tree)) == sent_by_ledger(found)
        reduce: Callable[[list[sh.Array]], list[sh.Array]] = sh.all_reduce
        finished = jax.block_until_ready(sh.jit(reduce)(tree))
    for x in finished:
        np.testing.assert_array_equal(np.asarray(x), 1)


def test_a_mapped_tree_is_reduced_together() -> None:
    tree = [sh.reshard(sh.array(np.ones((3, n), np.float32), "f32[_, _]"), "[_, _]{U:tp}") for n in (2, 5)]
    found = sh.ledger(jax.vmap(sh.all_reduce), tree)
    assert [(e.kind, e.axes, e.bytes) for e in found] == [("all-reduce", ("tp",), 3 * 7 * 4 * 3 // 2)]
    for x in jax.block_until_ready(jax.vmap(sh.all_reduce)(tree)):
        np.testing.assert_array_equal(np.asarray(x), 1)


def test_a_tree_goes_along_the_axes_that_it_names_and_no_others() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 4, "y": 4})):
        x = sh.abstract_array("f32[16]{U:x}")
        assert [e.axes for e in sh.ledger(sh.all_reduce, [x, x])] == [("x",)]
        assert len(sh.ledger(lambda x: sh.reshard(x, "[_]"), x)) == 2  # whose copies share the work


def test_mapped_over_a_dim_each_is_reduced() -> None:
    tree = [sh.ones("f32[3, 4]{U:dp}"), sh.ones("f32[3, 8]{U:dp}")]
    found = jax.vmap(sh.all_reduce)(tree)
    for one, other in zip(found, one_by_one(tree), strict=True):
        assert one.type == other.type
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_tree_is_sent_in_its_own_dtypes() -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.all_reduce(values(), comm_dtype="bf16", narrow_sums=True)
    assert 'sh.all_reduce(x, comm_dtype="bf16", narrow_sums=True)' in caught.value.hints[0]
