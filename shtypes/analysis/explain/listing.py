"""The lines of a listing, and the blocks that loops and conditionals make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shtypes._compat.jaxprs import Cond, Scan, While
from shtypes.analysis.device_steps import bytes_of
from shtypes.analysis.explain.cotangents import saved_only
from shtypes.analysis.explain.document import Block, Item, Line, Saved
from shtypes.analysis.explain.values import BodyRun, Occurrence, Value
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.errors import how_many
from shtypes.traced.entry import Entry, entries_of
from shtypes.traced.equations import Equation, SourceLine, control_of, outside
from shtypes.traced.merging import merge


class Lister:
    """Makes the lines of a program; remembers those of the forward pass, which cause the others."""

    def __init__(self) -> None:
        self._first: dict[int, Line] = {}  # by record
        self._filling: set[int] = set()  # values

    def items(self, scope: BodyRun) -> tuple[Item, ...]:
        """The lines and blocks of a body, in program order; the cotangents of one line in the order of its operands."""
        items: list[Item] = []
        group: list[Occurrence] = []
        for record in [*scope.records, None]:
            if group and (record is None or record.link is not group[0].link):
                for member in _in_order(group):
                    items += self._items(member)
                group = []
            if record is not None and record.backward and record.link is not None:
                group.append(record)
            elif record is not None:
                items += self._items(record)
        return tuple(items)

    def _items(self, record: Occurrence) -> list[Item]:
        if record.bodies:
            return [self._block(record)]
        entries = tuple(entries_of(record.found))
        why = outside(record.found.eqn)
        if self._fills(record) and not entries:
            return []
        applied = applied_by(record.found.eqn)
        cast = isinstance(applied, Reshard) and record.op.startswith("cast[")
        first = self._line(record, record.outs[0], entries, why, cast=cast) if record.outs else None
        if first is None:
            return []
        self._first[id(record)] = first
        return [first, *(self._line(record, v, (), why, cast=cast) for v in record.outs[1:])]

    def _fills(self, record: Occurrence) -> bool:
        """Whether an equation is JAX's own and stands for nothing: zeros for what only another branch saves."""
        made_of = [id(v) in self._filling for v in record.values]
        if record.op == "empty2" or (made_of and all(made_of) and record.found.direction == "forward"):
            self._filling.update(id(v) for v in record.outs)
            return True
        return not record.frames and record.found.direction == "forward" and not outside(record.found.eqn)

    def _line(
        self, record: Occurrence, value: Value, entries: tuple[Entry, ...] = (), why: str = "", *, cast: bool = False
    ) -> Line:
        found = record.found
        return Line(
            name=value.name,
            type=value.type,
            op=record.op,
            operands=tuple(v if isinstance(v, str) else v.name for v in record.operands),
            direction=found.direction,
            place=found.place,
            cause=self._cause(record),
            times=found.times,
            cast=cast,
            collectives=entries,
            not_covered=why,
            span=record.frames[0].end_line if record.frames else 0,
            merged=getattr(applied_by(found.eqn), "absorbed", False),
        )

    def _cause(self, record: Occurrence) -> Line | None:
        return None if record.link is None or record.sums else self._first.get(id(record.link))

    def _block(self, record: Occurrence) -> Block:
        what, name = control_of(record.found.eqn), applied_by(record.found.eqn).name
        title = {While: "while loop", Cond: "conditional"}.get(type(what), name)
        if isinstance(what, Scan):
            reverse = ", in reverse" if what.reverse else ""
            title = f"scan, {how_many(what.length, 'step')}{reverse}"
            name = f"scan[{what.length}]"
        shown = [v for v in record.outs if (v.uses or v.returned) and not saved_only(v)]
        results = tuple(replace(self._line(record, v), op=name) for v in shown)
        place, direction = record.found.place, record.found.direction
        bodies = [Block(b.label, (), _given(record, b), self.items(b), direction, place, None) for b in record.bodies]
        if results:
            self._first[id(record)] = results[0]
        cause = self._cause(record)
        if len(bodies) == 1:
            return Block(title, results, bodies[0].given, bodies[0].items, direction, place, cause)
        return Block(title, results, (), tuple(bodies), direction, place, cause)


def _in_order(group: list[Occurrence]) -> list[Occurrence]:
    """The backward equations of one line: by operand, the sums last; as they are where one takes another's result."""
    made = {id(v) for r in group for v in r.outs}
    if any(id(v) in made for r in group if not r.sums for v in r.values):
        return group
    sums = [r for r in group if r.sums]
    cause = group[0].link
    places = {id(v): i for i, v in reversed(list(enumerate(cause.values)))} if cause is not None else {}
    return [*sorted((r for r in group if not r.sums), key=lambda r: places.get(id(r.outs[0].of), len(places))), *sums]


def _given(record: Occurrence, body: BodyRun) -> tuple[Line, ...]:
    """What a body is given and what is not there outside."""
    outer = set(map(id, record.values))
    found = record.found
    return tuple(
        Line(v.name, v.type, direction=found.direction, place=found.place, times=found.times)
        for v in body.given
        if id(v) not in outer and v.uses and not (found.direction != "forward" and not v.gradient)
    )


def say_what_runs(scope: BodyRun, program: Any) -> None:
    """Has equations whose reshards `jit` merges say what runs in their place."""
    found = merge(program)
    if found is not None and found.runs:
        _replace_eqns(scope, found.runs)


def _replace_eqns(scope: BodyRun, runs: dict[int, Any]) -> None:
    for record in scope.records:
        eqn = record.found.eqn
        record.found = record.found._replace(eqn=runs.get(id(eqn), eqn))
        for body in record.bodies:
            _replace_eqns(body, runs)


def equations_in(scope: BodyRun) -> Iterator[Equation]:
    """The equations of a body and of the bodies inside it, in program order."""
    for record in scope.records:
        yield record.found
        for body in record.bodies:
            yield from equations_in(body)


def saved_by(scope: BodyRun) -> tuple[Saved, ...]:
    """What the forward equations of a program leave for its backward equations, in program order.

    Of loops that take gradients themselves, such as one over microbatches, what a step of the largest one leaves. What
    a checkpoint computes again is not among them, and what the compiler saves by fusing is not known here.
    """
    inside = [saved_by(body) for r in scope.records if r.found.direction == "forward" for body in r.bodies]
    return (*_saved(scope), *max(inside, key=lambda saved: sum(v.bytes for v in saved if not v.argument), default=()))


def _saved(scope: BodyRun) -> Iterator[Saved]:
    own: list[tuple[Value, Occurrence | None]] = [(v, None) for v in scope.given]
    made = [(v, r) for r in scope.records if r.found.direction == "forward" for v in r.outs]
    for value, record in [*own, *made]:
        later = any(
            use.found.direction != "forward" and scope.records[use.position : use.position + 1] == [use]
            for use in value.uses
        )
        if not value.gradient and (later if value.kept is None else value.kept):
            place = record.found.place if record is not None else SourceLine()
            yield Saved(value.name, value.type, bytes_of(value.type), record is None, place)
