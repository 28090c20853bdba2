"""Several axes on one dim: their order is a decision, and what an op sends along all of them is what it is said to."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shtypes as sh
from shtypes.solver.axis_states import FRONT, REDUCED, SHARDED, axis_states, typed
from shtypes.solver.reshard_prices import in_order
from shtypes.types.mesh import Mesh
from tests import tolerance
from tests.traced.compiled import assert_compiled_as_said

BYTES: dict[str, Any] = {"links": sh.Link(1e9), "compute": sh.Device({"f32": 1e21}, 1e21)}
SLOW: dict[str, Any] = {"links": sh.Link(1e9), "compute": sh.Device({"f32": 1e11}, 1e21)}


def mlp(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.square(jnp.tanh(jnp.tanh(x @ p["u"]) @ p["w"])))


def test_states_say_types_in_orders_and_types_say_states() -> None:
    mesh = Mesh({"x": 2, "y": 4, "z": 2})
    for order in ("(x,y)", "(y,x)", "(y,z,x)", "(z,x,y)", "(y,x,z)", "x"):
        t = sh.ShType.parse(f"f32[64@{order}, 8]", mesh)
        states = axis_states(t)
        assert states is not None
        assert typed(mesh, "f32", (64, 8), states) == t
        assert in_order(np.array([states]))[0].tolist() == states
    assert axis_states(sh.ShType.parse("f32[64@(z,y,x), 8]", mesh)) is None
    alone = [REDUCED, FRONT + SHARDED, REDUCED]
    assert in_order(np.array([alone]))[0].tolist() == [REDUCED, SHARDED, REDUCED]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", [{}, {"x": "[_@(dp,tp), _]"}], ids=["free", "in an order"])
def test_the_best_plan_does_not_depend_on_the_order_of_axes_in_the_mesh(given: dict[str, str]) -> None:
    args = {"u": "f32[512, 2048]", "w": "f32[2048, 1024]"}, "f32[1024, 512]"
    fixed = {"p/w": "[_, _@tp]", "p/u": "[_, _]", **given}
    plans = [sh.suggest(mlp, *args, mesh=m, fixed=fixed, **SLOW)[0] for m in ({"dp": 4, "tp": 2}, {"tp": 2, "dp": 4})]
    assert math.isclose(plans[0].seconds, plans[1].seconds, rel_tol=1e-9)
    assert [p.rules["x"] for p in plans] == ["[1024@(dp,tp),512]" if given else "[1024,512]"] * 2
    inside = [[(str(r.src), str(r.dst)) for r in p.reshards if r.src.dims] for p in plans]
    assert inside[0] == inside[1] != []
    assert all(p.bytes == p.ledger.total.bytes for p in plans)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_values_in_another_order_are_those_of_one_device_and_send_what_is_said(policy: Any) -> None:
    rng = np.random.default_rng(0)
    p = {"u": rng.normal(size=(8, 16)).astype("f"), "w": rng.normal(size=(16, 8)).astype("f")}
    x = rng.normal(size=(16, 8)).astype("f")
    with sh.policy(policy), sh.use_mesh(sh.make_mesh({"tp": 2, "dp": 4})):
        fixed = {"x": "[_@(dp,tp), _]", "p/w": "[_, _@tp]"}
        plan = sh.suggest(mlp, p, x, fixed=fixed, **BYTES)[0]
        step = sh.train_step(sh.apply(mlp, plan))
        placed = jax.tree.map(sh.array, (p, x), plan.arguments)
        assert_compiled_as_said(step, *placed, jits=(jax.jit,))
        found = jax.block_until_ready(jax.tree.map(lambda y: y.to_jax(), sh.jit(step)(*placed)))
    assert plan.bytes == plan.ledger.total.bytes
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(jax.value_and_grad(mlp))(p, x)), strict=True):
        assert tolerance.off_by(a, b) <= tolerance.SHORT * tolerance.eps(a.dtype)


ACROSS: dict[str, Any] = {
    "cumsum": lambda w, x: jnp.sum(jnp.cumsum(x * w, 0) ** 2),
    "roll": lambda w, x: jnp.sum((jnp.roll(x * w, (5, 1), (0, 1)) + x) ** 2),
    "sort": lambda w, x: jnp.sum(jnp.sort(x * w, 0) * x),
    "pad": lambda w, x: jnp.sum(jnp.pad(x * w, ((3, 5), (0, 0))) ** 3),
    "logsumexp": lambda w, x: jnp.sum(jax.nn.logsumexp(x * w, 0)),
}


@pytest.mark.parametrize("place", ["64@(x,y),8", "64@(y,x),8", "64@y,8@x"])
@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.one_in(19)
def test_what_communicates_along_two_axes_sends_what_was_predicted(name: str, place: str) -> None:
    found = sh.suggest(ACROSS[name], "f32[8]", f"f32[{place}]", mesh={"x": 2, "y": 4}, **BYTES)
    assert math.isclose(found[0].bytes, found[0].ledger.total.bytes, rel_tol=5e-3, abs_tol=8)


def test_implicit_comm_decides_about_arguments_in_another_order() -> None:
    with sh.use_mesh(sh.abstract_mesh({"tp": 2, "dp": 4})):
        args = {"u": "f32[64, 32]", "w": "f32[32, 64@tp]"}, "f32[64@(dp,tp), 64]"
        typed_args = jax.tree.map(sh.abstract_array, args)
        assert not sh.check(sh.implicit_comm(sh.lift(mlp)), *typed_args).undecided


@pytest.mark.nightly
def test_the_shards_of_a_groups_operands_are_parts_of_each_other() -> None:
    """Along each axis for itself one operand of a grouped call may be sharded and the other complete."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 10, 16)).astype("f")
    labels = rng.integers(1, 16, (8, 5)).astype(np.int32)

    def loss(logits: Any, labels: Any) -> Any:
        none = jnp.zeros(logits.shape[:2]), jnp.zeros(labels.shape)
        return jnp.sum(jnp.sin(optax.ctc_loss(logits, none[0], labels, none[1])) * 1.3)

    plan = sh.suggest(sh.lift(loss), logits, labels, mesh={"x": 4, "y": 2})[0]
    assert plan.ledger.total.bytes  # it types
