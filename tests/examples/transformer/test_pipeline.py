"""Pipelines of the language model: what they compute, send and keep, in every layout that has stages."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from examples.transformer import model
from examples.transformer.layouts import Layout, read
from examples.transformer.pipeline import SCHEDULES, Parts, Run, Schedule, pipelined_value_and_grad
from tests.end_to_end import host
from tests.examples.transformer.test_model import BATCH, SEQ, batch, plain_loss
from tests.tolerance import assert_within, computed
from tests.traced.compiled import UNMERGED, sent_by_compiled, sent_by_ledger

pytestmark = pytest.mark.one_in(9)

SIZES = model.Sizes(vocab=32, layers=8, hidden=16, heads=8, key_heads=4, head=4, inner=16, dtype="f32")
LAYOUTS = {name: layout for name, layout in read().items() if layout.schedule}
#: More devices than the tests have.
LARGE = {name for name, layout in LAYOUTS.items() if layout.devices > 8}
#: This one runs each time, the others at night.
DAILY = {("pp_dp", "1f1b", "jax")}
CASES = [(name, kind, policy) for name in LAYOUTS for kind in SCHEDULES for policy in ("partial", "jax")]


def step(layout: Layout, kind: str, microbatches: int = 0, stages: int = 0, sizes: model.Sizes = SIZES) -> Any:
    schedule = Schedule(kind, stages or layout.stages, microbatches or layout.microbatches)
    return pipelined_value_and_grad(sizes, schedule)


def sampled(layout: Layout) -> Any:
    """The weights of a layout, as they are trained; alike in all."""
    with layout.use(), layout.as_weights():
        return model.init(sh.random.key(0), SIZES)


def wanted() -> Any:
    """Loss and gradients on one device, and how far rounding may take those of a pipeline from them."""
    weights = jax.tree.map(host, sampled(read()["one"]))
    return computed(jax.value_and_grad(plain_loss), weights)


@pytest.fixture(scope="module", name="wanted")
def wanted_once() -> Any:
    return wanted()


def assert_is_one_device_and_compiles_as_said(layout: Layout, policy: str, f: Any, wanted: Any) -> None:
    """Compares loss and gradients with one device, and what the compiled program sends with the ledger."""
    with sh.policy(policy), layout.use():
        args = sampled(layout), *batch()
        run = sh.jit(f)
        compiled = run.lower(*args).compile(compiler_options=UNMERGED)
        said = sh.ledger(run, *args)
        assert not said.not_covered
        assert sent_by_compiled(compiled.as_text()) == sent_by_ledger(said)
        found = jax.block_until_ready(compiled(*args))
        for (path, w), g in zip(jax.tree.leaves_with_path(args[0]), jax.tree.leaves(found[1]), strict=True):
            assert g.type == w.type.cotangent(), jax.tree_util.keystr(path)
        (values, errors), paths = wanted, jax.tree.leaves_with_path(found)
        for (path, x), value, error in zip(paths, jax.tree.leaves(values), jax.tree.leaves(errors), strict=True):
            assert_within(host(x), value, error, jax.tree_util.keystr(path))


def sent_along_stages(layout: Layout, policy: str, stages: int, microbatches: int) -> dict[str, int]:
    """The closed form of `examples.transformer.pipeline`: the bytes that a device sends over the axis, by kind."""

    def along(*dims: str) -> int:
        return math.prod(layout.mesh[axis] for dim in dims for axis in layout.dims.get(dim, ()))

    microbatch = 4 * BATCH * SEQ * SIZES.hidden // microbatches // along("batch", "stream")
    found = {"permute": 2 * (microbatches + stages - 1) * microbatch}
    if policy == "jax":
        masters = math.prod(layout.mesh[axis] for axis in layout.masters.get("hidden", ()))
        found["all-reduce"] = 0
        for elements, parts in ((SIZES.vocab * SIZES.hidden, along("vocab") * masters), (SIZES.hidden, masters)):
            pending = layout.devices // parts  # over these at once
            found["all-reduce"] += 2 * (4 * elements // parts) * (pending - 1) // pending
    return found


@pytest.mark.parametrize(
    ("name", "kind", "policy"),
    [pytest.param(*case, marks=() if case in DAILY else pytest.mark.nightly) for case in CASES if case[0] not in LARGE],
)
def test_loss_and_gradients_are_those_of_one_device_and_the_ledger_what_is_compiled(
    name: str, kind: str, policy: str, wanted: Any
) -> None:
    assert_is_one_device_and_compiles_as_said(LAYOUTS[name], policy, step(LAYOUTS[name], kind), wanted)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 2), (8, 4)])
def test_there_may_be_few_microbatches_and_several_stages_on_a_device(
    kind: str, stages: int, microbatches: int, wanted: Any
) -> None:
    layout = LAYOUTS["pp_dp"]
    f = step(layout, kind, microbatches, stages)
    assert_is_one_device_and_compiles_as_said(layout, "partial", f, wanted)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_no_stage_computes_on_zeros_before_a_microbatch_reaches_it(kind: str) -> None:
    def plain(weights: Any, ends: Any) -> Any:
        x = ends * came
        for w in weights:
            x = w * jnp.sqrt(x)  # of infinite slope at zero
        return ((x - left) ** 2).sum() / len(came)

    parts = Parts(lambda ends, x: ends * x, lambda w, x: (w * sh.sqrt(x), None), lambda _, x, y: sh.sum((x - y) ** 2))
    weights, ends, came, left = (
        np.random.default_rng(i).uniform(1, 2, shape).astype(np.float32)
        for i, shape in enumerate([(4, 3), (3,), (6, 2, 3), (6, 2, 3)])
    )
    with sh.use_mesh(sh.make_mesh({"pp": 4}, devices=jax.devices()[:4])):
        args = [sh.array(weights, "[stage@pp, 3]"), *(sh.array(x, "[...]") for x in (ends, came, left))]
        found = sh.jit(lambda *args: SCHEDULES[kind](Run(parts, 4, ("pp",)), *args))(*args)
        values, errors = computed(jax.value_and_grad(plain, (0, 1)), weights, ends)
        for x, value, error in zip(*map(jax.tree.leaves, (found, values, errors)), strict=True):
            assert_within(host(x), value, error)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_weights_that_are_gathered_once_have_their_gradients_scattered_once(
    kind: str, policy: str, wanted: Any
) -> None:
    layout, sizes = LAYOUTS["pp_zero3"], model.Sizes(**{**vars(SIZES), "gather_again": False})
    f = step(layout, kind, sizes=sizes)
    with sh.policy(policy), layout.use():
        over = [e for e in sh.ledger(f, sampled(layout), *batch()) if e.axes == ("dp",)]
    weights = len(jax.tree.leaves(model.WEIGHTS))
    assert {e.kind for e in over} == {"all-gather", "reduce-scatter"}
    assert sum((e.times or 0) * e.launches for e in over) == 2 * weights
    assert_is_one_device_and_compiles_as_said(layout, policy, f, wanted)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_more_axes_than_the_tests_have_devices_for_compute_the_same(name: str) -> None:
    program = f"from tests.examples.transformer import test_pipeline; test_pipeline.assert_cases_of({name!r})"
    around = {**os.environ, "JAX_NUM_CPU_DEVICES": str(LAYOUTS[name].devices)}
    done = subprocess.run([sys.executable, "-c", program], env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * len(SCHEDULES)


def assert_cases_of(name: str) -> None:
    """All cases of a layout, in a process that has the devices."""
    one = wanted()
    for _, kind, policy in (case for case in CASES if case[0] == name):
        assert_is_one_device_and_compiles_as_said(LAYOUTS[name], policy, step(LAYOUTS[name], kind), one)
        print(kind, policy)


@pytest.mark.one_in(15)
@pytest.mark.parametrize(
    ("name", "kind", "policy"),
    [
        pytest.param(*case, marks=() if case[0] in ("pp_zero3", "pp_dp_cp_tp") else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_what_is_sent_along_the_stages_is_the_closed_form(name: str, kind: str, policy: str) -> None:
    layout = LAYOUTS[name]
    with sh.policy(policy), layout.use(abstract=True):
        with layout.as_weights():
            weights = jax.tree.map(sh.abstract_array, model.types(SIZES))
        tokens = sh.abstract_array(f"i32[batch={BATCH}, seq={SEQ}]")
        found: dict[str, int] = {}
        for entry in sh.ledger(step(layout, kind), weights, tokens, tokens):
            if set(entry.axes) & set(layout.dims["layer"]):
                assert entry.times is not None
                found[entry.kind] = found.get(entry.kind, 0) + entry.bytes * entry.times
        assert found == sent_along_stages(layout, policy, layout.stages, layout.microbatches)


def kept_for_more_microbatches(kind: str, of: Any) -> float:
    """How much more memory each further microbatch needs, in times of what it has between layers."""
    few, many, layout = 8, 32, LAYOUTS["pp4"]
    with layout.use(abstract=of is estimated):
        weights = jax.tree.map(sh.abstract_array, model.types(SIZES))
        found: list[int] = []
        for count in (few, many):
            tokens = sh.abstract_array(f"i32[batch={2 * count}, seq={SEQ}]")
            found.append(of(step(layout, kind, count), weights, tokens, tokens))
    return (found[1] - found[0]) / (many - few) / (2 * SEQ * SIZES.hidden * 4)


def estimated(f: Any, *args: Any) -> int:
    return sh.memory(f, *args).temporaries


def compiled(f: Any, *args: Any) -> int:
    used = sh.jit(f).lower(*args).compile().memory_analysis()
    assert used is not None
    return int(used.temp_size_in_bytes)


@pytest.mark.nightly
@pytest.mark.parametrize("of", [estimated, compiled])
def test_1f1b_keeps_no_more_for_more_microbatches_and_gpipe_does(of: Any) -> None:
    # What enters the stage and what leaves it, of each microbatch; copies of tokens and targets, which are integers.
    assert kept_for_more_microbatches("gpipe", of) >= 2
    assert kept_for_more_microbatches("1f1b", of) < 4 * 2 / SIZES.hidden


@pytest.mark.parametrize(
    ("name", "schedule", "said"),
    [
        ("dp", Schedule("gpipe", 8, 1), "none shards the dim `layer`"),
        ("pp_dp", Schedule("1f2b", 4, 4), "no schedule `1f2b`; it is `gpipe` or `1f1b`"),
        ("pp_dp", Schedule("gpipe", 2, 4), "8 layers on 4 devices cannot be 2 equal stages"),
        ("pp_dp", Schedule("gpipe", 16, 4), "8 layers on 4 devices cannot be 16 equal stages"),
        ("pp_dp", Schedule("1f1b", 4, 8), "8 sequences on 2 devices cannot be 8 equal microbatches"),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, schedule: Schedule, said: str) -> None:
    with read()[name].use(abstract=True):
        weights = jax.tree.map(sh.abstract_array, model.types(SIZES))
        tokens = sh.abstract_array(f"i32[batch={BATCH}, seq={SEQ}]")
        with pytest.raises(sh.ShardingTypeError, match=said):
            sh.ledger(pipelined_value_and_grad(SIZES, schedule), weights, tokens, tokens)
