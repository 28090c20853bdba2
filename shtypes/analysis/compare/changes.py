"""What differs between one program's types and collectives under "jax" and under "partial"."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import jax

from shtypes.analysis.check import Signature
from shtypes.core.operation import applied_by
from shtypes.primitives.reshard import Reshard
from shtypes.traced.entry import Entry
from shtypes.traced.equations import SourceLine, equations
from shtypes.traced.ledger import Ledger
from shtypes.types import ShType
from shtypes.types.notation.printing import show

POLICIES: Final = ("jax", "partial")


class Use(NamedTuple):
    """What one line sends by one kind of collective.

    Attributes:
        place: The user's line.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        kind: The kind of collective.
        axes: The mesh axes.
        bytes: Bytes that each device sends in all.
        launches: How many collectives run.
        known: Whether these are certain: no while loop of unknown length is around them.
        dtype: What is sent, where that is another dtype than the value's.
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
        """What tells it from others of one program."""
        return self.place, self.direction, self.kind, self.axes, self.dtype


class Change(NamedTuple):
    """How the communication of one line differs, from "jax" to "partial".

    Attributes:
        what: ``"same"``, ``"changes"`` (in number or in bytes), ``"moves"`` (to another line, direction or number of
            times), ``"vanishes"`` or ``"appears"``.
        jax: What is sent under "jax", if anything.
        partial: What is sent under "partial", if anything.
    """

    what: str
    jax: Use | None
    partial: Use | None


class TypeChange(NamedTuple):
    """A value whose type differs, beyond what each policy calls replicated.

    Attributes:
        place: The user's line; empty for arguments, results and gradients.
        direction: The direction of the equation, or ``"argument"``, ``"result"``, ``"gradient"``.
        what: The op, or the name of the argument.
        jax: The type under "jax", as that prints it.
        partial: The type under "partial", as that prints it.
        values: How many values of the line differ so.
    """

    place: SourceLine
    direction: str
    what: str
    jax: str
    partial: str
    values: int = 1


# types


def type_changes(one: Signature | None, other: Signature | None) -> Iterator[TypeChange]:
    """The values whose types differ between two programs of one text; none where one of them does not type."""
    if one is None or other is None:
        return
    for kind, trees in (("argument", "arguments"), ("result", "results"), ("gradient", "gradients")):
        first, second = (dict(_named(kind, getattr(side, trees))) for side in (one, other))
        for name, t in first.items():
            if name in second and (shown := _differ(t, second[name])):
                yield TypeChange(SourceLine(), kind, name, *shown)
    lines = _typed_lines(other)
    counted: Counter[TypeChange] = Counter()
    for key, types in _typed_lines(one).items():
        for t, there in zip(types, lines.get(key, ()), strict=False):
            if shown := _differ(t, there):
                counted[TypeChange(*key, *shown)] += 1
    yield from (change._replace(values=n) for change, n in counted.items())


@functools.lru_cache(maxsize=4096)
def _differ(one: ShType, other: ShType) -> tuple[str, str] | None:
    """What "jax" and "partial" print, where types differ beyond what each policy calls replicated."""
    texts = show(one, POLICIES[0]), show(other, POLICIES[1])
    return None if one == other or texts[0] == texts[1] else texts


def _named(kind: str, trees: Any) -> Iterator[tuple[str, ShType]]:
    for name, part in {"": trees}.items() if kind == "result" else (trees or {}).items():
        for keys, leaf in jax.tree_util.tree_flatten_with_path(part)[0]:
            if isinstance(leaf, ShType):
                yield name + jax.tree_util.keystr(keys), leaf


def _typed_lines(signature: Signature) -> dict[tuple[SourceLine, str, str], list[ShType]]:
    """The types that each op of each line makes, in order.

    What a policy's casts make is left out, and what no line makes: the cotangents that the backward pass is given.
    """
    found: dict[tuple[SourceLine, str, str], list[ShType]] = {}
    for item in equations(signature.program):
        if not item.place.file or (isinstance(applied_by(item.eqn), Reshard) and applied_by(item.eqn).inserted):
            continue
        op = str(applied_by(item.eqn)).split("[")[0]
        types = [var.aval for var in item.eqn.outvars if isinstance(var.aval, ShType)]
        found.setdefault((item.place, item.direction, op), []).extend(types)
    return found


# collectives


def uses_of(ledger: Ledger) -> dict[Any, Use]:
    """What each line sends, by direction, kind and axes."""
    parts: dict[Any, list[Entry]] = {}
    for entry in ledger:
        if entry.launches:
            dtype = entry.dtype if entry.narrow else ""
            parts.setdefault((entry.place, entry.direction, entry.kind, entry.axes, dtype), []).append(entry)
    return {key: _use(part, key[-1]) for key, part in parts.items()}


def _use(entries: list[Entry], dtype: str) -> Use:
    first, total = entries[0], Ledger(entries).total
    known = all(e.times is not None for e in entries)
    return Use(first.place, first.direction, first.kind, first.axes, total.bytes, total.launches, known, dtype)


def changes_of(one: Mapping[Any, Use], other: Mapping[Any, Use]) -> Iterator[Change]:
    """How what lines send differs. What is sent elsewhere, of the same kind over the same axes, has moved there."""
    arriving: dict[Any, deque[Use]] = {}
    for key, use in other.items():
        if key not in one:
            arriving.setdefault((use.kind, use.axes), deque()).append(use)
    for key, use in one.items():
        there = other.get(key)
        if there is not None:
            yield Change("same" if there == use else "changes", use, there)
            continue
        elsewhere = arriving.get((use.kind, use.axes))
        yield Change("moves", use, elsewhere.popleft()) if elsewhere else Change("vanishes", use, None)
    left = {use.key for queue in arriving.values() for use in queue}
    yield from (Change("appears", None, use) for use in other.values() if use.key in left)
