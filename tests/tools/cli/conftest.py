"""`run`, and a repository to run in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.cli.running import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


MODEL = '''\
"""A model."""

from typing import Annotated as A

import shtypes as sh


def block(x: A[sh.Array, "f32[batch@dp, hidden]"], w: A[sh.Array, "f32[hidden, hidden@tp]"]):
    y = sh.silu(x @ w)
    return sh.all_gather(y, "tp")


def loss(x, w):
    return sh.sum(block(x, w))


def broken(x: A[sh.Array, "f32[batch@dp, hidden]{U:tp}"]):
    return sh.silu(x)


def fails(x: A[sh.Array, "f32[batch@dp, hidden]"]):
    return x.no_such_thing
'''

PYPROJECT = """\
[tool.shtypes]
mesh = { dp = 2, tp = 4 }
dims = { batch = 8, hidden = 16 }

[[tool.shtypes.targets]]
target = "model.py:block"
name = "block"

[[tool.shtypes.targets]]
target = "model.py:loss"
types = ["f32[batch@dp, hidden]", "f32[hidden, hidden@tp]"]
policy = "jax"
grad = true
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    monkeypatch.chdir(tmp_path)
    return tmp_path
