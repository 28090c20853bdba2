"""Reshards of a plan by their lines: written down, read again, edited, and said in advance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.solver.apply import named_uses
from shtypes.solver.program import Function
from shtypes.suggestions.argument_rules import pattern_of
from shtypes.suggestions.plan import Plan
from tests.end_to_end import host
from tests.solver import models
from tests.solver.models import f32
from tests.solver.test_suggest import SETTINGS

MESH = {"dp": 2, "tp": 2}


def scanned(params: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    return jnp.mean(jnp.square(jax.lax.scan(layer, x, params)[0]))


SCANNED = scanned, {"up": f32(3, 64, 256), "down": f32(3, 256, 64)}, f32(32, 64)
FIRST = scanned.__code__.co_firstlineno
LAYER, SCAN = f"test_places.py:{FIRST + 2}", f"test_places.py:{FIRST + 4}"
#: Megatron's layout, with a stream that every device has.
FIXED = {"up": "[_, _, _@tp]", "down": "[_, _@tp, _]", "x": "[_@dp, _]"}
PLANS: dict[str, tuple[Any, ...]] = {
    "scan": SCANNED,
    "mlp": (models.mlp_loss, *models.mlp(64, 32, 128)),
    "scanned gpt": (models.gpt_loss, *models.gpt(2, 8, 16, 64, 8, 8, 256, 512)),
    "unrolled gpt": (models.gpt_loss, *models.gpt(2, 8, 16, 64, 8, 8, 256, 512, scanned=False)),
    "checkpoint": (
        models.checkpointed_loss,
        {"layers": models.stacked(2, models.block_params(16, 8, 4, 32))},
        f32(8, 8, 16),
    ),
}


def megatron() -> Plan:
    weights = {f"{LAYER} <- params/up[i]": "[_, _@tp]", f"{LAYER} <- params/down[i]": "[_@tp, _]"}
    return sh.suggest(*SCANNED, mesh=MESH, fixed={**FIXED, **weights, f"{SCAN} <- carry[0]": "[_@dp, _]"}, **SETTINGS)[
        0
    ]


def ledger(f: Any, types: Any, mesh: dict[str, int] = MESH) -> sh.Ledger:
    with sh.use_mesh(sh.abstract_mesh(mesh)):
        return sh.ledger(sh.train_step(f), *types)


@pytest.mark.one_in(11)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n not in ("scan", "mlp"))) for n in PLANS]
)
def test_a_plan_that_is_written_and_read_again_types_to_the_same_ledger(name: str, tmp_path: Path) -> None:
    f, *args = PLANS[name]
    plan = sh.suggest(f, *args, mesh=MESH, **SETTINGS)[0]
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert ledger(sh.apply(f, path), plan.arguments) == plan.ledger
    saved = json.loads(path.read_text())["reshards"]
    lines = {pattern_of(w["at"]) for w in saved.values()}
    assert {r.at for r in plan.reshards if r.place.file and not r.at.startswith("result")} & lines


def test_the_carry_of_a_scan_is_a_decision_at_its_line() -> None:
    plan = megatron()
    (carry,) = [r for r in plan.reshards if r.at == f"{SCAN} <- carry[0]"]
    assert [str(carry.src), str(carry.dst), carry.times] == ["f32[32@(dp,tp),64]", "f32[32@dp,64]", 3]
    other = sh.suggest(*SCANNED, mesh=MESH, fixed={**FIXED, f"{SCAN} <- carry[0]": "[_@(dp,tp), _]"}, **SETTINGS)[0]
    written = [w["to"] for w in other.to_dict()["reshards"].values() if w["at"] == f"{SCAN} <- carry[0]"]
    assert written == ["f32[32@(dp,tp),64]"]  # its first value: x is cut, which sends nothing
    assert other.bytes == pytest.approx(other.ledger.total.bytes, rel=2e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["at=", "edited JSON"])
def test_the_type_of_a_carry_is_edited_in_a_plan_that_is_found(how: str, tmp_path: Path) -> None:
    plan, edits = megatron(), {f"{SCAN} <- carry[0]": "f32[32@(dp,tp),64]"}
    # The stream lies in parts between the layers, and is gathered where the first product takes it.
    more = {f"{LAYER} <- carry[0] in dot_general": "f32[32@dp,64]"}
    source: Plan | Path = plan
    if how == "edited JSON":
        saved, source = plan.to_dict(), tmp_path / "plan.json"
        for w in saved["reshards"].values():
            w["to"] = edits.pop(w["at"], w["to"])
        assert not edits
        # The first value of the carry needed no reshard, and so is not in the file.
        (place,) = [t.place for t in named_uses(plan.problem.program) if t.place.endswith("carry.0.0")]
        saved["reshards"][place] = {"to": "f32[32@(dp,tp),64]", "second": False}
        source.write_text(json.dumps(saved))
    f = sh.apply(SCANNED[0], source, at={**edits, **more})
    found = [e for e in ledger(f, plan.arguments) if e.src.size > 1 and e.direction == "forward"]
    assert [(e.kind, e.times) for e in found] == [("reduce-scatter", 3), ("all-gather", 3)][::-1]
    values = models.arrays(SCANNED[1:])
    with sh.use_mesh(sh.make_mesh(MESH)):
        value = host(sh.jit(f)(*values))
    np.testing.assert_allclose(value, SCANNED[0](*values), rtol=1e-5)


def test_what_a_line_takes_is_fixed_for_the_search() -> None:
    fixed = {"up": "[_, _@tp, _]", f"{LAYER} <- params/up[i]": "[_, _@tp]"}
    plan = sh.suggest(*SCANNED, mesh=MESH, fixed=fixed, **SETTINGS)[0]
    moved = [r for r in plan.reshards if r.at == f"{LAYER} <- params/up[i]" or r.value.startswith("params/up")]
    assert {str(r.dst) for r in moved} <= {"f32[64,256@tp]", "f32[3,64,256@tp]"}
    assert moved
    assert plan.bytes == pytest.approx(plan.ledger.total.bytes, rel=2e-3)


def three_forms(x: Any) -> Any:
    h = jnp.sin(x)
    a, b = jnp.cos(h), jnp.exp(h)
    c, d = jnp.tanh(h), jnp.cosh(h)
    return jnp.sum(a * b + c * d)


def test_what_several_lines_take_alike_is_sent_once_beside_a_second_form_too() -> None:
    line = three_forms.__code__.co_firstlineno
    taken = {"1 <- x": "[_@dp, _, _]", "2 <- sin": "[_, _@dp, _]", "3 <- sin": "[_, _, _@dp]"}
    fixed = {f"test_places.py:{line + int(at[0])}{at[1:]}": t for at, t in taken.items()}
    for plan in sh.suggest(three_forms, f32(8, 8, 8), mesh={"dp": 8}, fixed=fixed):
        assert [r.what.split()[0] for r in plan.reshards if r.value == "sin"] == ["all-to-all"] * 2
        assert plan.bytes == plan.ledger.total.bytes


def sum_of_three(x: Any, w: Any, v: Any) -> Any:
    a, b, c = jnp.tanh(x @ w), jnp.sin(x @ v), jnp.cos(x @ w)
    y = a + b - jnp.exp(x) + c
    return jnp.mean(jax.nn.softmax(y, -1) * y)


def difference(x: Any, w: Any, v: Any) -> Any:
    a, b = jnp.tanh(x @ w), jnp.sin(x @ v)
    y = a - b  # the cotangent of the second is another value: it is negated
    return jnp.mean(jax.nn.softmax(y, -1) * y)


@pytest.mark.parametrize("loss", [sum_of_three, difference])
def test_the_cotangent_of_a_sum_is_sent_once_for_all_of_its_terms(loss: Any) -> None:
    fixed = {f"test_places.py:{loss.__code__.co_firstlineno + 2} <- *": "[_, _@dp]", "x": "[_@dp, _]"}
    for plan in sh.suggest(loss, f32(64, 8), f32(8, 8), f32(8, 8), mesh={"dp": 8}, fixed=fixed, grad=(1, 2)):
        assert plan.bytes == plan.ledger.total.bytes


@pytest.mark.parametrize(
    ("at", "message"),
    [
        pytest.param({f"{SCAN} <- carry[7]": "[_, _]"}, "no line takes a value as", id="no such carry"),
        pytest.param({"elsewhere.py:1 <- x": "[_, _]"}, "no line takes a value as", id="no such line"),
        pytest.param({f"{SCAN} <- carry[0]": "[_@xx, _]"}, "xx", id="no such axis"),
    ],
)
def test_a_place_that_there_is_not_is_refused(at: dict[str, str], message: str) -> None:
    plan = megatron()
    with pytest.raises(sh.ShardingTypeError, match=message):
        ledger(sh.apply(SCANNED[0], plan, at=at), plan.arguments)
    with pytest.raises(sh.ShardingTypeError, match=message):
        sh.suggest(*SCANNED, mesh=MESH, fixed=at, **SETTINGS)


def test_a_line_inside_a_librarys_jitted_function_is_that_of_each_call() -> None:
    def f(x: Any, i: Any) -> Any:
        y = jnp.take_along_axis(x, i, -1)
        z = jnp.take_along_axis(jnp.sin(x), i, -1)
        return y + z

    first = f.__code__.co_firstlineno
    program = Function(f, (f32(4, 4), jax.ShapeDtypeStruct((4, 1), jnp.int32)))
    lines = [op.place.line for op in program.ops if op.name == "gather"]
    assert lines == [first + 1, first + 2]
