"""Plans for models in several files: reshards are written into the file of their line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from shtypes.tools.patch import Patch, patched

SETTINGS: dict[str, Any] = {
    "mesh": {"dp": 2, "tp": 4},
    "links": sh.Link(50e9),
    "compute": sh.Device({"f32": 400e12}, 2.4e12),
    "fixed": {"model/up/*": "[_, _@tp]", "model/down/*": "[_, _@tp]", "x": "[_@dp, _]"},
}
FILES = {
    "config.py": """import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 64


imports = []
""",
    "net/__init__.py": """from .blocks import Dense, Mlp

__all__ = ["Dense", "Mlp"]
""",
    "net/blocks.py": '''"""Layers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from .. import config

config.imports.append(__name__)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    w: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Mlp:
    up: Dense
    down: Dense


def dense(p, x):
    return x @ p.w


def mlp(p, x):
    return dense(p.down, jnp.tanh(dense(p.up, x)))


def scaled(x):
    y = jnp.cumsum(x, axis=1)
    return jnp.tanh(y)
''',
    "train.py": """import jax.numpy as jnp

from .config import Config
from .net import Dense, Mlp, blocks


def shapes(config=Config()):
    w = f"f32[{config.width}, {config.width}]"
    return Mlp(Dense(w), Dense(w)), f"f32[32, {config.width}]"


def loss(model, x):
    return jnp.mean(jnp.square(blocks.scaled(blocks.mlp(model, x))))
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an importable package ``project`` of these files."""
    for name, text in {**FILES, "__init__.py": ""}.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "project"
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "project"]:
        del sys.modules[name]


def imported() -> Any:
    forget()
    return __import__("project.train").train


def patch_of(train: Any) -> tuple[Patch, Any]:
    plan = sh.suggest(train.loss, *train.shapes(), **SETTINGS)[0]
    return patched(train.loss, plan), plan


def test_reshards_go_into_the_files_of_their_lines(package: Path) -> None:
    train = imported()
    patch, plan = patch_of(train)
    assert [file.path.name for file in patch.files] == ["train.py", "blocks.py"]
    assert "--- a/train.py" in patch.diff
    assert "--- a/net/blocks.py" in patch.diff
    patch.write()
    blocks = (package / "net/blocks.py").read_text()
    assert "import shtypes as sh" in blocks
    assert "sh.reshard(" in blocks
    assert (package / "net/__init__.py").read_text() == FILES["net/__init__.py"]
    train = imported()
    with sh.use_mesh(plan.problem.mesh):
        assert sh.check(train.loss_step, *train.loss_types()).ledger.total == plan.ledger.total
    assert not patch_of(train)[0].diff


def test_imported_modules_stay_as_they_were(package: Path) -> None:
    train = imported()
    before = {name: module for name, module in sys.modules.items() if name.startswith("project")}
    held = dict(vars(before["project.net"]))
    patch_of(train)
    assert {name: module for name, module in sys.modules.items() if name.startswith("project")} == before
    assert before["project"].net is before["project.net"]
    assert {name: vars(before["project.net"])[name] for name in held} == held
    assert len(before["project.config"].imports) > 1  # blocks.py has run again, and config.py, which it uses, has not


def test_files_of_a_patch_are_all_written_or_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, _ = patch_of(imported())
    before = {file.path: file.path.read_bytes() for file in patch.files}
    replace, names = os.replace, list[str]()

    def fails_once(source: Any, target: Any) -> None:
        names.append(Path(target).name)
        if names == ["train.py", "blocks.py"]:
            raise OSError("no space left")
        replace(source, target)

    with monkeypatch.context() as patching:
        patching.setattr(os, "replace", fails_once)
        with pytest.raises(OSError, match="no space left"):
            patch.write()
    assert {path: path.read_bytes() for path in before} == before
    (package / "net/blocks.py").write_text("# edited\n" + FILES["net/blocks.py"])
    with pytest.raises(sh.ShardingTypeError, match=r"`blocks.py` changed while its plan was looked for"):
        patch.write()
    assert (package / "train.py").read_text() == FILES["train.py"]


def test_a_file_that_cannot_be_edited_is_left(package: Path) -> None:
    path = package / "net/blocks.py"
    path.write_bytes(FILES["net/blocks.py"].replace("\n", "\r\n", 3).encode())
    with pytest.raises(sh.ShardingTypeError, match=r"blocks.py:\d+ <- .* in dot_general: no expression of a line"):
        patch_of(imported())
