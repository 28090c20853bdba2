"""What the page on the plugin shows is what mypy prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.editor.running import ROOT, configured, run_mypy
from tests.test_docs import blocks


def test_the_first_example_prints_what_stands_below_it(tmp_path: Path, mypy_cache: Path) -> None:
    code, printed, *_ = blocks((ROOT / "docs" / "editor.md").read_text(encoding="utf-8"))
    (tmp_path / "mlp.py").write_text(code.code, encoding="utf-8")
    found = run_mypy(["mlp.py"], configured(tmp_path), mypy_cache, cwd=tmp_path)
    assert re.sub(r":(\d+):\d+:", r":\1:", found).startswith(printed.code)
