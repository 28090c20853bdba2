"""What mypy knows of a call of each public function of arrays is the type that the call has."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from shtypes.ops.table import OPS
from tests.editor.running import run_mypy

MESH = {"dp": 2, "tp": 2}
VALUES = {
    "x": "f32[8@dp,6]",
    "y": "f32[6,4@tp]",
    "v": "f32[6]",
    "a": "f32[4,4]",
    "i": "i32[8@dp]",
    "b": "bool[6]",
    "c": "c64[4,4]",
    "u": "f32[8,6]{U:tp}",
    "z": "f32[6]{V:dp}",
    "k": "key<fry>[]",
}
#: Arguments; a call that the runtime refuses, or that gives no array, is not compared.
ARGUMENTS = (
    *(
        "x",
        "a",
        "v",
        "x, x",
        "x, y",
        "a, a",
        "i",
        "i, i",
        "b",
        "c",
        "u",
        "z",
        "x, 0",
        "x, 1",
        '"f32[8@dp, 3]"',
        "k, (3,)",
    ),
    *(
        "(8, 4)",
        "x, (6, 8)",
        'x, "[_, _@dp]"',
        'u, "tp"',
        'z, "dp"',
        "4",
        '"ij,jk->ik", x, y',
        "[x, x]",
        "i, 5",
        "b, v, v",
    ),
)
#: How many calls of one op are compared.
MOST = 3
CONFIG = """[tool.mypy]
plugins = ["shtypes.mypy_plugin"]

[[tool.mypy.overrides]]
module = ["jax.*", "numpy.*", "opt_einsum.*", "optax.*"]
follow_imports = "skip"

[tool.shtypes]
mesh = { dp = 2, tp = 2 }
"""
_REVEALED = re.compile(r":(\d+): note: Revealed type is \"shtypes\.core\.array\.Array\[(?:Literal\['(.*)'\]|Any)\]\"")


def typed_calls() -> Iterator[tuple[str, str, sh.ShType]]:
    """Calls that give one array: the op, the text, and the type that they have at run time."""
    mesh = sh.abstract_mesh(MESH)
    values: dict[str, Any] = {name: sh.abstract_array(text, mesh) for name, text in VALUES.items()}
    with sh.use_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in OPS:
            function, count = operator.attrgetter(op)(sh), 0
            for arguments in ARGUMENTS:
                if count == MOST:
                    break
                try:
                    result = eval(f"function({arguments})", {"function": function, **values})
                except (sh.ShardingTypeError, TypeError):
                    continue
                if isinstance(result, sh.Array):
                    count += 1
                    yield op, f"sh.{op}({arguments})", result.type


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, mypy_cache: Path) -> list[tuple[str, str, str, str | None]]:
    """Of each call the op, the text, the type at run time and the type in mypy; empty for an unknown one."""
    folder = tmp_path_factory.mktemp("ops")
    calls = list(typed_calls())
    parameters = ", ".join(f'{name}: A[sh.Array, "{text}"]' for name, text in VALUES.items())
    head = f"from typing import Annotated as A\n\nimport shtypes as sh\n\n\ndef f({parameters}) -> None:\n"
    lines = head + "".join(f"    reveal_type({text})\n" for _, text, _ in calls)
    (folder / "calls.py").write_text(lines, encoding="utf-8")
    (folder / "pyproject.toml").write_text(CONFIG, encoding="utf-8")
    printed = run_mypy(["calls.py"], folder / "pyproject.toml", mypy_cache, cwd=folder)
    found = {int(m[1]): m[2] or "" for m in map(_REVEALED.search, printed.splitlines()) if m}
    first = head.count("\n") + 1
    return [(op, text, str(t), found.get(first + i)) for i, (op, text, t) in enumerate(calls)]


@pytest.mark.nightly
def test_a_call_has_in_mypy_the_type_that_it_has_at_run_time(compared: list[tuple[str, str, str, str | None]]) -> None:
    wrong = [(text, known, wanted) for _, text, wanted, known in compared if known and known != wanted]
    assert wrong == []


@pytest.mark.nightly
def test_mypy_knows_a_call_of_every_op_that_takes_such_arguments(
    compared: list[tuple[str, str, str, str | None]],
) -> None:
    unknown = {text for _, text, _, known in compared if not known}
    assert len(unknown) <= len(compared) // 50, sorted(unknown)
    assert len({op for op, _, _, known in compared if known}) >= 2 / 3 * len(OPS)
