"""Plans by a cost model: never slower by it than the plan that sends least, right all the same, and what scopes do."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.resharding import Kind, Plan, plan
from shtypes.resharding.costs import CostModel, Link
from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh
from tests.core.hlo import collectives
from tests.resharding import simulate

MESH = Mesh({"node": 2, "x": 2, "y": 2})
MODELS = {
    "one slow axis": CostModel(Link(100e9), {"node": Link(5e9)}),
    "two slow axes": CostModel(Link(100e9, 1e-6), {"node": Link(2e9, 1e-5), "y": Link(25e9, 2e-6)}),
    "latency alone": CostModel(Link(1e15, 1e-3)),
    "launches": CostModel(Link(1e9, 1e-9, launch=1e-3), {"y": Link(1e9, launch=2e-3)}),
}


def seconds(p: Plan, model: CostModel) -> float:
    return sum(model.seconds(step) for step in p.steps)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shape", [(4096,), (64, 64), (16, 16, 16)], ids=str)
def test_a_plan_by_a_model_keeps_the_value_and_is_never_slower_by_it(model: CostModel, shape: tuple[int, ...]) -> None:
    every, dice, rng = simulate.all_types(MESH, shape), random.Random(0), np.random.default_rng(0)
    better = 0
    for _ in range(60):
        src, dst = dice.choice(every), dice.choice(every)
        quick, least = plan(src, dst, model), plan(src, dst)
        # Up to the rounding of paces to whole numbers.
        assert seconds(quick, model) <= seconds(least, model) * 1.01 + 1e-12, (src, dst, str(quick), str(least))
        better += seconds(quick, model) < 0.99 * seconds(least, model)
        value = rng.integers(-9, 9, shape)
        family = simulate.follow(quick.steps, simulate.split(src, value, rng))
        np.testing.assert_array_equal(simulate.meaning(dst, simulate.seen_as(dst, family)), value)
        assert quick.peak_bytes <= max(src.local_bytes, dst.local_bytes) or not quick.communicates
    assert better > 0


def pending(size: int) -> tuple[ShType, ShType]:
    states = {"node": State.UNREDUCED, "x": State.UNREDUCED, "y": State.UNREDUCED}
    src = ShType(MESH, "f32", [Dim(size, ())], states)
    return src, src.replace(states=[State.REDUCED] * 3)


def test_what_crosses_a_slow_axis_is_cut_over_the_quick_ones_first() -> None:
    src, dst = pending(1 << 20)
    (one,) = plan(src, dst).steps
    assert (one.kind, one.axes) == (Kind.ALL_REDUCE, ("node", "x", "y"))
    steps = plan(src, dst, MODELS["one slow axis"]).steps
    assert [s.kind for s in steps] == [Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_GATHER]
    assert steps[1].axes == ("node",)
    assert steps[1].src.local_bytes == src.local_bytes // 4
    assert sum(s.bytes for s in steps) == one.bytes  # no more bytes, of which fewer are slow


def test_a_small_value_takes_fewer_rounds_of_messages() -> None:
    model, rounds = CostModel(Link(100e9, 1e-5)), CostModel(Link(1e30, 1.0))
    assert seconds(plan(*pending(64), model), rounds) == pytest.approx(6)  # one for each halving, and each doubling
    assert seconds(plan(*pending(64)), rounds) == pytest.approx(14)  # a ring of eight


def test_a_collective_begins_once_however_many_devices_it_has() -> None:
    src, dst = pending(1 << 20)
    model = CostModel(Link(1e9, launch=1e-3), {"y": Link(1e9, launch=2e-3)})
    (one,) = plan(src, dst, model).steps  # cut over the quick ones first it would begin three times
    assert model.seconds(one) == pytest.approx(one.bytes / 1e9 + 2e-3)
    with pytest.raises(sh.ShardingTypeError, match="a link has a positive bandwidth"):
        Link(1e9, launch=-1.0)


# the scope


SLOW = sh.cost_model(Link(100e9), node=Link(5e9))


def step(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.sin(x @ w) ** 2)


@pytest.fixture
def mesh() -> Any:
    return sh.make_mesh({"node": 2, "x": 2, "y": 2})


@pytest.mark.one_in(13)
@pytest.mark.core
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("decorated", [False, True])
def test_gradients_in_the_scope_are_those_outside_and_the_ledger_is_the_program(
    mesh: Any, policy: str, decorated: bool
) -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64), (16, 64)))

    def gradient(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return sh.reshard(sh.sum(sh.sin(x @ w) ** 2), "[]")

        return sh.reshard(sh.grad(loss)(w), "[_, _]{R:(node,x,y)}")

    with sh.policy(policy), sh.use_mesh(mesh):
        values = sh.array(w, "f32[64, 64]{R:(node,x,y)}"), sh.array(x, "f32[16@(node,x,y), 64]")
        plain: Any = sh.jit(gradient)
        slow = sh.use_cost_model(SLOW)
        quick: Any = slow(plain) if decorated else sh.jit(slow(gradient))
        wanted = np.asarray(jax.jit(jax.grad(step))(w, x))
        for f in (plain, quick, gradient, sh.use_cost_model(SLOW)(gradient)):
            np.testing.assert_allclose(np.asarray(jax.block_until_ready(f(*values))), wanted, rtol=2e-4, atol=2e-4)
        sent = [sh.ledger(f, *values) for f in (plain, quick)]
        assert max(e.bytes for e in sent[1] if "node" in e.axes) < max(e.bytes for e in sent[0] if "node" in e.axes)
        for f, entries in zip((plain, quick), sent, strict=True):
            if not decorated or f is plain:
                found = collectives(f.lower(*values).compile().as_text())
                assert sum(n * size for (_, size), n in found.items()) == sum(e.bytes for e in entries)


def test_scopes_nest_and_prices_follow_the_model(mesh: Any) -> None:
    src, dst = pending(1 << 20)
    with sh.use_mesh(mesh):
        x = sh.abstract_array(src)
        with sh.use_cost_model(SLOW):
            with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="reduce-scatter over `x`, `y`"):
                sh.reshard(x, dst)
            alike, refused = sh.use_cost_model("h100-nvlink"), "all-reduce over `node`, `x`, `y`"
            with alike, sh.no_comm(), pytest.raises(sh.ShardingTypeError, match=refused):
                sh.reshard(x, dst)
            assert "least time" in str(jax.make_jaxpr(lambda x: sh.reshard(x, dst))(x))


@pytest.mark.parametrize("given", [3, None, "carrier pigeons", {"dp": 1}])
def test_what_is_no_cost_model_is_refused(given: Any) -> None:
    with pytest.raises(sh.ShardingTypeError):
        sh.use_cost_model(given)


def test_named_forms_go_along_the_axes_that_they_name() -> None:
    with sh.use_mesh(sh.make_mesh({"node": 2, "x": 4})):
        x = sh.abstract_array("f32[64]{U:x}")
        named = sh.ledger(lambda x: sh.reduce_scatter(x, "x", 0), x)
        assert [(e.kind, e.axes, e.bytes) for e in named] == [("reduce-scatter", ("x",), 192)]
        free = sh.ledger(lambda x: sh.reshard(x, x=0), x)
        assert [(e.kind, e.axes) for e in free] == [("reduce-scatter", ("x",)), ("all-gather", ("node",))]
        assert free.total.bytes == 128
        back = sh.ledger(sh.grad(lambda x: sh.sum(sh.all_gather(x, "x"))), sh.abstract_array("f32[64@x]"))
        assert [e.axes for e in back if e.direction == "backward"] == [("x",)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: sh.Link(float("inf")),
        lambda: sh.Link(1e9, float("nan")),
        lambda: sh.Link("a"),  # type: ignore[arg-type]
        lambda: sh.Link(0.0),
        lambda: sh.CostModel(sh.Link(1e9), {"x": "fast"}),  # type: ignore[dict-item]
    ],
)
def test_a_link_has_finite_numbers(make: Any) -> None:
    with pytest.raises(sh.ShardingTypeError):
        make()


def test_links_that_are_far_apart_are_planned_with() -> None:
    src, dst = pending(64)
    for model in (CostModel(Link(1e300), {"x": Link(1e-300)}), CostModel(Link(1e9, 1e300))):
        assert plan(src, dst, model).communicates
