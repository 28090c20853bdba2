"""`check` of one target, `compare`, `reshard`: what they print, their exit codes, and what they say of wrong uses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shtypes.tools.cli.output import working
from tests.golden import golden
from tests.tools.cli.running import Run

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/gated_mlp.py:loss"
MESH = ("--mesh", "dp=2,tp=2")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.core
def test_check_prints_a_signature_and_the_ledger(run: Run) -> None:
    code, out, err = run("check", EXAMPLE, *MESH, "--grad", "--policy", "jax")
    assert (code, err) == (0, "")
    golden("cli/check.txt", out)


def test_examples_in_help_texts_are_lines_of_their_own(run: Run) -> None:
    for name in ("explain", "memory", "compute", "suggest"):
        lines = run(name, "--help").out.splitlines()
        assert not any("\\b" in line for line in lines)
        assert sum(line.startswith(f"    shtypes {name} ") for line in lines) >= 1


def test_a_plain_function_is_compared_by_lift(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("import jax.numpy as jnp\n\ndef loss(w, x):\n    return jnp.sum(jnp.tanh(x @ w))\n")
    call = ("compare", f"{model}:loss", "f32[16, 4]", "f32[8@dp, 16]", *MESH)
    code, out, _ = run(*call, "--lift")
    assert code == 0
    assert "all-reduce over dp" in out
    assert run(*call).code == 1


def test_compare_prints_both_policies(run: Run) -> None:
    code, out, err = run("compare", EXAMPLE, *MESH, "--link", "h100-nvlink", "--link", "dp=infiniband-ndr")
    assert (code, err) == (0, "")
    golden("cli/compare.txt", out)


def test_reshard_prints_the_plans(run: Run) -> None:
    code, out, err = run(
        "reshard", "f32[8@dp, 16]{U:tp}", "[8, 16@(tp,dp)]", "--mesh", "dp=2,tp=4", "--link", "h100-nvlink"
    )
    assert (code, err) == (0, "")
    free = run("reshard", "f32[8, 16]{I:dp}", "[_, _]{R:dp}", "--mesh", "dp=4")
    ints = run("reshard", "i32[8, 16]", "[_, _@dp]", "--mesh", "dp=4")
    narrow = ("reshard", "f32[8@dp, 16@tp]", "[_@dp, _]", "--mesh", "dp=2,tp=4", "--comm-dtype", "bf16")
    golden("cli/reshard.txt", "\n".join([out, free.out, ints.out, run(*narrow).out]))


def test_what_cannot_be_resharded_is_exit_code_1_and_one_message(run: Run) -> None:
    code, out, err = run("reshard", "f32[8]{V:dp}", "[8]", "--mesh", "dp=2")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot reshard f32[8]{V:dp} to f32[8]: only one of them varies over mesh axis `dp`\n")
    assert "where:" not in err  # the line would be one of click


def test_reshard_needs_no_jax() -> None:
    code = (
        "import sys\nfrom shtypes.tools.cli import main\ntry:\n    main()\n"
        "except SystemExit: print('jax' in sys.modules)"
    )
    args = [sys.executable, "-c", code, "reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2"]
    ran = subprocess.run(args, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "all-gather over `dp`" in ran.stdout
    assert ran.stdout.endswith("False\n")


@pytest.mark.parametrize(
    "args",
    [
        ("check", EXAMPLE, *MESH),
        ("compare", EXAMPLE, *MESH),
        ("reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2", "--link", "h100-nvlink"),
    ],
    ids=lambda args: args[0],
)
def test_json_and_html_are_written_too(args: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*args, "--format", "json")
    assert code == 0
    assert json.loads(out)["schema"] == 1
    code, out, err = run(*args, "--format", "html", "--output", str(tmp_path / "page.html"))
    assert (code, out, err) == (0, "", f"wrote {tmp_path / 'page.html'}\n")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_check_fails_where_the_program_communicates(run: Run) -> None:
    args = ("check", EXAMPLE, *MESH, "--grad", "--policy", "jax")
    assert run(*args, "--no-comm", "forward").code == 0
    code, out, _ = run(*args, "--no-comm", "both")
    assert code == 1
    assert out.endswith("failed: 4 collectives in the backward pass, 4096 B/device\n")
    assert run(*args, "--max-bytes", "4096").code == 0
    code, out, _ = run(*args, "--max-bytes", "4095", "--format", "json")
    assert code == 1
    assert json.loads(out)["failures"] == ["each device sends 4096 B, and at most 4095 B is allowed"]


def test_the_page_of_a_check_shows_types_lines_and_what_failed(run: Run) -> None:
    code, out, _ = run("check", EXAMPLE, *MESH, "--grad", "--policy", "jax", "--max-bytes", "9", "--format", "html")
    assert code == 1
    assert "<td>gradient rw1</td><td>f32[hidden, intermediate@tp]</td>" in out
    assert "<td>h3 = sh.einsum(&quot;sbh,hi-&gt;sbi&quot;, rx, rw3)</td>" in out
    assert "<td>each device sends 4096 B, and at most 9 B is allowed</td>" in out


def test_what_does_not_type_is_exit_code_1_and_one_message(run: Run, repository: Path) -> None:
    code, out, err = run("check", "model.py:broken")
    assert (code, out) == (1, "")
    assert err.startswith(
        "error: `silu` is nonlinear in the operand, which is unreduced on mesh axis `tp`\n  where: model.py:18"
    )
    assert "  fix:   sh.reshard(x, " in err
    code, out, err = run("check", "model.py:fails")
    assert (code, out) == (1, "")
    assert "`model.py:fails` failed while it was traced: AttributeError" in err
    assert "  where: model.py:22 in fails\n" in err
    assert "Traceback" not in err


def test_a_number_among_the_types_is_as_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("def f(x, n, flag):\n    return [x] * n if flag else None\n")
    code, out, _ = run("check", f"{tmp_path}/layers.py:f", "f32[8]", "2", "True", *MESH)
    assert code == 0
    assert "  result[1]:     f32[8]\n" in out


WRONG = [
    (("check", "examples/gated_mlp.py:lss", *MESH), "has no function `lss`; did you mean `loss`?"),
    (
        ("check", "examples/gated_mpl.py:loss", *MESH),
        "there is no file `examples/gated_mpl.py`; did you mean `gated_mlp.py`",
    ),
    (("check", "gated_mlp", *MESH), "`gated_mlp` is no target: write module:function"),
    (("check", EXAMPLE), "no mesh is given: say --mesh dp=2,tp=4"),
    (("check", EXAMPLE, "--mesh", "dp"), "Invalid value for '--mesh': `dp` is not like `dp=2`"),
    (("check", EXAMPLE, "--mesh", "dp=2"), "argument `rw1`: the mesh has no axis `tp`"),
    (("check", EXAMPLE, *MESH, "--policy", "jaxx"), "'jaxx' is not one of 'partial', 'jax'"),
    (("check", EXAMPLE, *MESH, "--update"), "--update is for targets of [tool.shtypes] in pyproject.toml"),
    (("check", EXAMPLE, "f32[8", *MESH), "type 0: cannot read the type"),
    (("check", EXAMPLE, "f32[8]", *MESH), "does not take these types: missing a required argument: 'rw1'"),
    (("check", EXAMPLE, "1.2.3", *MESH), "`1.2.3` is neither a type nor a number"),
    (("check",), "there is nothing to check: give a TARGET"),
    (("check", "--no-comm", "both"), "--no-comm, --max-bytes and --format html are for one TARGET"),
    (("compare", EXAMPLE, *MESH, "--policy", "jax"), "No such option"),
    (("compare", EXAMPLE, *MESH, "--link", "nvlnk"), "there is no link 'nvlnk'; known are a100-nvlink"),
    (("compare", EXAMPLE, *MESH, "--link", "a100-nvlink", "--link", "h100-nvlink"), "one link is the default"),
    (("reshard", "f32[8@dp]", "[9]", "--mesh", "dp=2"), "Invalid value for TO: dim 0 has size 9 in the type and 8 in"),
    (("reshard", "f32[8@dp", "[8]", "--mesh", "dp=2"), "Invalid value for FROM: cannot read the type"),
    (("reshard", "f32[8@dp]", "[8]"), "no mesh is given"),
    (("reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2", "--comm-dtype", "i8"), "cannot send f32 as i8"),
    (
        ("reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2", "--ct-comm-dtype", "bf16"),
        "would add 2 terms in bf16 backward",
    ),
    (("chek",), "No such command 'chek'"),
    (("check", EXAMPLE, *MESH, "-o", "no/such/folder/x"), "cannot be written: No such file or directory"),
]


@pytest.mark.parametrize(("args", "said"), WRONG, ids=lambda x: x if isinstance(x, str) else None)
def test_a_wrong_use_is_exit_code_2_and_says_what_is_right(args: tuple[str, ...], said: str, run: Run) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_progress_is_shown_on_a_terminal_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with working("typing loss", Console(file=out, force_terminal=True, width=60)):
        pass
    assert "typing loss" in out.getvalue()
    with working("typing loss"):
        pass
    assert capsys.readouterr() == ("", "")


def test_python_runs_the_command_without_an_installed_script() -> None:
    args = [
        sys.executable,
        *("-m", "shtypes", "reshard", "f32[8@dp]", "[8]", "--mesh", "dp=2", "--format", "json"),
    ]
    ran = subprocess.run(args, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(ran.stdout)["forward"]["bytes"] == 16


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("examples/gated_mlp.py:lo", ["examples/gated_mlp.py:loss", "examples/gated_mlp.py:loss_with_casts"]),
        (
            "shtypes.tools.demo.gated_mlp:mlp",
            ["shtypes.tools.demo.gated_mlp:mlp", "shtypes.tools.demo.gated_mlp:mlp_with_casts"],
        ),
        ("no_such.py:", []),
        ("examples/gated_mlp.py : lo", ["loss", "loss_with_casts"]),  # as bash splits it
        ("examples/gated_mlp.py :", ["mlp", "mlp_with_casts", "loss", "loss_with_casts", "main"]),
        ("examples/gated_mlp.py:loss f32", []),
    ],
)
def test_a_shell_completes_functions_without_running_the_file(words: str, completions: list[str]) -> None:
    from click.shell_completion import ShellComplete

    from shtypes.tools.cli.app import cli

    *args, incomplete = words.split()
    found = ShellComplete(cli, {}, "shtypes", "_SHTYPES_COMPLETE").get_completions(["check", *args], incomplete)
    assert [item.value for item in found] == completions


def test_the_command_answers_a_shell() -> None:
    shell = {
        "_SHTYPES_COMPLETE": "bash_complete",
        "COMP_WORDS": "shtypes check examples/gated_mlp.py : ml",
        "COMP_CWORD": "4",
    }
    args = [sys.executable, "-m", "shtypes"]
    ran = subprocess.run(args, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **shell}, check=False)
    assert ran.stdout.split() == ["plain,mlp", "plain,mlp_with_casts"]
