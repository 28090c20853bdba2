"""The data of a listing: lines, and blocks for loops and conditionals; and its JSON."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from shtypes._compat.jaxprs import Cond, Scan, While
from shtypes.analysis.device_steps import bytes_of
from shtypes.analysis.explain.source import lines_of_file, spans
from shtypes.analysis.explain.values import BodyRun, Occurrence, Value, saved_only
from shtypes.context.settings import DimAxes
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.errors import how_many
from shtypes.traced.coverage import control_of, why_not_covered
from shtypes.traced.entry import Entry, entries_of, entry_json
from shtypes.traced.equations import Equation, SourceLine
from shtypes.traced.ledger import Ledger
from shtypes.traced.merging import merge
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import current_dim_axes
from shtypes.types.policy import current_policy

_NOWHERE = SourceLine()


@dataclass(frozen=True)
class Line:
    """One value of a listing.

    Attributes:
        name: Its name: the variable it is assigned to, ``g_x`` for the cotangent of ``x``, or operation and operand.
        type: Its type; for a plain array, JAX's.
        op: The operation that computes it, as printed in jaxprs; empty for inputs.
        operands: The names of its operands.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"``.
        place: The user's line that computes it, or for a backward line the one that causes it.
        cause: For a backward line, the forward line that causes it, or None.
        times: The number of runs; None inside a while loop.
        cast: Whether a typing rule inserted it.
        collectives: Its entries in the ledger.
        not_covered: Why its communication is unknown, or empty.
        span: The last line of the user's expression.
        merged: Whether it is a reshard that was merged into others.
    """

    name: str
    type: Any
    op: str = ""
    operands: tuple[str, ...] = ()
    direction: str = "forward"
    place: SourceLine = _NOWHERE
    cause: Line | None = field(default=None, repr=False)
    times: int | None = 1
    cast: bool = False
    collectives: tuple[Entry, ...] = ()
    not_covered: str = ""
    span: int = 0
    merged: bool = False

    def __str__(self) -> str:
        definition = f" = {' '.join((self.op, *self.operands))}" if self.op else ""
        return f"{self.name}: {type_text(self.type)}{definition}"


@dataclass(frozen=True)
class Block:
    """A loop, a conditional, or one of its bodies.

    Attributes:
        title: ``"scan, 12 steps"``, ``"branch 0 of 2"``.
        results: Its results; empty for a body.
        parameters: Those of the body: a carry, a slice; without captured values.
        items: The lines and blocks inside.
    """

    title: str
    results: tuple[Line, ...]
    parameters: tuple[Line, ...]
    items: tuple[Item, ...]
    direction: str
    place: SourceLine
    cause: Line | None = field(default=None, repr=False)


Item = Line | Block


def type_text(t: Any) -> str:
    """The printed type, ours or JAX's, under the current policy."""
    if not isinstance(t, ShType):
        return str(t.str_short(short_dtypes=True))
    return _cached_text(t.exact, t, current_policy(), current_dim_axes())


@functools.lru_cache(maxsize=4096)
def _cached_text(exact: Any, t: Any, policy: str, dim_axes: DimAxes) -> str:
    return str(t)


def lines_of(items: Iterable[Item]) -> Iterator[Line]:
    """All lines, including those inside blocks, in program order."""
    for item in items:
        if isinstance(item, Line):
            yield item
        else:
            yield from item.parameters
            yield from lines_of(item.items)
            yield from item.results


class Saved(NamedTuple):
    """A residual of the backward pass.

    Attributes:
        name: Its name; ``saved_x`` for what a loop saves at each step.
        argument: Whether it is an argument of the program, which needs no extra memory.
    """

    name: str
    type: Any
    bytes: int
    argument: bool
    place: SourceLine


@dataclass(frozen=True)
class Listing:
    """The fields of an `Explanation`, which documents them."""

    function: str
    policy: str
    mesh: Mesh | None
    gradient: bool
    arguments: tuple[Line, ...]
    results: tuple[Line, ...]
    seeds: tuple[Line, ...]
    gradients: tuple[Line, ...]
    items: tuple[Item, ...]
    ledger: Ledger
    saved: tuple[Saved, ...]
    fold: bool = True
    undecided: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines in program order, including those inside loops and branches."""
        return tuple(lines_of(self.items))

    @property
    def forward(self) -> tuple[Item, ...]:
        """The lines and blocks of the forward pass."""
        return tuple(item for item in self.items if item.direction == "forward")

    @property
    def backward(self) -> tuple[Item, ...]:
        """The lines and blocks of the backward pass, including what a checkpoint recomputes."""
        return tuple(item for item in self.items if item.direction != "forward")

    @property
    def saved_bytes(self) -> int:
        """Bytes of residuals on each device, without arguments."""
        return sum(value.bytes for value in self.saved if not value.argument)


#: The version of the format of `Explanation.to_json`.
SCHEMA: Final = 1
_PARTS: Final = ("arguments", "results", "seeds", "gradients")


def document(listing: Listing) -> dict[str, Any]:
    """The JSON document of a listing, by `docs/explain.schema.json`."""
    return {
        "schema": SCHEMA,
        "function": listing.function,
        "policy": listing.policy,
        "mesh": None if listing.mesh is None else [{"axis": a, "size": n} for a, n in listing.mesh.shape.items()],
        "gradient": listing.gradient,
        **{part: [_name_and_type(line.name, line.type) for line in getattr(listing, part)] for part in _PARTS},
        "items": [_item(item) for item in listing.items],
        "ledger": listing.ledger.to_dict(),
        "saved": {
            "bytes": listing.saved_bytes,
            "values": [
                {**_name_and_type(v.name, v.type), "bytes": v.bytes, "argument": v.argument, **v.place.to_json()}
                for v in listing.saved
            ],
        },
        "source": [
            {"file": s.file, "function": s.name, "start": s.start, "lines": lines_of_file(s.file, s.start, s.end)}
            for s in spans(line.place for line in listing.lines)
        ],
    }


def _name_and_type(name: str, t: Any) -> dict[str, Any]:
    return {"name": name, "type": type_text(t), "canonical": t.canonical() if isinstance(t, ShType) else None}


def _item(item: Item) -> dict[str, Any]:
    cause = item.cause
    common = {
        "direction": item.direction,
        **item.place.to_json(),
        "cause": None if cause is None else {"name": cause.name, **cause.place.to_json()},
    }
    return _block(item, common) if isinstance(item, Block) else _line(item, common)


def _line(line: Line, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "item": "line",
        **_name_and_type(line.name, line.type),
        "op": line.op,
        "operands": list(line.operands),
        **common,
        "end_line": line.span,
        "times": line.times,
        "cast": line.cast,
        **({"merged": True} if line.merged else {}),
        "collectives": [entry_json(entry) for entry in line.collectives],
        "not_covered": line.not_covered or None,
    }


def _block(block: Block, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "item": "block",
        "title": block.title,
        **common,
        "given": [_item(line) for line in block.parameters],
        "items": [_item(item) for item in block.items],
        "results": [_item(line) for line in block.results],
    }


class Lister:
    """Builds the lines of a program, with the forward line that causes each backward one."""

    def __init__(self) -> None:
        self._first: dict[int, Line] = {}  # by forward record
        self._padding: set[int] = set()  # ids of values

    def items(self, scope: BodyRun) -> tuple[Item, ...]:
        """The lines and blocks of a body, in program order; cotangents of one line in the order of its operands."""
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
        entries = tuple(entries_of(record.equation))
        why = why_not_covered(record.equation.eqn)
        if self._is_padding(record) and not entries:
            return []
        applied = applied_by(record.equation.eqn)
        cast = isinstance(applied, Reshard) and record.op.startswith("cast[")
        first = self._line(record, record.outs[0], entries, why, cast=cast) if record.outs else None
        if first is None:
            return []
        self._first[id(record)] = first
        return [first, *(self._line(record, v, (), why, cast=cast) for v in record.outs[1:])]

    def _is_padding(self, record: Occurrence) -> bool:
        """Whether an equation is JAX's padding: zeros for residuals of another branch."""
        made_of = [id(v) in self._padding for v in record.values]
        if record.op == "empty2" or (made_of and all(made_of) and record.equation.direction == "forward"):
            self._padding.update(id(v) for v in record.outs)
            return True
        return not record.frames and record.equation.direction == "forward" and not why_not_covered(record.equation.eqn)

    def _line(
        self, record: Occurrence, value: Value, entries: tuple[Entry, ...] = (), why: str = "", *, cast: bool = False
    ) -> Line:
        equation = record.equation
        return Line(
            name=value.name,
            type=value.type,
            op=record.op,
            operands=tuple(v if isinstance(v, str) else v.name for v in record.operands),
            direction=equation.direction,
            place=equation.place,
            cause=self._cause(record),
            times=equation.times,
            cast=cast,
            collectives=entries,
            not_covered=why,
            span=record.frames[0].end_line if record.frames else 0,
            merged=getattr(applied_by(equation.eqn), "absorbed", False),
        )

    def _cause(self, record: Occurrence) -> Line | None:
        return None if record.link is None or record.sums else self._first.get(id(record.link))

    def _block(self, record: Occurrence) -> Block:
        what, name = control_of(record.equation.eqn), applied_by(record.equation.eqn).name
        title = {While: "while loop", Cond: "conditional"}.get(type(what), name)
        if isinstance(what, Scan):
            reverse = ", in reverse" if what.reverse else ""
            title = f"scan, {how_many(what.length, 'step')}{reverse}"
            name = f"scan[{what.length}]"
        visible = [v for v in record.outs if (v.uses or v.returned) and not saved_only(v)]
        results = tuple(replace(self._line(record, v), op=name) for v in visible)
        place, direction = record.equation.place, record.equation.direction
        bodies = [
            Block(b.label, (), _body_inputs(record, b), self.items(b), direction, place, None) for b in record.bodies
        ]
        if results:
            self._first[id(record)] = results[0]
        cause = self._cause(record)
        if len(bodies) == 1:
            return Block(title, results, bodies[0].parameters, bodies[0].items, direction, place, cause)
        return Block(title, results, (), tuple(bodies), direction, place, cause)


def _in_order(group: list[Occurrence]) -> list[Occurrence]:
    """The backward equations of one line: by operand, sums last; unchanged if one uses another's result."""
    results = {id(v) for r in group for v in r.outs}
    if any(id(v) in results for r in group if not r.sums for v in r.values):
        return group
    sums = [r for r in group if r.sums]
    cause = group[0].link
    places = {id(v): i for i, v in reversed(list(enumerate(cause.values)))} if cause is not None else {}
    return [
        *sorted((r for r in group if not r.sums), key=lambda r: places.get(id(r.outs[0].primal), len(places))),
        *sums,
    ]


def _body_inputs(record: Occurrence, body: BodyRun) -> tuple[Line, ...]:
    """The inputs of a body that are not operands of its equation."""
    outer = set(map(id, record.values))
    equation = record.equation
    return tuple(
        Line(v.name, v.type, direction=equation.direction, place=equation.place, times=equation.times)
        for v in body.inputs
        if id(v) not in outer and v.uses and not (equation.direction != "forward" and not v.gradient)
    )


def use_merged_equations(scope: BodyRun, program: Any) -> None:
    """Replaces equations by those that run after `jit` merges reshards."""
    merged = merge(program)
    if merged is not None and merged.runs:
        _replace_eqns(scope, merged.runs)


def _replace_eqns(scope: BodyRun, runs: dict[int, Any]) -> None:
    for record in scope.records:
        eqn = record.equation.eqn
        record.equation = record.equation._replace(eqn=runs.get(id(eqn), eqn))
        for body in record.bodies:
            _replace_eqns(body, runs)


def equations_in(scope: BodyRun) -> Iterator[Equation]:
    """The equations of a body and of the bodies inside it, in program order."""
    for record in scope.records:
        yield record.equation
        for body in record.bodies:
            yield from equations_in(body)


def saved_by(scope: BodyRun) -> tuple[Saved, ...]:
    """The residuals of a program: forward values that its backward equations use, in program order.

    For loops that take gradients themselves, such as over microbatches, those of one step of the largest. Without what
    a checkpoint recomputes; fusion is ignored.
    """
    inside = [saved_by(body) for r in scope.records if r.equation.direction == "forward" for body in r.bodies]
    return (*_saved(scope), *max(inside, key=lambda saved: sum(v.bytes for v in saved if not v.argument), default=()))


def _saved(scope: BodyRun) -> Iterator[Saved]:
    arguments: list[tuple[Value, Occurrence | None]] = [(v, None) for v in scope.inputs]
    computed = [(v, r) for r in scope.records if r.equation.direction == "forward" for v in r.outs]
    for value, record in [*arguments, *computed]:
        later = any(
            use.equation.direction != "forward" and scope.records[use.position : use.position + 1] == [use]
            for use in value.uses
        )
        if not value.gradient and (later if value.saved is None else value.saved):
            place = record.equation.place if record is not None else SourceLine()
            yield Saved(value.name, value.type, bytes_of(value.type), record is None, place)
