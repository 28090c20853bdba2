"""The plugin asks the runtime: nothing in it is written for one function of arrays or another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shtypes.ops.table import OPS
from tests.editor.running import ROOT

FILES = sorted((ROOT / "shtypes" / "editor").rglob("*.py"))
#: What names something else there: the branch of `sh.cond`, a parameter, Python's number and module, a list of mypy's.
OTHER_MEANINGS = frozenset(("complex", "cond", "key", "stack", "types"))


def strings(file: Path) -> Iterator[str]:
    """The texts of a file that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_the_plugin_names_no_op(file: Path) -> None:
    words = {text.rpartition(".")[2].strip("_") for text in strings(file)}
    assert words & {name.rpartition(".")[2] for name in OPS} <= OTHER_MEANINGS
