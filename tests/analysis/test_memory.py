"""`memory`: closed forms for small programs, and the compiler's own figures for layouts, checkpoints and scans."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes.analysis.buffers import Buffer, Schedule, packed, peak
from shtypes.analysis.device_steps import Graph, Kind, Step, Value
from tests.compiling import compiled
from tests.memory_cases import cases, of_transformer
from tests.tools.cli.running import runner

MESH = sh.abstract_mesh({"dp": 4, "tp": 2})
N = 64
#: A matrix of N by N, and what one takes.
SQUARE, WHOLE = f"f32[{N}, {N}]", 4 * N * N


def needs(f: Any, *types: Any, **more: Any) -> sh.Memory:
    return sh.memory(f, *types, mesh=MESH, **more)


# closed forms


def test_arguments_and_results_are_shards() -> None:
    found = needs(lambda x, w: sh.tanh(x @ w), f"f32[{N}@dp, {N}]", {"a": f"f32[{N}, {N}@tp]"}["a"])
    assert found.arguments == {"x": WHOLE // 4, "w": WHOLE // 2}
    assert (found.results, found.temporaries, found.peak) == (WHOLE // 8, 0, WHOLE * 7 // 8)
    assert found.saved == ()


def test_arguments_are_trees_and_named_as_in_the_signature() -> None:
    def f(weights: Any, *rest: Any, scale: float = 2.0) -> Any:
        return weights["a"] @ rest[0] * scale

    found = needs(f, {"a": SQUARE, "b": (f"f32[{N}]",)}, SQUARE, scale=3.0)
    assert found.arguments == {"weights": WHOLE + 4 * N, "rest[0]": WHOLE}


def test_keys_are_counted() -> None:
    found = needs(lambda key, x: sh.random.normal(key, f"f32[{N}@dp]") + x, "key<fry>[]", f"f32[{N}@dp]")
    assert found.arguments == {"key": 8, "x": N}


def test_what_is_fused_takes_no_memory() -> None:
    assert needs(lambda x: sh.sum(sh.exp(x * 2 + 1)), SQUARE).temporaries == 0
    assert needs(lambda x: sh.cos(x) + sh.sin(x) * x, SQUARE).temporaries == 0


def test_a_product_of_a_product_needs_the_first_one() -> None:
    assert needs(lambda x: (x @ x) @ x, SQUARE).temporaries == WHOLE
    assert needs(lambda x: sh.tanh(x @ x) @ x, SQUARE).temporaries == WHOLE  # in the memory of the product


@pytest.mark.parametrize(
    ("change", "wholes"),
    [
        (lambda y: y * 2, 1),
        (lambda y: y.T, 1),  # the product is computed transposed
        (lambda y: sh.tanh(y).T, 2),
        (lambda y: sh.flip(y, 1), 2),
        (lambda y: sh.reshape(sh.transpose(sh.reshape(y, (N, 8, N // 8)), (0, 2, 1)), (N, N)), 2),
    ],
)
def test_only_elements_at_their_place_are_written_over(change: Any, wholes: int) -> None:
    # As XLA says.
    assert needs(lambda x: (sh.exp(change(x @ x) + x) @ x) @ x, SQUARE).temporaries == wholes * WHOLE


def test_a_result_that_is_an_argument_is_a_copy() -> None:
    found = needs(lambda x: (x, x), SQUARE)
    assert (found.results, found.peak) == (2 * WHOLE, 3 * WHOLE)


def test_donated_arguments_give_their_memory_to_results() -> None:
    def step(x: Any, y: Any) -> Any:
        return x - y

    kept, donated = needs(sh.jit(step), SQUARE, SQUARE), needs(sh.jit(step, donate_argnums=0), SQUARE, SQUARE)
    assert (kept.donated, kept.peak) == (0, 3 * WHOLE)
    assert (donated.donated, donated.peak) == (WHOLE, 2 * WHOLE)


def test_what_is_gathered_is_whole() -> None:
    found = needs(lambda x: sh.all_gather(x, "dp", to="R") @ x.reshard("[_, _]"), f"f32[{N}@dp, {N}]")
    assert found.temporaries == WHOLE  # one gather does for both


def chain(depth: int, checkpoint: bool) -> Any:
    def layer(h: Any, w: Any) -> Any:
        return sh.tanh(h @ w)

    layer = sh.checkpoint(layer, prevent_cse=False) if checkpoint else layer

    def loss(w: Any, x: Any) -> Any:
        return sh.sum(sh.scan(lambda h, w: (layer(h, w), None), x, w)[0])

    return needs(loss, f"f32[{depth}, {N}, {N}]", f"f32[{4 * N}@dp, {N}]", grad=True)


def test_a_loop_keeps_its_residuals_for_each_step() -> None:
    for depth in (3, 6):
        kept = {(h.type, h.direction) for h in chain(depth, checkpoint=False).saved}
        assert (f"f32[{depth},{N},{N}]", "forward") in kept
        # A checkpoint keeps what goes into each step; without one, what comes out of its tanh besides.
        stacked = [
            sum(h.bytes for h in chain(depth, c).saved if h.type.startswith(f"f32[{depth},")) for c in (True, False)
        ]
        assert stacked == [depth * WHOLE, 2 * depth * WHOLE]


def test_a_checkpoint_waits_for_the_backward_pass() -> None:
    def loss(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = sh.checkpoint(lambda x, w: sh.tanh(sh.tanh(x @ w) @ w))(x, w)
        return sh.sum(x)

    weights = [SQUARE] * 5
    kept, early = (needs(loss, f"f32[{64 * N}@dp, {N}]", *weights, grad=True, barriers=b) for b in (True, False))
    assert kept.saved == early.saved
    rows = 16 * WHOLE  # one device's activations
    assert early.peak - kept.peak >= 4 * rows


def test_gradients_are_results() -> None:
    found = needs(lambda w, x: sh.sum(sh.square(x @ w)), SQUARE, f"f32[{N}@dp, {N}]", grad=True)
    assert (found.gradients, found.results) == (WHOLE + WHOLE // 4, WHOLE + WHOLE // 4 + 4)
    (kept,) = found.saved
    assert (kept.type, kept.bytes, kept.direction) == (f"f32[{N // 4},{N}]", WHOLE // 4, "forward")
    assert kept.place.file == __file__


def test_of_branches_the_largest_counts() -> None:
    def two(x: Any) -> Any:
        return (x @ x) @ (x @ x + 1)

    def f(x: Any, p: Any) -> Any:
        return sh.cond(p > 0, two, sh.tanh, x)

    assert needs(two, SQUARE).temporaries == 2 * WHOLE
    assert 2 * WHOLE <= needs(f, SQUARE, "i32[]").temporaries < 2 * WHOLE + N


def test_a_loop_runs_in_the_memory_of_its_state() -> None:
    def f(x: Any) -> Any:
        return sh.while_loop(lambda s: s[1] < 10, lambda s: (sh.tanh(s[0]), s[1] + 1), (x, 0))[0]

    assert needs(f, SQUARE).peak < 2 * WHOLE + N  # the argument and the state
    assert needs(sh.jit(f, donate_argnums=0), SQUARE).peak < WHOLE + N


def test_sums_over_the_same_devices_are_sent_at_once() -> None:
    def f(x: Any, y: Any) -> Any:
        return [sh.all_reduce(x @ v) for v in (y, sh.tanh(y))]

    # Two terms are there while two results are made; one after the other, a term would do.
    rows, columns = f"f32[{N}, {N}@dp]", f"f32[{N}@dp, {N}]"
    assert needs(f, rows, columns).temporaries == 2 * WHOLE
    assert needs(lambda x, y: f(x, y)[0], rows, columns).temporaries == WHOLE


def test_sums_that_would_wait_for_each_other_are_not_sent_at_once() -> None:
    def f(x: Any, y: Any, w: Any) -> Any:
        over_dp = sh.all_reduce(x @ y, "dp")
        late_tp = sh.all_reduce(sh.reshard(over_dp, "[_, _@tp]") @ w, "tp")
        early_tp = sh.all_reduce(w.reshard("[_, _@tp]") @ w, "tp")  # could be sent with the late one
        late_dp = sh.all_reduce(sh.reshard(early_tp, "[_, _@dp]") @ y, "dp")  # and then not with the first one over dp
        return late_tp @ late_tp, late_dp @ late_dp

    types = (f"f32[{N}, {N}@dp]", f"f32[{N}@dp, {N}]", f"f32[{N}@tp, {N}]")
    assert needs(f, *types).temporaries == 2 * WHOLE  # as XLA says, but for 80 bytes


def test_a_long_chain_is_fused_as_a_short_one() -> None:
    def f(x: Any) -> Any:
        for _ in range(1000):
            x = (x + 1.0) * (x - 1.0)
        return x

    assert needs(f, SQUARE).temporaries == 0


def test_what_is_captured_is_an_argument() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 4, "tp": 2})):
        weights = sh.ones(SQUARE)
        assert sh.memory(lambda x: x @ weights, SQUARE).arguments == {"x": WHOLE, "(captured)": WHOLE}


def test_a_program_without_a_region_and_a_plain_one_are_counted() -> None:
    off = needs(sh.jit(lambda x: (x @ x) @ x, region="off"), SQUARE)
    assert (off.arguments, off.results, off.temporaries) == ({"x": WHOLE}, WHOLE, WHOLE)
    plain = sh.memory(lambda x: (x @ x) @ x, jax.ShapeDtypeStruct((N, N), jnp.float32))
    assert (plain.arguments, plain.results, plain.temporaries) == ({"x": WHOLE}, WHOLE, WHOLE)


def test_buffers_lie_where_they_fit() -> None:
    def buffer(size: int, start: int, end: int, *, result: bool = False) -> Buffer:
        return Buffer(size, [(start, Value(size))], end, result)

    apart = [buffer(4, 0, 1), buffer(4, 2, 3)]
    assert (packed(apart), peak(apart)) == (4, 4)
    assert packed([*apart, buffer(2, 1, 2)]) == 6
    assert packed([buffer(4, 3, 5, result=True), buffer(4, 0, 2)]) == 4  # before the result is there
    assert packed([buffer(3, 3, 5, result=True), buffer(4, 0, 2)]) == 7  # too large for it
    early = [buffer(4, 6, 8, result=True), buffer(4, 0, 2), buffer(4, 3, 5)]
    assert packed(early) == 4  # one after the other
    assert packed([*early, buffer(4, 2, 3)]) == 8  # at the same time as both


def test_combined_collectives_wait_for_no_part_of_themselves() -> None:
    rng, several = random.Random(0), 0
    for _ in range(200):
        steps, values = list[Step](), [Value(4, jax.ShapeDtypeStruct((), jnp.float32))]
        for i in range(12):
            kind = Kind.SEND if rng.random() < 0.7 else Kind.KERNEL
            eqn = SimpleNamespace(params={"axes": rng.choice("xy")}, effects=())
            step = Step("psum", kind, rng.sample(values, min(len(values), 2)), i, eqn)
            step.results = [Value(4, values[0].aval, step)]
            steps, values = [*steps, step], [*values, *step.results]
        schedule = Schedule(Graph(steps, values[1:]))  # raises if steps wait for each other
        assert {s for s in schedule.order if len(s.results) == 1} <= {*steps}
        several += sum(len(s.results) > 1 for s in schedule.order)
    assert several > 200


def test_a_mistake_is_said_as_everywhere() -> None:
    with pytest.raises(sh.ShardingTypeError, match=r"where: test_memory\.py"):
        needs(lambda x: x @ x, f"f32[{N}@nowhere, {N}]")


# the compiler


@pytest.mark.one_in(35)
@pytest.mark.parametrize(("rows", "seq"), [(1024, 128), (8192, 256)])
@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_the_estimate_is_near_what_the_compiler_says(name: str, rows: int, seq: int) -> None:
    case = next(c for c in cases(rows, seq) if c.name == name)
    with sh.use_mesh(sh.make_mesh(case.mesh)), sh.policy(case.policy):
        found = sh.memory(case.function, *case.types, barriers=case.barriers)
        args = jax.tree.map(sh.abstract_array, case.types)
        said = compiled(case.function.lower(*args)).memory_analysis()
    assert sum(found.arguments.values()) == said.argument_size_in_bytes
    assert found.results - found.donated == pytest.approx(
        said.output_size_in_bytes - said.alias_size_in_bytes, abs=1024
    )
    real = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes + said.temp_size_in_bytes
    assert real > 4e6
    assert found.peak == pytest.approx(real, rel=0.1)


def test_4096_devices_are_planned_in_two_seconds() -> None:
    case = next(c for c in cases() if c.name == "transformer, all kept")
    wide = of_transformer(seq=128, devices=64, batch=512, heads=64)
    start = time.process_time()
    found = sh.memory(case.function, *wide, mesh=sh.abstract_mesh({"dp": 64, "tp": 64}))
    assert time.process_time() - start < 2
    assert found.mesh == "dp=64, tp=64"
    assert found.peak > sum(found.arguments.values()) > 0


# what is written

MODEL = """\
import shtypes as sh

def loss(x, w):
    y = x @ w
    return sh.sum(sh.square(y))
"""
GOLDEN = """\
memory of loss on dp=2
               B/device
  argument x        256
  argument w        256
  results             4
  gradients         512
  temporaries        64
  peak             1092

kept for the backward pass, besides arguments: 64 B/device
  line        direction  made by      each device has  B/device
  model.py:4  forward    dot_general  f32[4,4]               64

in use at the peak, besides arguments: 580 B/device
  line        direction  made by      each device has  B/device
  model.py:4  backward   dot_general  f32[4,16]             256
  model.py:4  backward   dot_general  f32[16,4]             256
  model.py:5  backward   mul          f32[4,4]               64
  model.py:5  forward    reduce_sum   f32[]                   4
"""


def test_the_command_prints_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    run = runner(capsys)
    target = ("memory", "model.py:loss", "f32[8@dp, 16]", "f32[16, 4]", "--mesh", "dp=2", "--grad")
    ran = run(*target)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == GOLDEN
    found = json.loads(run(*target, "--format", "json").out)
    assert (found["schema"], found["peak"], found["arguments"]) == (1, 1092, {"x": 256, "w": 256})
    (kept,) = found["saved"]
    assert (kept["bytes"], kept["place"]["line"], kept["values"]) == (64, 4, 1)
    assert run(*target, "--max-bytes", "1092").code == 0
    failed = run(*target, "--max-bytes", "1091")
    assert failed.code == 1
    assert failed.err == "failed: a device needs 1092 B, and at most 1091 B is allowed\n"
