"""The pytest plugin: its marker, its fixtures, its diffs, and that it loads no JAX."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import shtypes as sh

pytest_plugins = ["pytester"]

#: pytester takes back what a run in this process loads, and JAX does not load twice: so it is loaded before.
LOADED = [sh.jit, *map(importlib.import_module, ("shtypes.analysis.golden", "shtypes.analysis.check"))]

CONFTEST = (
    "import os\nos.environ.setdefault('JAX_PLATFORMS', 'cpu')\nos.environ.setdefault('JAX_NUM_CPU_DEVICES', '8')\n"
)
HEAD = "import pytest\nimport shtypes as sh\n\n"
PLUGIN = ("--disable-plugin-autoload", "-p", "shtypes.tools.pytest_plugin")
OPTIONS = (*PLUGIN, "--strict-markers", "-W", "error", "-p", "no:cacheprovider", "-q")


@pytest.fixture
def run(pytester: pytest.Pytester) -> object:
    pytester.makeconftest(CONFTEST)

    def run(code: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + code)
        return pytester.runpytest_inprocess(*OPTIONS, *options)

    return run


def lines(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines)


MARKED = """
def step(x):
    return sh.all_reduce(x, "tp")


def cast(x):
    return sh.reshard(x, tp="R")


@pytest.mark.no_comm
def test_both(abstract_mesh):
    abstract_mesh(tp=4)
    sh.check(step, "f32[8]{U:tp}")


@pytest.mark.no_comm("backward")
def test_backward(abstract_mesh):
    abstract_mesh(tp=4)
    sh.check(cast, "f32[8]{I:tp}")


@pytest.mark.no_comm("forward")
def test_forward(abstract_mesh):
    abstract_mesh(tp=4)
    sh.check(cast, "f32[8]{I:tp}")


@pytest.mark.no_comm("sideways")
def test_wrong():
    pass


@pytest.mark.no_comm
class TestClass:
    def test_it(self, abstract_mesh):
        abstract_mesh(tp=4)
        sh.check(step, "f32[8]{U:tp}")


def test_unmarked(abstract_mesh):
    mesh = abstract_mesh(tp=4)
    assert sh.check(step, "f32[8]{U:tp}").ledger.launches == 1
    assert sh.typeof(sh.abstract_array("f32[8]")).mesh is mesh


def test_the_mesh_is_gone():
    with pytest.raises(sh.ShardingTypeError, match="no mesh is set"):
        sh.abstract_array("f32[8]")
"""


def test_a_marked_test_may_not_communicate(run) -> None:  # type: ignore[no-untyped-def]
    result = run(MARKED)
    result.assert_outcomes(passed=3, failed=4)
    text = lines(result)
    assert "`no_comm` forbids all-reduce over `tp` in the forward pass" in text
    assert '`no_comm("backward")` forbids all-reduce over `tp` in the backward pass' in text
    assert "@pytest.mark.no_comm: `no_comm` forbids communication forward, backward or both, not 'sideways'" in text


POLICIES = """
def test_it(each_policy, abstract_mesh, assert_comm):
    abstract_mesh(dp=2, tp=4)
    assert sh.current_policy() == each_policy

    def layer(x, w):
        return sh.silu(x @ w)

    args = "f32[8@dp,16]", "f32[16,32@tp]"
    expected = {} if each_policy == "partial" else {("all-reduce", "dp"): 1, ("all-reduce", "tp"): 1}
    assert_comm(layer, *args, forward={}, backward=expected, grad=True)
    assert_comm(layer, *args, backward={"all-gather": 1}, grad=True)
"""


def test_a_test_runs_under_each_policy_and_a_failed_assertion_is_a_short_diff(run) -> None:  # type: ignore[no-untyped-def]
    result = run(POLICIES)
    result.assert_outcomes(failed=2)
    text = lines(result)
    assert "test_it[partial]" in text
    assert "test_it[jax]" in text
    assert "AssertionError: the communication of `layer` is not what was expected" in text
    assert "backward: all-gather: expected 1, found 0" in text
    assert "pytest_plugin.py" not in text


PINNED = """
def layer(x, w):
    return sh.all_gather(sh.silu(x @ w), "tp")


@pytest.mark.parametrize("size", [8, 16])
def test_it(size, abstract_mesh, pinned_comm):
    abstract_mesh(tp=4)
    ledger = pinned_comm(layer, f"f32[{size},16]", "f32[16,32@tp]", grad=True)
    assert ledger.forward().launches == 1
    pinned_comm(layer, "f32[4,4]", "f32[4,4@tp]", name="small")
"""


def test_pinned_communication_is_a_file_beside_the_test(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    result = run(PINNED)
    result.assert_outcomes(failed=2)
    assert "test_it-8: is not in the file" in lines(result)
    run(PINNED, "--update-comm").assert_outcomes(passed=2)
    (file,) = Path(pytester.path).glob("__comm__/*")
    assert list(json.loads(file.read_text())["targets"]) == [
        "test_it-16",
        "test_it-16:small",
        "test_it-8",
        "test_it-8:small",
    ]
    run(PINNED).assert_outcomes(passed=2)
    changed = PINNED.replace('sh.all_gather(sh.silu(x @ w), "tp")', "sh.silu(x @ sh.all_gather(w, 'tp'))")
    result = run(changed.replace("    assert ledger", "    # assert ledger"))
    result.assert_outcomes(failed=2)
    text = lines(result)
    assert '    - all-gather over tp: 768 B/device, once: return sh.all_gather(sh.silu(x @ w), "tp")  [' in text
    assert "    + all-gather over tp: 1536 B/device, once: return sh.silu(x @ sh.all_gather(w, 'tp'))  [" in text
    assert "if that is meant: pytest --update-comm" in text
    assert "Traceback" not in text


COMPARED = """
def test_types(abstract_mesh):
    mesh = abstract_mesh(dp=2, tp=4)
    assert sh.ShType.parse("f32[8@dp,4]") == sh.ShType.parse("bf16[8,4@dp]{U:tp}")


def test_orders(abstract_mesh):
    mesh = abstract_mesh(dp=2, tp=4)
    assert sh.ShType.parse("f32[8@(dp,tp)]") == sh.ShType.parse("f32[8@(tp,dp)]")


def test_ledgers(abstract_mesh):
    abstract_mesh(dp=2, tp=4)
    one = sh.check(lambda x: sh.all_reduce(x, "tp"), "f32[8]{U:tp}").ledger
    other = sh.check(lambda x: sh.all_gather(x, "dp"), "f32[8@dp]").ledger
    assert one == other


def test_others():
    assert 1 == 2
"""


def test_a_comparison_says_in_what_types_and_ledgers_differ(run) -> None:  # type: ignore[no-untyped-def]
    text = lines(run(COMPARED))
    assert "dtype: f32 and bf16" in text
    assert "mesh axis dp: sharded (dim 0) and sharded (dim 1)" in text
    assert "mesh axis tp: reduced and unreduced" in text
    assert "sharding: [('dp', 'tp')] and [('tp', 'dp')]" in text
    assert "+ all-reduce over tp: 48 B/device, once" in text
    assert "- all-gather over dp: 16 B/device, once" in text
    assert "assert 1 == 2" in text


def test_the_plugin_loads_no_jax_and_its_marker_is_listed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest("import sys\ndef pytest_report_header():\n    return f\"jax: {'jax' in sys.modules}\"")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess(*OPTIONS[:-1])
    result.assert_outcomes(passed=1)
    assert "jax: False" in lines(result)
    assert "@pytest.mark.no_comm(direction=" in lines(pytester.runpytest_inprocess(*PLUGIN, "--markers"))


def test_the_entry_point_has_the_name_of_the_module() -> None:
    """So that ``-p shtypes.pytest_plugin`` does not register it a second time where it is installed."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\n"shtypes.tools.pytest_plugin" = "shtypes.tools.pytest_plugin"\n' in text
