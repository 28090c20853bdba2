"""The page of tables is printed from the tables, and says truly which op reads which."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shtypes.ops import rules

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_rules", ROOT / "docs" / "generate_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ops_of_rules(generator: ModuleType) -> dict[Any, Any]:
    found: dict[Any, Any] = generator.ops_of_rules()
    return found


def test_the_page_is_what_the_generator_prints(generator: ModuleType) -> None:
    written = (ROOT / "docs" / "rules.md").read_text()
    assert written == generator.page(), "run `python docs/generate_rules.py > docs/rules.md`"


@pytest.mark.parametrize(
    ("rule", "tables"),
    [
        (rules.additive, ["ADDITIVE", "TERM"]),
        (rules.select, ["MULTILINEAR", "ADDITIVE", "FACTOR", "TERM"]),
        (rules.einsum, ["MULTILINEAR", "FACTOR", "SUM"]),
        (rules.reduce_sum, ["SUM"]),
        (rules.whole, ["LINEAR_UNARY", "NONLINEAR"]),
        (rules.nonlinear_along_all, ["MULTILINEAR", "FACTOR", "NONLINEAR"]),
        (rules.cast, ["MULTILINEAR", "FACTOR", "LINEAR_UNARY", "NONLINEAR"]),
        (rules.stack, ["ADDITIVE", "TERM"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_rule_is_said_to_read_the_tables_that_it_reads(
    generator: ModuleType, rule: object, tables: list[str]
) -> None:
    assert generator.tables_of(rule) == tables


@pytest.mark.parametrize(
    ("op", "used"),
    [
        ("where", {"select", "multilinear", "nonlinear", "cast", "whole"}),
        ("silu", {"nonlinear"}),
        ("trace", {"reduce_sum"}),
        ("fft.rfft", {"whole"}),
        ("linalg.solve", {"solve"}),
    ],
)
def test_an_op_is_said_to_be_typed_by_the_rules_that_type_it(
    ops_of_rules: dict[Any, Any], op: str, used: set[str]
) -> None:
    found = {rule.__name__ for rule, ops in ops_of_rules.items() if op in ops}
    assert found - {"cast"} == used - {"cast"}


def test_no_cell_of_the_page_is_a_wall_of_names(generator: ModuleType) -> None:
    cells = [cell for line in generator.page().split("\n") if line.startswith("|") for cell in line.split(" | ")]
    assert len(cells) > 500
    assert max(cell.count("`") // 2 for cell in cells) <= 16
    assert max(map(len, cells)) < 250


def test_the_page_lists_each_op_that_a_rule_types_once(generator: ModuleType) -> None:
    page = generator.page().partition("## Which op is typed by which rules")[2]
    listed = [
        name
        for line in page.split("\n")
        if line.startswith("| `")
        for name in re.findall(r"`(.*?)`", line.split(" | ")[0])
    ]
    typed = {op for ops in generator.ops_of_rules().values() for op in ops}
    assert sorted(listed) == sorted(typed)
    assert {"add", "einsum", "fft.rfft", "divmod", "slice"} <= typed
    names = [rule.__name__ for rule in generator.ops_of_rules()]
    assert len(set(names)) == len(names)
