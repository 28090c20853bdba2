"""The plugin among mypy's ways to run: again, as a daemon, with other configuration; and when it loads JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from mypy import api
from mypy.options import Options
from mypy.plugin import ReportConfigContext

from shtypes.editor import runtime
from shtypes.editor.mypy.plugin import ShtypesPlugin
from shtypes.tools.cli.config import config as pinned_in
from tests.editor.running import PYTHONPATH, ROOT, SKIPPED, by_file, configured, run_mypy

HEAD = "from typing import Annotated as A\n\nimport shtypes as sh\n\n"
LIBRARY = f"""{HEAD}def f(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
    return x

Alias = A[sh.Array, "f32[6@tp]"]
"""
USER = f"""{HEAD}from library import Alias, f

def g(x: A[sh.Array, "f32[k@dp]"], y: Alias) -> None:
    reveal_type(f(x))
"""


class Project:
    """A folder with files, checked again and again with one cache."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.configure()
        self.write("library.py", LIBRARY)
        self.write("user.py", USER)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def configure(self, table: str = "") -> Path:
        return configured(self.folder, table)

    def run(self) -> dict[str, list[str]]:
        files = sorted(self.folder.glob("*.py"))
        config = self.folder / "pyproject.toml"
        return by_file(run_mypy([f.name for f in files], config, self.cache, cwd=self.folder))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mypy_cache: Path) -> Project:
    return Project(tmp_path_factory.mktemp("project"), mypy_cache)


def test_another_mesh_checks_no_library_again_that_cannot_use_types() -> None:
    plugin = ShtypesPlugin(Options())
    for library in ("numpy", "jax.numpy", "rich.console"):
        spec = find_spec(library)
        assert spec
        assert spec.origin
        assert plugin.report_config_data(ReportConfigContext(library, spec.origin, False)) is None
    assert plugin.report_config_data(ReportConfigContext("user", "user.py", False)) is not None


@pytest.mark.nightly
def test_a_changed_signature_is_seen_where_it_is_called(project: Project) -> None:
    assert project.run() == {"user": ["8:17: type f32[k@dp]"]}
    assert project.run() == {"user": ["8:17: type f32[k@dp]"]}  # of what is cached
    project.write("library.py", LIBRARY.replace('"f32[n@dp]"', '"f32[n]"'))
    (_, what, *_, revealed) = project.run()["user"]
    assert what.startswith("8:19: argument `x` of `f` is f32[k@dp], not f32[n]")
    assert revealed.startswith("8:19: fix: sh.reshard(x")
    project.write("library.py", LIBRARY)
    assert project.run() == {"user": ["8:17: type f32[k@dp]"]}


def test_an_alias_of_another_module_is_known_from_the_cache(project: Project) -> None:
    project.write("user.py", USER + "    reveal_type(y)\n")
    assert project.run()["user"][-1] == "9:17: type f32[6@tp]"


@pytest.mark.nightly
def test_another_configuration_is_another_result(project: Project) -> None:
    project.configure("mesh = { dp = 2, tp = 4 }\n")
    assert project.run()["library"] == [
        "8:9: dim 0 of size 6 cannot be sharded in 4 equal parts; it is sharded over `tp` (size 4)  [sharding]"
    ]
    project.configure()
    assert "library" not in project.run()


def test_a_scope_that_is_put_around_a_call_is_seen(project: Project) -> None:
    body = "    sh.all_gather(x, 'dp')\n"
    project.write("user.py", USER + body)
    assert len(project.run()["user"]) == 1
    project.write("user.py", USER + "    with sh.no_comm():\n    " + body)
    assert "`no_comm` forbids all-gather over `dp`" in project.run()["user"][1]


@pytest.mark.nightly
def test_the_targets_that_shtypes_check_pins_stand_in_the_same_table(project: Project) -> None:
    pinned = 'mesh = "dp=2,tp=4"\ngrad = true\ngolden = "sent.json"\n[[tool.shtypes.targets]]\ntarget = "user.py:g"\n'
    project.configure(pinned)
    assert "cannot be sharded in 4 equal parts" in project.run()["library"][0]
    assert [target.name for target in pinned_in(project.folder).targets] == ["user.py:g"]
    project.configure()


def test_a_configuration_that_is_none_is_said_in_words(project: Project) -> None:
    project.configure('policies = "jax"\n')
    config = project.folder / "pyproject.toml"
    printed = run_mypy(["user.py"], config, project.cache, cwd=project.folder)
    assert printed.startswith("`[tool.shtypes]` has no entry `policies`")
    project.configure()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is of Python 3.12")
def test_a_type_statement_keeps_its_texts(project: Project, tmp_path: Path) -> None:
    code = f"""{HEAD}type Rows = A[sh.Array, "f32[n@dp, d]"]
type Pair = tuple[Rows, A[sh.Array, "f32[d]"]]

def f(x: Rows, pair: Pair) -> None:
    reveal_type(x)
    reveal_type(pair[1])
"""
    (tmp_path / "statements.py").write_text(code, encoding="utf-8")
    said = by_file(run_mypy(["statements.py"], project.folder / "pyproject.toml", project.cache, cwd=tmp_path))
    assert said == {"statements": ["9:17: type f32[n@dp, d]", "10:17: type f32[d]"]}


@pytest.fixture
def daemon(project: Project) -> Iterator[list[str]]:
    command = [sys.executable, "-m", "mypy.dmypy", "--status-file", str(project.folder / "status.json")]
    yield command
    subprocess.run([*command, "stop"], cwd=project.folder, capture_output=True, check=False)


@pytest.mark.nightly
def test_the_daemon_sees_what_changes(project: Project, daemon: list[str]) -> None:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "MYPYPATH": str(ROOT), "SHTYPES_STRICT_PLUGIN": "1"}

    def checked() -> str:
        command = [*daemon, "run", "--timeout", "60", "--", "--config-file", "pyproject.toml", "user.py"]
        found = subprocess.run(command, cwd=project.folder, env=env, capture_output=True, text=True, check=False)
        return found.stdout + found.stderr

    call = "    sh.all_gather(x, 'dp')\n"
    config = project.configure().read_text(encoding="utf-8")
    project.write("pyproject.toml", config.replace(SKIPPED, ""))  # mypy's daemon fails on modules that are skipped
    project.write("user.py", USER + call)
    assert "Array[Literal['f32[k@dp]']]" in checked()
    project.write("user.py", USER + "    with sh.no_comm():\n    " + call)
    assert "`no_comm` forbids all-gather" in checked()
    project.write("user.py", USER + call)
    assert "no_comm" not in checked()
    project.write("library.py", LIBRARY.replace('"f32[n@dp]"', '"f32[n]"'))
    assert "argument `x` of `f` is f32[k@dp], not f32[n]" in checked()
    project.write("library.py", LIBRARY)
    assert "argument" not in checked()


def _python(code: str, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "MYPYPATH": str(ROOT)}
    env.pop("SHTYPES_STRICT_PLUGIN", None)
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return found.stdout + found.stderr


def test_jax_is_loaded_when_a_call_is_typed_and_not_before(project: Project) -> None:
    loaded = "print({'jax', 'numpy'} & set(sys.modules))"
    config = f"['--config-file', 'pyproject.toml', '--cache-dir', {str(project.cache)!r}, 'user.py']"
    code = f"import sys, shtypes.mypy_plugin, shtypes.editor.mypy.hooks; {loaded}\nfrom mypy import api\n"
    code += f"api.run({config}); api.run({config}); {loaded}\n"  # the second finds everything in the cache
    assert _python(code, project.folder).startswith("set()\n")
    project.write("user.py", USER)
    _python(f"from mypy import api; api.run({config})", project.folder)
    assert _python(code, project.folder) == "set()\nset()\n"


def test_a_hook_that_fails_does_not_end_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError

    project.write("user.py", USER + "    reveal_type(sh.exp(x))\n    1 + ''\n")
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    monkeypatch.delenv("SHTYPES_STRICT_PLUGIN", raising=False)
    monkeypatch.setattr(runtime, "types_of_call", fail)
    printed, _, _ = api.run(["--config-file", "pyproject.toml", "--cache-dir", str(project.cache), "user.py"])
    assert "INTERNAL ERROR" not in printed
    assert 'user.py:9:17: note: Revealed type is "shtypes.core.array.Array[Any]"' in printed
    assert "user.py:10:9: error: Unsupported operand types" in printed
