"""A repository's pinned communication, as a file: that of each target, by the source of its lines; and its changes.

The file has no line numbers, so edits elsewhere do not change it, and one line per collective, for readable diffs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.traced.entry import Entry
from shtypes.traced.ledger import Ledger

#: The version of the format.
SCHEMA: Final = 1
DIRECTIONS: Final = ("forward", "backward", "recomputed")
#: The settings of a record; the rest is communication.
CONTEXT: Final = ("mesh", "policy", "dims", "types", "arguments", "grad")

#: The communication of one target, as JSON.
Pinned = dict[str, Any]


class PinnedLine(NamedTuple):
    """One line of a record."""

    collective: str  # kind and axes: ``all-reduce over tp``
    dtype: str  # the dtype sent
    file: str  # relative to the root of the repository if inside it
    function: str
    line: str  # the source of the line
    branch: str  # the enclosing branches of conditionals, outermost first
    bytes: int  # sent by each device in each run
    runs: int | None  # None in a while loop

    @property
    def key(self) -> tuple[str, ...]:
        """A key that is unique in the file."""
        return self[:6]

    def __str__(self) -> str:
        branch = f", branch {self.branch}" if self.branch else ""
        return f"{self.collective}{branch}: {amount(self.bytes, self.runs)}: {self.source}"

    @property
    def source(self) -> str:
        """The line and its location."""
        return f"{self.line or '(no line)'}  [{self.file} in {self.function}]" if self.file else "(no line)"


def amount(sent: int, runs: int | None) -> str:
    """``384 B/device, 12 times``."""
    times = "once" if runs == 1 else "an unknown number of times" if runs is None else f"{runs} times"
    return f"{sent} B/device, {times}"


def record(ledger: Ledger, root: Path, **context: Any) -> Pinned:
    """The communication of a program for the file: file names relative to ``root``, with its `CONTEXT`."""
    pinned: Pinned = {key: value for key, value in context.items() if value not in (None, {}, [], ())}
    for direction in DIRECTIONS:
        merged: dict[tuple[Any, ...], PinnedLine] = {}
        for entry in ledger:
            if entry.direction == direction and entry.launches:
                sent = _sent(entry, root)
                same = merged.get(sent[:7], sent._replace(runs=0))
                runs = None if same.runs is None or sent.runs is None else same.runs + sent.runs
                merged[sent[:7]] = sent._replace(runs=runs)
        lines = sorted(merged.values(), key=lambda line: (*line.key, line.bytes))
        pinned[direction] = [{k: v for k, v in line._asdict().items() if v != ""} for line in lines]
    pinned["not_covered"] = sorted({f"{n.what} ({n.direction}): {n.why}" for n in ledger.not_covered})
    return pinned


def _sent(entry: Entry, root: Path) -> PinnedLine:
    file = entry.place.file
    if file:
        path = Path(file).resolve()
        file = path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else path.name
    branch = ", ".join(f"{b.index} of {b.count}" for b in entry.branches)
    runs = None if entry.times is None else entry.times * entry.launches
    return PinnedLine(str(entry), entry.dtype, file, entry.place.function, entry.place.text, branch, entry.bytes, runs)


# the file


def read(path: Path) -> dict[str, Pinned]:
    """The records of a file by target; empty if there is no file, an error if it is invalid or of another version."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema, targets = document["schema"], dict(document["targets"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ShardingTypeError(
            f"`{path.name}` does not hold a repository's communication: {error}",
            hints=["shtypes check --update writes it anew"],
        ) from None
    if schema != SCHEMA:
        raise ShardingTypeError(
            f"`{path.name}` has schema {schema}, and this version reads {SCHEMA}",
            hints=["shtypes check --update writes it anew"],
        )
    return targets


def write(path: Path, records: Mapping[str, Pinned]) -> bool:
    """Writes the records; returns whether the file changed."""
    text = dumps(records)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    swap = path.with_name(f".{path.name}.{os.getpid()}")  # for an atomic replacement
    swap.write_text(text, encoding="utf-8")
    swap.replace(path)
    return True


def dumps(records: Mapping[str, Pinned]) -> str:
    """The records as JSON, one line per collective."""
    parts = []
    for name, pinned in sorted(records.items()):
        lines = ",\n".join(f"   {json.dumps(key)}: {_value_text(value)}" for key, value in pinned.items())
        parts.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    targets = ",\n".join(parts)
    return f'{{\n "schema": {SCHEMA},\n "targets": {{\n{targets}\n }}\n}}\n'


def _value_text(value: Any) -> str:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return json.dumps(value, ensure_ascii=False)
    lines = ",\n".join(f"    {json.dumps(item, ensure_ascii=False)}" for item in value)
    return f"[\n{lines}\n   ]"


# changes


def differences(name: str, pinned: Pinned | None, now: Pinned | None) -> list[str]:
    """The changes of one target, in lines. ``now`` is None if it is no longer a target."""
    if pinned is None:
        return [f"{name}: is not in the file"]
    if now is None:
        return [f"{name}: is in the file, and no target any more"]
    lines = [
        f"  {key}: {_text(pinned.get(key))} -> {_text(now.get(key))}"
        for key in CONTEXT
        if pinned.get(key) != now.get(key)
    ]
    for direction in DIRECTIONS:
        changed = list(_changed(_lines(pinned, direction), _lines(now, direction)))
        lines += [f"  {direction}", *(f"    {line}" for line in changed)] if changed else []
    old, new = ({*r.get("not_covered", ())} for r in (pinned, now))
    uncovered = [*(f"    - {line}" for line in sorted(old - new)), *(f"    + {line}" for line in sorted(new - old))]
    lines += ["  not covered", *uncovered] if uncovered else []
    if not lines:
        return []
    before, after = _bytes(pinned), _bytes(now)
    total = f"  total: {before} B/device" + (f" -> {after} B/device" if after != before else ", as before")
    return [name, *lines, total]


def _text(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _lines(pinned: Pinned, direction: str) -> list[PinnedLine]:
    try:
        return [
            PinnedLine(**{"branch": "", "file": "", "function": "", "line": "", **item}) for item in pinned[direction]
        ]
    except (KeyError, TypeError) as error:
        raise ShardingTypeError(
            f"a record of the file cannot be read: {error}", hints=["shtypes check --update writes it anew"]
        ) from None


def _changed(old: Iterable[PinnedLine], new: Iterable[PinnedLine]) -> Iterator[str]:
    """``-`` for removed lines, ``+`` for new ones, ``~`` for the same line with other bytes or another count."""
    before, after = _by_key(old), _by_key(new)
    for key in dict.fromkeys((*before, *after)):
        removed = [s for s in before.get(key, ()) if s not in after.get(key, ())]
        added = [s for s in after.get(key, ()) if s not in before.get(key, ())]
        for one, other in zip(removed, added, strict=False):
            amounts = f"{amount(one.bytes, one.runs)} -> {amount(other.bytes, other.runs)}"
            yield f"~ {one.collective}: {amounts}: {one.source}"
        paired = min(len(removed), len(added))
        yield from (f"- {s}" for s in removed[paired:])
        yield from (f"+ {s}" for s in added[paired:])


def _by_key(lines: Iterable[PinnedLine]) -> dict[tuple[str, ...], list[PinnedLine]]:
    lines_by_key: dict[tuple[str, ...], list[PinnedLine]] = {}
    for line in lines:
        lines_by_key.setdefault(line.key, []).append(line)
    return lines_by_key


def _bytes(pinned: Pinned) -> int:
    """The sum of all lines, with every branch of conditionals."""
    return sum(s.bytes * (1 if s.runs is None else s.runs) for d in DIRECTIONS for s in _lines(pinned, d))
