"""Which forward equation causes a backward one.

JAX transposes an equation under the user's frames of the forward one. So the frames tell which expression caused a
backward equation, and its operands which run of it, where a Python loop ran the expression often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shtypes._compat import Cond, Scan, While
from shtypes.analysis.explain.cotangents import cotangent_type
from shtypes.analysis.explain.given import control_of
from shtypes.analysis.explain.values import Record, Scope

#: A value with more uses than this says little about which of them is meant.
_MANY_USES = 64


class Links:
    """The links of one body.

    Args:
        places: The scopes whose forward equations may be the cause: of a transposed body, the forward one first.
    """

    def __init__(self, places: Sequence[Scope]) -> None:
        self._places = places
        self._last: dict[tuple[int, ...], Record] = {}  # the last backward equation of an expression

    def cause(self, record: Record) -> Record | None:
        """The forward equation that a backward one comes from, or that a recomputed one repeats."""
        same = next((s.forward[record.key] for s in self._places if record.key in s.forward), None)
        if same is None:  # a backward function of the user's own is under the line of the call
            same = next((s.calls[record.key] for s in self._places if record.key in s.calls), None)
        if not same or not record.frames:
            return _by_kind(record, self._places)
        before = self._last.get(record.key)
        self._last[record.key] = record
        return same[0] if len(same) == 1 else _closest(record, same, before)


def _closest(record: Record, same: list[Record], before: Record | None) -> Record:
    """Of the runs of one expression, the one whose values an equation takes; else the next one in reverse order."""
    key, count = same[0].key, len(record.key)

    def runs(other: Record) -> bool:
        return other.key == key or (key != record.key and other.key[-count:] == record.key)

    votes: Counter[int] = Counter()
    for value in record.values:
        if value.gradient:
            sender = value.made.link if value.made is not None else None
            makers = [v.made for v in sender.values if v.made is not None] if sender is not None else []
            own = [m for m in makers if runs(m)]
            votes.update({id(m): 2 for m in own if any(cotangent_type(v.type) == value.type for v in m.outs)})
        elif len(value.uses) <= _MANY_USES:
            votes.update({id(u): 1 for u in value.uses if u.found.direction == "forward" and runs(u)})
            if value.made is not None and runs(value.made):
                votes[id(value.made)] += 1
    if record.backward:
        last = before.link.instance if before is not None and before.link is not None else len(same)
        follows = before is not None and record.position - before.position == 1
        turn = same[min(max(last if follows else last - 1, 0), len(same) - 1)]
    else:
        turn = same[0]
    if not votes or votes[id(turn)] == max(votes.values()):
        return turn
    best = max(votes.values())
    return next((r for r in reversed(same) if votes[id(r)] == best), turn)


def _by_kind(record: Record, places: Sequence[Scope]) -> Record | None:
    """For a loop whose frames JAX lost: the last forward one of its kind that nothing came from yet."""
    if not isinstance(control_of(record.found.eqn), (Scan, While, Cond)):
        return None
    name = record.found.eqn.primitive.name
    for scope in places:
        for other in reversed(scope.records):
            if other.found.direction == "forward" and not other.answered and other.found.eqn.primitive.name == name:
                return other
    return None
