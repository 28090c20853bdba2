"""The page on the command line: each command in it runs, and prints what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.tools.cli.conftest import MODEL, PYPROJECT
from tests.tools.cli.running import Run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
#: Blocks that are run here at the root, and those that are run in the repository of the page.
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)


def test_the_page_shows_each_command() -> None:
    shown = {line.split()[2] for block in BLOCKS for line in block.split("\n") if line.startswith("$ shtypes ")}
    assert {"check", "compare", "reshard"} <= shown


def test_the_repository_of_the_page_is_the_one_of_the_tests() -> None:
    assert f"```toml\n{PYPROJECT}```" in PAGE


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0])
def test_a_command_prints_what_the_page_says(
    block: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    pinned = "examples/" not in block
    monkeypatch.chdir(tmp_path if pinned else ROOT)
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, _, printed = part.partition("\n")
        while line.endswith("\\"):
            more, _, printed = printed.partition("\n")
            line = line[:-1] + more
        words = shlex.split(line)
        if words[0] == "sed":  # an edit that the page shows
            _, old, new, _ = words[2].split("/")
            (tmp_path / words[3]).write_text((tmp_path / words[3]).read_text().replace(old, new))
            continue
        code, out, _ = run(*words[1:])
        assert code == (1 if "failed" in printed else 0)
        assert out.rstrip() == printed.rstrip()
