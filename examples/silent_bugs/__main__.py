"""Published classes of silent parallelism bugs: what plain JAX gives for each, and what the types say.

    python -m examples.silent_bugs            # each bug with its numbers and messages
    python -m examples.silent_bugs --table    # the table of docs/silent-bugs.md

Each module of this folder is one bug, written four times: on one device, in plain `jax.shard_map` without its checks,
the same in types, and right in types. The first and the last are equal, in values and gradients; the second runs and is
silently wrong.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import functools
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, get_args

import shtypes as sh
from examples.silent_bugs.bug import Bug, Policy, Results, close, in_plain_jax, in_types, on_one_device, size

_NO_BUG = ("__main__", "bug")
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NO_BUG)


class Outcome(NamedTuple):
    """What the four programs of a bug give; the typed ones by policy."""

    wanted: Results
    plain: Results
    naive: dict[str, Results | sh.ShardingTypeError]
    fixed: dict[str, Results | sh.ShardingTypeError]

    def verdict(self, policy: str) -> str:
        """What the types make of the program with the bug: ``refused``, ``right`` or ``not caught``."""
        found = self.naive[policy]
        if isinstance(found, sh.ShardingTypeError):
            return "refused"
        return "right" if close(found, self.wanted) else "not caught"


def bug_named(name: str) -> Bug:
    """The bug of a module."""
    found: Bug = import_module(f"examples.silent_bugs.{name}").BUG
    return found


@functools.cache
def outcome(name: str) -> Outcome:
    """Runs all programs of a bug."""
    bug = bug_named(name)
    naive, fixed = ({p: in_types(bug, f, p) for p in get_args(Policy)} for f in (bug.naive, bug.fixed))
    return Outcome(on_one_device(bug), in_plain_jax(bug), naive, fixed)


def paragraph(name: str) -> str:
    """A bug, its source, its numbers, and what the types say under each policy."""
    bug, found = bug_named(name), outcome(name)
    lines = [f"{name}: {bug.wrong}", f"  source     {bug.source}", f"             {bug.url}"]
    wrong, right = size(found.plain, bug.shown), size(found.wanted, bug.shown)
    lines.append(f"  plain JAX  {bug.shown} {wrong:.4f}, on one device {right:.4f}")
    for policy, naive in found.naive.items():
        said = f": {naive.what}" if isinstance(naive, sh.ShardingTypeError) else ""
        lines.append(f"  {policy:<9}  {found.verdict(policy)}{said}")
    return "\n".join([*lines, f"  fix        {bug.fix}"])


def row(name: str) -> str:
    """A bug in a table in Markdown."""
    bug, found = bug_named(name), outcome(name)
    where, _, title = bug.source.partition(", ")
    link = f"[{where}]({bug.url}), {title.replace('[', '').replace(']', '')}"
    wrong, right = (f"{size(results, bug.shown):.3g}" for results in (found.plain, found.wanted))
    said = [next((e.what for e in found.naive.values() if isinstance(e, sh.ShardingTypeError)), ""), f"fix: {bug.fix}"]
    cells = [f"`{name}`", bug.wrong, link, f"{bug.shown}: {wrong}, not {right}"]
    return " | ".join(["", *cells, *map(found.verdict, found.naive), "<br>".join(filter(None, said)), ""]).strip()


def table() -> str:
    """All bugs as a table in Markdown."""
    head = ["", "bug", "what goes wrong", "published in", "plain JAX", '`"partial"`', '`"jax"`', "in words", ""]
    return "\n".join([" | ".join(head).strip(), "|---" * (len(head) - 2) + "|", *map(row, NAMES)])


def main(arguments: tuple[str, ...] = ()) -> None:
    """Prints the bugs, or the table."""
    if "--table" in arguments:
        print(table())
        return
    print("\n\n".join(map(paragraph, NAMES)))
    caught = [name for name in NAMES if "not caught" not in map(outcome(name).verdict, outcome(name).naive)]
    print(f"\n{len(caught)} of {len(NAMES)} are refused or come out right under both policies")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
