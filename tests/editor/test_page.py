"""What the page on the plugin shows is what mypy prints."""

from __future__ import annotations

from pathlib import Path

from tests.editor.running import CASES, ROOT, run_mypy
from tests.test_docs import blocks


def test_the_first_example_prints_what_stands_below_it(tmp_path: Path, mypy_cache: Path) -> None:
    code, printed, *_ = blocks((ROOT / "docs" / "editor.md").read_text(encoding="utf-8"))
    (tmp_path / "mlp.py").write_text(code.code, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        (CASES / "free" / "pyproject.toml").read_text(encoding="utf-8").replace("show_column_numbers = true\n", ""),
        encoding="utf-8",
    )
    found = run_mypy(["mlp.py"], tmp_path / "pyproject.toml", mypy_cache, cwd=tmp_path)
    assert found.startswith(printed.code)
