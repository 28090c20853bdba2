"""Plans: the types of arguments and the reshards of a program, as a reader sees, edits and compares them."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shtypes.analysis.check import Signature, check
from shtypes.analysis.compute import Compute
from shtypes.autodiff.train_step import train_step
from shtypes.core.conversion import abstract_array
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError, how_many
from shtypes.resharding import plan as steps_of
from shtypes.resharding.costs import CostModel
from shtypes.resharding.devices import Device
from shtypes.solver.apply import Decisions, Written, decided, names_of, taken, typed_function
from shtypes.solver.items import Value
from shtypes.solver.program import Function, Program
from shtypes.solver.search import Point, size
from shtypes.solver.tables import Costs, Way
from shtypes.traced.equations import SourceLine
from shtypes.traced.ledger import Ledger
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.tables import Report, Table, Text
from shtypes.types.target import target_text

#: The version of what `Plan.to_json` writes.
SCHEMA: Final = 2
#: What is predicted differs by so much from what is sent where shards are as large as they can be.
_CLOSE: Final = 1e-3
#: So many rows of a table are shown.
_SHOWN: Final = 40
#: So many names are shown in a path that stands for several.
_NAMES: Final = 6
#: The number of a layer in a path.
_NUMBER: Final = re.compile(r"(^|/)\d+(?=/|$)")


class Rule(NamedTuple):
    """A type for the arguments whose paths fit a pattern."""

    pattern: str  # a path in which ``*`` stands for the number of a layer
    type: ShType
    arguments: int  # how many they are
    bytes: int  # of them on each device
    seconds: float  # what bringing them to their uses, and their gradients to their types, takes
    given: bool  # whether the user said the type


class PlannedReshard(NamedTuple):
    """A reshard of a plan, or several alike from one line."""

    place: SourceLine  # the user's line that takes the value
    value: str  # the path of an argument, or what made it
    src: ShType
    dst: ShType
    times: int  # how often it runs in a step, forward
    bytes: float  # that each device sends in a step for it, forward and backward
    seconds: float  # how long that takes
    what: str  # the collectives, in words
    at: str  # what ``at=`` of `apply` calls it: ``model.py:48 <- up``, or ``model.py:30 <- carry[0]``


class Said(NamedTuple):
    """What the user says of the types, as texts or types."""

    arguments: Mapping[Value, Any]
    at: Mapping[str, Any]  # of what lines take, and of carries
    results: Any  # their tree, with None for what may be chosen; None for all of them


class Problem(NamedTuple):
    """What a plan is for."""

    name: str  # of the function
    program: Function
    costs: Costs  # of decisions
    model: CostModel
    device: Device
    argnums: tuple[int, ...]  # the arguments that are differentiated; none without a backward pass
    state: float  # bytes of optimizer state for each byte of these
    said: Said

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.costs.graph.mesh


class Plan(Report):
    """Types of a function's arguments, and the reshards inside it.

    Attributes:
        bound: Seconds that no plan of this space is below; None where that is not known.
    """

    def __init__(self, problem: Problem, point: Point, bound: float | None = None) -> None:
        self.problem, self.point, self.bound = problem, point, bound
        self._ways: list[Way] = problem.costs.ways(point.assignment, point.byte / point.shares[1])
        self.decisions: Decisions = decided(problem.costs, point.assignment, self._ways)

    # what it decides

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The types of the arguments, in their trees."""
        return self.problem.program.arguments(self.decisions.arguments)

    @functools.cached_property
    def rules(self) -> dict[str, str]:
        """The types of the arguments as texts, by pattern of their paths; of layers that are alike one."""
        return {rule.pattern: target_text(rule.type) for rule in self._rules}

    @functools.cached_property
    def _rules(self) -> list[Rule]:
        costs, given = self.problem.costs, {v.name for v in self.problem.said.arguments}
        typed_inputs = [*zip(self.problem.program.inputs, self.decisions.arguments, strict=True)]
        moved: dict[str, float] = {}
        for way in self._ways:
            name = way.use.value.name.removesuffix("[i]")
            moved[name] = moved.get(name, 0.0) + float(way.cost.comm)
        kinds: dict[str, set[tuple[ShType, bool]]] = {}
        for v, t in typed_inputs:
            kinds.setdefault(pattern_of(v.name), set()).add((t, v.name in given))
        alike = max(map(len, kinds.values())) == 1  # if not, each layer has a rule for itself
        found: dict[str, Rule] = {}
        for v, t in typed_inputs:
            node, _ = costs.graph.source[v.id]
            gradient = float(costs.alone(node, costs.row(node, self.point.assignment)).comm.sum())
            name, seconds = pattern_of(v.name) if alike else v.name, gradient + moved.get(v.name, 0.0)
            rule = Rule(name, t, 1, t.local_bytes, seconds, v.name in given)
            found[rule.pattern] = _together([found[rule.pattern], rule]) if rule.pattern in found else rule
        return [*found.values()]

    @functools.cached_property
    def reshards(self) -> tuple[PlannedReshard, ...]:
        """The reshards that communicate, the longest first; those alike from one line together."""
        graph, groups = self.problem.costs.graph, dict[Any, list[Way]]()
        for way in self._ways:
            if way.src != way.dst and way.cost.sent:
                name = pattern_of(way.use.value.name)
                at = pattern_of(self._names.get(way.use.place, f"{self._place(way)} <- {name}"))
                groups.setdefault((self._place(way), name, way.src, way.dst, at), []).append(way)
        found = []
        for (place, name, src, dst, at), ways in groups.items():
            times, first = sum(way.use.times for way in ways), ways[0].use
            sent = sum(float(way.cost.sent) for way in ways)
            seconds = sum(float(way.cost.comm) for way in ways)
            summed = graph.is_argument(first.value)  # then its gradient is
            came = src.with_axes(src.axes(State.REDUCED), State.INVARIANT) if summed else src
            words = _words(came, dst, backward=graph.returns(first), again=graph.runs(first)[1] > 0)
            found.append(PlannedReshard(place, name, src, dst, times, sent, seconds, words, at))
        return tuple(sorted(found, key=lambda r: -r.seconds))

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        return names_of(taken(self.problem.program))

    @property
    def checkpoints(self) -> tuple[SourceLine, ...]:
        """The lines of scans whose bodies the plan checkpoints."""
        program = self.problem.program
        return tuple(dict.fromkeys(x for i, x in enumerate(program.scans.values()) if i in program.checkpoint))

    @property
    def needed(self) -> dict[str, ShType]:
        """The types in which what is at each place is taken."""
        return {way.use.place: way.dst for way in self._ways}

    @property
    def free(self) -> frozenset[str]:
        """The places of reshards that send nothing."""
        return frozenset(w.use.place for w in self._ways if w.src != w.dst and not (w.cost.sent or w.spared))

    def _place(self, way: Way) -> SourceLine:
        item = way.use.node.item
        if item is not None:
            return item.place
        uses = (u for u in self.problem.costs.graph.uses() if u.value is way.use.value and u.node.item is not None)
        return next((u.node.item.place for u in uses if u.node.item), SourceLine())

    # what it costs

    @property
    def compute(self) -> float:
        """Seconds of a step that are computing."""
        return float(self.point.cost.seconds)

    @property
    def communication(self) -> float:
        """Seconds of a step that are communication."""
        return float(self.point.cost.comm)

    @property
    def seconds(self) -> float:
        """Seconds of a step: of computing and communication, less what of them runs at once by ``overlap``."""
        return self.point.seconds

    @property
    def bytes(self) -> float:
        """Bytes that each device sends in a step, as they were predicted; the ledger has what is sent."""
        return float(self.point.cost.sent)

    @functools.cached_property
    def signature(self) -> Signature:
        """The typed program of a step, from which all that is proved is read: of the loss with its gradients."""
        problem = self.problem
        f = typed_function(problem.program, self.decisions)
        args = problem.program.arguments([abstract_array(t) for t in self.decisions.arguments])
        with use_mesh(problem.mesh):
            return check(train_step(f, problem.argnums) if problem.argnums else f, *args)

    @functools.cached_property
    def refusal(self) -> ShardingTypeError | None:
        """Why the plan does not type; None where it does."""
        try:
            self.signature  # noqa: B018
        except ShardingTypeError as error:
            return error.with_traceback(None)
        return None

    def fits(self, limit: float | None) -> bool:
        """Whether it types, and needs at most so many bytes by `sh.memory`."""
        return self.refusal is None and (limit is None or self.memory <= limit)

    def corrects(self) -> bool:
        """Whether its costs were corrected, since it does not type or sends something else than was predicted."""
        if self.refusal is None and math.isclose(self.bytes, self.ledger.total.bytes, rel_tol=_CLOSE):
            return False
        return self.problem.costs.corrected(self.point.assignment, types=self.refusal is None)

    def priced_again(self) -> Plan:
        """It by costs that were corrected."""
        point, costs = self.point, self.problem.costs
        again = costs.price(point.assignment, point.byte / point.shares[1])
        return Plan(self.problem, point._replace(cost=again), self.bound)

    @property
    def ledger(self) -> Ledger:
        """The collectives of a step, its gradients in the arguments' types."""
        return self.signature.ledger

    @functools.cached_property
    def work(self) -> Compute:
        """The work of one device in a step, by `sh.compute`."""
        return self.signature.compute(self.problem.device)

    @functools.cached_property
    def memory(self) -> int:
        """Bytes on each device at the peak of a step, by `sh.memory`, and those of the optimizer's state."""
        trained = (
            t.local_bytes
            for v, t in zip(self.problem.program.inputs, self.decisions.arguments, strict=True)
            if self.problem.costs.graph.has_cotangent(v)
        )
        return self.signature.memory.peak + math.ceil(self.problem.state * sum(trained))

    # how it is shown

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Types of {self.problem.name} on {self.problem.mesh}"

    def __repr__(self) -> str:
        return f"<Plan of {self.problem.name}: {self.seconds * 1e3:.3g} ms, {self.bytes / 1e6:.6g} MB/device>"

    @property
    def head(self) -> str:
        """The step, and what typing it once proved."""
        ledger, sent = self.ledger, self.ledger.total.bytes / 1e6
        bound = "" if self.bound is None else f"; no plan of this space is quicker than {ms(self.bound)} ms"
        return (
            f"{self.predicted}      memory {size(self.memory)}      sent {sent:,.1f} MB/device{bound}\n"
            f"typed: ledger {sent:,.1f} MB, {ms(ledger.time(self.problem.model))} ms by the links; "
            f"sh.compute {ms(self.work.seconds())} ms; sh.memory and the state {size(self.memory)}"
        )

    @property
    def predicted(self) -> str:
        """What a step takes, as it is predicted."""
        hidden = f" - {ms(self.point.hidden)} at once (overlap {self.point.overlap:g})" if self.point.overlap else ""
        parts = f"compute {ms(self.compute)} + communication {ms(self.communication)}{hidden}"
        again = f"; checkpointed: the scan at {', '.join(map(str, self.checkpoints))}" if self.checkpoints else ""
        return f"step {ms(self.seconds)} ms = {parts}{again}"

    def parts(self) -> list[Table | Text]:
        """The step, the types of the arguments, and the reshards."""
        return [Text(f"{self.title}\n  {self.head.replace(chr(10), chr(10) + '  ')}"), *self.tables()]

    def tables(self) -> list[Table]:
        """The types of the arguments, and the reshards."""
        rules = _merged(self._rules)
        rows = [
            (
                "given" if rule.given else f"R{i + 1}",
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
            (place, ", ".join(_siblings(r.value for r in some)), text, ms(sum(r.seconds for r in some)), what)
            for (place, text, what), some in lines.items()
        ]
        more = len(moves) - _SHOWN
        headings = ("line", "value", "reshard", "ms", "what it is")
        title = f"reshards ({how_many(len(moves), 'line')})"
        note = f"and {more} more" if more > 0 else "" if moves else "none: no operand moves"
        return [arguments, Table(title, headings, tuple(moves[:_SHOWN]), frozenset({"ms"}), note)]

    def diff(self, other: Plan) -> str:
        """How another plan of the same function differs: in time, types and reshards."""
        lines = [
            f"{ms(self.seconds)} -> {ms(other.seconds)} ms ({100 * (other.seconds / self.seconds - 1):+.2f} %)",
            f"{self.bytes / 1e6:,.1f} -> {other.bytes / 1e6:,.1f} MB/device",
        ]
        ours, theirs = self.rules, other.rules
        for pattern in {**ours, **theirs}:
            a, b = ours.get(pattern), theirs.get(pattern)
            if a != b:
                lines.append(f"{pattern}  {a or 'in other rules'} -> {b or 'in other rules'}")
        for sign, some, others in (("-", self.reshards, other.reshards), ("+", other.reshards, self.reshards)):
            known = {r[:4] for r in others}
            lines += [
                f"{sign} {r.place}  {r.value}  {target_text(r.src)} -> {target_text(r.dst)}  {ms(r.seconds)} ms"
                for r in some
                if r[:4] not in known
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The decisions for JSON: what `sh.apply` takes. Of a place its number counts; ``at`` says it for readers."""
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
                place: {"at": self._names.get(place, ""), "to": w.to and w.to.canonical(), "second": w.second}
                for place, w in self.decisions.places.items()
            },
            "joined": {str(op): way for op, way in sorted(self.decisions.joined.items())},
        }


def pattern_of(path: str) -> str:
    """A path with ``*`` for the numbers of layers."""
    return _NUMBER.sub(r"\1*", path)


def fingerprint(program: Program) -> str:
    """What programs with the same operations have in common."""
    ops = [(op.id, op.name, [v.shape for v in op.results]) for op in program.ops]
    return hashlib.sha1(repr(ops).encode()).hexdigest()[:16]


def decisions_of(saved: Mapping[str, Any], program: Program) -> Decisions:
    """The decisions that `Plan.to_json` wrote; an error where they are of another program."""
    if saved.get("schema") != SCHEMA or saved.get("program") != fingerprint(program):
        raise ShardingTypeError(
            f"the plan is not of `{program.name}` as it is now",
            why="it was made for other operations, shapes or another release of JAX",
            hints=["sh.suggest(f, *args, mesh=mesh, fixed={...}) with its rules as they are fixed"],
        )
    mesh = Mesh(saved["mesh"])
    places = {
        place: Written(w["to"] and ShType.parse(w["to"], mesh), w["second"]) for place, w in saved["reshards"].items()
    }
    types = tuple(ShType.parse(saved["arguments"][v.name], mesh) for v in program.inputs)
    return Decisions(mesh, types, places, {int(op): way for op, way in saved["joined"].items()})


def _words(src: ShType, dst: ShType, *, backward: bool, again: bool) -> str:
    """The collectives of a reshard, forward and backward."""
    parts = [_steps(src, dst) + (", again in the backward pass" if again and _steps(src, dst) else "")]
    if backward:
        back = _steps(dst.cotangent(), src.cotangent())
        parts.append(f"backward {back}" if back else "")
    return "; ".join(filter(None, parts))


def _steps(src: ShType, dst: ShType) -> str:
    steps = [s for s in steps_of(src, dst).steps if s.kind.communicates]
    return ", ".join(f"{s.kind.value} {','.join(s.axes)}" for s in steps)


def _merged(rules: Iterable[Rule]) -> list[tuple[str, Rule]]:
    """Rules with their patterns; of siblings with one type one."""
    groups: dict[tuple[ShType, bool], dict[str, Rule]] = {}
    for rule in rules:
        groups.setdefault((rule.type, rule.given), {})[rule.pattern] = rule
    found = []
    for group in groups.values():
        for pattern, names in _siblings(group).items():
            found.append((pattern, _together([group[name] for name in names])))
    return sorted(found, key=lambda each: each[0])


def _together(some: Sequence[Rule]) -> Rule:
    """Rules of one type as one."""
    arguments, sizes, seconds = map(sum, zip(*(r[2:5] for r in some), strict=True))
    return some[0]._replace(arguments=arguments, bytes=sizes, seconds=seconds)


def _siblings(paths: Iterable[str]) -> dict[str, list[str]]:
    """Paths that differ in one part as one, such as ``attn/[k,q,v]``, with those that it stands for."""
    groups = {tuple(path.split("/")): [path] for path in paths}
    for back in range(max(map(len, groups))):
        alike: dict[tuple[Any, Any], dict[str, list[str]]] = {}
        for parts, some in groups.items():
            k = max(len(parts) - 1 - back, 0)
            alike.setdefault((parts[:k], parts[k + 1 :]), {})[parts[k]] = some
        groups = {}
        for (before, after), names in alike.items():
            one = ",".join(names) if len(names) <= _NAMES else f"{','.join([*names][:_NAMES])},..."
            one = one if not before + after else f"[{one}]"
            parts = (*before, one if len(names) > 1 else next(iter(names)), *after)
            groups[parts] = [path for some in names.values() for path in some]
    return {"/".join(parts): some for parts, some in groups.items()}


def ms(seconds: float) -> str:
    """Milliseconds in words."""
    n = seconds * 1e3
    return f"{n:,.1f}" if n >= 10 else f"{n:.3f}" if n >= 0.01 else f"{n:.2g}"
