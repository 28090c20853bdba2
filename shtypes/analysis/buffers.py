"""Which results are in memory, when, and in which buffer: what the compiler fuses, writes in place and shares."""

from __future__ import annotations

import functools
import graphlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shtypes.analysis.device_steps import Graph, Kind, Step, Value

_FUSED: Final = frozenset({Kind.MAP, Kind.COSTLY})
_READS: Final = frozenset({Kind.FOLD, Kind.STORE})


class Fusion:
    """For each step of a graph the steps that compute it; itself where its result is in memory."""

    def __init__(self, graph: Graph) -> None:
        self.into: dict[Step, frozenset[Step]] = {}
        self._users: dict[Value, list[Step]] = {}
        self._results = set(graph.results)
        for step in graph.steps:
            for v in dict.fromkeys(step.operands):
                self._users.setdefault(v, []).append(step)
        order = sorted(graph.steps, key=lambda s: s.order)
        self._place = {step: 1 << i for i, step in enumerate(order)}
        self._before: dict[Step, int] = {}  # the steps that a step needs, as bits
        for step in order:
            self._before[step] = self._place[step]
            for v in step.operands:
                self._before[step] |= self._before[v.step] if v.step is not None else 0
        for step in reversed(order):
            self.into[step] = self._into(step)
        self._reads: dict[Step, dict[Value, None]] = {}
        for step in order:
            self._reads[step] = {}
            for v in step.operands:
                self._reads[step] |= {v: None} if v.step is None or self.materialized(v.step) else self._reads[v.step]

    def materialized(self, step: Step) -> bool:
        """Whether the results of a step are in memory, or are what their operands are."""
        return step in self.into[step]

    def _into(self, step: Step) -> frozenset[Step]:
        itself = frozenset((step,))
        if step.kind not in _FUSED and step.kind is not Kind.VIEW:
            return itself
        (result,) = step.results
        readers: frozenset[Step] = frozenset()
        for user in self._users.get(result, ()):
            into = self._reader(user, result)
            if not into:
                return itself
            readers |= into
        if result in self._results or not readers:
            return itself
        again = step.kind is Kind.VIEW or (step.kind is Kind.MAP and self._on_all_paths(step))
        return readers if again or len(readers) == 1 else itself

    def _on_all_paths(self, step: Step) -> bool:
        """Whether no user of a step waits for what is computed from it elsewhere, and is in memory."""
        waiting, seen = list(self._users[step.results[0]]), set[Step]()
        while waiting:
            for other in {v.step for v in waiting.pop().operands if v.step is not None} - seen - {step}:
                if self._before[other] & self._place[step]:
                    if other in self.into[other]:
                        return False
                    seen.add(other)
                    waiting.append(other)
        return True

    def _reader(self, user: Step, value: Value) -> frozenset[Step]:
        """The steps that would compute a value if a user of it did; none if the user reads it from memory."""
        into = self.into[user]
        if user.kind is Kind.VIEW:
            return frozenset() if user in into else into
        if user.kind in _FUSED:
            return into
        reads = user.kind in _READS and not (user.kind is Kind.STORE and user.operands[0] is value)
        return frozenset((user,)) if reads else frozenset()

    def reads(self, step: Step) -> Iterable[Value]:
        """What a step reads from memory, through what is fused into it."""
        return self._reads[step]


@dataclass(eq=False)
class Buffer:
    """Memory that one value has, or several one after the other."""

    bytes: int
    values: list[tuple[int, Value]]  # with when each is computed
    end: int = -1  # when the last of them is read for the last time
    result: bool = False  # whether it is a result of the program

    @property
    def start(self) -> int:
        """When the first of them is computed."""
        return self.values[0][0]

    def at(self, time: int) -> Value:
        """The value that it has at a time."""
        return next(v for start, v in reversed(self.values) if start <= time)


def buffers_of(graph: Graph) -> list[Buffer]:
    """All memory that a program takes beside its arguments, with when it does."""
    buffers: list[Buffer] = []
    run = _Run(graph, buffers)
    clock = run.run(0)
    run.mark(clock)
    for buffer in buffers:
        buffer.end = clock if buffer.result else max(buffer.end, buffer.start)
    return [b for b in buffers if b.bytes]


def saved_by(graph: Graph) -> list[Value]:
    """The values of the forward steps of a program that its backward steps read, in program order.

    Of loops that take gradients themselves, such as one over microbatches, what a step of the largest one leaves.
    """
    run = _Run(graph, [])
    residuals: dict[Value, None] = {}
    for step in run.order:
        if step.direction != "forward":
            residuals |= {v: None for v in run.reads[step] if v.step is not None and v.step.direction == "forward"}
    inside = [saved_by(body) for step in run.order if step.direction == "forward" for body in step.bodies]
    largest = max(inside, key=lambda values: sum(v.bytes for v in values), default=[])
    return [*sorted(residuals, key=lambda v: v.step.order if v.step is not None else 0), *largest]


class _Run:
    """One body: its steps in their order, and the memory that their results are in."""

    def __init__(self, graph: Graph, buffers: list[Buffer], *, placed: bool = False) -> None:
        self._graph, self._fusion, self._found = graph, Fusion(graph), buffers
        self._roots: dict[Value, Value] = {}
        self._memory: dict[Value, Buffer] = {}  # by the value whose memory it is; none for arguments
        self.order = self._scheduled()
        self.reads = {
            step: [*dict.fromkeys(self._root(v) for part in parts for v in self._fusion.reads(part))]
            for step, parts in self.order.items()
        }
        # Of a branch, the results are in the memory that those of the choice have.
        self._placed = set(map(self._root, graph.results)) if placed else set()
        self._last: dict[Value, Step | None] = {v: step for step in self.order for v in self.reads[step]}
        self._last |= dict.fromkeys(map(self._root, graph.results))

    def run(self, clock: int) -> int:
        """Runs it from a time on; the time after it."""
        for step in self.order:
            start, clock = clock, clock + 1
            taken = self._taken(step)
            for result in step.results:
                if self._root(result) is result:
                    self._make(result, taken.get(result), start)
            for body in step.bodies:
                clock = _Run(body, self._found, placed=step.kind is Kind.BRANCH).run(clock)
            for v in (*self.reads[step], *map(self._root, step.results)):
                if v in self._memory:
                    self._memory[v].end = max(self._memory[v].end, clock - 1)
        return clock

    def mark(self, now: int) -> None:
        """Marks what the results of the program are in; one that is an argument, or another, is a copy."""
        seen: set[Buffer] = set()
        for v in map(self._root, self._graph.results):
            buffer = self._memory.get(v)
            if (buffer is None and not v.mutable and v.step is None) or buffer in seen:
                self._found.append(Buffer(v.bytes, [(now, v)], result=True))
            elif buffer is not None:
                buffer.result = True
                seen.add(buffer)

    def _make(self, result: Value, over: Value | None, now: int) -> None:
        """Places a result, over the memory of another or in new memory."""
        if result in self._placed:
            return
        if over is None:
            self._memory[result] = Buffer(result.bytes, [(now, result)])
            self._found.append(self._memory[result])
        elif over in self._memory:
            self._memory[result] = self._memory[over]
            self._memory[result].values.append((now, result))

    def _taken(self, step: Step) -> dict[Value, Value]:
        """Which results are written over operands that nothing needs any more."""
        free = [v for v in self.reads[step] if self._last[v] is step and (v in self._memory or v.mutable)]
        pairs: Iterable[tuple[Value, Value]] = ()  # operands with the results that may be written over them
        if step.kind is Kind.LOOP:
            pairs = ((self._root(step.operands[i]), step.results[j]) for i, j in step.carried)
        elif step.kind is Kind.STORE:
            pairs = [(self._root(step.operands[0]), step.results[0])]
        elif step.kind in (Kind.MAP, Kind.COSTLY):
            pairs = [(v, step.results[0]) for v in free if v.bytes == step.results[0].bytes][:1]
        overwritten: dict[Value, Value] = {}
        for v, result in pairs:
            if v in free:
                free.remove(v)
                overwritten[result] = v
        return overwritten

    def _root(self, v: Value) -> Value:
        """The value whose memory a value is in."""
        if v not in self._roots:
            step = v.step
            if step is None or not step.operands or step.kind not in (Kind.VIEW, Kind.BARRIER):
                self._roots[v] = v
            else:
                place = step.results.index(v) if step.kind is Kind.BARRIER else 0
                self._roots[v] = self._root(step.operands[place])
        return self._roots[v]

    def _scheduled(self) -> dict[Step, list[Step]]:
        """The steps in the order that they run, with those that are done as one.

        Each runs as soon as all that it needs is there; of those that wait for the same, first what is met first on
        the way from the results back to the arguments.
        """
        steps = [s for s in _post_order(self._graph) if self._fusion.materialized(s)]
        before = {s: {v.step for v in self._fusion.reads(s) if v.step is not None} for s in steps}
        joined = _joined(steps, before)
        joint = {part: step for step, parts in joined.items() for part in parts}
        for step in steps:  # another shape for what is just computed is written at once
            producer = step.operands[0].step if step.kind is Kind.VIEW and step.operands else None
            if producer is not None and joint.get(producer, producer).kind in (Kind.MAP, Kind.COSTLY):
                joint[step] = joint.get(producer, producer)
        units = list(dict.fromkeys(joint.get(s, s) for s in steps))
        sorter = graphlib.TopologicalSorter[Step](dict.fromkeys(units, ()))
        for unit in units:
            sorter.add(unit, *{joint.get(n, n): None for part in joined.get(unit, [unit]) for n in before[part]})
        return {unit: joined.get(unit, [unit]) for unit in sorter.static_order()}


def _post_order(graph: Graph) -> list[Step]:
    """The steps, each after those that it needs; from the results on, operand by operand."""
    ordered: dict[Step, None] = {}
    effects = [s for s in graph.steps if s.kind is Kind.STORE or not s.results]
    ends = [v.step for v in graph.results if v.step is not None]
    for end in (*ends, *effects, *graph.steps):
        waiting: list[tuple[Step, int]] = [(end, 0)]
        while waiting:
            step, i = waiting.pop()
            if step in ordered:
                continue
            needs = step.operands[i].step if i < len(step.operands) else None
            if i == len(step.operands):
                ordered[step] = None
                continue
            waiting.append((step, i + 1))
            if needs is not None and needs not in ordered:
                waiting.append((needs, 0))
    return list(ordered)


def _joined(steps: list[Step], before: dict[Step, set[Step]]) -> dict[Step, list[Step]]:
    """Sums over the same devices that the compiler sends as one, by that one: none of them needs another."""
    groups: dict[tuple[str, ...], list[list[Step]]] = {}
    places = {step: 1 << i for i, step in enumerate(steps)}
    needs: dict[Step, int] = {}  # as bits, the step and what it needs, the others of joined sums among them
    for step in steps:
        needs[step] = functools.reduce(operator.or_, (needs[n] for n in before[step]), places[step])
        if step.kind is not Kind.SEND:
            continue
        alike = groups.setdefault((step.name, str(step.eqn.params), str(step.results[0].aval.dtype)), [])
        group = next((g for g in alike if not needs[step] & sum(places[s] for s in g)), None)
        if group is None:
            alike.append([step])
            continue
        members = sum(places[s] for s in group)
        together = functools.reduce(operator.or_, (needs[s] for s in group), needs[step])
        needs |= {s: n | together for s, n in needs.items() if s is step or n & members}
        group.append(step)
    joined: dict[Step, list[Step]] = {}
    for group in (g for alike in groups.values() for g in alike if len(g) > 1):
        last = group[-1]
        one = Step(last.name, Kind.SEND, [v for s in group for v in s.operands], last.order, last.eqn, last.stack)
        one.results = [v for s in group for v in s.results]
        joined[one] = group
    return joined


def packed(buffers: Sequence[Buffer]) -> int:
    """The bytes that buffers need: each result has one, in which others may be before it; the rest share a heap."""
    results = sorted((b for b in buffers if b.result), key=lambda b: -b.bytes)
    inside: dict[Buffer, list[Buffer]] = {b: [b] for b in results}
    left = [
        b
        for b in sorted((b for b in buffers if not b.result), key=lambda b: (-b.bytes, b.start))
        if not _hosted(b, inside)
    ]
    return sum(b.bytes for b in results) + peak(left)


def _hosted(buffer: Buffer, inside: dict[Buffer, list[Buffer]]) -> bool:
    """Puts a buffer into the memory of a result that has room for it all its life, if there is one."""
    for result, others in inside.items():
        if buffer.bytes <= result.bytes and all(b.end < buffer.start or buffer.end < b.start for b in others):
            others.append(buffer)
            return True
    return False


def peak(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are in use at once."""
    return sum(v.bytes for v in live(buffers))


def live(buffers: Sequence[Buffer]) -> list[Value]:
    """The values that are live at the peak."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.start] = change.get(b.start, 0) + b.bytes
        change[b.end + 1] = change.get(b.end + 1, 0) - b.bytes
    now, most, when = 0, 0, -1
    for time in sorted(change):
        now += change[time]
        if now > most:
            most, when = now, time
    return [b.at(when) for b in buffers if b.start <= when <= b.end]
