"""The page of tables is printed from the tables, and says truly which op reads which."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shtypes import rules
from shtypes.ops.table import OPS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_rules", ROOT / "docs" / "generate_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_generator_prints(generator: ModuleType) -> None:
    written = (ROOT / "docs" / "rules.md").read_text()
    assert written == generator.page(), "run `make generate`"


@pytest.mark.parametrize(
    ("rule", "tables"),
    [
        (rules.additive, ["ADDITIVE", "TERM"]),
        (rules.select_n, ["MULTILINEAR", "ADDITIVE", "FACTOR", "TERM"]),
        (rules.einsum, ["MULTILINEAR", "FACTOR", "SUM"]),
        (rules.reduce_sum, ["SUM"]),
        (rules.unary_along, ["LINEAR_UNARY", "NONLINEAR"]),
        (rules.cast, ["MULTILINEAR", "FACTOR", "LINEAR_UNARY", "NONLINEAR"]),
        (rules.stack, ["ADDITIVE", "TERM"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_rule_is_said_to_read_the_tables_that_it_reads(generator: ModuleType, rule: Any, tables: list[str]) -> None:
    assert generator.READS[rule.__name__].split() == tables


def test_no_cell_of_the_page_is_a_wall_of_names(generator: ModuleType) -> None:
    cells = [cell for line in generator.page().split("\n") if line.startswith("|") for cell in line.split(" | ")]
    assert len(cells) > 500
    assert max(cell.count("`") // 2 for cell in cells) <= 16
    assert max(map(len, cells)) < 250


def test_the_page_lists_each_op_once(generator: ModuleType) -> None:
    page = generator.page().partition("## Which op is typed by which rules")[2]
    rows = [line.split(" | ")[0] for line in page.split("\n") if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(.*?)`", row)) == sorted(OPS)


def test_each_rule_that_types_an_op_says_what_it_reads(generator: ModuleType) -> None:
    assert {rule.__name__ for rule in generator.ops_of_rules()} == {*generator.READS}
