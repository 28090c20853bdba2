"""The plugin says of a program what is so at run time, or nothing: over random programs, never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.editor.agreement import compared, disagreements, programs, shares, types_of
from tests.random_programs import generate_program

#: The families of ops that are no functions of functions, and take no plain arrays.
FIRST_ORDER = ("arithmetic", "arranging", "functions", "networks", "numbers", "positions")


@pytest.mark.nightly
def test_what_mypy_knows_of_random_programs_is_so_at_run_time(tmp_path: Path, mypy_cache: Path) -> None:
    given = [
        generate_program(seed, steps=(1, 5), mesh={"x": 2, "y": 2}, policy="partial", favour=FIRST_ORDER)
        for seed in range(40)
    ]
    found = compared(given, tmp_path / "programs", mypy_cache)
    assert disagreements(found) == []
    assert shares(found)["values"] >= 0.85


@pytest.mark.nightly
@pytest.mark.slow
def test_five_thousand_random_programs_agree(
    tmp_path: Path, mypy_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for favour in (FIRST_ORDER, ()):
        found = compared(programs(range(100_000, 102_500), favour), tmp_path / f"{len(favour)}", mypy_cache)
        with capsys.disabled():
            print(f"\n{', '.join(favour) or 'all families'}: {dict(shares(found))}")
        assert disagreements(found) == []


def test_the_types_that_are_compared_with_are_those_of_run_time() -> None:
    program = generate_program(3, steps=(1, 5), mesh={"x": 2, "y": 2}, policy="partial")
    types = types_of(program)
    assert set(program.inputs) <= set(types)
    assert all((types[s.name] is None) == s.refused for s in program.steps)
