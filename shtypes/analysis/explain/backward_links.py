"""Which forward equation causes a backward one.

JAX transposes an equation under the user's frames of the forward one. So the frames tell which expression caused a
backward equation, and its operands which run of it, where a Python loop ran the expression often.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence

from shtypes._compat.jaxprs import Cond, Scan, While
from shtypes.analysis.explain.cotangents import cotangent_type
from shtypes.analysis.explain.values import BodyRun, Occurrence
from shtypes.core.operation import applied_by
from shtypes.traced.equations import control_of

#: A value with more uses than this says little about which of them is meant.
_MANY_USES = 64
#: Runs of an expression elsewhere that are looked at.
_SOME = 8


class Links:
    """The links of one body.

    Args:
        places: The scopes whose forward equations may be the cause: of a transposed body, the forward one first. Those
            around it are among them: JAX moves out of a loop what is the same at each step.
        anywhere: For expressions, a scope that has forward equations of them: JAX may split a conditional in two.
    """

    def __init__(self, places: Sequence[BodyRun], anywhere: Mapping[tuple[int, ...], BodyRun]) -> None:
        self._places, self._anywhere = places, anywhere
        self._last: dict[tuple[int, ...], Occurrence] = {}  # the last backward equation of an expression
        self._before: Occurrence | None = None
        self._reached: dict[int, int] = {}  # by scope: how far the backward pass is, which goes back without a return

    def restart(self) -> None:
        """Says that what comes is computed forward: a backward pass after it is another one."""
        self._reached.clear()

    def cause(self, record: Occurrence) -> Occurrence | None:
        """The forward equation that a backward one comes from, or that a recomputed one repeats."""
        before, self._before = self._before, record
        if before is not None and before.link is not None and record.sums and record.key == before.key:
            return before.link  # JAX adds under the line of the last cotangent
        place, same = next(((s, s.forward[record.key]) for s in self._places if record.key in s.forward), (None, []))
        if place is None:  # a backward function of the user's own is under the line of the call
            place, same = next(((s, s.calls[record.key]) for s in self._places if record.key in s.calls), (None, []))
        if place is None and record.key in self._anywhere:
            place = self._anywhere[record.key]
            same = place.forward[record.key]
        if place is None or not record.frames:
            return _by_kind(record, self._places)
        found = same[0] if len(same) == 1 else self._closest(record, same, self._reached.get(id(place)))
        self._last[record.key] = record
        if record.backward and not _fits(record, found):
            others = (r for s in self._places for r in reversed(s.forward.get(record.key, ())[-_SOME:]))
            found = next((r for r in others if _fits(record, r)), found)
        elif record.backward:
            self._reached[id(place)] = found.position
        return found

    def _closest(self, record: Occurrence, same: list[Occurrence], reached: int | None) -> Occurrence:
        """Of the runs of one expression, the one whose values an equation takes; else the next one in reverse order."""
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
    """Whether types allow that an equation takes the cotangent of a result, and makes that of an operand."""
    taken = [v.type for v in record.values if v.gradient]
    made = [v.aval for v in record.found.eqn.outvars]
    return any(cotangent_type(v.type) in taken for v in cause.outs) and any(
        cotangent_type(v.type) in made for v in cause.values
    )


def _votes(record: Occurrence, same: list[Occurrence], end: int) -> Counter[int]:
    """For each of the first runs of an expression, how much speaks for it: the values that an equation takes."""
    votes: Counter[int] = Counter()
    count = len(record.key)

    def runs(other: Occurrence) -> bool:
        if other.key == record.key:  # the usual case: a run of the expression itself
            return other.instance < end and same[other.instance] is other
        if other.key[-count:] != record.key:
            return False
        i = bisect.bisect_left(same, other.position, 0, end, key=lambda r: r.position)
        return i < end and same[i] is other

    for value in record.values:
        if value.gradient:
            sender = value.made.link if value.made is not None else None
            makers = [v.made for v in sender.values if v.made is not None] if sender is not None else []
            own = [m for m in makers if runs(m)]
            votes.update({id(m): 2 for m in own if any(cotangent_type(v.type) == value.type for v in m.outs)})
        elif len(value.uses) <= _MANY_USES:
            votes.update({id(u): 1 for u in value.uses if runs(u)})
            if value.made is not None and runs(value.made):
                votes[id(value.made)] += 1
    return votes


def _by_kind(record: Occurrence, places: Sequence[BodyRun]) -> Occurrence | None:
    """For a loop whose frames JAX lost: the last forward one of its kind that nothing came from yet."""
    if not isinstance(control_of(record.found.eqn), (Scan, While, Cond)):
        return None
    name = applied_by(record.found.eqn).name
    for scope in places:
        for other in reversed(scope.records):
            if other.found.direction == "forward" and not other.answered and applied_by(other.found.eqn).name == name:
                return other
    return None
