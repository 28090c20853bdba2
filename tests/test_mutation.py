"""Breaking any single cell of any table turns a check red; `tests.mutants` breaks the rest, on demand."""

from __future__ import annotations

import builtins
import dis
from types import CodeType
from typing import Any

import pytest

from shtypes.rules.typing import clear_caches
from shtypes.types import ShType
from tests.mutants import ROOT, broken
from tests.mutants_table import MUTANTS
from tests.rules.derived import TABLES, rule_problem, table_problems

_CELLS = [(name, key) for name, about in TABLES.items() for key in about.keys]


def _id(cell: tuple[str, Any]) -> str:
    name, key = cell
    return f"{name}[{','.join(k.name for k in (key if isinstance(key, tuple) else (key,)))}]"


def _forget() -> None:
    """Forgets what was typed, and the cotangents' types that types keep."""
    clear_caches()
    for t in list(ShType._interned.values()):
        t._cotangent = None


@pytest.fixture
def mutable() -> Any:
    """Restores every table, and forgets what was typed with a broken one."""
    whole = {name: dict(about.table) for name, about in TABLES.items()}
    yield
    for name, about in TABLES.items():
        table: dict[Any, Any] = about.table  # type: ignore[assignment]  # Final to the library, a dict to this test
        table.clear()
        table.update(whole[name])
    _forget()


@pytest.mark.parametrize("name", TABLES)
def test_the_checks_are_green_on_the_tables_as_they_are(name: str) -> None:
    _forget()
    assert table_problems(name) == []
    assert rule_problem(name) is None


@pytest.mark.parametrize("cell", _CELLS, ids=_id)
def test_breaking_a_cell_turns_a_check_red(cell: tuple[str, Any], mutable: None) -> None:
    name, key = cell
    table: dict[Any, Any] = TABLES[name].table  # type: ignore[assignment]
    before = table.get(key)
    for value in (None, *TABLES[name].values):
        if value == before:
            continue
        table.pop(key, None)
        if value is not None:
            table[key] = value
        _forget()
        assert table_problems(name), f"{_id(cell)} = {value} differs from what the meanings give, and no check says so"
        if not TABLES[name].dead(key):
            assert rule_problem(name), f"{_id(cell)} = {value} changes no typing"


def _undefined(module: CodeType) -> set[str]:
    """The global names that a module reads and nowhere sets: any test is red with one, so the mutant says nothing."""

    names: dict[str, set[str]] = {"STORE_NAME": set(), "STORE_GLOBAL": set(), "LOAD_GLOBAL": set()}

    def read(code: CodeType) -> None:
        for i in dis.get_instructions(code):
            if i.opname in names:
                names[i.opname].add(i.argval)
        for inside in code.co_consts:
            if isinstance(inside, CodeType):
                read(inside)

    read(module)
    return names["LOAD_GLOBAL"] - names["STORE_NAME"] - names["STORE_GLOBAL"] - {*dir(builtins), "__file__"}


def test_every_mutant_finds_the_text_that_it_breaks_and_the_tests_that_should_see_it() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert _undefined(compile(broken(mutant), mutant.file, "exec")) == set(), mutant.name
        assert all((ROOT / f).is_file() for f in (*mutant.tests, *mutant.wide)), mutant.name
