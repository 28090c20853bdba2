"""Folds repeats in a listing, such as the layers of a model that Python unrolls.

Two rounds are equal if they differ only in names: the same source lines, operations, types, collectives and dataflow
inside, and the same types of outside operands. A layer's indices into stacked weights count as names.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shtypes.analysis.explain.document import Block, Item, Line, lines_of, type_text
from shtypes.traced.entry import Entry
from shtypes.traced.ledger import Ledger

#: The minimum number of lines that a folded repeat leaves out.
_MIN_LINES: Final = 6
#: The maximum number of candidates for the start of the second round.
_MAX_STARTS: Final = 64
_NUMBER: Final = re.compile(r"\d+")
_AT_POSITIONS: Final = re.compile(r"(transpose\()?index\[")

#: Names, with their printed types.
Types = Mapping[str, str]


@dataclass(frozen=True)
class Repeat:
    """Equal consecutive lines and blocks, up to names."""

    #: One round: the first, or in the backward pass the last, which has the same lines.
    items: tuple[Item, ...]
    times: int  # the number of rounds
    sent: Ledger  # the communication of all rounds
    #: How the rounds connect: listed names with the last round's names, or in the backward pass with those that the
    #: first round takes.
    ends: tuple[tuple[str, str], ...]

    @property
    def direction(self) -> str:
        """The direction of its lines."""
        return self.items[0].direction


def fold(items: Sequence[Item], types: Types) -> Iterator[Item | Repeat]:
    """The items of one level, with repeats folded; ``types`` are those of outer names."""
    return _Folding(items, types).run()


def fold_values(lines: Sequence[Line]) -> Iterator[Item | Repeat]:
    """Folds inputs, such as arguments, whose names differ only in numbers."""
    return _Folding(lines, {}, named=True).run()


def merged(ledger: Ledger) -> Ledger:
    """The ledger with equal entries merged; the totals are the same."""
    runs: dict[Entry, int] = {}
    for entry in ledger:
        key = entry if entry.times is None else entry._replace(times=1)
        runs[key] = runs.get(key, 0) + entry.runs
    return Ledger([e if e.times is None else e._replace(times=n) for e, n in runs.items()], ledger.not_covered)


class _Folding:
    """Folds one level."""

    def __init__(self, items: Sequence[Item], types: Types, *, named: bool = False) -> None:
        self.items, self.types = items, dict(types)
        #: An id of each item, up to names.
        self.keys: list[int] = []
        #: The names that each item uses, and the distance to the items that define them; None outside of the level.
        self.used: list[tuple[str, ...]] = []
        self.distances: list[tuple[int | None, ...]] = []
        numbers: dict[Hashable, int] = {}
        defined_at: dict[str, int] = {}
        for i, item in enumerate(items):
            key = _key(item, self.types)
            if named and isinstance(item, Line):
                key = (_NUMBER.sub("", item.name), _NUMBER.sub("", item.op), type_text(item.type))
            self.keys.append(numbers.setdefault(key, len(numbers)))
            self.used.append(() if named else _used_names(item))
            self.distances.append(tuple(i - defined_at[name] if name in defined_at else None for name in self.used[-1]))
            for line in _defined(item):
                defined_at[line.name], self.types[line.name] = i, type_text(line.type)

    def run(self) -> Iterator[Item | Repeat]:
        places_of_key: dict[int, list[int]] = {}
        for i, key in enumerate(self.keys):
            places_of_key.setdefault(key, []).append(i)
        at = 0
        while at < len(self.items):
            length, times = self.best(at, [i for i in places_of_key[self.keys[at]] if i > at][:_MAX_STARTS])
            yield self.items[at] if times == 1 else self.repeat(at, length, times)
            at += length * times

    def best(self, at: int, starts: Sequence[int]) -> tuple[int, int]:
        """The length and number of rounds from here that leave out most lines; one item if too few."""
        period, most = (1, 1), _MIN_LINES - 1
        for length in (i - at for i in starts):
            times = self.rounds(at, length)
            left_out = (times - 1) * sum(1 for _ in lines_of(self.items[at : at + length]))
            if left_out > most:
                period, most = (length, times), left_out
        return period

    def rounds(self, at: int, length: int) -> int:
        times = 1
        while self.equal_rounds(at, at + length * times, length):
            times += 1
        return times

    def equal_rounds(self, a: int, b: int, length: int) -> bool:
        same = b + length <= len(self.items) and self.keys[a : a + length] == self.keys[b : b + length]
        return same and all(self.wiring(a + i, i) == self.wiring(b + i, i) for i in range(length))

    def wiring(self, index: int, offset: int) -> list[Hashable]:
        """For each operand of an item the position in its round that defines it, or its type, or the number."""
        pairs = zip(self.used[index], self.distances[index], strict=True)
        return [i if i is not None and i <= offset else (self.types.get(name, name),) for name, i in pairs]

    def repeat(self, at: int, length: int, times: int) -> Repeat:
        end = at + length * times
        first, last = range(at, at + length), range(end - length, end)
        sent = [entry for line in lines_of(self.items[at:end]) for entry in line.collectives]
        forward = self.items[at].direction == "forward"
        ends = self.outputs(first, last) if forward else self.carried(first, last, at)
        pairs = ((self.items[i], self.items[j]) for i, j in zip(first, last, strict=True))
        listed = tuple(_with_positions(a if forward else b, a, b) for a, b in pairs)
        return Repeat(listed, times, Ledger(sent), tuple(dict.fromkeys(ends)))

    def outputs(self, first: range, last: range) -> Iterator[tuple[str, str]]:
        """The values of the first round, with those of the last round that later lines use."""
        later = {name for taken in self.used[last.stop :] for name in taken}
        for i, j in zip(first, last, strict=True):
            for first_line, line in zip(_defined(self.items[i]), _defined(self.items[j]), strict=True):
                if line.name in later:
                    yield first_line.name, line.name

    def carried(self, first: range, last: range, start: int) -> Iterator[tuple[str, str]]:
        """The values that the last round takes from the one before, with those that the first round takes."""
        for i, j in zip(first, last, strict=True):
            for outer, name, back in zip(self.used[i], self.used[j], self.distances[j], strict=True):
                if back is not None and start <= j - back < last.start and outer != name:
                    yield name, outer


# keys of items, up to names


def _key(item: Item, types: Types) -> Hashable:
    cause = item.cause
    common = (item.direction, item.place, None if cause is None else (cause.place, _op(cause), type_text(cause.type)))
    if isinstance(item, Block):
        inner = _Folding(item.items, dict(types) | {line.name: type_text(line.type) for line in item.parameters})
        wiring = tuple(tuple(inner.wiring(i, i)) for i in range(len(item.items)))
        keys = tuple(_key(i, inner.types) for i in (*item.parameters, *item.items, *item.results))
        return (item.title, common, keys, wiring)
    sent = tuple((str(e), e.bytes, e.times, e.dtype, str(e.src), str(e.dst), e.inserted) for e in item.collectives)
    return (_op(item), type_text(item.type), len(item.operands), common, item.times, item.cast, sent, item.not_covered)


def _op(line: Line) -> str:
    return _NUMBER.sub("", line.op) if _AT_POSITIONS.match(line.op) else line.op


def _with_positions(item: Item, first: Item, last: Item) -> Item:
    """The listed item of all rounds, with the range of its indices into weights."""
    if not isinstance(item, Line) or not isinstance(first, Line) or not isinstance(last, Line) or first.op == last.op:
        return item
    ends = zip(_NUMBER.findall(first.op), _NUMBER.findall(last.op), strict=True)
    numbers = iter([a if a == b else f"{a}…{b}" for a, b in ends])
    return replace(item, op=_NUMBER.sub(lambda _: next(numbers), item.op))


def _defined(item: Item) -> tuple[Line, ...]:
    """The values that an item defines for later ones."""
    return (item,) if isinstance(item, Line) else item.results


def _used_names(item: Item) -> tuple[str, ...]:
    """The names that an item uses from outside of it, in order."""
    if isinstance(item, Line):
        return item.operands
    inner = {line.name for line in (*item.parameters, *lines_of(item.items))}
    taken = [name for line in (*lines_of(item.items), *item.results) for name in line.operands]
    return tuple(name for name in taken if name not in inner)
