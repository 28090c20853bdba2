"""The communication that a repository pins: the file, what changes it and what does not, and the configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shtypes.tools.cli.config import config
from tests.golden import golden
from tests.tools.cli.conftest import MODEL, PYPROJECT
from tests.tools.cli.running import Run


def edit(repository: Path, old: str, new: str, file: str = "model.py") -> None:
    text = (repository / file).read_text()
    assert old in text
    before = (repository / file).stat().st_mtime
    (repository / file).write_text(text.replace(old, new))
    os.utime(repository / file, (before + 2, before + 2))  # of one second and one size Python takes what it compiled


@pytest.fixture
def pinned(repository: Path, run: Run) -> Path:
    assert run("check", "--update") == (0, "communication.json: 2 targets, written\n", "")
    return repository


@pytest.mark.core
def test_the_file_lists_what_each_target_sends(pinned: Path, run: Run) -> None:
    text = (pinned / "communication.json").read_text()
    golden("cli/communication.json", text)
    assert json.loads(text)["schema"] == 1
    assert run("check") == (0, "2 targets: communication as in communication.json\n", "")
    assert run("check", "--update").out == "communication.json: 2 targets, as it was\n"


def test_unrelated_edits_change_nothing(pinned: Path, run: Run) -> None:
    edit(pinned, '"""A model."""', '"""A model.\n\nWith more to say.\n"""\n\nUNRELATED = 1')
    edit(pinned, "y = sh.silu(x @ w)", "# a comment\n    y = sh.silu(x @ w)")
    assert run("check").code == 0


def test_another_program_is_a_diff_and_exit_code_1(pinned: Path, run: Run) -> None:
    edit(pinned, "y = sh.silu(x @ w)", "y = sh.silu(x @ sh.all_gather(w, 'tp'))")
    edit(pinned, 'return sh.all_gather(y, "tp")', "return y")
    code, out, err = run("check")
    assert (code, err) == (1, "")
    golden("cli/diff.txt", out)
    code, out, _ = run("check", "--format", "json")
    assert code == 1
    assert list(json.loads(out)["differences"]) == ["block", "model.py:loss"]
    assert run("check", "--update").code == 0
    assert run("check").code == 0


def test_another_count_or_size_is_a_change_of_the_same_line(pinned: Path, run: Run) -> None:
    edit(pinned, "return sh.sum(block(x, w))", "return sh.sum(block(block(x, w), w))")
    out = run("check").out
    assert "~ all-gather over tp: 192 B/device, once -> 192 B/device, 2 times: return sh.all_gather(y" in out
    edit(pinned, "batch = 8", "batch = 16", "pyproject.toml")
    assert '  dims: {"batch": 8, "hidden": 16} -> {"batch": 16, "hidden": 16}\n' in run("check").out


def test_one_target_is_checked_and_written_by_its_name(pinned: Path, run: Run) -> None:
    edit(pinned, "y = sh.silu(x @ w)", "y = x @ w")
    edit(pinned, 'return sh.all_gather(y, "tp")', "return y")
    assert run("check", "block").code == 1
    assert run("check", "block", "--update").out == "communication.json: 1 target, written\n"
    assert run("check", "block").code == 0
    assert run("check", "model.py:loss").code == 1


def test_a_target_that_is_new_or_gone_fails_until_it_is_written(pinned: Path, run: Run) -> None:
    edit(pinned, 'name = "block"', 'name = "renamed"', "pyproject.toml")
    code, out, _ = run("check")
    assert code == 1
    assert "renamed: is not in the file\n" in out
    assert "block: is in the file, and no target any more\n" in out
    assert run("check", "--update").code == 0
    assert run("check").code == 0


def test_a_target_that_does_not_type_fails_and_nothing_is_written(pinned: Path, run: Run) -> None:
    before = (pinned / "communication.json").read_text()
    edit(pinned, 'return sh.all_gather(y, "tp")', 'return sh.all_gather(y, "dq")')
    code, out, _ = run("check", "--update")
    assert code == 1
    assert "block: does not type\n" in out
    assert (pinned / "communication.json").read_text() == before


def test_it_works_from_a_folder_below(pinned: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned / "below").mkdir()
    monkeypatch.chdir(pinned / "below")
    assert run("check").code == 0


def test_a_file_of_another_version_is_refused(pinned: Path, run: Run) -> None:
    edit(pinned, '"schema": 1', '"schema": 2', "communication.json")
    assert "has schema 2, and this version reads 1" in run("check").err
    (pinned / "communication.json").write_text("{")
    code, _, err = run("check")
    assert code == 1
    assert "does not hold a repository's communication" in err


def test_loops_branches_and_what_is_not_covered_are_pinned(repository: Path, run: Run) -> None:
    looped = """

def looped(x: A[sh.Array, 'f32[batch@dp, hidden]{U:tp}']):
    import jax.numpy as jnp

    x = sh.fori_loop(0, 3, lambda i, x: sh.reshard(sh.sin(sh.all_reduce(x, 'tp')), tp='U'), x)
    return x, jnp.sin(sh.all_reduce(x, 'tp').to_jax())
"""
    (repository / "model.py").write_text(MODEL + looped)
    (repository / "pyproject.toml").write_text(PYPROJECT.replace("model.py:block", "model.py:looped"))
    assert run("check", "--update").code == 0
    kept = json.loads((repository / "communication.json").read_text())["targets"]["block"]
    assert [(line["runs"], line["collective"]) for line in kept["forward"]] == [
        (1, "all-reduce over tp"),
        (3, "all-reduce over tp"),
    ]
    assert kept["not_covered"] == [
        "sin (forward): JAX places it: it computes on a plain array that is sharded, float32[8@dp,16]"
    ]


def test_axes_of_one_device_send_nothing(repository: Path, run: Run) -> None:
    edit(repository, "tp = 4", "tp = 1", "pyproject.toml")
    assert run("check", "block", "--update").code == 0
    kept = json.loads((repository / "communication.json").read_text())["targets"]["block"]
    assert kept["forward"] == []


def test_options_ask_about_a_target_that_is_pinned(pinned: Path, run: Run) -> None:
    code, out, _ = run("check", "block", "--mesh", "dp=4,tp=8", "--grad")
    assert code == 0
    assert "  gradient x: " in out
    assert run("check", "block", "--no-comm", "forward").code == 1
    assert "leave out the other options" in run("check", "block", "--grad", "--update").err


def test_wrong_use_names_the_target_of_the_table(repository: Path, run: Run) -> None:
    edit(repository, 'name = "block"', 'name = "block"\ntypes = ["f32[8@no]"]', "pyproject.toml")
    code, _, err = run("check", "--update")
    assert code == 2
    assert "target `block`: " in err


def test_arguments_may_be_trees_that_a_function_beside_the_target_makes(repository: Path, run: Run) -> None:
    made = """

import dataclasses, jax

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Params:
    w: A[sh.Array, "f32[hidden, hidden@tp]"]

def with_params(params: Params, x):
    return sh.all_gather(x @ params.w, "tp")

def arguments():
    return Params("f32[hidden, hidden@tp]"), "f32[batch@dp, hidden]"
"""
    (repository / "model.py").write_text(MODEL + made)
    code, out, _ = run("check", "model.py:with_params", "--arguments", "arguments")
    assert code == 0
    assert "argument params.w: f32[hidden, hidden@tp]\n" in out
    assert run("compare", "model.py:with_params", "--arguments", "arguments").code == 0
    assert run("check", "model.py:with_params", "f32[8]", "--arguments", "arguments").code == 2
    edit(repository, 'name = "block"', 'arguments = "arguments"', "pyproject.toml")
    edit(repository, "model.py:block", "model.py:with_params", "pyproject.toml")
    assert run("check", "--update").code == 0
    kept = json.loads((repository / "communication.json").read_text())["targets"]["model.py:with_params"]
    assert kept["arguments"] == "arguments"
    assert len(kept["forward"]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.shtypes]\nmseh = 'dp=2'", "[tool.shtypes] has no key `mseh`; did you mean `mesh`?"),
        ("[tool.shtypes]\nmesh = 'dp'", "`dp` is not like `dp=2`"),
        ("[tool.shtypes]\npolicy = 'other'", "[tool.shtypes]: there is no policy 'other'"),
        ("[tool.shtypes]\nmesh = 'dp=x'", "[tool.shtypes]: the size of `dp`"),
        ("[tool.shtypes]\ntargets = 'x'", "`targets` in [tool.shtypes] is a list"),
        ("[tool.shtypes]\ntargets = ['a:f', 'a:f']", "two targets in [tool.shtypes] are called `a:f`"),
        ("[tool.shtypes]\ntargets = [{name = 'a'}]", "needs `target = "),
        ("[tool.shtypes]\ntargets = [{target = 'a:f', typs = []}]", "has no key `typs`; did you mean `types`?"),
        (
            "[tool.shtypes]\ntargets = [{target = 'a:f', types = 'f32[]'}]",
            "`types` of `a:f` in [tool.shtypes] is a list",
        ),
        (
            "[tool.shtypes]\ntargets = [{target = 'a:f', grad = 1}]",
            "`grad` of `a:f` in [tool.shtypes] is true or false",
        ),
        ("[tool.shtypes]\ntargets = [{target = 'a:f', arguments = 1}]", "`arguments` of `a:f` in [tool.shtypes] names"),
        ("[tool.shtypes]\ntargets = ['model.py:block']", "`model.py:block` has no mesh"),
        ("[tool.shtypes]\ngolden = 1", "`golden` in [tool.shtypes] is the name of a file"),
        ("[tool.shtypes]\ndims = 3", "`dims` of [tool.shtypes] is a table"),
        ("[tool.shtypes]\ndims = {b = 'x'}", "dim `b` needs a size of at least 0, not `'x'`"),
        ("[tool.shtypes]\ntargets = [{target = 'a:f', dims = []}]", "`dims` of `a:f` in [tool.shtypes] is a table"),
        ("[tool.shtypes", "cannot be read"),
        ("[tool]\nshtypes = 1", "[tool.shtypes] is a table, not 1"),
        ("", "there is nothing to check"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(text: str, said: str, repository: Path, run: Run) -> None:
    (repository / "pyproject.toml").write_text(text)
    code, _, err = run("check")
    assert code == 2
    assert said in err


def test_targets_take_what_they_do_not_say_from_the_table(repository: Path) -> None:
    found = config()
    assert found.root == repository.resolve()
    assert [str(t.mesh) for t in found.targets] == ["dp=2, tp=4"] * 2
    assert [t.policy for t in found.targets] == [None, "jax"]
    assert found.named("model.py:block") is found.named("block") is found.targets[0]


def test_a_configured_target_needs_no_options(repository: Path, run: Run) -> None:
    assert run("compare", "block").code == 0
    assert run("check", "model.py:broken").code == 1  # the mesh and the dims are those of the table
