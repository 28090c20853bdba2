"""`shtypes suggest`: a plain model, the types that are found, and the plan that is saved."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from benchmarks import calibrate
from shtypes.tools.cli import output
from tests.golden import golden
from tests.tools.cli.running import Run

MODEL = """
import jax.numpy as jnp

def loss(w, x):
    return jnp.mean(jnp.square(jnp.tanh(x @ w["up"]) @ w["down"]))

def shapes():
    return {"up": "f32[64, 256]", "down": "f32[256, 64]"}, "f32[65536, 64]"
"""
CALL = ("suggest", "model.py:loss", "--arguments", "shapes", "--mesh", "dp=8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_the_types_and_what_a_step_takes(run: Run) -> None:
    text = run(*CALL, "--link", "infiniband-ndr", "--device", "tpu-v5p", "--memory", "1GiB").out
    assert "suggestion 1 of" in text
    assert "for loss on dp=8 (50 GB/s), 1.0 GiB" in text
    assert "f32[65536@dp,64]" in text


def test_a_plain_function_may_be_said_to_be_lifted(run: Run) -> None:
    assert run(*CALL, "--lift").out == run(*CALL).out


def test_a_file_of_what_was_measured_is_read(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "ROWS", 8)
    monkeypatch.setattr(calibrate, "ELEMENTS", 2**12)
    monkeypatch.setattr(calibrate, "links", lambda mesh: {axis: sh.Link(7e9 * n) for axis, n in mesh.items()})
    calibrate.main("machine.toml", "dp=4,tp=2")
    file = ("--links", "machine.toml", "--device", "machine.toml")
    assert "dp=4 (28 GB/s), tp=2 (14 GB/s)" in run(*CALL[:-1], "dp=4,tp=2", *file).out
    slower = run(*CALL[:-1], "dp=4,tp=2", *file, "--link", "dp=ethernet-10g").out
    assert "dp=4 (1.25 GB/s), tp=2 (14 GB/s)" in slower


def test_the_links_of_each_axis_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "ELEMENTS", 2**12)
    found = calibrate.links({"dp": 2, "tp": 4, "one": 1})
    assert sorted(found) == ["default", "dp", "tp"]
    assert found["default"].bandwidth == min(found["dp"].bandwidth, found["tp"].bandwidth)


def test_a_saved_plan_has_its_decisions_and_is_applied(run: Run, folder: Path) -> None:
    run(*CALL, "--output", "plan.json")
    (first, *_) = json.loads((folder / "plan.json").read_text())["plans"]
    assert first["arguments"]["x"] == "f32[65536@dp,64]"
    namespace: dict[str, object] = {}
    exec(MODEL, namespace)
    types = {"up": first["arguments"]["w/up"], "down": first["arguments"]["w/down"]}, first["arguments"]["x"]
    applied = sh.apply(namespace["loss"], folder / "plan.json")  # type: ignore[arg-type]
    assert str(sh.check(applied, *types, mesh=sh.abstract_mesh({"dp": 8})).results) == "f32[]{I:dp}"


def test_it_says_what_another_type_would_cost(run: Run, folder: Path) -> None:
    assert "wrote other.txt" in run(*CALL, "--why-not", "x=[_, _@dp]", "--output", "other.txt").err
    lines = (folder / "other.txt").read_text().splitlines()
    assert " -> " in lines[0]
    assert "x  [65536@dp,64] -> [65536,64@dp]" in lines


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        pytest.param(("--fixed", "up"), 2, "is not PATH=TYPE", id="no type"),
        pytest.param(("--fixed", "sideways=[_]"), 1, "no argument has the path", id="no argument"),
        pytest.param(("--memory", "1KiB"), 1, "nothing fits", id="too little memory"),
        pytest.param(("--why-not", "x=[_, _@dp]", "--patch"), 2, "leave out --patch", id="a patch of what is not"),
        pytest.param(("--why-not", "x=[_, _@dp]", "--html", "a.html"), 2, "leave out --patch", id="a page of it"),
    ],
)
def test_what_cannot_be_is_said(options: tuple[str, ...], code: int, message: str, run: Run) -> None:
    ran = run(*CALL, *options)
    assert ran.code == code
    assert message in ran.err


def test_overlap_is_printed_in_the_first_line_and_a_page_is_written_too(run: Run, folder: Path) -> None:
    ran = run(*CALL, "--overlap", "0.5", "--time-limit", "3600", "--seed", "1", "--html", "found.html")
    # JAX's releases square a value by other operations, whose work is another.
    steps = re.sub(r"(step|compute|than) [\d.]+", r"\1 ...", ran.out)
    golden("cli/suggest_overlap.txt", re.sub(r"^ +[\d.]+  \+|^ +ms  +mem", "... ", steps, flags=re.MULTILINE))
    assert "wrote found.html" in ran.err
    page = (folder / "found.html").read_text()
    assert "<svg" in page
    assert "at once (overlap 0.5)" in page


def test_without_time_the_plan_is_said_to_be_unsettled(run: Run) -> None:
    assert "unsettled: the time limit was reached" in run(*CALL, "--time-limit", "0").out


@pytest.mark.nightly
def test_progress_says_how_many_pairs_of_axes_are_settled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    @contextlib.contextmanager
    def shown(what: str, console: object = None, *, bar: bool = False) -> Iterator[Any]:
        yield lambda *update: said.append(update)

    monkeypatch.setattr(output, "working", shown)
    run("suggest", "model.py:loss", "--arguments", "shapes", "--mesh", "a=2,b=2,c=2")
    assert said[0] == ("solving model.py:loss: 0 of 3 pairs of axes settled", 0, 3)
    assert any(done == 3 and "3 of 3 pairs of axes settled" in what for what, done, _ in said)
    assert " ms" in said[-1][0]
