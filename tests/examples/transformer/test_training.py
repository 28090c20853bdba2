"""Training the language model: losses of one device in every layout, and runs that go on exactly where they were."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import shtypes as sh
from examples.transformer import __main__ as command
from examples.transformer import data, model, training
from examples.transformer.layouts import Layout, read
from tests.end_to_end import host
from tests.tolerance import DEVICES, eps

LAYOUTS = read()
SIZES = model.Sizes(layers=2, hidden=16, heads=8, key_heads=4, head=4, inner=16, dtype="f32")
RUN = training.Run(LAYOUTS["one"], SIZES, batch=8, seq=16, steps=200)


def run_of(layout: Layout, **changes: Any) -> training.Run:
    return dataclasses.replace(RUN, layout=layout, **changes)


def sizes_of(layout: Layout, capacity: float | None = None) -> model.Sizes:
    """Sizes that go with a layout: experts where it shards them, and as many layers as stages at least."""
    experts = 8 if "expert" in layout.dims else 0
    layers = 8 if layout.schedule else SIZES.layers
    return dataclasses.replace(SIZES, experts=experts, capacity=capacity, group=8, layers=layers)


# every layout


@functools.cache
def begun(name: str, policy: str, sizes: model.Sizes) -> Any:
    """The weights, the state and the step of a layout.

    With experts the rate is small: where a token is as near to two of them, rounding decides where it goes.
    """
    run = run_of(LAYOUTS[name], sizes=sizes, rate=1e-3 if sizes.experts else RUN.rate)
    return *training.start(run), sh.jit(training.step(run))


def losses(
    name: str, steps: int, policy: str = "partial", sizes: model.Sizes = SIZES, seed: int | None = None
) -> np.ndarray[Any, Any]:
    """The losses of a run; with a seed, of weights that are rounded otherwise, as sums in another order would be."""
    run = run_of(LAYOUTS[name])
    with sh.policy(policy), LAYOUTS[name].use():
        weights, state, step = begun(name, policy, sizes)
        if seed is not None:
            signs = np.random.default_rng(seed)
            off = DEVICES * eps(np.float32)
            weights = jax.tree.map(lambda w: w * (1 + off * signs.choice([-1, 1], w.shape).astype(np.float32)), weights)
        found = []
        parts = sh.prefetch_to_device(data.batches(data.text("train"), run.tokens), run.tokens)
        for _ in range(steps):
            weights, state, loss = step(weights, state, *next(parts))
            found.append(float(loss))
    return np.array(found)


@functools.cache
def one_device(steps: int, sizes: model.Sizes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    """The losses of one device, and how far rounding takes each, and most: as far as eight other roundings, and twice.

    What one step is off by, the next ones enlarge, each program in its own way: so far do runs of one device come apart
    whose weights were rounded otherwise. A token that rounding sends to another expert moves one loss at once, and the
    bound from there on; most losses it does not move.
    """
    wanted = losses("one", steps, sizes=sizes)
    others = np.abs(np.stack([losses("one", steps, sizes=sizes, seed=seed) for seed in range(8)]) - wanted)
    exact = 64 * eps(np.float32) * np.abs(wanted)
    spread = np.maximum.accumulate(others.max(0))
    return wanted, 2 * spread + exact, float(2 * np.median(others, 1).max() + exact.max())


def check_losses(name: str, policy: str, steps: int, capacity: float | None = None) -> None:
    wanted, off, most = one_device(steps, sizes_of(LAYOUTS[name], capacity))
    found = losses(name, steps, policy, sizes_of(LAYOUTS[name], capacity))
    worst = float((np.abs(found - wanted) / off).max())
    assert worst <= 1, f"off by {worst:.2g} times what rounding explains"
    typical = float(np.median(np.abs(found - wanted)))
    assert typical <= most, f"most are off by {typical / most:.2g} times what rounding explains"
    learned = wanted[0] - wanted[-1]
    assert most < 0.01 * learned, "the bound says nothing"
    assert off.max() < 0.05 * learned, "the bound says nothing"


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "policy"), [("zero3_cp_tp_sp", "jax")])
def test_the_first_losses_are_those_of_one_device(name: str, policy: str) -> None:
    check_losses(name, policy, steps=12)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        *((name, None) for name in LAYOUTS if name != "one"),
        *((name, 1.25) for name, layout in LAYOUTS.items() if "expert" in layout.dims),
    ],
)
def test_two_hundred_losses_are_those_of_one_device(name: str, capacity: float | None, policy: str) -> None:
    if LAYOUTS[name].devices <= len(jax.devices()):
        check_losses(name, policy, 200, capacity)
        return
    called = f"check_losses({name!r}, {policy!r}, steps=200)"
    around = {**os.environ, "JAX_NUM_CPU_DEVICES": str(LAYOUTS[name].devices)}
    words = [sys.executable, "-c", f"from tests.examples.transformer.test_training import *; {called}"]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["zero1", "zero3_tp"])
def test_microbatches_make_the_step_of_their_batch(name: str) -> None:
    found = {}
    for accumulate in (1, 4):
        run = run_of(LAYOUTS[name], accumulate=accumulate, batch=32)
        with LAYOUTS[name].use():
            weights, _ = training.start(run)
            tokens, targets = next(data.batches(data.text("train"), run.tokens))
            args = weights, sh.array(tokens, run.tokens), sh.array(targets, run.tokens)
            found[accumulate] = jax.tree.map(host, sh.jit(training.loss_and_gradients(run))(*args))
    for whole, summed in zip(jax.tree.leaves(found[1]), jax.tree.leaves(found[4]), strict=True):
        np.testing.assert_allclose(summed, whole, atol=2 * 16 * 32 * eps(np.float32) * np.abs(whole).max(), rtol=0)


# interrupted runs


@pytest.mark.nightly
def test_a_run_that_is_interrupted_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    run = run_of(LAYOUTS["zero3_tp"], steps=6, every=2)
    with LAYOUTS["zero3_tp"].use():
        for _ in training.train(run, tmp_path / "whole"):
            pass
        for number, *_ in training.train(run, tmp_path / "broken"):
            if number == 5:  # the last checkpoint is that of step 4
                break
        went_on = [number for number, *_ in training.train(run, tmp_path / "broken")]
    assert went_on == [5, 6]
    assert training.losses(tmp_path / "broken") == training.losses(tmp_path / "whole")


@pytest.mark.nightly
def test_another_mesh_goes_on_with_the_same_weights_and_state(tmp_path: Path) -> None:
    first = LAYOUTS["zero3_tp"]
    turned = dataclasses.replace(first, mesh={"dp": 4, "tp": 2})
    with first.use():
        for _ in training.train(run_of(first, steps=2), tmp_path):
            pass
        saved = jax.tree.map(host, training.restored(run_of(first), tmp_path))
    for layout in (turned, LAYOUTS["one"]):
        with layout.use():
            found = training.restored(run_of(layout), tmp_path)
            assert jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(host(x), y), found, saved))


@pytest.mark.nightly
@pytest.mark.parametrize("broken", ["cut", "empty"])
def test_a_checkpoint_that_cannot_be_read_is_named(broken: str, tmp_path: Path) -> None:
    """Cut is what describes its arrays; where they are cut, orbax leaves tasks behind that fail in other tests."""
    layout = LAYOUTS["zero3_tp"]
    run = run_of(layout, sizes=dataclasses.replace(SIZES, layers=1), steps=2, every=1)
    with layout.use():
        found = {number: loss for number, loss, _ in training.train(run, tmp_path)}
        last = tmp_path / "checkpoints" / "2"
        if broken == "cut":
            file = last / "default" / "_METADATA"
            os.truncate(file, file.stat().st_size // 2)
        else:
            shutil.rmtree(last)
            last.mkdir()
        with pytest.raises(sh.ShardingTypeError, match=r"of step 2 in .* is broken, or of a model of other") as caught:
            training.restored(run, tmp_path)
        shutil.rmtree(caught.value.hints[0].split()[2])
        assert {number: loss for number, loss, _ in training.train(run, tmp_path)} == {2: found[2]}


def started(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    given = f"--folder {folder} --layout zero3_tp --steps {steps} --every 4 --layers 1 --hidden 16 --inner 16 --batch 8"
    with (folder.parent / f"{folder.name}.txt").open("a") as printed:
        words = [sys.executable, "-m", "examples.transformer", "train", *given.split()]
        return subprocess.Popen(words, stdout=printed, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    began = time.monotonic()
    assert started(tmp_path / "whole", 40).wait(timeout=300) == 0
    lasted = time.monotonic() - began
    wanted = training.losses(tmp_path / "whole")
    moments = random.Random(0)
    for trial in range(20):
        folder = tmp_path / f"killed-{trial}"
        victim = started(folder, 40)
        time.sleep(moments.uniform(0.2, 1) * lasted)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert started(folder, 40).wait(timeout=300) == 0, (tmp_path / f"killed-{trial}.txt").read_text()
        assert training.losses(folder) == wanted, f"trial {trial}"


# the commands


@pytest.mark.nightly
def test_the_commands_train_and_sample(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        result = CliRunner().invoke(command.main, [*words, "--folder", str(tmp_path)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    sizes = {"steps": 3, "layers": 1, "hidden": 16, "inner": 16, "heads": 4, "batch": 8, "seq": 16}
    trained = said("train", "--layout", "dp_tp", *(str(word) for k, v in sizes.items() for word in (f"--{k}", v)))
    for part in ("step 3/3", "MB sent/step and device", "bits a byte"):
        assert part in trained
    assert len(training.losses(tmp_path)) == 3
    xml.etree.ElementTree.fromstring((tmp_path / "losses.svg").read_text())
    assert "has done its 3 steps" in said("train")
    held = trained.split("of text held back ")[1].split(",")[0]
    assert f"after 3 steps: loss {held}" in said("evaluate")
    written = said("sample", "--prompt", "def f", "--prompt", "x", "--tokens", "8", "--ledger")
    assert "all-reduce over tp" in written
    assert "\ndef f" in written
    assert said("sample", "--tokens", "8") == said("sample", "--tokens", "8")
    refused = CliRunner().invoke(command.main, ["train", "--folder", str(tmp_path / "other"), "--layout", "dp3"])
    assert refused.exit_code == 2
    assert "'dp3' is not one of one, dp," in refused.output
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "name",
    [name if name == "ep_cp" else pytest.param(name, marks=pytest.mark.nightly) for name in read()],
)
def test_each_layout_is_listed_by_the_command(name: str) -> None:
    run = command.run_of(read()[name])  # of `ep_cp` the groups of tokens are smaller than a sequence
    with run.layout.use(abstract=True):
        sent = sh.ledger(training.step(run), *training.abstract(run))
    assert sent.known
    assert bool(sent.bytes) == (name != "one")


def refused(*words: str) -> str:
    result = CliRunner().invoke(command.main, list(words), catch_exceptions=False)
    assert result.exit_code, result.output
    return " ".join(result.output.split())


def test_the_commands_refuse_in_words(tmp_path: Path) -> None:
    folder, mine = ("--folder", str(tmp_path / "run")), tmp_path / "mine.toml"
    mine.write_text(
        '[strategies]\ndata = { batch = "dp" }\n[layouts]\nwide = { mesh = { dp = 16 }, uses = ["data"] }\n'
    )
    assert "there is no run in" in refused("evaluate", *folder)
    assert "'dp' is not one of wide" in refused("train", *folder, "--file", str(mine))
    assert "wide needs 16 devices, and there are 8" in refused(
        "train", *folder, "--file", str(mine), "--layout", "wide"
    )
    assert "30 sequences on 8 devices cannot be equal parts" in refused("train", *folder, "--batch", "30")
    assert "cannot be 3 equal microbatches" in refused("train", *folder, "--accumulate", "3")
    assert "has 8 microbatches, and `accumulate` other ones" in refused(
        "train", *folder, "--layout", "pp", "--accumulate", "2"
    )
    assert "`every` is at least 1, not 0" in refused("train", *folder, "--every", "0")
    mine.write_text("[layouts]\nwide = { mesh = { dp = 16 }, uses = ['data'] }\n")
    assert f"{mine}: " in refused("train", *folder, "--file", str(mine))
    mine.write_text("[layouts")
    assert "Expected ']'" in refused("train", *folder, "--file", str(mine))
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"steps": 200, "layers": 1, "layout": "one"}')
    assert "has steps 200, not 300" in refused("train", *folder, "--steps", "300")
    assert "has no checkpoint yet" in refused("sample", *folder)
