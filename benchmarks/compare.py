"""What a change does to the ratios: two commits measured alternately, in one run on one machine.

Each is checked out in a temporary folder, and measured there by this file in processes of its own, with the
interpreter that runs it. Every number is a ratio of processor time to JAX's in the same process, so that what else the
machine does hardly matters; it is the median over the rounds.

    python benchmarks/compare.py main                # the working tree, against a commit
    python benchmarks/compare.py main HEAD           # two commits
    python benchmarks/compare.py main --only typing eager --rounds 5

Exits with 1 where something got worse by a tenth, and with 2 where nothing could be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
#: By so much a ratio may grow.
ALLOWED: Final = 1.1
#: What the working tree is called.
WORKING_TREE: Final = "working tree"


# what is measured, in a process that has only one of the commits on its path


def import_time() -> dict[str, float]:
    """The time to import shtypes, to that of importing JAX."""
    times = [time.process_time()]
    for module in ("jax", "shtypes"):
        importlib.import_module(module)
        times.append(time.process_time())
    return {"import, to jax": (times[2] - times[1]) / (times[1] - times[0])}


def typing() -> dict[str, float]:
    """The time to trace a step and make its ledger, to that of plain JAX's trace: each again in new objects."""
    import jax

    import shtypes as sh
    from benchmarks.measure.timing import spent
    from benchmarks.models import transformer

    found = {}
    mesh = sh.abstract_mesh({"dp": 8, "tp": 8})
    for layers, repeats in {96: 4, 24: 8}.items():
        config = transformer.Config(layers=layers, batch=8, seq=2048, hidden=512, heads=8, inter=2048)
        ratios: dict[str, list[float]] = {"written": [], "lifted": []}
        for _ in range(repeats):
            program = transformer.only_types(config, mesh)
            plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.args)
            native = _cpu(spent, jax.make_jaxpr(transformer.plain_step(config)), *plain)
            ratios["written"].append(_cpu(spent, sh.ledger, program.step, *program.args) / native)
            with sh.use_mesh(mesh):
                ratios["lifted"].append(_cpu(spent, sh.ledger, transformer.lifted_step(config), *program.args) / native)
        for name, values in ratios.items():
            found[f"typing {layers} layers, {name}"] = statistics.median(values)
    return found


def _cpu(spent: Callable[..., Any], f: Callable[..., Any], *args: Any) -> float:
    needed, _ = spent(lambda: f(*args))
    return float(needed.cpu)


def eager() -> dict[str, float]:
    """The time of eager operations, to that of JAX's explicit mode: the geometric mean."""
    import shtypes as sh
    from benchmarks.measure import dispatch

    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    with sh.use_mesh(mesh):
        return {"eager operations": dispatch.eager(mesh, rounds=5, repeats=20)["geometric_mean"]["cpu"]}


BENCHMARKS: Final[dict[str, Callable[[], dict[str, float]]]] = {"import": import_time, "typing": typing, "eager": eager}


# two commits in turns


@contextlib.contextmanager
def checked_out(commit: str | None, repository: Path = ROOT) -> Iterator[Path]:
    """A folder with the files of a commit, as long as the block runs; the working tree itself for None."""
    if commit is None:
        yield repository
        return
    git = ["git", "-C", str(repository), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measured(tree: Path, benchmark: str) -> dict[str, float]:
    """The ratios of a benchmark with the library of a folder; none where that lacks what is measured."""
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--child", benchmark]
    done = subprocess.run(command, env=os.environ | settings, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{benchmark} cannot be measured in {tree}:\n{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout)
    return found


#: The ratios of each name, one for each round.
Ratios = dict[str, list[float]]


def in_turns(
    trees: tuple[Path, Path],
    benchmarks: Sequence[str],
    rounds: int,
    measure: Callable[[Path, str], Mapping[str, float]] = measured,
) -> tuple[Ratios, Ratios]:
    """The ratios in two folders, measured alternately; which goes first changes from round to round."""
    found: tuple[Ratios, Ratios] = {}, {}
    for benchmark in benchmarks:
        for i in range(rounds):
            for side in ((0, 1), (1, 0))[i % 2]:
                for name, ratio in measure(trees[side], benchmark).items():
                    found[side].setdefault(name, []).append(ratio)
    return found


class Change(NamedTuple):
    """What became of one ratio."""

    name: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        """By what it was multiplied."""
        return self.after / self.before

    @property
    def is_worse(self) -> bool:
        """Whether it got worse by more than is allowed."""
        return self.factor > ALLOWED


def changes(before: Ratios, after: Ratios) -> list[Change]:
    """The medians of what was measured on both sides."""
    both = [name for name in before if name in after]
    return [Change(name, statistics.median(before[name]), statistics.median(after[name])) for name in both]


def as_table(found: Sequence[Change], before: str, after: str) -> Table:
    """The changes as a table."""
    table = Table(title="processor time, as a ratio to JAX's", title_justify="left")
    table.add_column("benchmark")
    for heading in (before, after, "change"):
        table.add_column(heading, justify="right")
    for change in found:
        style = "red" if change.is_worse else "green" if change.factor < 1 / ALLOWED else None
        table.add_row(
            change.name, f"{change.before:.3f}", f"{change.after:.3f}", f"{change.factor - 1:+.1%}", style=style
        )
    return table


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", default="HEAD", help="the commit to compare with; HEAD by default")
    parser.add_argument("after", nargs="?", help="the other commit; the working tree by default")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="some benchmarks only")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--child", choices=BENCHMARKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares two commits, and says by its exit code whether something got worse."""
    options = parsed(arguments)
    if options.child:
        print(json.dumps(BENCHMARKS[options.child]()))
        return 0
    with checked_out(options.before) as before, checked_out(options.after) as after:
        found = changes(*in_turns((before, after), options.only, options.rounds))
    Console().print(as_table(found, options.before, options.after or WORKING_TREE))
    return 2 if not found else int(any(change.is_worse for change in found))


if __name__ == "__main__":
    sys.exit(main())
