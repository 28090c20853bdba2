"""Prices fixes: the reshards of operands, the casts that the rule inserts then, and what they hold and share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from shtypes.errors import Fix
from shtypes.resharding import Cost, Direction, Price, cost
from shtypes.resharding.moves import all_in_words
from shtypes.rules.candidate_types import least_cost, price_of, replication_penalty
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State
from shtypes.types.policy import replicated
from shtypes.types.target import target_text

#: The communication inside an op that consists of others, for operands that type.
Inside = Callable[[tuple[ShType, ...]], Sequence[Price]]


class FixPrice(NamedTuple):
    """The sort key of fixes: bytes sent, then bytes of memory, then the division of work.

    For `implicit_comm`, the bytes include the solver's penalty of replication.
    """

    counted: Cost  # bytes that each device sends, with penalties, in the direction to minimize and in both
    memory: int  # bytes per device of the operands and results
    work: int  # minus the number of devices that share the work
    sent: Cost  # bytes that each device sends
    forward: int  # bytes in the forward pass
    casts: int  # the number of casts that the rule inserts


class Later(NamedTuple):
    """The communication that a fix leaves to later ops."""

    later: str  # in words
    bytes_later: int


class Candidate(NamedTuple):
    """Types of the operands with which the op types."""

    price: FixPrice
    fix: Fix
    results: tuple[ShType, ...]
    operands: tuple[ShType, ...]


def total_cost(costs: Iterable[Cost]) -> Cost:
    """Sum of costs."""
    firsts, totals = zip((0, 0), *costs, strict=True)
    return sum(firsts), sum(totals)


def no_inside_comm(operands: tuple[ShType, ...]) -> Sequence[Price]:
    """The communication inside an op that does not consist of others: none."""
    return ()


class Pricing:
    """Prices candidates for the types of an op's operands.

    Args:
        operands: The operands' types as they are.
        names: Their names in fixes.
        minimize: The direction of communication to minimize.
        inside: The communication inside the op.
        same: For each operand, the index of the first with the same value.
        decides: Whether the `replication_penalty` counts.
    """

    def __init__(
        self,
        operands: tuple[ShType, ...],
        names: Sequence[str],
        minimize: Direction,
        inside: Inside,
        same: Sequence[int],
        decides: bool,
    ) -> None:
        self.operands, self.names, self.minimize, self.inside = operands, names, minimize, inside
        self._same, self._decides = same or range(len(operands)), decides
        self._bounds: dict[tuple[ShType, ...], Cost] = {}

    def changed(self, operands: tuple[ShType, ...]) -> list[int]:
        """The operands that a candidate moves."""
        return [i for i, (t, before) in enumerate(zip(operands, self.operands, strict=True)) if t is not before]

    def least(self, operands: tuple[ShType, ...], typing: Typing) -> Cost:
        """A lower bound of a candidate's cost, without plans."""
        bound = self._bounds.get(operands)
        if bound is None:
            bound = self._bounds[operands] = self._bound(operands, typing)
        return bound

    def _bound(self, operands: tuple[ShType, ...], typing: Typing) -> Cost:
        returns = any(t.differentiable for t in typing.results)
        moves = (least_cost(*m, self.minimize, returns=back) for m, back in self._moves(operands, typing))
        inside = (cost(p.forward_bytes, p.backward_bytes * returns, self.minimize) for p in self.inside(operands))
        return total_cost([*moves, *inside])

    def _moves(self, operands: tuple[ShType, ...], typing: Typing) -> list[tuple[tuple[ShType, ShType], bool]]:
        """The reshards of a candidate and the casts of the rule, each with whether it has a cotangent.

        Operands with the same value share them.
        """
        moves = {(i, True): (self.operands[i], operands[i]) for i in self.changed(operands)}
        casts = {(i, False): (operands[i], t) for i, t in enumerate(typing.operands) if operands[i] != t}
        back = any(t.differentiable for t in typing.results)
        returns: dict[tuple[int, tuple[ShType, ShType], bool], bool] = {}
        for (i, is_move), pair in (*moves.items(), *casts.items()):
            key = self._same[i], pair, is_move
            returns[key] = (back and i not in typing.zero_derivative) or returns.get(key, False)
        return [(pair, back) for (_, pair, _), back in returns.items()]

    def priced(self, operands: tuple[ShType, ...], typing: Typing) -> Candidate:
        """The candidate of operands that type, with its price."""
        casts = sum(src != dst for src, dst in zip(operands, typing.operands, strict=True))
        moves = [(price_of(*move), returns) for move, returns in self._moves(operands, typing)]
        inside = self.inside(operands)
        prices = [*(p for p, _ in moves), *inside]
        back = [p for p, returns in moves if returns]
        back += inside if any(t.differentiable for t in typing.results) else ()
        forward = sum(p.forward_bytes for p in prices)
        backward = sum(p.backward_bytes for p in back)
        fix = Fix(
            code="; ".join(
                f'sh.reshard({self.names[i]}, "{target_text(operands[i])}")' for i in self.changed(operands)
            ),
            forward=all_in_words(p.forward for p in prices),
            backward=all_in_words(p.backward for p in back),
            bytes_forward=forward,
            bytes_backward=backward,
            note="" if forward or backward else _note(self.operands, typing.operands),
            **later_casts(self.operands, operands, typing.results)._asdict(),
        )
        memory = sum(t.local_bytes for t in (*typing.operands, *typing.results))
        work = -_sharing(typing.operands)
        sent = cost(forward, backward, self.minimize)
        pairs = zip(self.operands, operands, strict=True) if self._decides else ()
        penalties = [replication_penalty(*pair, self.minimize) for pair in pairs]
        later = cost(0, fix.bytes_later * (not self._decides), self.minimize)
        price = FixPrice(total_cost((sent, *penalties, later)), memory, work, sent, forward, casts)
        return Candidate(price, fix, typing.results, operands)


def later_casts(before: Iterable[ShType], after: Iterable[ShType], results: Iterable[ShType]) -> Later:
    """The casts of invariant results to replicated, on the axes on which values became invariant."""
    was, became = ({a for t in types for a in t.axes(State.INVARIANT)} for types in (before, after))
    prices = [
        price_of(t, t.with_axes([a for a in t.axes(State.INVARIANT) if a in became - was], replicated()))
        for t in results
        if t.differentiable
    ]
    return Later(all_in_words(p.backward for p in prices), sum(p.backward_bytes for p in prices))


def cheapest_of_each_result(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates by price, only the cheapest for each tuple of result types."""
    first: dict[tuple[ShType, ...], Candidate] = {}
    for c in sorted(candidates, key=lambda c: (c.price, c.fix.code)):
        first.setdefault(c.results, c)
    return list(first.values())


def _sharing(operands: Sequence[ShType]) -> int:
    """The number of devices that share the work on some operands."""
    if not operands:
        return 1
    return operands[0].mesh.product({a for t in operands for a in t.axes(State.SHARDED, State.VARYING)})


def _note(before: Sequence[ShType], after: Sequence[ShType]) -> str:
    """The note on a fix that sends nothing: its cost in memory or work."""
    return memory_note(zip(before, after, strict=True)) or (
        "each device does all of the work" if _sharing(after) < _sharing(before) else ""
    )


def memory_note(moves: Iterable[tuple[ShType, ShType]]) -> str:
    """The note on moves that increase memory; empty for none."""
    larger = sum(dst.local_bytes > src.local_bytes for src, dst in moves)
    return f"each device holds all of {'it' if larger == 1 else 'them'}" if larger else ""


def called_names(operands: Sequence[ShType]) -> Sequence[str]:
    """The names of operands in printed code."""
    short = ("x",) if len(operands) == 1 else ("lhs", "rhs") if len(operands) == 2 else ()
    return short or [f"operand_{i}" for i in range(len(operands))]
