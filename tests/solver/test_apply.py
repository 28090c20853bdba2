"""Assignments written into the programs that they are of: what these send, and what they compute."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes.solver.apply import to_decisions, typed_function
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED
from shtypes.solver.program import Function
from shtypes.solver.search import Point, Search
from tests import tolerance
from tests.solver import models
from tests.solver.test_search import searched
from tests.traced.compiled import assert_compiled_as_said

MESHES = {"dp": {"dp": 8}, "dp x tp": {"dp": 2, "tp": 4}, "three axes": {"a": 2, "b": 2, "c": 2}}
CASES: dict[str, tuple[Any, Any]] = {
    "mlp": (models.mlp_loss, models.mlp(64, 16, 32)),
    "block": (models.block_loss, (models.block_params(16, 8, 4, 32), models.f32(16, 8, 16))),
    "experts": (models.experts_loss, models.experts(64, 16, 32, 8)),
    "convolutions": (models.convolutions_loss, models.convolutions(16, 4, 8, 32)),
    "unet": (models.unet_loss, models.unet(8, 8, 8)),
    "graph": (models.graph_loss, models.graph(16, 64, 8)),
    "capacity": (models.capacity_loss, models.capacity(8, 16, 8, 32, 4)),
    "pipeline": (models.pipeline_loss, (models.f32(4, 8, 8), models.f32(4, 8, 8))),
    "scanned gpt": (models.gpt_loss, models.gpt(2, 8, 8, 16, 8, 4, 32, 64)),
    "unrolled gpt": (models.gpt_loss, models.gpt(2, 8, 8, 16, 8, 4, 32, 64, scanned=False)),
    "checkpoint": (
        models.checkpointed_loss,
        ({"layers": models.stacked(2, models.block_params(16, 8, 4, 32))}, models.f32(8, 8, 16)),
    ),
}


def written(search: Search, point: Point) -> tuple[Any, Any]:
    """The typed function of an assignment, and the types of its arguments."""
    costs = search.costs
    decisions = to_decisions(costs, point.assignment, costs.transfers(point.assignment, point.byte))
    program = costs.graph.program
    assert isinstance(program, Function)
    return typed_function(program, decisions), program.arguments(decisions.arguments)


def widened(x: Any) -> Any:
    return x.astype("float64") if x.dtype == "float32" else x


def ledger_of_step(f: Any, types: Any, mesh: dict[str, int]) -> sh.Ledger:
    args = jax.tree.map(sh.abstract_array, types, is_leaf=lambda x: isinstance(x, sh.ShType))
    with sh.use_mesh(sh.abstract_mesh(mesh)):
        return sh.ledger(sh.train_step(f), *args)


#: On three axes each pair is solved in turn, several times: of large programs that is for the wide half of the tests.
LARGE = ("unet", "capacity", "block", "scanned gpt", "unrolled gpt", "checkpoint")


@pytest.mark.one_in(127)
@pytest.mark.parametrize("byte", [0.0, 1e-4], ids=["quick", "small"])
@pytest.mark.parametrize(
    ("case", "mesh"),
    [
        pytest.param(case, mesh, marks=[pytest.mark.nightly] * (mesh == "three axes" and case in LARGE))
        for case in CASES
        for mesh in MESHES
    ],
)
def test_the_ledger_of_the_typed_program_has_the_bytes_that_were_predicted(case: str, mesh: str, byte: float) -> None:
    f, args = CASES[case]
    search = searched(f, args, MESHES[mesh])
    point = search.solve(byte * search.solve().seconds / 1e3)
    ledger = ledger_of_step(*written(search, point), MESHES[mesh])
    assert math.isclose(ledger.total.bytes, point.cost.sent, rel_tol=2e-3, abs_tol=64)


@pytest.mark.one_in(43)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.nightly] * (c in LARGE)) for c in CASES])
def test_values_and_gradients_are_those_of_one_device(case: str, policy: str) -> None:
    f, args = CASES[case]
    with jax.enable_x64(True), sh.policy(policy):  # so that a difference is a wrong value, not a rounding
        values = jax.tree.map(widened, models.arrays(args))
        search = searched(f, values, MESHES["dp x tp"])
        typed, types = written(search, search.solve())
        with sh.use_mesh(sh.make_mesh(MESHES["dp x tp"])):
            placed = jax.tree.map(sh.array, values, types)
            found = jax.block_until_ready(jax.tree.map(lambda x: x.to_jax(), sh.jit(sh.train_step(typed))(*placed)))
        expected = jax.jit(jax.value_and_grad(f))(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert tolerance.off_by(a, b) <= tolerance.SHORT * tolerance.eps(a.dtype)  # 3e-14


@pytest.mark.one_in(19)
@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.nightly] * (c in LARGE)) for c in CASES])
def test_the_compiled_step_has_the_collectives_of_the_ledger(case: str) -> None:
    f, args = CASES[case]
    search = searched(f, args, MESHES["dp x tp"])
    point = search.solve()
    typed, types = written(search, point)
    with sh.use_mesh(sh.make_mesh(MESHES["dp x tp"])):
        placed = jax.tree.map(sh.array, models.arrays(args), types)
        ledger = assert_compiled_as_said(sh.train_step(typed), *placed, jits=(jax.jit,))
    assert math.isclose(ledger.total.bytes, point.cost.sent, rel_tol=2e-3, abs_tol=64)


def reduced_then_invariant(x: Any) -> Any:
    h = jnp.sin(x)
    return jnp.sum(jnp.cos(h) * jnp.exp(h))


def two_terms(x: Any) -> Any:
    return jnp.sum(jnp.square(jnp.tanh(x) + jnp.dot(x, x)))


@pytest.mark.parametrize(
    ("f", "mesh", "states"),
    [
        pytest.param(
            reduced_then_invariant,
            {"a": 8},
            {
                "sin": ("results", [(SHARDED,)]),
                "shared": ("operands", [(SHARDED,)]),
                "cos": ("operands", [(REDUCED,)]),
                "exp": ("operands", [(INVARIANT,)]),
            },
            id="a value is taken reduced, then invariant",
        ),
        pytest.param(
            two_terms,
            {"a": 2, "b": 2},
            {
                "tanh": ("results", [(SHARDED,), (REDUCED,)]),
                "dot_general": ("results", [(SHARDED,), (UNREDUCED,)]),
                "add": ("operands", [(SHARDED + 1, SHARDED + 1)] * 2),
            },
            id="one term of a sum is pending",
        ),
    ],
)
def test_a_reshard_of_which_another_is_a_free_cast_is_counted_for_both(f: Any, mesh: Any, states: Any) -> None:
    search = searched(f, (models.f32(16, 16),), mesh)
    for node in search.costs.graph.nodes:
        which, each = states.get(node.op.name if node.op else node.kind, ("", ()))
        if which:
            pairs = zip(node.options, each, strict=True)
            search.costs.allowed[node.id] = [
                [k for k, o in enumerate(options) if getattr(o, which) == s] for options, s in pairs
            ]
    point = search.solve()
    assert ledger_of_step(*written(search, point), mesh).total.bytes == point.cost.sent


def test_an_argument_in_another_type_than_the_plans_is_refused() -> None:
    f, args = CASES["mlp"]
    search = searched(f, args, {"dp": 2})
    typed, types = written(search, search.solve())
    with sh.use_mesh(sh.abstract_mesh({"dp": 2})):
        other = sh.abstract_array("f32[64, 16@dp]")
        assert other.type != types[1]
        with pytest.raises(sh.ShardingTypeError, match=r"argument `x` is .* and the plan has it as"):
            typed(jax.tree.map(sh.abstract_array, types[0], is_leaf=lambda x: isinstance(x, sh.ShType)), other)
