"""Plans: the types of arguments and the reshards of a program, as a reader sees, edits and compares them."""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

from shtypes.analysis.check import Signature, check
from shtypes.analysis.compute import Compute
from shtypes.autodiff.train_step import train_step
from shtypes.caches import Bounded
from shtypes.core.conversion import abstract_array
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError, how_many
from shtypes.resharding import plan as steps_of
from shtypes.resharding.costs import CostModel
from shtypes.resharding.devices import Device
from shtypes.solver.apply import Decisions, named_uses, names_by_place, to_decisions, typed_function
from shtypes.solver.program import Function
from shtypes.solver.search import Point, size
from shtypes.solver.tables import Costs
from shtypes.solver.transfers import Transfer
from shtypes.suggestions.argument_rules import Rule, merged, pattern_of, rules_of, siblings
from shtypes.suggestions.fixed_types import FixedTypes
from shtypes.suggestions.saved_plan import SCHEMA, fingerprint
from shtypes.traced.equations import SourceLine
from shtypes.traced.ledger import Ledger
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.tables import Report, Table, Text
from shtypes.types.target import target_text

#: The most ops of a program of which the memory of each plan of the front is computed.
_MOST_MEASURED: Final = 2000
#: The relative tolerance of predicted bytes.
_CLOSE: Final = 1e-3
#: The most rows of a table.
_MOST_ROWS: Final = 40


class PlannedReshard(NamedTuple):
    """A reshard of a plan, or several equal ones of one line."""

    place: SourceLine  # the user's line that uses the value
    value: str  # the path of an argument, or the primitive that computes it
    src: ShType
    dst: ShType
    times: int  # the number of forward runs in a step
    bytes: float  # that each device sends in a step, forward and backward
    seconds: float
    what: str  # a description of the collectives
    at: str  # its name for ``at=`` of `apply`: ``model.py:48 <- up``, or ``model.py:30 <- carry[0]``


class Problem(NamedTuple):
    """The function to plan, with its costs and fixed types."""

    name: str  # of the function
    program: Function
    costs: Costs
    model: CostModel
    device: Device
    argnums: tuple[int, ...]  # the arguments that are differentiated; none without a backward pass
    state: float  # bytes of optimizer state for each byte of these
    fixed: FixedTypes
    signatures: Bounded[Signature]  # of the latest plans that were typed, by decisions

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.costs.graph.mesh


class Plan(Report):
    """Types of a function's arguments, and the reshards inside it.

    Attributes:
        bound: A lower bound on the seconds of all plans of this space; None if there is none.
    """

    def __init__(self, problem: Problem, point: Point, bound: float | None = None) -> None:
        self.problem, self.point, self.bound = problem, point, bound
        byte = point.byte / point.weights[1]
        self._transfers: list[Transfer] = problem.costs.transfers(point.assignment, byte)
        self.decisions: Decisions = to_decisions(problem.costs, point.assignment, self._transfers)

    # decisions

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The types of the arguments, in their trees."""
        return self.problem.program.arguments(self.decisions.arguments)

    @functools.cached_property
    def rules(self) -> dict[str, str]:
        """The types of the arguments as strings, by path pattern; equal layers share one."""
        return {rule.pattern: target_text(rule.type) for rule in self._rules}

    @functools.cached_property
    def _rules(self) -> list[Rule]:
        problem = self.problem
        fixed = {v.name for v in problem.fixed.arguments}
        return rules_of(problem.costs, self.point.assignment, self.decisions.arguments, self._transfers, fixed)

    @functools.cached_property
    def reshards(self) -> tuple[PlannedReshard, ...]:
        """The reshards that communicate, the slowest first; equal ones of one line are one."""
        graph, groups = self.problem.costs.graph, dict[Any, list[Transfer]]()
        for t in self._transfers:
            if t.src != t.dst and t.cost.sent:
                name = pattern_of(t.use.value.name)
                at = pattern_of(self._names.get(t.use.place, f"{self._place(t)} <- {name}"))
                groups.setdefault((self._place(t), name, t.src, t.dst, at), []).append(t)
        reshards = []
        for (place, name, src, dst, at), equal in groups.items():
            times, use = round(sum(t.use.times for t in equal)), equal[0].use
            sent = sum(float(t.cost.sent) for t in equal)
            seconds = sum(float(t.cost.comm) for t in equal)
            summed = graph.sums_gradient(use.value)  # with its gradient
            before = src.with_axes(src.axes(State.REDUCED), State.INVARIANT) if summed else src
            rerun = graph.reshard_runs(use)[1] > 0
            what = _description(before, dst, backward=graph.use_has_cotangent(use), rerun=rerun)
            reshards.append(PlannedReshard(place, name, src, dst, times, sent, seconds, what, at))
        return tuple(sorted(reshards, key=lambda r: -r.seconds))

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return names_by_place(named_uses(self.problem.program))

    @property
    def checkpoints(self) -> tuple[SourceLine, ...]:
        """The lines of scans whose bodies the plan checkpoints."""
        program = self.problem.program
        return tuple(dict.fromkeys(x for i, x in enumerate(program.scans.values()) if i in program.checkpoint))

    @property
    def needed(self) -> dict[str, ShType]:
        """The operand's type at each place."""
        return {t.use.place: t.dst for t in self._transfers}

    @property
    def src(self) -> dict[str, ShType]:
        """The value's type at each place, before its reshard."""
        return {t.use.place: t.src for t in self._transfers}

    @property
    def free(self) -> frozenset[str]:
        """The places of reshards that send nothing."""
        free = (t for t in self._transfers if t.src != t.dst and not (t.cost.sent or t.is_redundant))
        return frozenset(t.use.place for t in free)

    def _place(self, transfer: Transfer) -> SourceLine:
        item = transfer.use.node.item
        if item is not None:
            return item.place
        uses = (u for u in self.problem.costs.graph.uses() if u.value is transfer.use.value)
        return next((u.node.item.place for u in uses if u.node.item is not None), SourceLine())

    # costs

    @property
    def compute(self) -> float:
        """Seconds of computing in a step."""
        return float(self.point.cost.seconds)

    @property
    def communication(self) -> float:
        """Seconds of communication in a step."""
        return float(self.point.cost.comm)

    @property
    def seconds(self) -> float:
        """Seconds of a step: of computing and communication, less their overlap."""
        return self.point.seconds

    @property
    def bytes(self) -> float:
        """The predicted bytes that each device sends in a step; those of the typed step are in ``ledger``."""
        return float(self.point.cost.sent)

    @functools.cached_property
    def signature(self) -> Signature:
        """The typed program of a step (the loss with its gradients)."""
        _, arguments, casts, ways = self.decisions
        key = arguments, frozenset(casts.items()), frozenset(ways.items())
        return self.problem.signatures.get_or_create(key, self._signature)

    def _signature(self) -> Signature:
        problem = self.problem
        f = typed_function(problem.program, self.decisions, folds=True)
        args = problem.program.arguments([abstract_array(t) for t in self.decisions.arguments])
        with use_mesh(problem.mesh):
            return check(train_step(f, problem.argnums) if problem.argnums else f, *args)

    @functools.cached_property
    def refusal(self) -> ShardingTypeError | None:
        """The error if the plan does not type; else None."""
        try:
            self.signature  # noqa: B018
        except ShardingTypeError as error:
            return error.with_traceback(None)
        return None

    def fits(self, limit: float | None) -> bool:
        """Whether it types and `sh.memory` is within a limit."""
        return self.refusal is None and (limit is None or self.memory <= limit)

    def correct_costs(self) -> bool:
        """Corrects the costs if the plan does not type or sends other bytes than predicted; returns whether it did."""
        if self.refusal is None and math.isclose(self.bytes, self.ledger.total.bytes, rel_tol=_CLOSE):
            return False
        return self.problem.costs.correct(self.point.assignment, types=self.refusal is None)

    def repriced(self) -> Plan:
        """The plan with corrected costs."""
        point = self.point
        cost = self.problem.costs.price(point.assignment, point.byte / point.weights[1])
        return Plan(self.problem, point._replace(cost=cost), self.bound)

    def as_typed(self) -> Plan:
        """The plan with the communication of its typed step, where the costs of its ops are not those."""
        comm, sent = self.ledger.time(self.problem.model), float(self.ledger.total.bytes)
        return Plan(self.problem, self.point._replace(cost=self.point.cost._replace(comm=comm, sent=sent)), self.bound)

    @property
    def ledger(self) -> Ledger:
        """The collectives of a step, with gradients in the arguments' types."""
        return self.signature.ledger

    @functools.cached_property
    def work(self) -> Compute:
        """The work of one device in a step, by `sh.compute`."""
        return self.signature.compute(self.problem.device)

    @functools.cached_property
    def memory(self) -> int:
        """Peak bytes on each device in a step by `sh.memory`, with the optimizer state."""
        trained = (
            t.local_bytes
            for v, t in zip(self.problem.program.inputs, self.decisions.arguments, strict=True)
            if self.problem.costs.graph.has_cotangent(v)
        )
        return self.signature.memory.peak + math.ceil(self.problem.state * sum(trained))

    @property
    def _is_long(self) -> bool:
        """Whether its program has so many ops that `memory` takes seconds."""
        return len(self.problem.program.ops) > _MOST_MEASURED

    @property
    def quick_memory(self) -> float:
        """The ``memory``; of a long program what is predicted."""
        return self.point.cost.memory if self._is_long else self.memory

    @property
    def memory_heading(self) -> str:
        """What ``quick_memory`` is."""
        return "predicted memory" if self._is_long else "memory"

    # display

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"Types of {self.problem.name} on {self.problem.mesh}"

    def __repr__(self) -> str:
        return f"<Plan of {self.problem.name}: {self.seconds * 1e3:.3g} ms, {megabytes(self.bytes)}/device>"

    @property
    def head(self) -> str:
        """The predicted costs of a step, and those of the typed step."""
        ledger, sent = self.ledger, megabytes(self.ledger.total.bytes)
        bound = "" if self.bound is None else f"; no plan of this space is quicker than {ms(self.bound)} ms"
        return (
            f"{self.predicted}      memory {size(self.memory)}      sent {sent}/device{bound}\n"
            f"typed: ledger {sent}, {ms(ledger.time(self.problem.model))} ms by the links; "
            f"sh.compute {ms(self.work.seconds())} ms; sh.memory and the state {size(self.memory)}"
        )

    @property
    def predicted(self) -> str:
        """The predicted time of a step."""
        hidden = f" - {ms(self.point.hidden)} at once (overlap {self.point.overlap:g})" if self.point.overlap else ""
        parts = f"compute {ms(self.compute)} + communication {ms(self.communication)}{hidden}"
        checkpointed = (
            f"; checkpointed: the scan at {', '.join(map(str, self.checkpoints))}" if self.checkpoints else ""
        )
        return f"step {ms(self.seconds)} ms = {parts}{checkpointed}"

    def parts(self) -> list[Table | Text]:
        """The step, the types of the arguments, and the reshards."""
        return [Text(f"{self.title}\n  {self.head.replace(chr(10), chr(10) + '  ')}"), *self.tables()]

    def tables(self) -> list[Table]:
        """The types of the arguments, and the reshards."""
        rules = merged(self._rules)
        rows = [
            (
                "given" if rule.fixed else f"R{i + 1}",
                pattern,
                str(rule.type),
                size(rule.bytes) if rule.arguments == 1 else f"{rule.arguments} x {size(rule.bytes / rule.arguments)}",
                ms(rule.seconds) if rule.seconds else "-",
            )
            for i, (pattern, rule) in enumerate(rules)
        ]
        headings = ("", "path", "type", "on each device", "ms")
        arguments = Table(f"arguments ({how_many(len(rules), 'rule')})", headings, tuple(rows), frozenset(headings[3:]))
        lines: dict[tuple[str, str, str], list[PlannedReshard]] = {}
        for r in self.reshards:
            text = f"{target_text(r.src)} -> {target_text(r.dst)}", f"{r.times}x " * (r.times > 1) + r.what
            lines.setdefault((str(r.place), *text), []).append(r)
        moves = [
            (place, ", ".join(siblings(r.value for r in some)), text, ms(sum(r.seconds for r in some)), what)
            for (place, text, what), some in lines.items()
        ]
        more = len(moves) - _MOST_ROWS
        headings = ("line", "value", "reshard", "ms", "what it is")
        title = f"reshards ({how_many(len(moves), 'line')})"
        note = f"and {more} more" if more > 0 else "" if moves else "none: no operand moves"
        return [arguments, Table(title, headings, tuple(moves[:_MOST_ROWS]), frozenset({"ms"}), note)]

    def diff(self, other: Plan) -> str:
        """Describes the differences of another plan of the same function: time, types and reshards."""
        if not isinstance(other, Plan):
            raise ShardingTypeError(f"`diff` compares plans, not {other!r:.60}", hints=["found[0].diff(found[1])"])
        lines = [
            f"{ms(self.seconds)} -> {ms(other.seconds)} ms ({slower(other.seconds, self.seconds)})",
            f"{megabytes(self.bytes)} -> {megabytes(other.bytes)} per device",
        ]
        ours, theirs = self.rules, other.rules
        for pattern in {**ours, **theirs}:
            a, b = ours.get(pattern), theirs.get(pattern)
            if a != b:
                lines.append(f"{pattern}  {a or 'in other rules'} -> {b or 'in other rules'}")
        for sign, some, others in (("-", self.reshards, other.reshards), ("+", other.reshards, self.reshards)):
            common = {r[:4] for r in others}
            lines += [
                f"{sign} {r.place}  {r.value}  {target_text(r.src)} -> {target_text(r.dst)}  {ms(r.seconds)} ms"
                for r in some
                if r[:4] not in common
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The decisions as JSON for `sh.apply`; the ``at`` of a reshard is for readers only."""
        return {
            "schema": SCHEMA,
            "function": self.problem.name,
            "mesh": dict(self.problem.mesh.shape),
            "program": fingerprint(self.problem.program),
            "checkpoint": sorted(self.problem.program.checkpoint),
            "arguments": {
                v.name: t.canonical()
                for v, t in zip(self.problem.program.inputs, self.decisions.arguments, strict=True)
            },
            "reshards": {
                place: {"at": self._names.get(place, ""), "to": c.to and c.to.canonical(), "second": c.from_copy}
                for place, c in self.decisions.casts.items()
            },
            "joined": {str(op): way for op, way in sorted(self.decisions.across_shards.items())},
        }


def _description(src: ShType, dst: ShType, *, backward: bool, rerun: bool) -> str:
    """Describes the collectives of a reshard, forward and backward."""
    parts = [_steps(src, dst) + (", again in the backward pass" if rerun and _steps(src, dst) else "")]
    if backward:
        back = _steps(dst.cotangent(), src.cotangent())
        parts.append(f"backward {back}" if back else "")
    return "; ".join(filter(None, parts))


def _steps(src: ShType, dst: ShType) -> str:
    steps = [s for s in steps_of(src, dst).steps if s.kind.communicates]
    return ", ".join(f"{s.kind.value} {','.join(s.axes)}" for s in steps)


def ms(seconds: float) -> str:
    """Formats seconds as milliseconds."""
    n = seconds * 1e3
    return f"{n:,.1f}" if n >= 10 else f"{n:.3f}" if n >= 0.01 else f"{n:.2g}"


def megabytes(n: float) -> str:
    """Formats bytes as megabytes, a few as they are."""
    return f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n:,.0f} B"


def slower(seconds: float, than: float) -> str:
    """Formats by how much a time is longer than another, in percent."""
    part = seconds / than - 1 if than else math.inf if seconds else 0.0
    return f"{round(100 * part, 2) + 0.0:+.2f} %"  # without -0.00
