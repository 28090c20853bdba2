"""Which mistakes the tests notice: breaks the library in one place at a time, and runs the tests that should see it.

Each mutant of `tests.mutants_table` is made in a copy of the repository, never here, and the test files named beside it
run there up to the first failure: once in the default half, and once in the wide half, which `make test-all` adds.

    python tests/mutants.py                           # all of them, which takes an hour or two
    python tests/mutants.py --half default            # the default half only
    python tests/mutants.py --only "a mean is off by 1e-4"
    python tests/mutants.py --unbroken                # that all of these tests pass in a copy that is not broken
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.mutants_table import MUTANTS, Mutant

ROOT: Final = Path(__file__).parents[1]
#: How pytest is called.
_PYTEST: Final = (sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist")
#: What it exits with.
_PASSED, _NO_TESTS = 0, 5
_SURVIVES: Final = "survives"
_NO_TEST_OF_IT: Final = "no test of it"
#: Seconds after which the default half of one mutant is given up.
_LONGEST: Final = 3600
#: A test file with this in it generates more in the wide half.
_GENERATES: Final = re.compile(r"\bsome\(|^@given", re.M)
_NOT_COPIED: Final = shutil.ignore_patterns(".*", "__pycache__", "site", "build", "dist")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)


class Outcome(NamedTuple):
    """What one half of the tests makes of a mutant.

    Attributes:
        killed: Whether a test failed.
        words: Which one, or why none did.
        seconds: How long that took.
    """

    killed: bool
    words: str
    seconds: float


def broken(mutant: Mutant) -> str:
    """The text of a mutant's file with the mistake in it.

    Raises:
        SystemExit: the text that it replaces is not there exactly once.
    """
    text = (ROOT / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        sys.exit(f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} times, not once:\n{mutant.old}")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the repository with a mistake in it, if one is given."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(ROOT, copy, ignore=_NOT_COPIED)
        if mutant is not None:
            (copy / mutant.file).write_text(broken(mutant))
        yield copy


def run(copy: Path, files: Sequence[str], *, marked: str | None, wide: bool, limit: float) -> Outcome:
    """Runs test files in a copy up to the first failure.

    Args:
        copy: The repository.
        files: The test files.
        marked: Which marks to select, as pytest's ``-m``; None for the default half's.
        wide: Whether tests generate as much as in the wide half.
        limit: Seconds after which to give up.
    """
    environment = {**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "nightly" if wide else "ci"}
    start = time.monotonic()
    process = subprocess.Popen(
        [*_PYTEST, *files, *(() if marked is None else ("-m", marked))],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        return Outcome(False, "not within the limit", time.monotonic() - start)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # what the tests started, too
            process.communicate()
    spent = time.monotonic() - start
    if process.returncode in (_PASSED, _NO_TESTS):
        return Outcome(False, _SURVIVES if process.returncode == _PASSED else _NO_TEST_OF_IT, spent)
    found = _FAILED.search(output)
    return Outcome(True, found[1].removeprefix("tests/") if found else output.strip().split("\n")[-1], spent)


def by_default(copy: Path, files: Sequence[str], limit: float) -> Outcome:
    """What the default half makes of a copy."""
    return run(copy, files, marked=None, wide=False, limit=limit)


def by_wide(copy: Path, mutant: Mutant, limit: float) -> Outcome:
    """What the wide half makes of a copy: its own tests and those that generate more, of the broken file first."""
    last, spent = Outcome(False, _NO_TEST_OF_IT, 0), 0.0
    for files in filter(None, (mutant.tests, mutant.wide)):
        generating = [f for f in files if _GENERATES.search((copy / f).read_text())]
        for chosen, marked in ((files, "slow or nightly"), (generating, "")):
            if not chosen:
                continue
            found = run(copy, chosen, marked=marked, wide=True, limit=limit - spent)
            spent += found.seconds
            if found.words != _NO_TEST_OF_IT:
                last = found
            if found.killed or spent >= limit:
                return last._replace(seconds=spent)
    return last._replace(seconds=spent)


def report(mutant: Mutant, outcomes: dict[str, Outcome]) -> None:
    """Prints a row of the table."""
    cells = [f"{o.words} ({o.seconds:.0f} s)".replace("|", "\\|") for o in outcomes.values()]
    print(f"| {mutant.name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="a mutant, by its name; may be given again")
    parser.add_argument("--half", choices=("default", "wide"), help="one half of the tests instead of both")
    parser.add_argument("--limit", type=float, default=150, metavar="SECONDS", help="for the wide half of one mutant")
    parser.add_argument("--unbroken", action="store_true", help="run all test files named here in an unbroken copy")
    given = parser.parse_args()
    for mutant in MUTANTS:
        broken(mutant)
    halves = [given.half] if given.half else ["default", "wide"]
    if given.unbroken:
        with copied(None) as copy:
            found = by_default(copy, sorted({f for m in MUTANTS for f in m.tests}), _LONGEST)
        print("all pass" if found.words == _SURVIVES else found.words)
        sys.exit(found.words != _SURVIVES)
    unknown = set(given.only or ()) - {m.name for m in MUTANTS}
    if unknown:
        sys.exit(f"there is no mutant {', '.join(sorted(unknown))}; there are:\n" + "\n".join(m.name for m in MUTANTS))
    chosen = [m for m in MUTANTS if not given.only or m.name in given.only]
    print(f"| mutant | {' | '.join(f'killed by the {half} half' for half in halves)} |")
    print(f"|---|{'---|' * len(halves)}")
    killed = dict.fromkeys(halves, 0)
    for mutant in chosen:
        outcomes: dict[str, Outcome] = {}
        with copied(mutant) as copy:
            if "default" in halves:
                outcomes["default"] = by_default(copy, mutant.tests, _LONGEST)
            if "wide" in halves:
                outcomes["wide"] = by_wide(copy, mutant, given.limit)
        report(mutant, outcomes)
        for half, outcome in outcomes.items():
            killed[half] += outcome.killed
    print("; ".join(f"{half}: {n} of {len(chosen)} killed" for half, n in killed.items()))


if __name__ == "__main__":
    main()
