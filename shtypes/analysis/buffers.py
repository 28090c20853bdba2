"""Buffer assignment: which results are in memory, when, and in which buffer, after fusion and in-place writes."""

from __future__ import annotations

import functools
import graphlib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shtypes.analysis.device_steps import Graph, Kind, Step, Value

#: The kinds of steps that XLA may compute inside of the steps that use them.
_FUSES_INTO_USERS: Final = frozenset({Kind.MAP, Kind.COSTLY})
#: The other kinds into which steps may be fused.
_FUSES_OPERANDS: Final = frozenset({Kind.FOLD, Kind.STORE})


class Fusion:
    """The steps that compute each step of a graph after fusion; itself if its result is in memory.

    ``b = exp(a); c = sum(b)`` is one kernel, in which ``b`` has no memory: ``into[b] == {c}`` and ``reads(c) == [a]``.

    Args:
        graph: A body.
        repeats: Whether what reads little is computed wherever it is read, as XLA does. For an estimate of memory it is
            not: it takes the place of the copies that XLA makes of what products read in another layout.
    """

    def __init__(self, graph: Graph, *, repeats: bool = False) -> None:
        self._repeats = repeats
        self.into: dict[Step, frozenset[Step]] = {}
        self._users: dict[Value, list[Step]] = {}
        self._results = set(graph.results)
        for step in graph.steps:
            for v in dict.fromkeys(step.operands):
                self._users.setdefault(v, []).append(step)
        order = sorted(graph.steps, key=lambda s: s.order)
        self._bit = {step: 1 << i for i, step in enumerate(order)}
        self._before: dict[Step, int] = {}  # the transitive operands of a step, as bits
        for step in order:
            self._before[step] = self._bit[step]
            for v in step.operands:
                self._before[step] |= self._before[v.step] if v.step is not None else 0
        for step in reversed(order):
            self.into[step] = self._computed_in(step)
        self._reads: dict[Step, dict[Value, bool]] = {}
        for step in order:
            reads: list[tuple[Value, bool]] = []
            for v in step.operands:
                if v.step is None or self.materialized(v.step):
                    reads.append((v, True))
                else:
                    reads += self._reads[v.step].items()
            self._reads[step] = _all_of((v, flag and step.is_elementwise) for v, flag in reads)

    def materialized(self, step: Step) -> bool:
        """Whether the results of a step are in memory, or alias its operands."""
        return step in self.into[step]

    def _computed_in(self, step: Step) -> frozenset[Step]:
        itself = frozenset((step,))
        if step.kind not in _FUSES_INTO_USERS and step.kind is not Kind.VIEW:
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
        recomputable = step.kind is Kind.VIEW or (
            step.kind is Kind.MAP and ((self._repeats and _reads_little(step)) or self._on_all_paths(step))
        )
        return readers if recomputable or len(readers) == 1 else itself

    def _on_all_paths(self, step: Step) -> bool:
        """Whether no user of a step waits for a value in memory that is computed from it elsewhere."""
        waiting, seen = list(self._users[step.results[0]]), set[Step]()
        while waiting:
            for other in {v.step for v in waiting.pop().operands if v.step is not None} - seen - {step}:
                if self._before[other] & self._bit[step]:
                    if other in self.into[other]:
                        return False
                    seen.add(other)
                    waiting.append(other)
        return True

    def _reader(self, user: Step, value: Value) -> frozenset[Step]:
        """The steps that would compute a value if fused into a user; empty if the user reads it from memory."""
        into = self.into[user]
        if user.kind is Kind.VIEW:
            return frozenset() if user in into else into
        if user.kind in _FUSES_INTO_USERS:
            return into
        reads = user.kind in _FUSES_OPERANDS and not (user.kind is Kind.STORE and user.operands[0] is value)
        return frozenset((user,)) if reads else frozenset()

    def reads(self, step: Step) -> Mapping[Value, bool]:
        """The values that a step reads from memory, through what is fused into it, and whether element by element."""
        return self._reads[step]


def _all_of(reads: Iterable[tuple[Value, bool]]) -> dict[Value, bool]:
    """Each value, with whether all of its flags are set."""
    merged: dict[Value, bool] = {}
    for v, flag in reads:
        merged[v] = flag and merged.get(v, True)
    return merged


def _reads_little(step: Step) -> bool:
    """Whether XLA computes a result wherever it is read: one array is read for it, or no more bytes than it has."""
    (result,) = step.results
    arrays = {v: v.bytes for v in step.operands if math.prod(v.aval.shape) > 1}
    return len(arrays) <= 1 or sum(arrays.values()) <= result.bytes


@dataclass(eq=False)
class Buffer:
    """Memory of one value, or of several in sequence."""

    bytes: int
    values: list[tuple[int, Value]]  # with the time of each computation
    end: int = -1  # the time of the last read
    result: bool = False  # whether it holds a result of the program

    @property
    def start(self) -> int:
        """The time of the first computation."""
        return self.values[0][0]

    def at(self, time: int) -> Value:
        """The value in it at a time."""
        return next(v for start, v in reversed(self.values) if start <= time)


def buffers_of(schedule: Schedule) -> list[Buffer]:
    """All buffers of a program besides its arguments, with their lifetimes."""
    buffers: list[Buffer] = []
    run = _Run(schedule, buffers)
    clock = run.run(0)
    run.mark(clock)
    for buffer in buffers:
        buffer.end = clock if buffer.result else max(buffer.end, buffer.start)
    return [b for b in buffers if b.bytes]


def saved_by(schedule: Schedule) -> list[Value]:
    """The forward values that the backward steps of a program read, in program order.

    For loops that take gradients themselves, such as over microbatches, those of one step of the largest.
    """
    residuals: dict[Value, None] = {}
    for step in schedule.order:
        if step.direction != "forward":
            residuals |= {v: None for v in schedule.reads[step] if v.step is not None and v.step.direction == "forward"}
    inside = [saved_by(body) for step, some in schedule.bodies.items() if step.direction == "forward" for body in some]
    largest = max(inside, key=lambda values: sum(v.bytes for v in values), default=[])
    return [*sorted(residuals, key=lambda v: v.step.order if v.step is not None else 0), *largest]


class Schedule:
    """The steps of one body in execution order, with the values that each reads from memory."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._fusion = graph, Fusion(graph)
        self._roots: dict[Value, Value] = {}
        self.results = graph.results
        self.order = self._scheduled()
        #: The values that each step reads from memory, and whether it may be written over them.
        self.reads = {
            step: _all_of((self.root(v), flag) for part in parts for v, flag in self._fusion.reads(part).items())
            for step, parts in self.order.items()
        }
        self.last: dict[Value, Step | None] = {v: step for step in self.order for v in self.reads[step]}
        self.last |= dict.fromkeys(map(self.root, graph.results))
        self.bodies = {step: [*map(Schedule, step.bodies)] for step in self.order if step.bodies}

    def root(self, v: Value) -> Value:
        """The value whose buffer a value aliases."""
        if v not in self._roots:
            step = v.step
            if step is None or not step.operands or step.kind not in (Kind.VIEW, Kind.BARRIER):
                self._roots[v] = v
            else:
                place = step.results.index(v) if step.kind is Kind.BARRIER else 0
                self._roots[v] = self.root(step.operands[place])
        return self._roots[v]

    def _scheduled(self) -> dict[Step, list[Step]]:
        """The steps in execution order, with those that run as one.

        Each runs as soon as its operands are ready; ties are broken by a depth-first walk from the results.
        """
        steps = [s for s in _post_order(self._graph) if self._fusion.materialized(s)]
        before = {s: {v.step for v in self._fusion.reads(s) if v.step is not None} for s in steps}
        joined = _combined_collectives(steps, before)
        combined_of = {part: step for step, parts in joined.items() for part in parts}
        for step in steps:  # a reshape runs with its producer
            producer = step.operands[0].step if step.kind is Kind.VIEW and step.operands else None
            if producer is not None and combined_of.get(producer, producer).kind in (Kind.MAP, Kind.COSTLY):
                combined_of[step] = combined_of.get(producer, producer)
        units = list(dict.fromkeys(combined_of.get(s, s) for s in steps))
        sorter = graphlib.TopologicalSorter[Step](dict.fromkeys(units, ()))
        for unit in units:
            sorter.add(unit, *{combined_of.get(n, n): None for part in joined.get(unit, [unit]) for n in before[part]})
        return {unit: joined.get(unit, [unit]) for unit in sorter.static_order()}


class _Run:
    """The buffers of the results of one body."""

    def __init__(self, schedule: Schedule, buffers: list[Buffer], *, is_branch: bool = False) -> None:
        self._schedule, self._buffers = schedule, buffers
        self._memory: dict[Value, Buffer] = {}  # by root value; arguments have none
        # the results of a branch are in the buffers of the conditional's results
        self._in_outer_buffers = set(map(schedule.root, schedule.results)) if is_branch else set()

    def run(self, clock: int) -> int:
        """Runs it from a time on; returns the time after it."""
        for step in self._schedule.order:
            start, clock = clock, clock + 1
            reused = self._reuse(step)
            for result in step.results:
                if self._schedule.root(result) is result:
                    self._make(result, reused.get(result), start)
            for body in self._schedule.bodies.get(step, ()):
                clock = _Run(body, self._buffers, is_branch=step.kind is Kind.BRANCH).run(clock)
            for v in (*self._schedule.reads[step], *map(self._schedule.root, step.results)):
                if v in self._memory:
                    self._memory[v].end = max(self._memory[v].end, clock - 1)
        return clock

    def mark(self, now: int) -> None:
        """Marks the buffers of the program's results; a repeated result, or an argument, is a copy."""
        seen: set[Buffer] = set()
        for v in map(self._schedule.root, self._schedule.results):
            buffer = self._memory.get(v)
            if (buffer is None and not v.mutable and v.step is None) or buffer in seen:
                self._buffers.append(Buffer(v.bytes, [(now, v)], result=True))
            elif buffer is not None:
                buffer.result = True
                seen.add(buffer)

    def _make(self, result: Value, over: Value | None, now: int) -> None:
        """Assigns a result the buffer of another value, or a new one."""
        if result in self._in_outer_buffers:
            return
        if over is None:
            self._memory[result] = Buffer(result.bytes, [(now, result)])
            self._buffers.append(self._memory[result])
        elif over in self._memory:
            self._memory[result] = self._memory[over]
            self._memory[result].values.append((now, result))

    def _reuse(self, step: Step) -> dict[Value, Value]:
        """The dead operands over which results are written."""
        free = [
            v for v in self._schedule.reads[step] if self._schedule.last[v] is step and (v in self._memory or v.mutable)
        ]
        pairs: Iterable[tuple[Value, Value]] = ()  # operands, with results that may overwrite them
        if step.kind is Kind.LOOP:
            pairs = ((self._schedule.root(step.operands[i]), step.results[j]) for i, j in step.carried)
        elif step.kind is Kind.STORE:
            pairs = [(self._schedule.root(step.operands[0]), step.results[0])]
        elif step.kind in (Kind.MAP, Kind.COSTLY):
            may = self._schedule.reads[step]
            pairs = [(v, step.results[0]) for v in free if v.bytes == step.results[0].bytes and may[v]][:1]
        overwritten: dict[Value, Value] = {}
        for v, result in pairs:
            if v in free:
                free.remove(v)
                overwritten[result] = v
        return overwritten


def _post_order(graph: Graph) -> list[Step]:
    """The steps in post-order: from the results, operand by operand."""
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


@dataclass(eq=False)
class _Combined:
    """Equal collectives that the compiler combines; steps are bits."""

    steps: list[Step] = field(default_factory=list)
    members: int = 0
    needs: int = 0  # these, and their transitive operands


def _combined_collectives(steps: list[Step], before: dict[Step, set[Step]]) -> dict[Step, list[Step]]:
    """Collectives over the same devices that the compiler combines, by the combined one; none depends on another."""
    groups: dict[tuple[str, ...], list[_Combined]] = {}
    several: list[_Combined] = []  # of more than one step
    needs: dict[Step, int] = {}  # a step with its transitive operands, as bits
    for i, step in enumerate(steps):
        needs[step] = functools.reduce(operator.or_, (needs[n] for n in before[step]), 1 << i)
        if step.kind is not Kind.SEND:
            continue
        equal_groups = groups.setdefault((step.name, str(step.eqn.params), str(step.results[0].aval.dtype)), [])
        waits_for = _with_combined(needs[step], several)
        group = next((g for g in equal_groups if not waits_for & g.members), None)
        if group is None:
            equal_groups.append(group := _Combined())
        group.steps.append(step)
        group.members, group.needs = group.members | 1 << i, group.needs | needs[step]
        if len(group.steps) == 2:
            several.append(group)
    joined: dict[Step, list[Step]] = {}
    for parts in (group.steps for group in several):
        last = parts[-1]
        one = Step(last.name, Kind.SEND, [v for s in parts for v in s.operands], last.order, last.eqn, last.stack)
        one.results = [v for s in parts for v in s.results]
        joined[one] = parts
    return joined


def _with_combined(needs: int, several: Iterable[_Combined]) -> int:
    """The transitive operands of a step, as bits, where a combined collective waits for those of all its parts."""
    before = 0
    while needs != before:
        before = needs
        for group in several:
            needs |= group.needs if needs & group.members else 0
    return needs


def packed(buffers: Sequence[Buffer]) -> int:
    """The total bytes of buffers: each result has one, which may host earlier buffers; the rest share a heap."""
    results = sorted((b for b in buffers if b.result), key=lambda b: -b.bytes)
    others = sorted((b for b in buffers if not b.result), key=lambda b: (-b.bytes, b.start))
    sizes, starts, ends = np.array([(b.bytes, b.start, b.end) for b in results], int).reshape(-1, 3).T
    #: Of each hosted buffer the index of its result, and its lifetime.
    host, first, last = np.empty((3, len(others)), int)
    outside: list[Buffer] = []
    for i, b in enumerate(others):
        n = i - len(outside)
        free = (sizes >= b.bytes) & ((ends < b.start) | (b.end < starts))
        free[host[:n][(first[:n] <= b.end) & (b.start <= last[:n])]] = False
        if free.any():
            host[n], first[n], last[n] = free.argmax(), b.start, b.end
        else:
            outside.append(b)
    return sum(b.bytes for b in results) + peak(outside)


def peak(buffers: Sequence[Buffer]) -> int:
    """The maximum bytes in use at once."""
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
