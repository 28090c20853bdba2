"""What the commands share: targets, meshes, sizes and the types of arguments, and what is said of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from shtypes.tools.cli import config, target
from shtypes.tools.cli.target import load
from shtypes.types.mesh import Mesh

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "gated_mlp.py")
TYPES = ("f32[4,8@dp,16]", "f32[16,32@tp]", "f32[16,32@tp]", "f32[32@tp,16]")


def test_the_help_text_loads_no_jax() -> None:
    code = (
        "import sys\ntry:\n    from shtypes.tools.cli import main; main()\n"
        "except SystemExit: print('jax' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Exit codes" in ran.stdout
    assert ran.stdout.endswith("False\n")


@pytest.mark.parametrize("name", [f"{EXAMPLE}:loss", "shtypes.tools.demo.gated_mlp:loss"], ids=["file", "module"])
def test_a_target_is_a_function_in_a_file_or_a_module(name: str) -> None:
    program = target.load_target(name, TYPES, mesh=Mesh({"dp": 2, "tp": 2}), policy_name="jax")
    assert program.function.__name__ == "loss"
    with program.scope():
        assert [str(x.type) for x in program.args] == list(TYPES)


def test_the_types_of_the_arguments_may_be_their_annotations(tmp_path: Path) -> None:
    (tmp_path / "annotated.py").write_text(
        "from __future__ import annotations\n"
        "from typing import Annotated as A\n"
        "import shtypes as sh\n"
        "def f(x: A[sh.Array, 'f32[batch@dp, 4]'], y: A[sh.Array, 'f32[4]'], n: int = 2): ...\n"
    )
    program = target.load_target(f"{tmp_path}/annotated.py:f", (), mesh=Mesh({"dp": 2}), dims={"batch": 8})
    assert [x.shape for x in program.args] == [(8, 4), (4,)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loss", "`loss` is no target: write module:function or path/to/file.py:function"),
        (
            "shtypes.tools.demo.gated_mlp:los",
            "`shtypes.tools.demo.gated_mlp` has no function `los`; did you mean `loss`?",
        ),
        ("shtypes.tools.demo.gated_mlp:X", "`shtypes.tools.demo.gated_mlp:X` is no function but str"),
        ("no_such_module:f", "there is no module `no_such_module`"),
        ("no/such.py:f", "there is no file `no/such.py`"),
    ],
)
def test_a_wrong_target_is_answered_with_what_is_there(name: str, said: str) -> None:
    with pytest.raises(click.UsageError) as error:
        load(name)
    assert error.value.message == said


def test_a_module_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no such thing')\n")
    with pytest.raises(click.UsageError) as error:
        load(f"{tmp_path}/broken.py:f")
    assert error.value.message == (
        f"`{tmp_path}/broken.py` cannot be loaded: RuntimeError: no such thing\n"
        "  where: broken.py:2\n"
        "  try:   SHTYPES_TRACEBACK=1 shows the traceback"
    )
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(click.UsageError, match=r"SyntaxError: invalid syntax\n  where: broken.py:1\n"):
        load(f"{tmp_path}/broken.py:f")


@pytest.mark.parametrize(
    ("text", "said"),
    [("dp", "`dp` is not like `dp=2`"), ("dp=2,dp=4", "`dp` is given twice"), ("dp=0", "mesh axis `dp` needs a size")],
)
def test_a_wrong_mesh_is_said_to_be_one(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        config.read_mesh(text)


def test_wrong_types_are_wrong_use() -> None:
    mesh = Mesh({"dp": 2})
    with pytest.raises(click.UsageError, match="type 0: the mesh has no axis `tp`"):
        target.load_target(f"{EXAMPLE}:loss", ["f32[8@tp]"], mesh=mesh)
    with pytest.raises(click.UsageError, match="argument `console` of `show` has no type"):
        target.load_target("shtypes.tools.demo.show:show", [], mesh=mesh)
    with pytest.raises(click.UsageError, match="argument `rw1`: the mesh has no axis `tp`"):
        target.load_target(f"{EXAMPLE}:loss", [], mesh=mesh)
    with pytest.raises(click.UsageError, match="no mesh is given"):
        target.load_target(f"{EXAMPLE}:loss", [], mesh=None)
