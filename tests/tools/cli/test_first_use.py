"""What a process says that has used no name of the package yet: each case needs a process of its own."""

from __future__ import annotations

import pickle
from pathlib import Path

import shtypes as sh
from tests.fresh import printed


def test_a_file_may_start_with_an_operator(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def loss(x, w):\n    return x @ w\n")
    target = (f"{tmp_path}/model.py:loss", "f32[8@dp, 16]", "f32[16, 4]", "--mesh", "dp=2")
    assert "result:     f32[8@dp,4]\n" in printed("from shtypes.tools.cli import main; main()", "check", *target)


def test_what_is_unpickled_has_its_operators() -> None:
    kept = pickle.dumps(sh.abstract_array("f32[8@dp]", mesh=sh.abstract_mesh({"dp": 2})))
    assert printed(f"import pickle; x = pickle.loads({kept!r}); print((x + x).type)") == "f32[8@dp]\n"
