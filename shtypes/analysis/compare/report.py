"""A comparison as text, for `rich`, as JSON and as HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shtypes.analysis.check import Signature
from shtypes.analysis.compare.changes import Change, TypeChange, Use, changes_of, type_changes, uses_of
from shtypes.errors import ShardingTypeError
from shtypes.plans.costs import CostModel
from shtypes.traced.columns import rich_group, rich_text
from shtypes.traced.ledger import Ledger, Total
from shtypes.traced.tables import Table, page

if TYPE_CHECKING:
    from rich.console import Group

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


class Comparison:
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

    def to_html(self) -> str:
        """A page of its own, with no other files."""
        errors = [f"<pre>{html.escape(line)}</pre>" for line in self._errors()]
        return page(self.title, [*errors, *(table.to_html() for table in self.tables())])

    _repr_html_ = to_html

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
