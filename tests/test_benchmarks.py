"""The benchmarks run, and what they compare is the same: results, collectives and work. Nothing is timed here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from benchmarks import across, auto_mode, merging, overhead, refusals, training
from benchmarks.measure import hlo, timing
from benchmarks.models import microbatch, transformer
from tests.traced.compiled import assert_compiled_as_said

pytestmark = pytest.mark.one_in(9)

ROOT = Path(__file__).parents[1]


#: One quickly, all in the wide half.
MODELS = ["gated_mlp", *(pytest.param(m, marks=pytest.mark.nightly) for m in overhead.MODELS if m != "gated_mlp")]


@cache
def measured(part: str) -> dict[str, Any]:
    """A part in its smallest size, once for all tests."""
    found: dict[str, Any] = overhead.collect((part,), quick=True, rounds=1)[part]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("variant", ["shtypes", "shard_map", "explicit", "per op"])
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("model", MODELS)
def test_every_variant_computes_what_one_device_computes(model: str, policy: str, variant: str) -> None:
    entry = measured(model)[policy][variant]
    if "unsupported" in entry:
        assert (variant, policy) == ("explicit", "partial"), entry  # the one that not every JAX can run
        return
    assert entry["error"] < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("model", MODELS)
def test_the_compiled_step_has_the_collectives_and_the_work_of_the_hand_written_one(model: str, policy: str) -> None:
    ours, hand = (measured(model)[policy][variant] for variant in ("shtypes", "shard_map"))
    assert ours["collectives"] == hand["collectives"]
    assert ours["dots"] == hand["dots"] > 0
    assert ours["fusions"] <= 1.02 * hand["fusions"]
    assert ours["copies"] <= hand["copies"]
    assert ours["temp_bytes"] <= 1.05 * hand["temp_bytes"]


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_the_policies_differ_by_one_sum(model: str) -> None:
    """Under "partial" the cotangent of the last block is summed, under "jax" it is passed on."""
    partial, jax = (measured(model)[policy]["shtypes"]["collectives"]["all-reduce"] for policy in ("partial", "jax"))
    assert partial["count"] == jax["count"] + 1


@pytest.mark.nightly
def test_calls_and_operations_are_compared_with_native_ones() -> None:
    calls, eager = measured("calls"), measured("eager")
    assert {kind for entry in calls.values() for kind in entry} == {"shtypes", "shard_map", "per op"}
    assert all(entry[side]["min_ms"] > 0 for entry in eager["ops"].values() for side in ("shtypes", "native"))
    assert min(e["of_native"]["cpu"] for e in eager["ops"].values()) <= eager["geometric_mean"]["cpu"]


@pytest.mark.nightly
def test_every_result_has_its_table() -> None:
    found = {part: measured(part) for part in ("gated_mlp", "calls", "eager")}
    titles = [str(table.title) for table in overhead.tables(found)]
    assert [title.split(":")[0] for title in titles] == [
        "gated_mlp",
        "gated_mlp",
        "jitted call with many arguments",
        "eager operations",
    ]


@pytest.mark.nightly
def test_the_script_prints_json() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), "--quick", "--rounds", "1", "--json"]
    done = subprocess.run([*command, "--only", "calls"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["environment"]["devices"] == "8 cpu"
    assert set(found) == {"environment", "calls"}


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_a_step_for_any_number_of_devices_has_the_sums_of_the_model(scan: bool) -> None:
    config = transformer.Config(layers=3, batch=64, seq=2, hidden=64, heads=64, inter=64)
    program = transformer.only_types(config, sh.abstract_mesh({"dp": 64, "tp": 64}), scan=scan)
    found = sh.ledger(program.step, *program.args)
    by_axis = {axis: total.launches for axis, total in found.by_axes().items()}
    stacks = 1 if scan else config.layers  # the gradients of stacked layers are summed together
    assert by_axis == {("tp",): 4 * config.layers, ("dp",): 7 * stacks + 1, ("dp", "tp"): 2 * stacks}


@cache
def trained(part: str) -> dict[str, Any]:
    """What a part of the training steps compiles to, in its smallest size; stops if two variants disagree."""
    found: dict[str, Any] = training.collect((part,), quick=True, builds=0, rounds=0)[part]
    return found


def total(entry: dict[str, Any], what: str) -> int:
    return sum(row[what] for row in entry["executed"].values())


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("part", training.LAYOUTS)
def test_a_training_step_sends_what_is_sent_by_hand_and_no_more_than_explicit_mode(part: str, policy: str) -> None:
    ours, hand, explicit = (
        trained(part)[key] for key in (f"shtypes, {policy}", f"shard_map, {policy}", "explicit, jax")
    )
    for what in ("launches", "bytes"):
        assert total(ours, what) == total(hand, what)
        assert total(ours, what) <= total(explicit, what)
    assert ours["dots"] <= hand["dots"]
    assert ours["memory"]["peak"] <= 1.05 * hand["memory"]["peak"]


@pytest.mark.nightly
def test_pending_gradients_are_sent_once_for_all_microbatches() -> None:
    found, config = trained("accumulation"), microbatch.TINY
    assert {key: total(entry, "launches") for key, entry in found.items()} == {
        "shtypes, partial": 1,
        "shard_map, partial": 1,
        "shtypes, jax": config.layers * config.microbatches,
        "explicit, jax": config.layers * config.microbatches,
    }
    weights = 4 * config.layers * config.features**2
    assert total(found["shtypes, partial"], "bytes") == 2 * 7 * weights // 8
    assert total(found["explicit, jax"], "bytes") == config.microbatches * total(found["shtypes, partial"], "bytes")


HLO = """
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %add.1 = f32[8]{0} add(%p, %p)
}
ENTRY %main {
  %a = bf16[4,8]{1,0} parameter(0)
  %ar = (f32[8]{0}, bf16[4,8]{1,0}) all-reduce(%b, %a), replica_groups={{0,1}}, to_apply=%sum
  %ag = (f32[2]{0}, f32[8]{0}) all-gather-start(%c), dimensions={0}
  %d = f32[4,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}
  %copy.3 = f32[8]{0} copy(%d)
  ROOT %f = f32[8]{0} fusion(%copy.3), kind=kLoop, calls=%fused
}
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "fewer"), [("partial", 0), ("jax", 7)])
def test_merging_halves_the_sums_that_the_jax_policy_throws_away(policy: str, fewer: int) -> None:
    """A step of the sequence parallel transformer: seven all-reduces that are sliced become reduce-scatters."""
    with sh.policy(policy):
        args = merging.arguments(merging.MESH)
        step = merging.step("sequence", one_tree=False)
        with sh.merge_reshards(False):
            written = sh.ledger(sh.jit(step), *args)
        merged = sh.ledger(sh.jit(step), *args)
        saved = sh.ShType.parse("f32[4@dp, 8, 16]").local_bytes // 2  # of each sum over two devices
        assert written.bytes - merged.bytes == fewer * saved
        assert written.launches == merged.launches


@pytest.mark.nightly
def test_every_variant_of_merging_computes_what_one_device_computes() -> None:
    found = list(merging.rows(rounds=0))
    assert max(row.error for row in found) < 1e-5
    for row in found:
        assert row.launches <= row.uncombined == row.collectives


def test_collectives_and_work_are_counted_in_the_text_of_a_program() -> None:
    found = hlo.contents(HLO)
    assert found["collectives"]["all-reduce"] == {"count": 1, "operands": 2, "bytes": 8 * 4 + 32 * 2}
    assert found["collectives"]["all-gather"]["count"] == 1
    assert (found["dots"], found["fusions"], found["copies"]) == (1, 1, 1)


LOOP = """
%body (p: f32[8]) -> f32[8] {
  %ag = f32[8]{0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={0}
  ROOT %cp = f32[8]{0} collective-permute(%ag), source_target_pairs={{0,1}}
}
%condition (p: f32[8]) -> pred[] {
  ROOT %c = pred[] constant(true)
}
ENTRY %main {
  %w = f32[8]{0} while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %rs = f32[2]{0} reduce-scatter(%w), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
}
%sum (p: f32[]) -> f32[] {
  ROOT %s = f32[] add(%p, %p)
}
"""


def test_collectives_in_loops_are_counted_as_often_as_they_run() -> None:
    assert hlo.executed(LOOP) == {
        "all-gather": {"launches": 5, "arrays": 5, "bytes": 5 * 16},
        "collective-permute": {"launches": 5, "arrays": 5, "bytes": 5 * 32},
        "reduce-scatter": {"launches": 1, "arrays": 1, "bytes": 3 * 8},
    }
    with pytest.raises(ValueError, match="unknown length"):
        hlo.executed(LOOP.replace("known_trip_count", "unknown"))
    loop = next(line for line in LOOP.splitlines() if " while(" in line)
    choice = "  %w = f32[8]{0} conditional(%i, %a, %a), branch_computations={%body, %sum}"
    assert hlo.executed(LOOP.replace(loop, choice))["all-gather"] == {"launches": 1, "arrays": 1, "bytes": 16}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    ours, theirs = (
        [timing.Spent(a, b) for a, b in rounds] for rounds in ([(1, 3), (4, 6), (30, 9)], [(1, 1), (2, 1), (10, 1)])
    )
    assert timing.ratio(ours, theirs) == {"wall": 2.0, "cpu": 6.0}
    assert timing.summary(ours) == {"median_ms": 4e3, "min_ms": 1e3, "cpu_ms": 6e3}
    assert timing.total(ours) == timing.Spent(35, 18)
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_a_refusal_is_measured_beside_an_accepted_call_of_the_same_program() -> None:
    mesh = sh.abstract_mesh({"x": 2})
    with sh.use_mesh(mesh):
        found = refusals.measured("m.sin({0})", mesh, np.random.default_rng(0))
    assert found is not None
    assert found.fixes
    assert set(refusals.summary([found])) > {"caught / accepted", "read / accepted"}


@pytest.mark.one_in(161)
@pytest.mark.parametrize("case", across.CASES, ids=lambda c: c.name)
def test_a_way_across_shards_sends_at_most_what_xla_sends(case: across.Case) -> None:
    found = across.measured(case)
    assert found.way.sent <= found.xla.sent
    assert found.way.held <= max(found.xla.held, 3 * found.shard)
    assert found.way.sent <= found.gather.sent
    assert found.way.sent < found.gather.sent or case.name in across.GATHERED


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("case", across.CASES, ids=lambda c: c.name)
def test_a_way_across_shards_compiles_to_what_the_ledger_says(case: across.Case, policy: Any) -> None:
    with sh.policy(policy), sh.use_mesh(sh.make_mesh(case.mesh)):
        args = [sh.array(x, t) for x, t in zip(across.values(case), case.types, strict=True)]
        places = tuple(i for i, x in enumerate(args) if x.dtype.kind == "f")
        f = sh.lift(case.f)

        def loss(*args: Any) -> Any:
            return sum((sh.sum(sh.sin(y)) for y in jax.tree.leaves(f(*args)) if y.dtype.kind == "f"), 0.0)

        @sh.implicit_comm
        def step(*args: Any) -> Any:
            return f(*args), sh.grad(loss, places)(*args) if places else ()

        assert_compiled_as_said(step, *args, jits=[jax.jit])


@pytest.mark.nightly
@pytest.mark.parametrize("model", auto_mode.MODELS)
def test_a_plan_that_is_found_sends_what_the_page_says(model: str) -> None:
    """What sends more is a worse plan, or a worse price of work, by which the quickest one is chosen."""
    page = (Path(__file__).parents[1] / "docs" / "suggest.md").read_text()
    row = re.search(rf"^\| {re.escape(model)} \| ([\d,]+) \|", page, re.MULTILINE)
    assert row is not None
    f, args, _ = auto_mode.MODELS[model]
    (plan, *_) = sh.suggest(f, *args, mesh=auto_mode.MESH, links=auto_mode.LINK, compute=auto_mode.DEVICE)
    assert round(plan.ledger.bytes / 1e3) <= int(row[1].replace(",", ""))
