"""What the plugin says of small files: each ends with it, and ``UPDATE_GOLDEN=1`` writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.editor.running import by_file, configured, run_mypy

CASES = Path(__file__).parent / "cases"
#: By folder, what the plugin is told.
TABLES = {
    "free": "",
    "meshed": "mesh = { dp = 2, tp = 4 }",
    "configured": 'policy = "jax"\nmesh = { dp = 2, tp = 4 }\ndims = { heads = 16 }',
}
MARK = "# mypy says:"
FILES = sorted(CASES.glob("*/*.py"))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, mypy_cache: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for folder, table in TABLES.items():
        config = configured(tmp_path_factory.mktemp(folder), table)
        found |= by_file(run_mypy(sorted((CASES / folder).glob("*.py")), config, mypy_cache))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_case_prints_what_its_file_ends_with(file: Path, said: dict[str, list[str]]) -> None:
    lines = said.get(file.stem, [])
    text = file.read_text(encoding="utf-8")
    code, _, expected = text.partition(f"\n\n{MARK}\n")
    found = "".join(f"# {line}\n" for line in lines) or "# nothing\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(f"{code.rstrip()}\n\n\n{MARK}\n{found}", encoding="utf-8")
    else:
        assert found == expected
