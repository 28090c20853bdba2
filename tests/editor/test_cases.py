"""What the plugin says of small files: each ends with it, and ``UPDATE_GOLDEN=1`` writes it anew."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tests.editor.running import CASES, by_file, run_mypy

MARK = "# mypy says:"
FILES = sorted(CASES.glob("*/*.py"))


@functools.cache
def said(folder: str, cache: Path) -> dict[str, list[str]]:
    files = sorted((CASES / folder).glob("*.py"))
    return by_file(run_mypy(files, CASES / folder / "pyproject.toml", cache))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_case_prints_what_its_file_ends_with(file: Path, mypy_cache: Path) -> None:
    lines = said(file.parent.name, mypy_cache).get(file.stem, [])
    text = file.read_text(encoding="utf-8")
    code, _, expected = text.partition(f"\n\n{MARK}\n")
    found = "".join(f"# {line}\n" for line in lines) or "# nothing\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(f"{code.rstrip()}\n\n\n{MARK}\n{found}", encoding="utf-8")
    else:
        assert found == expected
