"""What differs between two programs, line by line: types and collectives."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from shtypes.analysis.check import Signature
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.traced.entry import Entry
from shtypes.traced.equations import SourceLine, equations
from shtypes.traced.ledger import Ledger
from shtypes.traced.program import leaves_by_path
from shtypes.types import ShType
from shtypes.types.notation.printing import show

POLICIES: Final = ("jax", "partial")


class Use(NamedTuple):
    """The communication of one line by one kind of collective.

    Attributes:
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        bytes: Total bytes that each device sends.
        launches: The number of collectives that run.
        known: Whether these are exact: not in a while loop.
        dtype: The dtype sent, if it is not the value's.
    """

    place: SourceLine
    direction: str
    kind: str
    axes: tuple[str, ...]
    bytes: int
    launches: int
    known: bool
    dtype: str = ""

    @property
    def key(self) -> tuple[SourceLine, str, str, tuple[str, ...], str]:
        """A key that is unique among the uses of one program."""
        return self.place, self.direction, self.kind, self.axes, self.dtype


class Change(NamedTuple):
    """The difference in the communication of one line, from "jax" to "partial".

    Attributes:
        what: ``"same"``, ``"changes"`` (in number or bytes), ``"moves"`` (to another line, direction or number of
            times), ``"vanishes"`` or ``"appears"``.
        jax: The communication under "jax", if any.
        partial: The communication under "partial", if any.
    """

    what: str
    jax: Use | None
    partial: Use | None


class TypeChange(NamedTuple):
    """A value whose type differs, apart from the policies' replicated states.

    Attributes:
        place: The user's line; empty for arguments, results and gradients.
        direction: The direction of the equation, or ``"argument"``, ``"result"``, ``"gradient"``.
        what: The op, or the name of the argument.
        jax: The type as printed under "jax".
        partial: The type as printed under "partial".
        values: The number of values of the line with this difference.
    """

    place: SourceLine
    direction: str
    what: str
    jax: str
    partial: str
    values: int = 1


# types


def type_changes(one: Signature | None, other: Signature | None) -> Iterator[TypeChange]:
    """The values whose types differ between two programs of one function; none if one of them does not type."""
    if one is None or other is None:
        return
    for kind, trees in (("argument", "arguments"), ("result", "results"), ("gradient", "gradients")):
        first, second = (dict(_named(kind, getattr(side, trees))) for side in (one, other))
        for name, t in first.items():
            if name in second and (texts := _differ(t, second[name])):
                yield TypeChange(SourceLine(), kind, name, *texts)
    lines = _typed_lines(other)
    counted: Counter[TypeChange] = Counter()
    for key, types in _typed_lines(one).items():
        for t, other_type in zip(types, lines.get(key, ()), strict=False):
            if texts := _differ(t, other_type):
                counted[TypeChange(*key, *texts)] += 1
    yield from (change._replace(values=n) for change, n in counted.items())


@functools.lru_cache(maxsize=4096)
def _differ(one: ShType, other: ShType) -> tuple[str, str] | None:
    """The types as printed under "jax" and "partial", if they differ apart from the replicated states."""
    texts = show(one, POLICIES[0]), show(other, POLICIES[1])
    return None if one == other or texts[0] == texts[1] else texts


def _named(kind: str, trees: Any) -> Iterator[tuple[str, ShType]]:
    for name, part in {"": trees}.items() if kind == "result" else (trees or {}).items():
        yield from ((name + path, leaf) for path, leaf in leaves_by_path(part) if isinstance(leaf, ShType))


def _typed_lines(signature: Signature) -> dict[tuple[SourceLine, str, str], list[ShType]]:
    """The result types of each op on each line, in order.

    Without results of a policy's casts, and values without a line: the first cotangents of the backward pass.
    """
    types_by_line: dict[tuple[SourceLine, str, str], list[ShType]] = {}
    for item in equations(signature.program):
        if not item.place.file or (isinstance(applied_by(item.eqn), Reshard) and applied_by(item.eqn).inserted):
            continue
        op = str(applied_by(item.eqn)).split("[")[0]
        types = [var.aval for var in item.eqn.outvars if isinstance(var.aval, ShType)]
        types_by_line.setdefault((item.place, item.direction, op), []).extend(types)
    return types_by_line


# collectives


def uses_of(ledger: Ledger) -> dict[Any, Use]:
    """The communication of each line, by direction, kind and axes."""
    parts: dict[Any, list[Entry]] = {}
    for entry in ledger:
        if entry.launches:
            dtype = entry.dtype if entry.narrow else ""
            parts.setdefault((entry.place, entry.direction, entry.kind, entry.axes, dtype), []).append(entry)
    return {key: _use(part, key[-1]) for key, part in parts.items()}


def _use(entries: list[Entry], dtype: str) -> Use:
    first, total = entries[0], Ledger(entries).total
    exact = all(e.times is not None for e in entries)
    return Use(first.place, first.direction, first.kind, first.axes, total.bytes, total.launches, exact, dtype)


def changes_of(one: Mapping[Any, Use], other: Mapping[Any, Use]) -> Iterator[Change]:
    """The differences in communication. An equal collective on another line has moved there."""
    arriving: dict[Any, deque[Use]] = {}
    for key, use in other.items():
        if key not in one:
            arriving.setdefault((use.kind, use.axes), deque()).append(use)
    for key, use in one.items():
        other_use = other.get(key)
        if other_use is not None:
            yield Change("same" if other_use == use else "changes", use, other_use)
            continue
        elsewhere = arriving.get((use.kind, use.axes))
        yield Change("moves", use, elsewhere.popleft()) if elsewhere else Change("vanishes", use, None)
    left = {use.key for queue in arriving.values() for use in queue}
    yield from (Change("appears", None, use) for use in other.values() if use.key in left)
