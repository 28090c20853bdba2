"""The values of a traced program, its equations, and their bodies: the input of a listing.

A body that runs in several places (a jitted helper called twice) has other values in each. A variable of the backward
pass is the cotangent of an operand of its forward equation. Which operand is determined by its type, then by the uses
of the cotangent, then by the operands that the equation does not use: an einsum's adjoint uses the other ones.
"""

from __future__ import annotations

import bisect
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shtypes._compat.eqn_frames import UserFrame
from shtypes._compat.jaxprs import Cond, Scan, While
from shtypes.analysis.explain.source import Unique
from shtypes.core.operation import applied_by
from shtypes.traced.coverage import control_of
from shtypes.traced.equations import Equation


@dataclass(eq=False, slots=True)
class Value:
    """A variable of the program."""

    type: Any  # ours, or JAX's
    name: str = ""  # empty until named
    producer: Occurrence | None = None  # None for inputs of a body
    gradient: bool = field(default=False, kw_only=True)  # whether it is a cotangent, or part of one
    primal: Value | None = None  # its primal, if resolved
    #: For a recomputed value, whether the backward pass used it before that; else None.
    saved: bool | None = None
    returned: bool = False  # whether its body returns it
    uses: list[Occurrence] = field(default_factory=list)
    inner: dict[int, Value] = field(default_factory=dict)  # for a result of a loop or conditional, by body


#: A value, or a printed literal.
Operand = Value | str


@dataclass(eq=False, slots=True)
class Occurrence:
    """An equation in one of the places where it runs."""

    equation: Equation
    frames: tuple[UserFrame, ...]  # innermost first
    operands: list[Operand]
    position: int  # among the equations of its body
    values: list[Value] = field(init=False)  # the operands without literals
    key: tuple[int, ...] = field(init=False)  # shared by equations of the same expressions
    op: str = field(init=False)  # the operation as printed in jaxprs
    outs: list[Value] = field(default_factory=list)
    link: Occurrence | None = None  # the forward equation that causes it
    bodies: list[BodyRun] = field(default_factory=list)
    instance: int = 0  # the number of earlier equations with the same key in its body
    has_backward: bool = False  # whether it has a backward equation

    def __post_init__(self) -> None:
        self.values = [v for v in self.operands if isinstance(v, Value)]
        self.key = tuple(map(id, self.frames))  # frames are unique per place
        self.op = str(applied_by(self.equation.eqn))

    @property
    def backward(self) -> bool:
        """Whether it runs in the backward pass, and is not a recomputation."""
        return self.equation.direction == "backward"

    @property
    def sums(self) -> bool:
        """Whether it adds two cotangents of one value."""
        return (
            self.backward
            and self.op in ("add", "add_any")
            and len(self.values) == 2
            and all(v.gradient for v in self.values)
        )


@dataclass(eq=False)
class BodyRun:
    """A body in one of the places where it runs: of the program, of a loop, or a branch."""

    label: str = ""  # its role in the equation; empty for the only body of a loop
    unique: Unique = field(default_factory=Unique)
    outer: BodyRun | None = None
    inputs: list[Value] = field(default_factory=list)
    results: list[Operand] = field(default_factory=list)
    records: list[Occurrence] = field(default_factory=list)  # including those of calls
    #: The forward equations by key, and by the keys of enclosing calls.
    forward: dict[tuple[int, ...], list[Occurrence]] = field(default_factory=dict)
    calls: dict[tuple[int, ...], list[Occurrence]] = field(default_factory=dict)

    @property
    def around(self) -> list[BodyRun]:
        """The body and the enclosing ones, innermost first."""
        return [self, *(self.outer.around if self.outer is not None else ())]


#: The maximum number of equations that pass a cotangent on, such as sums and copies, to follow.
_DEPTH = 8


def resolve(scope: BodyRun, targets: Mapping[int, Value]) -> None:
    """Finds the primals of a body's cotangents; ``targets`` has those of its results, by position."""
    returned = {id(v): targets[i] for i, v in enumerate(scope.results) if isinstance(v, Value) and i in targets}
    for record in reversed(scope.records):
        if not record.backward:
            continue
        for value in record.outs:
            if value.gradient:
                value.primal = _origin(value, record, returned)
    for record in scope.records:
        if record.sums and record.outs[0].primal is None:  # unresolved by its uses, but its terms have one primal
            record.outs[0].primal = next((v.primal for v in record.values if v.primal is not None), None)


def _origin(value: Value, record: Occurrence, returned: Mapping[int, Value]) -> Value | None:
    sinks = _sinks(value, record, returned)
    candidates = _operands(record.link, value.type) if record.link is not None else []
    if not candidates:
        return sinks[0] if sinks else None
    if len(candidates) == 1:
        return candidates[0]
    for depth in range(_DEPTH):
        for candidate in candidates:
            if _reaches(candidate, sinks, depth):
                return candidate
    taken = {id(v) for v in record.values}
    left = [c for c in candidates if id(c) not in taken]
    if len(left) == 1:
        return left[0]
    return candidates[min(record.outs.index(value), len(candidates) - 1)]


def _sinks(value: Value, record: Occurrence, returned: Mapping[int, Value]) -> list[Value]:
    """The primals as which equations use a cotangent."""
    sinks = [returned[id(value)]] if id(value) in returned else []
    for use in value.uses:
        if use.sums:
            sinks += [v.primal for v in use.outs if v.primal is not None]
        elif use.backward and use.link is not None and (use.link is not record.link or record.sums):
            sinks += [out for out in use.link.outs if cotangent_type(out.type) == value.type]
    return sinks


def _operands(cause: Occurrence | None, t: Any) -> list[Value]:
    """The operands of a forward equation whose cotangents have this type."""
    operands: dict[int, Value] = {}
    for value in cause.values if cause is not None else ():
        if cotangent_type(value.type) == t:
            operands.setdefault(id(value), value)
    return list(operands.values())


def _reaches(value: Value, sinks: Sequence[Value], depth: int) -> bool:
    """Whether a cotangent of this value reaches one of the sinks through ``depth`` equations that pass it on."""
    if not depth:
        return any(value is sink for sink in sinks)
    producer = value.producer
    if producer is None or producer.has_backward:
        return False
    return any(_reaches(v, sinks, depth - 1) for v in producer.values)


@functools.lru_cache(maxsize=4096)
def cotangent_type(t: Any) -> Any:
    """The cotangent type of a type, ours or JAX's."""
    return t.to_ct_aval() if hasattr(t, "to_ct_aval") else t


def name_cotangents(scope: BodyRun) -> None:
    """Names the cotangents of a body, in program order: ``g_x``, and ``g_x_from_y`` for parts of a sum."""
    for value in scope.inputs:
        if value.gradient and not value.name:
            value.name = scope.unique(f"g_{value.primal.name}" if value.primal is not None else "g")
    for record in scope.records:
        for value in record.outs:
            if not value.name and not value.gradient and record.bodies and not record.backward:
                value.name = scope.unique(f"saved_{_inside_name(value)}")
            elif not value.name:
                value.name = scope.unique(_name(value, record))
        for body in record.bodies:
            name_cotangents(body)


def saved_only(value: Value) -> bool:
    """Whether only the backward pass uses a result of a forward loop."""
    producer = value.producer
    forward = producer is not None and producer.equation.direction != "backward"
    return forward and bool(value.uses) and all(use.equation.direction != "forward" for use in value.uses)


def _inside_name(value: Value) -> str:
    """The name of a loop's result in its body, or in the branch that computes it."""
    inner = [v for v in value.inner.values() if v.producer is None or v.producer.frames]
    return next((v.name for v in inner), value.name)


def _name(value: Value, record: Occurrence) -> str:
    if not value.gradient:
        return "_".join(filter(None, (record.op.split("[")[0], next((v.name for v in record.values), ""))))
    if not record.values:
        return "zeros"
    if value.primal is None:
        return "g" if record.link is None or not record.link.outs else f"g_in_{record.link.outs[0].name}"
    total = f"g_{value.primal.name}"
    if not any(use.sums and use.outs[0].primal is value.primal for use in value.uses):
        return total
    if record.sums:
        return f"{total}_so_far"
    sender = record.link.outs[0].name if record.link is not None and record.link.outs else ""
    return f"{total}_from_{sender}" if sender else f"{total}_part"


#: The maximum number of uses of a value that is evidence for one of them.
_MAX_USES = 64
#: The maximum number of an expression's runs elsewhere to examine.
_MAX_RUNS = 8


class Links:
    """Links the backward equations of one body to forward ones.

    Args:
        places: The scopes of possible forward equations: for a transposed body, first its forward one, then the
            enclosing ones, because JAX hoists loop-invariant code.
        by_expression: A scope with forward equations for each expression, because JAX may split a conditional in two.
    """

    def __init__(self, places: Sequence[BodyRun], by_expression: Mapping[tuple[int, ...], BodyRun]) -> None:
        self._places, self._by_expression = places, by_expression
        self._last: dict[tuple[int, ...], Occurrence] = {}  # the last backward equation of each expression
        self._before: Occurrence | None = None
        self._reached: dict[int, int] = {}  # by scope, the position that the backward pass reached

    def restart(self) -> None:
        """Starts a forward computation, after which a new backward pass may come."""
        self._reached.clear()

    def cause(self, record: Occurrence) -> Occurrence | None:
        """The forward equation of a backward or recomputed one."""
        before, self._before = self._before, record
        if before is not None and before.link is not None and record.sums and record.key == before.key:
            return before.link  # JAX adds at the line of the last cotangent
        place, same = next(((s, s.forward[record.key]) for s in self._places if record.key in s.forward), (None, []))
        if place is None:  # a user's backward function belongs to the line of the call
            place, same = next(((s, s.calls[record.key]) for s in self._places if record.key in s.calls), (None, []))
        if place is None and record.key in self._by_expression:
            place = self._by_expression[record.key]
            same = place.forward[record.key]
        if place is None or not record.frames:
            return _by_kind(record, self._places)
        forward = same[0] if len(same) == 1 else self._closest(record, same, self._reached.get(id(place)))
        self._last[record.key] = record
        if record.backward and not _fits(record, forward):
            others = (r for s in self._places for r in reversed(s.forward.get(record.key, ())[-_MAX_RUNS:]))
            forward = next((r for r in others if _fits(record, r)), forward)
        elif record.backward:
            self._reached[id(place)] = forward.position
        return forward

    def _closest(self, record: Occurrence, same: list[Occurrence], reached: int | None) -> Occurrence:
        """The run of an expression whose values an equation uses; else the next one in reverse order."""
        end = len(same)
        if record.backward and reached is not None:
            end = bisect.bisect_right(same, reached, key=lambda r: r.position) or end
        votes = _votes(record, same, end)
        turn = same[0]
        if record.backward:
            before = self._last.get(record.key)
            last = before.link.instance if before is not None and before.link is not None else end
            follows = before is not None and record.position - before.position == 1
            turn = same[min(max(last if follows else last - 1, 0), end - 1)]
        most = max(votes.values(), default=0)
        if votes[id(turn)] == most:
            return turn
        return next(r for r in reversed(same) if votes[id(r)] == most)


def _fits(record: Occurrence, cause: Occurrence) -> bool:
    """Whether an equation's types fit the cotangents of a forward equation's results and operands."""
    taken = [v.type for v in record.values if v.gradient]
    outs = [v.aval for v in record.equation.eqn.outvars]
    return any(cotangent_type(v.type) in taken for v in cause.outs) and any(
        cotangent_type(v.type) in outs for v in cause.values
    )


def _votes(record: Occurrence, same: list[Occurrence], end: int) -> Counter[int]:
    """For each of the first runs of an expression, the number of its values that an equation uses."""
    votes: Counter[int] = Counter()
    count = len(record.key)

    def runs(other: Occurrence) -> bool:
        if other.key == record.key:  # the common case
            return other.instance < end and same[other.instance] is other
        if other.key[-count:] != record.key:
            return False
        i = bisect.bisect_left(same, other.position, 0, end, key=lambda r: r.position)
        return i < end and same[i] is other

    for value in record.values:
        if value.gradient:
            sender = value.producer.link if value.producer is not None else None
            makers = [v.producer for v in sender.values if v.producer is not None] if sender is not None else []
            candidates = [m for m in makers if runs(m)]
            votes.update({id(m): 2 for m in candidates if any(cotangent_type(v.type) == value.type for v in m.outs)})
        elif len(value.uses) <= _MAX_USES:
            votes.update({id(u): 1 for u in value.uses if runs(u)})
            if value.producer is not None and runs(value.producer):
                votes[id(value.producer)] += 1
    return votes


def _by_kind(record: Occurrence, places: Sequence[BodyRun]) -> Occurrence | None:
    """For a loop without frames: the last forward loop of its kind that has no backward one yet."""
    if not isinstance(control_of(record.equation.eqn), (Scan, While, Cond)):
        return None
    name = applied_by(record.equation.eqn).name
    for scope in places:
        for other in reversed(scope.records):
            if (
                other.equation.direction == "forward"
                and not other.has_backward
                and applied_by(other.equation.eqn).name == name
            ):
                return other
    return None
