"""The plugin says of a program what is so at run time, or nothing: over random programs, never anything else."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shtypes as sh
from tests.editor.running import configured, run_mypy
from tests.random_choices import Value, typed_step
from tests.random_plain import CONSTANTS
from tests.random_programs import Program, generate_program

_HEAD = """import jax
import jax.numpy as jnp
import numpy as np
from typing import Annotated as A, Any

import shtypes as m

"""
_REVEALED = re.compile(r':(\d+):\d+: note: Revealed type is "(.*)"$')
_KNOWN = re.compile(r"^shtypes\.core\.array\.Array\[Literal\['([^']*)'\]\]$")
_ERROR = re.compile(r":(\d+):\d+: error: (.*)  \[(?:sharding|arg-type)\]$")


class Found(NamedTuple):
    """What the plugin makes of one value, or of a step that is refused."""

    program: Program
    text: str  # the step
    wanted: Any  # the type at run time; None where the step is refused
    got: str | None  # what the plugin says that it is; None for nothing
    error: str | None  # what it says against it


def programs(seeds: Iterable[int], favour: Sequence[str] = ()) -> list[Program]:
    """Programs of one to five ops."""
    return [generate_program(seed, steps=(1, 5), favour=favour) for seed in seeds]


def types_of(program: Program) -> dict[str, Any]:
    """The type of each value of a program at run time; None of a step that is refused."""
    pool = []
    with sh.policy(program.policy), sh.use_mesh(sh.make_mesh(program.mesh)):
        for name, (array, text) in program.inputs.items():
            pool.append(Value(name, sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype)).type))
        found = {v.name: v.type for v in pool}
        for step in program.steps:
            t = None if step.refused else typed_step(step, pool, quiet=True)
            found[step.name] = t
            if t is not None:
                pool.append(Value(step.name, t))
    return found


def compared(given: Sequence[Program], folder: Path, cache: Path) -> list[Found]:
    """What the plugin makes of programs; those of one mesh and policy are read together."""
    groups: dict[tuple[Any, ...], list[Program]] = collections.defaultdict(list)
    for program in given:
        groups[(program.policy, *program.mesh.items())].append(program)
    found: list[Found] = []
    for i, together in enumerate(groups.values()):
        found += _read(together, folder / str(i), cache)
    return found


def _read(given: Sequence[Program], folder: Path, cache: Path) -> list[Found]:
    folder.mkdir(parents=True)
    lines = _HEAD.splitlines() + [f"{name}: Any" for name in CONSTANTS]
    places: dict[int, tuple[Program, str, Any]] = {}
    for number, program in enumerate(given):
        lines += _function(f"p{number}", program, len(lines), places)
    (folder / "programs.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    mesh = "{ " + ", ".join(f"{a} = {n}" for a, n in given[0].mesh.items()) + " }"
    config = configured(folder, f'policy = "{given[0].policy}"\nmesh = {mesh}')
    printed = run_mypy([folder / "programs.py"], config, cache).splitlines()
    types = {int(m[1]): m[2] for m in map(_REVEALED.search, printed) if m}
    errors = {int(m[1]): m[2] for m in map(_ERROR.search, printed) if m}
    return [_found(*place, types.get(line), errors.get(line)) for line, place in places.items()]


def _found(program: Program, text: str, wanted: Any, revealed: str | None, error: str | None) -> Found:
    known = _KNOWN.match(revealed or "")
    return Found(program, text, wanted, known[1] if known else None, error)


def _function(name: str, program: Program, before: int, places: dict[int, tuple[Program, str, Any]]) -> list[str]:
    """A program as a function; ``places`` gets the line of each of its values."""
    types = types_of(program)
    with sh.policy(program.policy):
        parameters = ", ".join(f'{n}: A[m.Array, "{types[n]}"]' for n in program.inputs)
    lines = ["", f"def {name}({parameters}) -> None:"]
    for step in program.steps:
        lines += [f"    {step.name} = {step.text}", f"    reveal_type({step.name})"]
        # An error is at the line of the step, a type at that after it: both are found at the latter.
        lines[-2:] = [f"    reveal_type({step.name} := ({step.text}))"]
        places[before + len(lines)] = program, step.text, types[step.name]
    return lines


def disagreements(found: Iterable[Found]) -> list[str]:
    """Where the plugin says anything else than what is so at run time, or refuses what is taken."""
    wrong = []
    for f in found:
        if f.error is not None and f.wanted is not None:
            wrong.append(f"refused: {f.text}: {f.error}\n{f.program}")
        elif f.got is not None and f.error is None and (f.wanted is None or _read_type(f.got, f.program) != f.wanted):
            wrong.append(f"{f.text}: {f.got} instead of {f.wanted}\n{f.program}")
    return wrong


def _read_type(text: str, program: Program) -> Any:
    return sh.ShType.parse(text, sh.abstract_mesh(program.mesh), policy=program.policy)


def shares(found: Sequence[Found]) -> Mapping[str, float]:
    """The share of values whose type is known, of programs of which all are, and of refusals that are reported."""
    values = [f for f in found if f.wanted is not None]
    refused = [f for f in found if f.wanted is None]
    whole: dict[int, bool] = {}
    for f in values:
        whole[id(f.program)] = whole.get(id(f.program), True) and f.got is not None
    return {
        "values": sum(f.got is not None for f in values) / max(len(values), 1),
        "programs": sum(whole.values()) / max(len(whole), 1),
        "refusals": sum(f.error is not None for f in refused) / max(len(refused), 1),
    }


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
