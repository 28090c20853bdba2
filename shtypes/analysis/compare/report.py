"""What `compare` finds: the lines of two programs side by side, as text, JSON and HTML."""

from __future__ import annotations

import functools
import html
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from shtypes.analysis.check import Signature
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel
from shtypes.traced.entry import Entry
from shtypes.traced.equations import SourceLine, equations
from shtypes.traced.ledger import Ledger, Total
from shtypes.types import ShType
from shtypes.types.notation.printing import show
from shtypes.types.tables import Report, Table, notebook, rich_group, rich_text

if TYPE_CHECKING:
    from rich.console import Group


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


#: The version of what `Comparison.to_json` writes.
SCHEMA: Final = 1


@dataclass(frozen=True)
class Side:
    """The program under one policy.

    Attributes:
        policy: The policy.
        signature: Its types; None where it does not type.
        error: Why it does not type.
    """

    policy: str
    signature: Signature | None = None
    error: ShardingTypeError | None = None

    @property
    def ledger(self) -> Ledger:
        """Its collectives; none where it does not type."""
        return Ledger() if self.signature is None else self.signature.ledger


class Comparison(Report):
    """One program under both policies; prints, and is JSON and a page of HTML.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        jax: The program under "jax".
        partial: The program under "partial".
        model: The cost model of the predicted times, if one was given.
        grad: Whether a backward pass was added.
        takes: Whether the function takes gradients itself.
    """

    def __init__(
        self, name: str, mesh: str, jax: Side, partial: Side, model: CostModel | None, *, grad: bool, takes: bool
    ) -> None:
        self.name, self.mesh, self.jax, self.partial, self.model = name, mesh, jax, partial, model
        self.grad, self.takes = grad, takes
        self.types = tuple(type_changes(jax.signature, partial.signature))
        self.collectives = tuple(changes_of(uses_of(jax.ledger), uses_of(partial.ledger)))

    @property
    def typed(self) -> bool:
        """Whether the program types under both policies."""
        return self.jax.error is None and self.partial.error is None

    def seconds(self) -> tuple[float, float] | None:
        """The predicted times of all collectives under "jax" and "partial", one after the other."""
        if self.model is None:
            return None
        return self.jax.ledger.time(self.model), self.partial.ledger.time(self.model)

    # output

    @property
    def title(self) -> str:
        """What it shows, in a line."""
        passes = (
            "forward and backward" if self.grad else "with the gradients that it takes" if self.takes else "forward"
        )
        return f'{self.name} on {self.mesh}, {passes}: policy "jax" against "partial"'

    def tables(self) -> list[Table]:
        """The parts of the report."""
        return [_type_table(self.types), _collective_table(self.collectives), self._totals()]

    def _totals(self) -> Table:
        sides = (self.jax.ledger, self.partial.ledger)
        rows = [_total_row("total", "", [ledger.total for ledger in sides])]
        for what, of in (("direction", Ledger.by_direction), ("kind", Ledger.by_kind), ("axes", Ledger.by_axes)):
            parts: list[Mapping[Any, Any]] = [of(ledger) for ledger in sides]
            for key in dict.fromkeys(k for part in parts for k in part):
                shown = key if isinstance(key, str) else ",".join(key)
                rows.append(_total_row(what, shown, [part.get(key) for part in parts]))
        seconds = self.seconds()
        if seconds is not None:
            rows.append(("predicted time", "", *(f"{s:.2e} s" for s in seconds), "", ""))
        notes = [f"{s.policy}: totals are lower bounds" for s in (self.jax, self.partial) if not s.ledger.known]
        headings = ("by", "", "jax B/device", "partial B/device", "jax launches", "partial launches")
        return Table("Totals", headings, tuple(rows), frozenset(headings[2:]), "; ".join(notes))

    def _errors(self) -> list[str]:
        return [f'Under "{s.policy}" it does not type: {s.error}' for s in (self.jax, self.partial) if s.error]

    def __str__(self) -> str:
        return "\n\n".join([self.title, *self._errors(), *map(str, self.tables())])

    def __repr__(self) -> str:
        jax_total, partial_total = self.jax.ledger.bytes, self.partial.ledger.bytes
        return f"<Comparison of {self.name}: jax {jax_total} B/device, partial {partial_total} B/device>"

    def __rich__(self) -> Group:
        errors = [rich_text(f"{line}\n", "red") for line in self._errors()]
        return rich_group(rich_text(f"{self.title}\n", "bold"), *errors, *self.tables())

    def _parts(self) -> list[Table | str]:
        return [*(f"<pre>{html.escape(line)}</pre>" for line in self._errors()), *self.tables()]

    def _repr_html_(self) -> str:
        return notebook(f"<h1>{html.escape(self.title)}</h1>", *self._parts())

    def to_json(self, indent: int | None = None) -> str:
        """The comparison as JSON, as described in the docs (communication)."""
        seconds = self.seconds() or (None, None)
        found = {
            "schema": SCHEMA,
            "function": self.name,
            "mesh": self.mesh,
            "grad": self.grad,
            **{
                side.policy: {
                    "error": None if side.error is None else str(side.error),
                    "signature": None if side.signature is None else side.signature.to_dict(),
                    "seconds": time,
                    "ledger": json.loads(side.ledger.to_json()),
                }
                for side, time in zip((self.jax, self.partial), seconds, strict=True)
            },
            "types": [{**c._asdict(), "place": c.place.to_json()} for c in self.types],
            "collectives": [
                {"what": c.what, "jax": _use_json(c.jax), "partial": _use_json(c.partial)} for c in self.collectives
            ],
        }
        return json.dumps(found, indent=indent)


# tables


def _type_table(changes: Iterable[TypeChange]) -> Table:
    rows = tuple(
        (
            str(c.place) or c.direction,
            c.direction if c.place.file else "",
            c.what if c.values == 1 else f"{c.what} ({c.values} times)",
            c.jax,
            c.partial,
            c.place.text,
        )
        for c in changes
    )
    note = "" if rows else "none, as each policy prints them"
    return Table("Types that differ", ("line", "direction", "value", "jax", "partial", "source"), rows, note=note)


def _collective_table(changes: Iterable[Change]) -> Table:
    changes = tuple(changes)
    rows = tuple(_change_row(c) for c in changes if c.what != "same")
    same = sum(c.what == "same" for c in changes)
    parts = ["none differ"] if not rows else []
    parts += [f"{same} {'is' if same == 1 else 'are'} the same"] if same else []
    headings = ("jax to partial", "collective", "jax", "partial", "source")
    return Table("Collectives that differ", headings, rows, note="; ".join(parts))


def _change_row(change: Change) -> tuple[str, ...]:
    (use, *_) = (use for use in (change.partial, change.jax) if use is not None)
    texts = (_sent(change.jax), _sent(change.partial))
    narrow = f" in {use.dtype}" if use.dtype else ""
    return change.what, f"{use.kind} over {', '.join(use.axes)}{narrow}", *texts, use.place.text


def _sent(use: Use | None) -> str:
    if use is None:
        return "-"
    times = "" if use.known and use.launches == 1 else f" in {use.launches}{'' if use.known else ' or more'}"
    return f"{str(use.place) or '(no line)'} {use.direction}: {use.bytes} B/device{times}"


def _total_row(what: str, key: str, totals: Iterable[Total | None]) -> tuple[str, ...]:
    known = [t or Total(0, 0) for t in totals]
    return what, key, *(str(t.bytes) for t in known), *(str(t.launches) for t in known)


def _use_json(use: Use | None) -> dict[str, Any] | None:
    return None if use is None else {**use._asdict(), "axes": list(use.axes), "place": use.place.to_json()}
