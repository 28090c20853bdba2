"""What another commit types otherwise than this one: the types of random programs, refusals, and the prices of fixes.

    python tests/agreement.py 4c19173                   # 400 programs of the other commit's generator
    python tests/agreement.py 4c19173 --programs 2000 --first 10000

The other commit is taken out of git into a folder that is deleted again. Each program is typed on both, step by step.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
_UNITS: Final = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BYTES: Final = re.compile(r"([\d,.]+) ([KMG]?i?B)/device")
_FIX: Final = re.compile(r"^\s*fix:.*\[(.*)\]\s*$", re.M)


class Outcome(NamedTuple):
    """What a commit makes of a step."""

    step: str
    types: str  # of its results; empty where it is refused
    error: str

    @property
    def least(self) -> float | None:
        """The bytes of the cheapest fix, forward and backward; None without one."""
        prices = [
            sum(float(n.replace(",", "")) * _UNITS[unit] for n, unit in _BYTES.findall(words))
            for words in _FIX.findall(self.error)
        ]
        return min(prices, default=None)


def generate(first: int, count: int) -> None:
    """Writes programs to standard output: mesh, policy, inputs' dtypes, shapes and types, steps."""
    from tests.random_programs import generate_program

    programs = []
    for seed in range(first, first + count):
        p = generate_program(seed, steps=(2, 8))
        inputs = {name: (str(array.dtype), array.shape, text) for name, (array, text) in p.inputs.items()}
        programs.append((seed, dict(p.mesh), p.policy, p.implicit, inputs, [(s.name, s.text) for s in p.steps]))
    sys.stdout.buffer.write(pickle.dumps(programs))


def evaluate() -> None:
    """Writes what this commit makes of the programs of standard input."""
    import jax

    import shtypes as sh
    from tests import random_programs
    from tests.random_plain import CONSTANTS

    outcomes: dict[tuple[int, str], Outcome] = {}
    names = {**vars(random_programs), **CONSTANTS, "m": sh, "jax": jax}
    for seed, mesh, policy, implicit, inputs, steps in pickle.loads(sys.stdin.buffer.read()):
        inserting = sh.implicit_comm() if implicit else contextlib.nullcontext()
        with sh.policy(policy), sh.use_mesh(sh.make_mesh(mesh)), inserting:
            values: dict[str, Any] = {
                name: sh.abstract_array(text, shape=shape, dtype=dtype) for name, (dtype, shape, text) in inputs.items()
            }
            for name, text in steps:
                used = {n: x for n, x in values.items() if re.search(rf"\b{n}\b", text)}

                def step(used: dict[str, Any], text: str = text) -> Any:
                    return eval(text, {**names, **used})

                try:
                    values[name] = jax.eval_shape(step, used)
                    types = ", ".join(map(str, jax.make_jaxpr(step)(used).out_avals))
                    outcomes[seed, name] = Outcome(text, types, "")
                except (sh.ShardingTypeError, NameError) as error:  # a name is missing where a step before was refused
                    outcomes[seed, name] = Outcome(text, "", str(error))
    sys.stdout.buffer.write(pickle.dumps(outcomes))


def _run(folder: Path, *words: str, stdin: bytes = b"") -> Any:
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    script = [sys.executable, str(Path(__file__)), *words]
    done = subprocess.run(script, env=environment, cwd=folder, input=stdin, stdout=subprocess.PIPE, check=True)
    return done.stdout


def compare(commit: str, first: int, count: int) -> None:
    """Prints how often the commits agree, and each step on which they do not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        programs = _run(folder, "--generate", "--first", str(first), "--programs", str(count))
        before, after = (pickle.loads(_run(f, "--evaluate", stdin=programs)) for f in (folder, ROOT))
    counts: collections.Counter[str] = collections.Counter()
    for place, old in before.items():
        new = after[place]
        kind = _kind(old, new)
        counts[kind] += 1
        if kind not in ("same type", "same price", "refused without a fix"):
            print(f"{place[0]} {kind}: {old.step}")
            print(f"    before: {old.types or old.error}")
            print(f"    after:  {new.types or new.error}")
    for kind, times in counts.most_common():
        print(f"{times:6} {kind}")


def _kind(old: Outcome, new: Outcome) -> str:
    if old.types and new.types:
        return "same type" if old.types == new.types else "another type"
    if old.types or new.types:
        return "refused now" if old.types else "typed now"
    if old.least is None or new.least is None:
        return "refused without a fix" if old.least == new.least else "fix now" if old.least is None else "no fix now"
    return "same price" if old.least == new.least else "dearer" if new.least > old.least else "cheaper"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--generate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--evaluate", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.generate:
        generate(args.first, args.programs)
    elif args.evaluate:
        evaluate()
    else:
        compare(args.commit, args.first, args.programs)


if __name__ == "__main__":
    main()
