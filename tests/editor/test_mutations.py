"""Mistakes seeded into the examples are found, at their lines, and the examples as they are have none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.editor.mutations import MUTATIONS, Mutation
from tests.editor.running import ROOT, configured, run_mypy
from tests.end_to_end import some

#: One in 14 by default: all that are chosen are read in two runs of mypy.
CHOSEN = MUTATIONS[:: some(14, 1)]

#: The meshes of the examples of which the plugin is told one; of the others it knows the axes that they name.
MESHES = {"sharding_and_communication": "mesh = { x = 2, y = 2 }"}


def source(mutation: Mutation) -> str:
    return (ROOT / "examples" / f"{mutation.file}.py").read_text(encoding="utf-8")


def mutated(mutation: Mutation) -> tuple[str, int]:
    """The file with its mistake, and the line that is at fault."""
    before = source(mutation)
    assert before.count(mutation.old) == 1, f"{mutation.old!r} is {before.count(mutation.old)} times in {mutation.file}"
    after = before.replace(mutation.old, mutation.new)
    lines, old = after.splitlines(), before.splitlines()
    if mutation.at:
        (line,) = (i for i, text in enumerate(lines, 1) if mutation.at in text)
        return after, line
    return after, next(i for i, (a, b) in enumerate(zip(lines, old, strict=False), 1) if a != b)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, mypy_cache: Path) -> dict[str, list[int]]:
    """The lines at which mypy reports something, of each mutated file and of each file as it is."""
    folder = tmp_path_factory.mktemp("mutations")
    output = ""
    for mesh in ("", *MESHES.values()):
        place = folder / f"mesh_{bool(mesh)}"
        place.mkdir()
        for i, mutation in enumerate(CHOSEN):
            if MESHES.get(mutation.file, "") == mesh:
                (place / f"m{i}.py").write_text(mutated(mutation)[0], encoding="utf-8")
                (place / f"{mutation.file}_as_it_is.py").write_text(source(mutation), encoding="utf-8")
        output += run_mypy(sorted(place.glob("*.py")), configured(place, mesh), mypy_cache)
    found: dict[str, list[int]] = {}
    for line in output.splitlines():
        match = re.match(r".*?(\w+)\.py:(\d+):\d+: error: ", line)
        if match:
            found.setdefault(match[1], []).append(int(match[2]))
    return found


def test_there_are_forty_mistakes_of_every_kind() -> None:
    assert len(MUTATIONS) >= 40
    assert len({m.kind for m in MUTATIONS}) == 7


@pytest.mark.parametrize("number", range(len(CHOSEN)))
def test_a_mistake_is_found_at_its_line(number: int, said: dict[str, list[int]]) -> None:
    _, line = mutated(CHOSEN[number])
    assert line in said.get(f"m{number}", []), CHOSEN[number]


@pytest.mark.parametrize("file", sorted({m.file for m in CHOSEN}))
def test_an_example_as_it_is_has_no_mistake(file: str, said: dict[str, list[int]]) -> None:
    assert said.get(f"{file}_as_it_is", []) == []
