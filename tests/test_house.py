"""The house: an op is described in one place, the plugin for mypy names none, and rows of primitives call none."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shtypes.lifting.lift  # noqa: F401  # which makes the table
from shtypes.evaluation import table
from shtypes.evaluation.table import BODIES, EXCEPTIONS, ROWS
from shtypes.ops.table import OPS

PACKAGE = Path(__file__).parents[1] / "shtypes"
FILES = sorted(PACKAGE.rglob("*.py"))
#: The row, the primitive, and the list of methods: where an op may be described.
PLACES = 3
DESCRIBED = ("conv_general_dilated", "cumsum", "kron", "log_softmax", "median", "quantile", "roll", "take_along_axis")


@functools.cache
def code(file: Path) -> str:
    """The text of a file without docstrings, comments and imports."""
    text = re.sub(r'"""[\s\S]*?"""', "", file.read_text(encoding="utf-8"))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "import ", "from ")))


@pytest.mark.parametrize("op", DESCRIBED)
def test_an_op_is_named_in_its_row_its_primitive_and_the_list_of_methods_only(op: str) -> None:
    named = re.compile(rf'(def {op}\(|^\s*{op}\s*=|["\' ]{op}["\' ,])', re.MULTILINE)
    places = [str(file.relative_to(PACKAGE)) for file in FILES if named.search(code(file))]
    assert 1 <= len(places) <= PLACES, places


# the pages for those who change the code


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_and_folders_that_a_page_names_exist(page: str) -> None:
    root = PACKAGE.parent
    paths = re.findall(
        r"(?<![\w/.])((?:\w+/)+\w+\.py|(?<=`)\w+\.py|(?<=`)(?:\w+/)+(?=`))", (root / page).read_text(encoding="utf-8")
    )
    roots = [root, PACKAGE, PACKAGE / "_compat"]  # whose files a paragraph names without their room
    assert [path for path in paths if not any((r / path).exists() for r in roots)] == []
    assert len(paths) >= 5


# the plugin for mypy asks the runtime

EDITOR = [file for file in FILES if file.is_relative_to(PACKAGE / "editor")]
#: What names something else there: the branch of `sh.cond`, a parameter, Python's number and module, a list of mypy's.
OTHER_MEANINGS = frozenset(("complex", "cond", "key", "stack", "types"))


def strings(file: Path) -> Iterator[str]:
    """The texts of a file that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize("file", EDITOR, ids=lambda file: file.stem)
def test_a_file_of_the_plugin_names_no_op(file: Path) -> None:
    words = {text.rpartition(".")[2].strip("_") for text in strings(file)}
    assert words & {name.rpartition(".")[2] for name in OPS} <= OTHER_MEANINGS


# rows of primitives


def test_exceptions_are_of_rows() -> None:
    assert sorted(set(EXCEPTIONS) - set(ROWS) - set(BODIES)) == []


def test_no_file_with_rows_of_primitives_has_a_public_function() -> None:
    """So that none is called: what a row runs is the primitive. Collectives are made of `sh.lax`."""
    public = {id(inspect.unwrap(op.function)) for op in OPS.values()}
    ways_in = {id(table.row), id(table.ROWS)}
    of_bodies = {id(table.body_row), id(table.BODIES)}  # and what evaluates the table
    files = 0
    for name, module in sys.modules.items():
        held = vars(module) if name.startswith("shtypes.") else {}
        known = {id(value) for value in held.values()}
        if known & ways_in and not known & of_bodies:
            files += 1
            called = [n for n, x in held.items() if callable(x) and id(inspect.unwrap(x)) in public]
            assert called == [], name
    assert files >= 5
