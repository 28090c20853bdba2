"""Which results are never in memory: the compiler computes them where they are used."""

from __future__ import annotations

from typing import Final

from shtypes.analysis.memory.graph import Graph, Step, Value
from shtypes.analysis.memory.kinds import Kind

_FUSED: Final = frozenset({Kind.MAP, Kind.COSTLY})
_READS: Final = frozenset({Kind.FOLD, Kind.STORE})


class Fusion:
    """For each step of a graph the steps that compute it; itself where its result is in memory."""

    def __init__(self, graph: Graph) -> None:
        self.into: dict[Step, frozenset[Step]] = {}
        self._users: dict[Value, list[Step]] = {}
        self._kept = set(graph.results)
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

    def materialized(self, step: Step) -> bool:
        """Whether the results of a step are in memory, or are what their operands are."""
        return step in self.into[step]

    def _into(self, step: Step) -> frozenset[Step]:
        itself = frozenset((step,))
        if step.kind not in _FUSED and step.kind is not Kind.VIEW:
            return itself
        (result,) = step.results
        wanted: frozenset[Step] = frozenset()
        for user in self._users.get(result, ()):
            into = self._reader(user, result)
            if not into:
                return itself
            wanted |= into
        if result in self._kept or not wanted:
            return itself
        alone = len(wanted) == 1
        if step.kind is Kind.COSTLY:
            return itself if not alone or self._spread(result) else wanted
        twice = step.kind is Kind.VIEW or _is_unary(step) or self._on_all_paths(step)
        return wanted if alone or twice else itself

    def _on_all_paths(self, step: Step) -> bool:
        """Whether no user of a step waits for what is computed from it elsewhere, and is in memory."""
        return all(self._only_fused(step, user) for user in self._users[step.results[0]])

    def _only_fused(self, step: Step, user: Step) -> bool:
        for made in {v.step for v in user.operands if v.step is not None and v.step is not step}:
            if self._before[made] & self._place[step] and (made in self.into[made] or not self._only_fused(step, made)):
                return False
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

    def _spread(self, value: Value) -> bool:
        """Whether a user reads each element several times."""
        return any(
            user.kind is not Kind.VIEW and user.kind is not Kind.FOLD and user.results[0].bytes > value.bytes
            for user in self._users.get(value, ())
        )

    def reads(self, step: Step) -> list[Value]:
        """What a step reads from memory, through what is fused into it."""
        found: dict[Value, None] = {}
        self._collect(step, found, set())
        return list(found)

    def _collect(self, step: Step, found: dict[Value, None], seen: set[Step]) -> None:
        for v in step.operands:
            if v.step is None or self.materialized(v.step):
                found[v] = None
            elif v.step not in seen:
                seen.add(v.step)
                self._collect(v.step, found, seen)


def _is_unary(step: Step) -> bool:
    """Whether it has one operand at most that is more than a number."""
    return sum(v.bytes > 8 for v in step.operands) <= 1
