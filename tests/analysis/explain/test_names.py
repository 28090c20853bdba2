"""Names from the source: of assignments of every kind, through calls and returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shtypes as sh
from shtypes.analysis.explain.source import Unique

MESH = {"dp": 2}


def names_of(tmp_path: Path, body: str, before: str = "") -> list[str]:
    """The names in the listing of a function with this body; ``x`` is its argument."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path = tmp_path / "program.py"
    path.write_text(f"import jax\nimport shtypes as sh\n{before}\ndef program(x):\n{lines}\n", encoding="utf-8")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        return [line.name for line in sh.explain(space["program"], sh.ShType.parse("f32[8@dp, 4]")).lines]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("y = sh.sin(x)\nreturn y", ["y"]),
        ("y: object = sh.sin(x)\nreturn y", ["y"]),
        ("x += x\nreturn x", ["x_2"]),
        ("return (y := sh.sin(x)) + y", ["y", "program"]),
        ("a, b = sh.sin(x), sh.cos(x)\nreturn a + b", ["a", "b", "program"]),
        ("a, (b, c) = sh.sin(x), (sh.cos(x), -x)\nreturn a + b + c", ["a", "b", "c", "add_a", "program"]),
        ("return [sh.sin(x), {'k': sh.cos(x)}]", ["program[0]", "program[1]['k']"]),
        ("ys = [sh.sin(x) for _ in range(2)]\nreturn ys", ["ys", "ys_2"]),
        ("y = sh.sin(x) if True else sh.cos(x)\nreturn y", ["y"]),
        ("d = {}\nd['k'] = sh.sin(x)\nreturn d", ["d['k']"]),
        ("return sh.sum(sh.sin(sh.cos(x)))", ["cos_x", "sin_cos_x", "program"]),
        ("y = (\n  x\n  .reshape(4, 8)\n  .T\n)\nreturn y", ["reshape_x", "y"]),
        ("f = lambda a: sh.sin(a)\ny = f(x)\nreturn y", ["y"]),
        ("y = sh.softmax(x, axis=-1)\nreturn y", ["y"]),
    ],
)
def test_a_statement_names_its_value(tmp_path: Path, body: str, names: list[str]) -> None:
    assert names_of(tmp_path, body) == names


@pytest.mark.parametrize(
    ("before", "body", "names"),
    [
        ("def f(a):\n    return sh.sin(a)", "y = f(x)\nreturn y", ["y"]),
        ("def f(a):\n    return sh.sin(a)", "return sh.cos(f(x))", ["f", "program"]),
        ("def f(a):\n    b = sh.sin(a)\n    return b", "y = f(x)\nreturn y", ["b"]),
        ("def f(a):\n    return sh.sin(a), sh.cos(a)", "u, v = f(x)\nreturn u + v", ["u", "v", "program"]),
        ("def f(a):\n    return g(a)\ndef g(a):\n    return sh.sin(a)", "y = f(x)\nreturn y", ["y"]),
        (
            "class C:\n    def f(self, a):\n        self.h = sh.sin(a)\n        return self.h",
            "return C().f(x)",
            ["self.h"],
        ),
        ("@jax.jit\ndef f(a):\n    return a * 2.0", "y = f(f(x))\nreturn y", ["f", "f_2"]),
    ],
)
def test_what_a_function_returns_has_its_caller_s_name(
    tmp_path: Path, before: str, body: str, names: list[str]
) -> None:
    assert names_of(tmp_path, body, before) == names


def test_a_program_without_source_has_names_from_its_operations() -> None:
    space: dict[str, Any] = {"sh": sh}
    exec("def program(x):\n    y = sh.sin(x)\n    return y * y", space)
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(space["program"], sh.ShType.parse("f32[8@dp]"))
    assert [line.name for line in found.lines] == ["sin_x", "mul_sin_x"]
    assert str(found)


def test_a_loop_that_a_checkpoint_runs_again_has_its_names_in_the_backward_pass() -> None:
    f = sh.checkpoint(lambda x, w: sh.sum(sh.scan(lambda x, w: (sh.tanh(x @ w), None), x, w)[0]))
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = str(sh.explain(f, "f32[8@dp,16]", "f32[4,16,16]", grad=True))
    lines = [line.partition(" |")[0].rstrip() for line in found.splitlines()]
    again, backward = (lines.index(mark) for mark in ("# computed again", "scan, 4 steps, in reverse:"))
    assert "scan_x: f32[8@dp,16] = scan[4] x w" in lines[again:backward]
    assert "# scan_x: f32[8@dp,16] = scan[4] x w" in lines[again:backward]
    assert lines[backward + 1].strip() == "g_tanh_einsum_x: f32[8@dp,16]"


def test_names_are_unique_and_found_quickly() -> None:
    unique = Unique(["h_3"])
    assert [unique("h") for _ in range(4)] == ["h", "h_2", "h_4", "h_5"]
    assert unique("h_2") == "h_2_2"
    assert len({unique("x") for _ in range(20_000)}) == 20_000  # seconds, if it were quadratic
