"""Running mypy with the plugin, each time in a process of its own, which starts with everything imported."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Where another release of mypy may be put first: ``OTHER_MYPY=folder`` has it.
PYTHONPATH = os.pathsep.join(filter(None, (os.environ.get("OTHER_MYPY"), str(ROOT))))
#: One set of options for all runs: of what is read with others mypy's cache is no use.
_OPTIONS = """[tool.mypy]
plugins = ["shtypes.mypy_plugin"]
strict = true
allow_redefinition = true
show_column_numbers = true
namespace_packages = true
explicit_package_bases = true
disable_error_code = ["import-untyped"]
untyped_calls_exclude = ["jax", "shtypes"]
"""
#: Of these nothing is asked here.
SKIPPED = """
[[tool.mypy.overrides]]
module = ["jax.*", "numpy.*", "opt_einsum.*", "optax.*", "rich.*"]
follow_imports = "skip"
follow_imports_for_stubs = true  # of which numpy has many

[[tool.mypy.overrides]]
module = ["shtypes.*"]
ignore_errors = true  # so that mypy reads signatures only: bodies are checked by `make check`
"""
_REVEALED = re.compile(r'Revealed type is "(.*)"$')
_MODULE = re.compile(r"\b[\w.]*cases\.\w+\.\w+\.")  # by which name mypy knows a file depends on where it runs
_ARRAY = re.compile(r"shtypes\.core\.array\.Array\[Literal\['([^']*)'\]\]")


#: Runs mypy for each line that it reads, in a fork: to import JAX takes longer than most runs.
_SERVER = """
import io, json, os, sys, traceback, warnings
import shtypes.editor.mypy.hooks, shtypes.editor.runtime
from mypy.main import main
import shtypes as sh
sh.abstract_array("f32[8@x]", sh.abstract_mesh({"x": 2})).sum()
warnings.filterwarnings("ignore", category=RuntimeWarning, message="os.fork")  # no thread has been started
for line in sys.stdin:
    folder, arguments = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        printed, answer = io.StringIO(), sys.stdout
        sys.stdout = sys.stderr = printed
        try:
            main(args=arguments, stdout=printed, stderr=printed, clean_exit=True)
        except SystemExit as end:
            printed.write(end.code if isinstance(end.code, str) else "")
        except BaseException:
            traceback.print_exc(file=printed)
        print(json.dumps(printed.getvalue()), file=answer, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "MYPYPATH": str(ROOT), "SHTYPES_STRICT_PLUGIN": "1"}
    command = [sys.executable, "-c", _SERVER]
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def stop_server() -> None:
    """Ends what `run_mypy` has started."""
    if _server.cache_info().currsize:
        _server().communicate()
        _server.cache_clear()


def run_mypy(
    files: Iterable[Path | str], config: Path, cache: Path, more: Sequence[str] = (), *, cwd: Path = ROOT
) -> str:
    """What mypy prints of some files; an error of the plugin itself ends it."""
    server = _server()
    assert server.stdin
    assert server.stdout
    arguments = ["--config-file", str(config), "--cache-dir", str(cache), *more, *map(str, files)]
    print(json.dumps([str(cwd), arguments]), file=server.stdin, flush=True)
    found = str(json.loads(server.stdout.readline()))
    assert "INTERNAL ERROR" not in found, found[-3000:]
    assert "Traceback" not in found, found[-3000:]
    return found


def configured(folder: Path, table: str = "") -> Path:
    """A configuration in a folder; ``table`` is what stands in ``[tool.shtypes]``."""
    path = folder / "pyproject.toml"
    path.write_text(f"{_OPTIONS}{SKIPPED}\n[tool.shtypes]\n{table}\n", encoding="utf-8")
    return path


def short(message: str) -> str:
    """A message as the cases have it: types without mypy's words around them."""
    message = _REVEALED.sub(r"type \1", message)
    message = _MODULE.sub("", message)
    return _ARRAY.sub(r"\1", message).replace("shtypes.core.array.Array[Any]", "?").replace("error: ", "", 1)


def by_file(output: str) -> dict[str, list[str]]:
    """The messages of each file, by its name: ``line:column: message``."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        file, _, rest = line.partition(".py:")
        if rest:
            where, _, message = rest.partition(" ")
            found.setdefault(Path(file).name, []).append(f"{where} {short(message).removeprefix('note: ')}")
    return found
