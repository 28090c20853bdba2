"""What the plugin for mypy costs: per array operation, and where there is nothing to do.

A file of many functions is edited and checked again, everything else being cached, with the plugin and without; then
once more with nothing changed. Processor time of the whole process, the least of all rounds, for what else a machine
does only adds; both in turns. What one operation costs is the difference between a small file and a large one. In
"typed" each function has dims of its own, so that no type was met before; in "shared" all have the same, as the layers
of a model do. The goals are 0.15 ms for each array operation, and 0.05 s with nothing to do.

With ``--cold`` a page is checked with nothing cached, and edited under the daemon, which keeps JAX; by the time without
the plugin, and by that of another checkout where one is named. The goal is 15 s cold.

    python benchmarks/mypy_plugin.py
    python benchmarks/mypy_plugin.py --functions 200 --rounds 9
    python benchmarks/mypy_plugin.py --cold --before ../earlier
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = """[tool.mypy]
{plugins}
strict = true
allow_redefinition = true

[[tool.mypy.overrides]]
module = ["jax.*", "numpy.*", "opt_einsum.*", "optax.*"]
follow_imports = "skip"
"""
HEAD = "from typing import Annotated as A\n\nimport shtypes as sh\n"
#: A function of ten array operations, of dims that only it has.
TYPED = """

def f{n}(
    x: A[sh.Array, "f32[seq, batch@dp, h{n}]"],
    w1: A[sh.Array, "f32[h{n}, inner@tp]"],
    w2: A[sh.Array, "f32[inner@tp, h{n}]"],
) -> A[sh.Array, "f32[seq, batch@dp, h{n}]"]:
    h = sh.einsum("sbh,hi->sbi", x, w1)
    h = sh.silu(h) * h
    y = sh.all_reduce(h @ w2, "tp")
    y = y + x
    y = y * sh.rsqrt(sh.mean(y * y, -1, keepdims=True))
    return y
"""
OPERATIONS = 10


def bare(text: str) -> str:
    """The same without types."""
    for name in ("x", "w1", "w2"):
        start = text.index(f"    {name}: A[")
        text = text[:start] + f"    {name}: sh.Array,\n" + text[text.index("\n", start) + 1 :]
    return text[: text.index(") -> ")] + ") -> sh.Array:\n" + text[text.index("    h = ") :]


class Project:
    """A folder with one file, checked with the plugin or without."""

    def __init__(self, folder: Path, *, plugin: bool, root: Path = ROOT) -> None:
        self.folder, self.root = folder, root
        folder.mkdir()
        plugins = 'plugins = ["shtypes.mypy_plugin"]' if plugin else ""
        (folder / "pyproject.toml").write_text(CONFIG.format(plugins=plugins))
        self.edits = 0

    def edit(self, text: str) -> None:
        """Writes the file so that it is checked again."""
        self.edits += 1
        (self.folder / "code.py").write_text(f"{text}\n# {'edited ' * self.edits}\n")

    @property
    def env(self) -> dict[str, str]:
        """The environment in which mypy finds the package."""
        return {**os.environ, "PYTHONPATH": str(self.root), "MYPYPATH": str(self.root)}

    def daemon(self, *command: str) -> float:
        """The time of one command of the daemon."""
        start = time.perf_counter()
        line = [sys.executable, "-m", "mypy.dmypy", "--status-file", "status.json", *command]
        subprocess.run(line, cwd=self.folder, env=self.env, capture_output=True, check=False)
        return time.perf_counter() - start

    def seconds(self) -> float:
        """The processor time of one run of mypy."""
        env = self.env
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = subprocess.run(
            [sys.executable, "-m", "mypy", "code.py"],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if found.returncode:
            raise SystemExit(found.stdout[-2000:] + found.stderr[-2000:])
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shared(text: str) -> str:
    """The same of dims that all functions have."""
    return re.sub(r"\bh\d+\b", "hidden", text)


KINDS: dict[str, Callable[[str], str]] = {"typed": str, "shared": shared, "bare": bare}


def code(functions: int, kind: str) -> str:
    """A file of so many functions."""
    return HEAD + "".join(KINDS[kind](TYPED.format(n=n)) for n in range(functions))


def cold(rounds: int, before: Path | None) -> None:
    """Prints what a page costs with nothing cached, and edited under the daemon: least times in turns, and ratios."""
    roots = {"the plugin": (True, ROOT), "without": (False, ROOT)}
    roots |= {"the plugin before": (True, before.resolve())} if before is not None else {}
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        projects = {name: Project(Path(folder, name), plugin=p, root=root) for name, (p, root) in roots.items()}
        for _ in range(rounds):
            for name, project in projects.items():
                shutil.rmtree(project.folder / ".mypy_cache", ignore_errors=True)
                project.edit(code(20, "typed"))
                times.setdefault((name, "cold"), []).append(project.seconds())
        for project in projects.values():
            config = project.folder / "pyproject.toml"  # the daemon fails on modules that are skipped
            config.write_text(config.read_text().partition("[[tool.mypy.overrides]]")[0])
            project.daemon("run", "--", "code.py")
        for _ in range(rounds + 1):
            for name, project in projects.items():
                project.edit(code(100, "typed"))
                times.setdefault((name, "under the daemon"), []).append(project.daemon("run", "--", "code.py"))
        for project in projects.values():
            project.daemon("stop")
    least = {key: min(found[1:] or found) for key, found in times.items()}
    for kind in ("cold", "under the daemon"):
        own = least["the plugin", kind]
        others = [f"{own / least[name, kind]:.2f} times {name}" for name in roots if name != "the plugin"]
        print(f"{kind}: {own:.2f} s, {', '.join(others)}")


def main() -> None:
    """Prints least times and ratios, and what an operation costs: the rest is what loading the rules does, once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--functions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    if options.cold:
        cold(options.rounds, options.before)
        return
    small, large = options.functions, 4 * options.functions
    texts = {f"{size * OPERATIONS} {kind} operations": code(size, kind) for kind in KINDS for size in (small, large)}
    times: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        projects = {p: Project(Path(folder, "with" if p else "without"), plugin=p) for p in (True, False)}
        for round_ in range(options.rounds + 1):
            for name, text in texts.items():
                for plugin, project in projects.items():
                    project.edit(text)
                    for kind in (name, "nothing to do"):
                        found = project.seconds()
                        if round_:  # the first fills the cache
                            times.setdefault((kind, plugin), []).append(found)
    least = {key: min(found) for key, found in times.items()}
    more = {kind: least[kind, True] - least[kind, False] for kind in (*texts, "nothing to do")}
    for kind, extra in more.items():
        on, off = least[kind, True], least[kind, False]
        print(f"{kind}: {on:.3f} s with the plugin, {off:.3f} s without: {on / off:.2f} times, {extra:.3f} s more")
    for kind in KINDS:
        first, second = (more[f"{size * OPERATIONS} {kind} operations"] for size in (small, large))
        each = (second - first) / ((large - small) * OPERATIONS)
        print(
            f"each {kind} operation: {each * 1000:.3f} ms; the rules, once: {first - each * small * OPERATIONS:.3f} s"
        )


if __name__ == "__main__":
    main()
