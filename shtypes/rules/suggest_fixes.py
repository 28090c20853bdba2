"""Searches for fixes of an op that does not type: reshards of its operands, re-typed by the rule and priced.

A candidate moves the mesh axes at fault, one after the other: of one operand, of two, or of all that are sharded or
unreduced on it. Candidates are tried in the order of their estimated cost, at most `MAX_TRIED`. Of those that type,
the cheapest for each tuple of result types remains. If some operands cannot be moved, the others are also aligned with
them.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from shtypes.errors import Fix, ShardingTypeError
from shtypes.resharding import Cost, Direction
from shtypes.rules.candidate_types import (
    Place,
    aligned_with,
    alike_invariant,
    as_pending,
    estimate,
    not_yet_varying,
    other_places,
    place_of,
    unsharded_states,
    with_axis_at,
    without_slices,
)
from shtypes.rules.price_fixes import (
    Candidate,
    Inside,
    Pricing,
    called_names,
    cheapest_of_each_result,
    no_inside_comm,
    total_cost,
)
from shtypes.rules.typing import Typing
from shtypes.types import REPLICATED, ShType, State

#: The most fixes in an error.
MAX_FIXES: Final = 4
#: Candidates to type for one error before the search stops; variants of those that type come on top.
MAX_TRIED: Final = 96
#: The same for an op of more than `_MAX_MOVED_SINGLY` operands, whose typing takes longer.
_MAX_TRIED_OF_MANY: Final = 32
#: The approximate number of combinations of options of several axes to sort.
_MAX_COMBINED: Final = 512
#: The most operands that are moved one by one; of more, those with the axis at the same place are moved together.
_MAX_MOVED_SINGLY: Final = 5

#: The states in which each device holds a part of the value: a slice, or a term of the sum.
_PARTITIONED: Final = frozenset({State.SHARDED, State.UNREDUCED})

#: The typing of an op from its operands' types.
Rule = Callable[[tuple[ShType, ...]], Typing]
#: Groups of operands to move on one axis, and their new places.
Moves = tuple[tuple[tuple[int, ...], Place], ...]


class _Option(NamedTuple):
    """Moves of one axis, sorted by the first fields."""

    estimate: Cost
    level: int  # the number of moves; those that the rule would insert as casts count more
    number: int  # in the order of generation
    axis: str
    moves: Moves


def fixes(
    rule: Rule,
    operands: tuple[ShType, ...],
    names: Sequence[str] | None = None,
    same: Sequence[int] = (),
    inside: Inside = no_inside_comm,
) -> tuple[Fix, ...]:
    """Reshards that make an op type, at most four, the cheapest first.

    Each is typed again; the casts that the rule then inserts are part of its price. If nothing else types, all operands
    are gathered. ``same`` is, for each operand, the index of the first with the same value, which is moved once for
    all; ``inside`` the communication inside the op, without casts of its operands.
    """
    return tuple(candidate.fix for candidate in Search(rule, operands, names, same=same, inside=inside).best())


def priced_fixes(
    rule: Rule,
    operands: tuple[ShType, ...],
    inside: Inside,
    price: Callable[[tuple[ShType, ...]], tuple[str, str, int, int]],
    most_tried: int,
    names: Sequence[str] | None = None,
    immovable: Sequence[int] = (),
    later: bool = True,
    same: Sequence[int] = (),
) -> tuple[Fix, ...]:
    """`fixes` for a call, for which ``inside`` is an estimate.

    ``price`` is its exact communication with resharded operands: descriptions and bytes, forward and backward.
    ``later`` is whether backward passes outside of the program are to come.
    """
    candidates = []
    search = Search(rule, operands, names, most_tried=most_tried, inside=inside, same=same, immovable=immovable)
    for c in search.best():
        after = (c.fix.later, c.fix.bytes_later) if later else ()
        fix = Fix(c.fix.code, *price(c.operands), c.fix.note, *after)
        counted, sent = fix.order
        exact = c.price._replace(counted=(counted, counted), sent=(sent, sent), forward=fix.bytes_forward)
        candidates.append(c._replace(fix=fix, price=exact))
    return tuple(c.fix for c in cheapest_of_each_result(candidates))


class Search:
    """Searches for types of the operands with which an op types; other arguments are those of `fixes`.

    Args:
        minimize: The direction of communication to minimize.
        most_tried: Candidates to type before the search stops; variants of those that type come on top.
        decides: Whether the cheapest is chosen (for `implicit_comm`), so that the `replication_penalty` counts.
        immovable: The operands that cannot be moved.

    Attributes:
        pricing: The prices of candidates.
        tried: The number of candidates typed so far.
    """

    def __init__(
        self,
        rule: Rule,
        operands: tuple[ShType, ...],
        names: Sequence[str] | None = None,
        minimize: Direction = "both",
        most_tried: int = MAX_TRIED,
        inside: Inside = no_inside_comm,
        same: Sequence[int] = (),
        decides: bool = False,
        immovable: Sequence[int] = (),
    ) -> None:
        self.rule, self.operands, self.minimize = rule, operands, minimize
        self.most_tried = min(most_tried, _MAX_TRIED_OF_MANY) if len(operands) > _MAX_MOVED_SINGLY else most_tried
        self.pricing = Pricing(operands, names or called_names(operands), minimize, inside, same, decides)
        self.tried, self._immovable = 0, immovable
        #: For each operand, the first that moves as it does: a fix reshards a value wherever the call reads it.
        self._moves_with = range(len(operands)) if decides or not same else same
        self._typings: dict[tuple[ShType, ...], Typing | tuple[str, ...]] = {}

    def best(self, most: int = MAX_FIXES) -> list[Candidate]:
        """The cheapest candidates that type, one for each tuple of result types; none if the operands type already."""
        at_fault = self._try(self.operands)
        if isinstance(at_fault, Typing):
            return []
        typed = self._typed(at_fault, most) or {
            operands: typing for operands in self._gathered() if isinstance(typing := self._try(operands), Typing)
        }
        moved = {operands: {self._moves_with[i] for i in self.pricing.changed(operands)} for operands in typed}
        alone = {operands: typing for operands, typing in typed.items() if len(moved[operands]) == 1}
        candidates = self._cheapest(alone, most)
        below = candidates[0].price.counted if candidates else None
        if below is None or any(below):  # moving two operands may be cheaper than moving one
            multiple = {operands: typing for operands, typing in typed.items() if operands not in alone}
            candidates += self._cheapest(multiple, most, below)
        return cheapest_of_each_result(candidates)[:most]

    def of(self, operands: tuple[ShType, ...]) -> list[Candidate]:
        """The candidate with these operand types; empty if it does not type."""
        typing = self._try(operands)
        return [self.pricing.priced(operands, typing)] if isinstance(typing, Typing) else []

    def _cheapest(
        self, typed: dict[tuple[ShType, ...], Typing], most: int, below: Cost | None = None
    ) -> list[Candidate]:
        """The cheapest candidates, by branch and bound on their lower bounds."""
        candidates: list[Candidate] = []
        costs: dict[tuple[ShType, ...], Cost] = {}
        least = sorted(
            ((self.pricing.least(*pair), i, *pair) for i, pair in enumerate(typed.items())), key=lambda x: x[:2]
        )
        for bound, _, operands, typing in least:
            if (below and bound >= below) or (len(costs) >= most and bound > sorted(costs.values())[most - 1]):
                break
            candidate = self.pricing.priced(operands, typing)
            price, results = candidate.price.counted, candidate.results
            if below is None or price < below:
                candidates.append(candidate)
                costs[results] = min(price, costs.get(results, price))
        return candidates

    # candidates

    def _typed(self, at_fault: tuple[str, ...], most: int) -> dict[tuple[ShType, ...], Typing]:
        """The candidates that type: moves the axes at fault one after the other, then all together."""
        pending = self._variants(tuple(as_pending(t, t.mesh.axis_names) for t in self.operands))
        aligned: dict[tuple[ShType, ...], Typing] = {}
        for fixed in (self.operands[i] for i in self._immovable):
            operands = (t if i in self._immovable else aligned_with(t, fixed) or t for i, t in enumerate(self.operands))
            aligned |= self._variants(tuple(operands))
        options: dict[str, list[_Option]] = {}
        outcome: Typing | tuple[str, ...] = at_fault
        visits: list[str] = []
        while not isinstance(outcome, Typing):
            axis = next((a for a in outcome if visits.count(a) < 2), None)
            if axis is None:
                break
            visits.append(axis)
            others = [_plainest(ways) for a, ways in options.items() if a != axis]
            base = self._moved(self.operands, others)
            ways = [] if base is None else self._options(base, axis, 2 * most)
            if not ways:
                break
            options[axis] = ways
            moved = self._moved(self.operands, [*map(_plainest, options.values())])
            if moved is None:
                break
            outcome = self._try(moved)
        for axis in at_fault:  # to move another axis at fault may be enough
            if axis not in options and (ways := self._options(self.operands, axis, 2 * most)):
                options[axis] = ways
        typed = aligned | self._combined(options, most)
        if not any(self.pricing.least(*pair) == (0, 0) for pair in typed.items()):
            typed |= pending
        return typed

    def _options(self, base: tuple[ShType, ...], axis: str, most: int) -> list[_Option]:
        """The cheapest moves of an axis after which it is not at fault."""
        heap: list[_Option] = []
        numbers = itertools.count()

        def push(moves: Moves) -> None:
            once = [(i, place) for unit, place in moves for i in unit if self._moves_with[i] == i]
            costs = [estimate(base[i], ((axis, place),), self.minimize) for i, place in once]
            replicated = [place for unit, place in moves if base[unit[0]].state(axis) in REPLICATED]
            casts = sum(place not in REPLICATED for place in replicated)  # that the rule would insert
            heapq.heappush(heap, _Option(total_cost(costs), len(moves) + 2 * casts, next(numbers), axis, moves))

        units = self._units(base, axis)
        for unit in units:
            for place in other_places(base[unit[0]], axis):
                push(((unit, place),))
        partitioned = tuple(i for i, t in enumerate(base) if t.state(axis) in _PARTITIONED)
        if len(partitioned) > 1:
            smallest = min((base[i] for i in partitioned), key=lambda t: t.ndim)
            for place in (*range(smallest.ndim), *unsharded_states(smallest)):
                push(((partitioned, place),))
        ways: list[_Option] = []
        while heap and len(ways) < most and self._may_try():
            option = heapq.heappop(heap)
            operands = self._moved(base, [option])
            if operands is None:
                continue
            outcome = self._try(operands)
            if isinstance(outcome, Typing) or axis not in outcome:
                ways.append(option)
            elif len(option.moves) == 1:
                ((unit, place),) = option.moves
                if isinstance(place, int) and place >= 0 and any(base[i].dims[place].axes for i in unit):
                    push(((unit, ~place),))  # as its major axis
                if base[unit[0]].state(axis) in _PARTITIONED:
                    for other in units:  # a second operand may have to be moved too
                        if other[0] > unit[-1] and base[other[0]].state(axis) in _PARTITIONED:
                            # Of many operands, two are moved to one place: all pairs of places take too many trials.
                            places = [place] if len(units) > 2 else other_places(base[other[0]], axis)
                            for other_place in places:
                                push((*option.moves, (other, other_place)))
        return ways

    def _combined(self, options: dict[str, list[_Option]], most: int) -> dict[tuple[ShType, ...], Typing]:
        """The candidates that type, the cheapest first: with one option, or none, for each axis."""
        few = max(2, round(_MAX_COMBINED ** (1 / len(options)))) if options else 0
        unmoved = [[_Option((0, 0), 0, -1, axis, ())] for axis in options]
        chosen = itertools.product(*(none + ways[:few] for none, ways in zip(unmoved, options.values(), strict=True)))
        ordered = sorted((self._cost_of(each), sum(o.level for o in each), i, each) for i, each in enumerate(chosen))
        typed: dict[tuple[ShType, ...], Typing] = {}
        estimates: dict[tuple[ShType, ...], Cost] = {}  # by result types: that of the first candidate
        blamed: collections.Counter[_Option] = collections.Counter()
        for about, _, _, each in ordered[1:]:
            if len(estimates) >= 6 * most:
                break
            if len(estimates) >= most and about > total_cost([sorted(estimates.values())[most - 1]] * 2):
                break
            if any(blamed[option] > 1 for option in each):  # at fault for any moves of the other axes
                continue
            operands = self._moved(self.operands, each)
            if operands is None or not (operands in self._typings or self._may_try()):
                continue
            outcome = self._try(operands)
            if not isinstance(outcome, Typing):
                blamed.update(o for o in each if (o.axis,) == outcome)
                continue
            for tried, typing in self._variants(operands).items():
                typed[tried] = typing
                estimates.setdefault(typing.results, max(about, self.pricing.least(tried, typing)))
        return typed

    def _variants(self, operands: tuple[ShType, ...]) -> dict[tuple[ShType, ...], Typing]:
        """A candidate and its variants with cheaper casts, if they type."""
        outcome = self._try(operands)
        if not isinstance(outcome, Typing):
            return {}
        typed = {operands: outcome}
        for variant in (self._cast_at_once, without_slices, alike_invariant):
            for base, typing in [*typed.items()]:
                other = variant(base, typing)
                if other != base and isinstance(retyped := self._try(other), Typing):
                    typed[other] = retyped
        return typed

    def _cast_at_once(self, operands: tuple[ShType, ...], typing: Typing) -> tuple[ShType, ...]:
        """Changes operands to the types to which the rule casts them: one reshard instead of two.

        If the communication inside the op has a backward pass, axes that became invariant become reduced.
        """
        if any(p.backward for p in self.pricing.inside(operands)):  # casts of invariant operands cost most
            return tuple(
                t.with_axes({*t.axes(State.INVARIANT)} - {*before.axes(State.INVARIANT)}, State.REDUCED)
                for t, before in zip(operands, self.operands, strict=True)
            )
        changed = self.pricing.changed(operands)
        return tuple(not_yet_varying(t, typing.operands[i]) if i in changed else t for i, t in enumerate(operands))

    def _cost_of(self, options: Sequence[_Option]) -> Cost:
        """An estimate of the cost of several options."""
        moves: dict[int, list[tuple[str, Place]]] = {}
        for option in options:
            for unit, place in option.moves:
                for i in unit:
                    if self._moves_with[i] == i:
                        moves.setdefault(i, []).append((option.axis, place))
        return total_cost(estimate(self.operands[i], tuple(multiple), self.minimize) for i, multiple in moves.items())

    def _units(self, operands: tuple[ShType, ...], axis: str) -> list[tuple[int, ...]]:
        """Groups of operands to move together: those of one value, or of many those with the axis at the same place."""
        if len(operands) <= _MAX_MOVED_SINGLY:
            places: Iterable[Place] = self._moves_with
        else:
            places = [place_of(t, axis) for t in operands]
        groups: dict[Place, list[int]] = {}
        for i, place in enumerate(places):
            groups.setdefault(place, []).append(i)
        return [tuple(group) for group in groups.values()]

    def _moved(self, base: tuple[ShType, ...], options: Iterable[_Option]) -> tuple[ShType, ...] | None:
        """Applies options to operands; None if an axis does not divide a dim."""
        out = list(base)
        for option in options:
            for unit, place in option.moves:
                for i in unit:
                    target = with_axis_at(out[i], option.axis, place)
                    if target is None:
                        return None
                    out[i] = target
        return tuple(out)

    def _gathered(self) -> Iterator[tuple[ShType, ...]]:
        """All operands replicated, which types if the op types on one device."""
        for state in (State.REDUCED, State.INVARIANT):
            yield tuple(
                t.with_axes((a for a in t.mesh.axis_names if t.state(a) is not State.VARYING), state)
                for t in self.operands
            )

    def _may_try(self) -> bool:
        return self.tried < self.most_tried - 2  # two are left for the gathered operands

    def _try(self, operands: tuple[ShType, ...]) -> Typing | tuple[str, ...]:
        """The typing of operands, or the axes at fault."""
        if any(operands[i] != self.operands[i] for i in self._immovable) or any(
            t != operands[i] for t, i in zip(operands, self._moves_with, strict=True)
        ):
            return self._try(self.operands)
        outcome = self._typings.get(operands)
        if outcome is None:
            self.tried += operands != self.operands
            try:
                outcome = self.rule(operands)
            except ShardingTypeError as error:
                outcome = error.axes
            self._typings[operands] = outcome
        return outcome


def _plainest(options: Sequence[_Option]) -> _Option:
    """The option that constrains other axes least: one that replicates, or else the cheapest."""
    return next((o for o in options if all(place in REPLICATED for _, place in o.moves)), options[0])


def without_backward(rule: Rule, operands: tuple[ShType, ...]) -> tuple[Fix, ...]:
    """The free fix of an op that casts invariant operands to reduced: all its reduced operands become invariant."""
    try:
        invariant = alike_invariant(operands, rule(operands))
        if invariant == operands:
            return ()
        fix = Search(rule, operands).pricing.priced(invariant, rule(invariant)).fix
    except ShardingTypeError:
        return ()
    return () if fix.bytes else (fix,)
