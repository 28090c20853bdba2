"""The repeated layers of a program by a plan, which are traced and typed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from shtypes.core import repeated
from shtypes.core.repeated import Layer, numbered
from shtypes.solver.items import Branches, Checkpoint, Item, Loop, Op, Operand, Value, walk
from shtypes.solver.program import Program
from shtypes.types import ShType

#: A value of an evaluation, by its id; or its shared copy; or what one of these is resharded to.
Key = int | tuple[str, int] | tuple["Key", ShType]


def layers(program: Program, casts: Mapping[str, Any], ways: Mapping[int, int | None]) -> dict[int, Layer]:
    """The repeated layers of a program with these casts, by the index of the first item of each."""
    by_plan = _ByPlan(program, casts, ways)
    items = program.items
    results = [key for i, v in enumerate(program.outputs) for key in by_plan.read(v, f"result.{i}")]
    found = repeated.layers(
        [by_plan.code(item) for item in items],
        [[*by_plan.reads(item)] for item in items],
        [[*by_plan.writes(item)] for item in items],
        results,
    )
    return {layer.steps.start: layer for layer in found}


class _ByPlan:
    """The items of a program with the casts of a plan."""

    def __init__(self, program: Program, casts: Mapping[str, Any], ways: Mapping[int, int | None]) -> None:
        self._program, self._casts, self._ways = program, casts, ways
        inputs = {v.id for v in program.inputs}
        uses = ((x, f"{op.id}.{i}") for op in program.items if isinstance(op, Op) for i, x in enumerate(op.operands))
        moved = (self._moved_to(x, place) for x, place in uses if isinstance(x, Value) and x.id in inputs)
        #: What arguments are resharded to, with the number of uses.
        self._moved = Counter(filter(None, moved))

    def _value(self, x: Value, place: str) -> Key:
        """The value of an operand, or its shared copy; a free copy is the value."""
        cast = self._casts.get(place)
        copied = cast is not None and cast.from_copy and f"second.{x.id}" in self._casts
        return ("copy", x.id) if copied else x.id

    def _moved_to(self, x: Value, place: str) -> Key | None:
        """What an operand is resharded to; None if it is not."""
        to = self._casts[place].to if place in self._casts else None
        return None if to is None else (self._value(x, place), to)

    def code(self, item: Item) -> Any:
        """What an item does; equal for items that differ only in their values."""
        if isinstance(item, (Loop, Branches)):
            return item.id
        copies = tuple([self._casts.get(f"second.{v.id}") for v in item.results])
        if isinstance(item, Checkpoint):
            entering = tuple([self._casts[f"second.{v}"] for v in self._entering(item)])
            inside, _ = numbered((self.code(each), (*self.reads(each), *self.writes(each))) for each in item.items)
            params = {} if item.eqn is None else item.eqn.params
            return params.get("policy"), params.get("prevent_cse"), item.saves_all, entering, copies, inside
        casts = tuple([self._casts.get(f"{item.id}.{i}") for i in range(len(item.operands))])
        return self._program.codes[item.id], self._ways.get(item.id, item.id in self._ways), casts, copies

    def _entering(self, item: Checkpoint) -> list[int]:
        return [v for v, at in self._program.entering.items() if at == item.id and f"second.{v}" in self._casts]

    def read(self, x: Operand, place: str) -> Iterator[Key]:
        """The value of an operand, if it is one; as it is resharded, if other steps take an argument so, too."""
        if isinstance(x, Value) and x.captured is None:
            moved = self._moved_to(x, place)
            yield self._value(x, place) if moved is None or self._moved[moved] < 2 else moved

    def reads(self, item: Item) -> Iterator[Key]:
        """The values that an item takes."""
        if isinstance(item, Checkpoint):
            yield from self._entering(item)
            inside: set[Key] = {("copy", v) for v in self._entering(item)}
            for each in item.items:
                yield from (key for key in self.reads(each) if key not in inside)
                inside.update(self.writes(each))
            yield from (v.id for v in item.results if v.id not in inside)
        elif isinstance(item, (Loop, Branches)):
            operands = (x for each, _ in walk([item]) for x in (*each.operands, *getattr(each, "returned", ())))
            for v in (x.id for x in operands if isinstance(x, Value) and x.captured is None):
                yield v
                if f"second.{v}" in self._casts:
                    yield "copy", v
        else:
            for i, x in enumerate(item.operands):
                yield from self.read(x, f"{item.id}.{i}")

    def writes(self, item: Item) -> Iterator[Key]:
        """The values that an item makes, and their shared copies."""
        for v in item.results:
            yield v.id
            if f"second.{v.id}" in self._casts:
                yield "copy", v.id
