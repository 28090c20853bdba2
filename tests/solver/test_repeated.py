"""Equal layers of an unrolled program: traced and typed once, and counted as often as they run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes._compat.eqn_frames import of_frames
from shtypes.analysis.check import check
from shtypes.autodiff.train_step import train_step
from shtypes.core.conversion import abstract_array
from shtypes.core.repeated import layers
from shtypes.solver.apply import PlannedCast, _Evaluator, typed_function
from shtypes.traced import equations as equations_
from shtypes.traced.equations import SourceLine
from tests.solver.models import f32


def layer(p: Any, x: Any) -> Any:
    h = jnp.where(jnp.arange(x.shape[0])[:, None] > 3, jnp.tanh(x @ p["up"]), 0.0)
    return x + h @ p["down"]


def other_layer(p: Any, x: Any) -> Any:
    return jax.checkpoint(layer)(p, x)


def loss(params: Any, x: Any, each: Any = layer) -> Any:
    for p in params:
        x = each(p, x)
    return jnp.mean(jnp.square(x))


def checkpointed(params: Any, x: Any) -> Any:
    return loss(params, x, other_layer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("f", [loss, checkpointed])
def test_layers_that_are_typed_once_count_as_often_as_they_run(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [{"up": f32(64, 256), "down": f32(256, 64)}] * 8
    plan = sh.suggest(f, params, f32(512, 64), mesh={"dp": 2})[0]
    typed: list[int] = []
    op = _Evaluator._op

    def noting(self: Any, each: Any, env: Any) -> None:
        typed.append(each.id)
        op(self, each, env)

    monkeypatch.setattr(_Evaluator, "_op", noting)
    plan.problem.signatures.clear()
    del plan.__dict__["signature"]
    folded = plan.signature
    assert len(typed) < 0.75 * len(plan.problem.program.ops)
    written = typed_function(plan.problem.program, plan.decisions)
    args = plan.problem.program.arguments([abstract_array(t) for t in plan.decisions.arguments])
    with sh.use_mesh(plan.problem.mesh):
        unrolled = check(train_step(written, plan.problem.argnums), *args)
    assert [*folded.ledger] == [*unrolled.ledger]
    assert folded.memory == unrolled.memory
    assert folded.compute() == unrolled.compute()


def test_a_copy_without_a_reshard_is_the_value_itself() -> None:
    plan = sh.suggest(loss, [{"up": f32(16, 32), "down": f32(32, 16)}] * 3, f32(512, 16), mesh={"dp": 2})[0]
    program, decisions = plan.problem.program, plan.decisions
    of_copies = {
        f"{op.id}.{i}": decisions.casts.get(f"{op.id}.{i}", PlannedCast())._replace(from_copy=True)
        for op in program.ops
        for i in range(len(op.operands))
    }
    f = typed_function(program, decisions._replace(casts={**decisions.casts, **of_copies}), folds=True)
    args = program.arguments([abstract_array(t) for t in decisions.arguments])
    with sh.use_mesh(plan.problem.mesh):
        assert check(train_step(f, plan.problem.argnums), *args).ledger.total == plan.ledger.total


def test_layers_may_read_a_shared_copy_alone() -> None:
    def masked(params: Any, x: Any, mask: Any) -> Any:
        return loss(params, x, lambda p, x: x + jnp.tanh(x @ p["up"]) * mask @ p["down"])

    args = [{"up": f32(16, 32), "down": f32(32, 16)}] * 3, f32(512, 16), f32(512, 32)
    plan = sh.suggest(masked, *args, mesh={"dp": 2})[0]
    program, decisions = plan.problem.program, plan.decisions
    mask, t = program.inputs[-1], decisions.arguments[-1]
    places = [f"{op.id}.{i}" for op in program.ops for i, x in enumerate(op.operands) if x is mask]
    copies = {place: PlannedCast(from_copy=True) for place in places} | {f"second.{mask.id}": PlannedCast(t)}
    f = typed_function(program, decisions._replace(casts={**decisions.casts, **copies}), folds=True)
    with sh.use_mesh(plan.problem.mesh):
        operands = program.arguments([abstract_array(t) for t in decisions.arguments])
        assert check(train_step(f, plan.problem.argnums), *operands).ledger.total == plan.ledger.total


def test_layers_with_other_operands_are_others() -> None:
    codes = ["a", "b", "c", "d"] * 3
    reads: list[list[Any]] = [["x"], [0], [0, 1], [2], [3], [4], [4, 5], [6], [7], [8], [9, 8], [10]]
    first, second, third = layers(codes, reads, [[i] for i in range(12)], [11])
    assert [*first.steps] == [0, 1, 2, 3]
    assert first.inputs == ("x",)
    assert first.outputs == (3,)
    assert first.form == second.form != third.form


def test_the_lines_of_layers_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Any] = []

    @of_frames
    def noting(frames: Any) -> Any:
        looked_up.append(tuple(frames))
        return SourceLine()

    monkeypatch.setattr(equations_, "place_of", noting)
    params = [{"up": f32(64, 256), "down": f32(256, 64)}] * 8
    for program in (
        sh.suggest(loss, params, f32(512, 64), mesh={"dp": 2})[0].signature.program,
        jax.make_jaxpr(loss)(params, f32(512, 64)),
    ):
        looked_up.clear()
        count = sum(1 for _ in equations_.equations(program))
        assert 0 < len(looked_up) == len(set(looked_up)) < count / 2
