"""The example of several processes: two are as good as one, and a process that is killed costs no step."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEPS = 40
#: Of f32.
EPSILON = 2**-23
#: `kill -9` comes after so many steps, or while the program starts.
MOMENTS = (0, 3, 9, 16, 24)


def _started(folder: Path, *given: str, devices: int = 4) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.multiprocess", "--folder", str(folder), "--steps", str(STEPS), *given]
    around = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    with (folder / "printed.txt").open("w") as printed:
        return subprocess.Popen(command, env=around, stdout=printed, stderr=subprocess.STDOUT)


def _printed(folder: Path) -> str:
    return (folder / "printed.txt").read_text()


def _losses(folder: Path) -> list[tuple[int, float]]:
    log = folder / "losses.txt"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(int(step), float.fromhex(value)) for step, value in lines]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave that nobody disturbs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert _started(folder).wait(timeout=300) == 0, _printed(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(ended: Path) -> list[tuple[int, float]]:
    """Their losses."""
    return _losses(ended)


@pytest.mark.slow
def test_two_processes_train_as_one_does(uninterrupted: list[tuple[int, float]], tmp_path: Path) -> None:
    assert _started(tmp_path, "--processes", "1", devices=8).wait(timeout=300) == 0, _printed(tmp_path)
    assert [step for step, _ in uninterrupted] == list(range(1, STEPS + 1))
    # The same sums of the same numbers; only who adds them differs, so that two terms may trade places.
    for (_, two), (_, one) in zip(uninterrupted, _losses(tmp_path), strict=True):
        assert two == pytest.approx(one, rel=1e-5)
    assert uninterrupted[-1][1] < uninterrupted[0][1] - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [("1", "2", 8), ("1", "1", 1), ("2", "4", 4)], ids=["one process", "one device", "4x2"]
)
def test_what_two_processes_saved_is_gone_on_with_anywhere(
    ended: Path, tmp_path: Path, layout: tuple[str, str, int]
) -> None:
    processes, dp, devices = layout
    losses = []
    for name, given, each in (("same", ["2", "--dp", "2"], 4), ("other", [processes, "--dp", dp], devices)):
        folder = shutil.copytree(ended, tmp_path / name)
        run = _started(folder, "--processes", *given, "--steps", str(STEPS + 4), devices=each)
        assert run.wait(timeout=300) == 0, _printed(folder)
        assert [step for step, _ in _losses(folder)] == list(range(1, STEPS + 5))
        losses.append([loss for _, loss in _losses(folder)[STEPS:]])
    assert losses[1][0] == pytest.approx(losses[0][0], rel=64 * EPSILON)  # the same weights: one forward pass
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_training_goes_on_where_it_was_when_a_process_is_killed(
    uninterrupted: list[tuple[int, float]], tmp_path: Path, moment: int
) -> None:
    chance = random.Random(moment)
    run = _started(tmp_path)
    try:
        while len(pids := re.findall(r"process \d has pid (\d+)\n", _printed(tmp_path))) < 2:
            time.sleep(0.01)
        while moment and len(_losses(tmp_path)) < moment and run.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05 if moment else 4))
        os.kill(int(chance.choice(pids)), signal.SIGKILL)
        run.wait(timeout=300)
    finally:
        run.kill()
    printed = _printed(tmp_path)
    assert run.returncode == 0, printed
    assert re.search(r"process \d of 2 died", printed), printed
    assert "starting again from the last checkpoint" in printed
    found = _losses(tmp_path)
    assert dict(found) == dict(uninterrupted)
    assert set(found) == set(uninterrupted)  # the steps that ran twice, too
