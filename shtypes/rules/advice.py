"""Fixes for an op that does not type: other types for its operands, tried by the same rule and priced. Pure."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from shtypes.errors import Fix, ShardingTypeError
from shtypes.plans import Cost, Direction, Price, cost
from shtypes.rules.alternatives import least_cost, others, places_of, price_of, varies_no_more, with_places
from shtypes.rules.typing import Typing
from shtypes.types import REPLICATED, ShType, State, dtypes

#: How many fixes an error prints.
MOST: Final = 4
#: Of the types that one operand could have, how many are tried together with those of a second operand.
_MOST_IN_PAIRS: Final = 16
#: Of how many operands pairs are tried: there are many of many.
_MOST_PAIRED: Final = 5
#: How many changes are tried of one operand: there are many on many axes.
_MOST_OF_ONE: Final = 2000
_ONE_PLACE: Final = frozenset({State.SHARDED, State.UNREDUCED})


#: The typing of an op from its operands' types.
Rule = Callable[[tuple[ShType, ...]], Typing]
#: For each operand, types that the value was given already, and has at no price.
Held = Sequence[frozenset[ShType]]


def added(costs: Iterable[Cost]) -> Cost:
    """What some costs come to."""
    firsts, totals = zip((0, 0), *costs, strict=True)
    return sum(firsts), sum(totals)


class Tried(NamedTuple):
    """A set of changes that types."""

    cost: Cost  # what it sends
    rank: tuple[int, ...]  # what decides: bytes, then memory, then bytes forward, then casts
    fix: Fix  # it as a fix
    result: tuple[ShType, ...]  # the types of the results
    operands: tuple[ShType, ...]  # the operands' types, changed


def fixes(rule: Rule, operands: tuple[ShType, ...], names: Sequence[str] | None = None) -> tuple[Fix, ...]:
    """Reshards that make an op type: of one operand if that is enough, of two if that sends less or one is not enough.

    The cheapest come first, at most four.

    The mesh axes that the rule's error names change, and those that it names next: all of them together. Fixes cost
    what their reshards send in both directions; of equal costs, the one whose result is smallest on each device comes
    first. The casts that the rule then inserts are part of the price. If none of them is free, but every sharded
    operand made unreduced is, that comes first. Where nothing else types, all operands are gathered.

    Args:
        rule: Types the op from its operands' types.
        operands: The types that the rule refuses.
        names: What the operands are called in the printed code.
    """
    if is_silent():
        return ()
    search = Search(rule, operands, names)
    found = [t.fix for t in search.best()]
    if not found or found[0].bytes:
        pending = _all_pending(search)
        if pending is not None:
            found = [pending.fix, *found][:MOST]
    return tuple(found)


def priced_fixes(
    rule: Rule, operands: tuple[ShType, ...], price: Callable[[tuple[ShType, ...]], tuple[str, str, int, int]]
) -> tuple[Fix, ...]:
    """As `fixes`, for a rule that does more than casts: ``price`` says what all of it costs with other operands."""
    with silence():
        search = Search(rule, operands)
        found = search.ranked(2 * MOST)
        pending = _all_pending(search)
        if pending is not None:
            alike = search.try_all(_alike_invariant(pending.operands))
            found += [t for t in (pending, alike) if t is not None and all(t.operands != f.operands for f in found)]
        again = [(Fix(t.fix.code, *price(t.operands)), t.result) for t in found]
    first: dict[tuple[ShType, ...], Fix] = {}
    for fix, result in sorted(again, key=lambda pair: pair[0].bytes):
        first.setdefault(result, fix)  # of those with equal results the cheapest, now that all of the price is known
    return tuple(first.values())[:MOST]


class _Thread(threading.local):
    silent = False


_thread: Final = _Thread()


def is_silent() -> bool:
    """Whether errors are for nobody to read, so that no fixes are looked for."""
    return _thread.silent


@contextlib.contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """No fixes for what is only tried; or fixes again, inside of that."""
    before, _thread.silent = _thread.silent, silent
    try:
        yield
    finally:
        _thread.silent = before


class Search:
    """The search for other types of the operands that make an op type; arguments as of `fixes`.

    Args:
        held: For each operand, types that the value was given already.
        minimize: What is to be least.
    """

    def __init__(
        self,
        rule: Rule,
        operands: tuple[ShType, ...],
        names: Sequence[str] | None = None,
        held: Held = (),
        minimize: Direction = "both",
    ) -> None:
        self.rule, self.operands, self.minimize = rule, operands, minimize
        self.called = names or called_names(operands)
        self._held = held or [frozenset()] * len(operands)
        self._blamed: set[str] = set()
        self._seen: dict[tuple[ShType, ...], Tried | None] = {}

    def best(self, most: int = MOST) -> list[Tried]:
        """The cheapest changes that type, and of those with equal results only the first."""
        first: dict[tuple[ShType, ...], Tried] = {}
        for t in self.ranked(most, apart=True):
            first.setdefault(t.result, t)
        return list(first.values())[:most]

    def ranked(self, most: int, *, apart: bool = False) -> list[Tried]:
        """The cheapest changes that type; none if the rule refuses nothing.

        Args:
            most: How many.
            apart: Whether changes with equal results count once.
        """
        axes = self.at_fault(self.operands)
        if axes is None:
            return []
        found = self._cheapest(self._of_one(axes), most, apart)
        while not found and not self._blamed <= set(axes):  # one axis after another is at fault: all at once, then
            axes = self._in_order({*axes, *self._blamed})
            found = self._cheapest(self._of_one(axes), most, apart)
        if found and any(found[0].cost):  # two that move may send less than the one that would be enough
            first, total = cheapest = found[0].cost
            pairs = self._cheapest(self._of_two(axes), most, apart, (first, total - 1))
            found = [*(t for t in pairs if t.cost < cheapest), *found][: None if apart else most]
        for stage in (self._of_two, self._of_all):
            found = found or self._cheapest(stage(axes), most, apart)
        return found or self._cheapest(self._gathered(), most, apart)

    def _in_order(self, axes: set[str]) -> tuple[str, ...]:
        return tuple(a for a in self.operands[0].mesh.axis_names if a in axes)

    def _cheapest(
        self,
        candidates: Iterable[dict[int, ShType]],
        most: int,
        apart: bool,
        bound: tuple[float, float] = (math.inf, math.inf),
    ) -> list[Tried]:
        """The cheapest of some changes that type; what they send at least bounds what they cost with casts."""
        found: list[Tried] = []
        costs: dict[Any, Cost] = {}
        heap = [(self._least(changes), i, changes) for i, changes in enumerate(candidates)]
        heapq.heapify(heap)
        while heap and heap[0][0] <= bound:
            _, i, changes = heapq.heappop(heap)
            tried = self.try_(changes)
            if tried is None:
                continue
            found.append(tried)
            key = tried.result if apart else i
            costs[key] = min(tried.cost, costs.get(key, tried.cost))
            if len(costs) >= most:
                bound = min(bound, heapq.nsmallest(most, costs.values())[-1])
        return sorted(found, key=lambda t: (t.rank, t.fix.code))[: None if apart else most]

    def _least(self, changes: dict[int, ShType]) -> Cost:
        """What changes cost at least, found without planning them."""
        least = functools.partial(least_cost, minimize=self.minimize, returns=self._returns)
        return added(min(least(src, t) for src in self._sources(i, t)) for i, t in changes.items())

    @functools.cached_property
    def _returns(self) -> bool:
        """Whether gradients come back, as far as one typing says it: that depends on dtypes alone."""
        for changes in self._gathered():
            typing = self._typing(tuple(changes.get(i, t) for i, t in enumerate(self.operands)))
            if typing is not None:
                return any(t.differentiable for t in typing.results)
        return False

    def _typing(self, operands: tuple[ShType, ...]) -> Typing | None:
        try:
            return self.rule(operands)
        except ShardingTypeError as error:
            self._blamed.update(error.axes)
            return None

    def _sources(self, index: int, t: ShType) -> tuple[ShType, ...]:
        """What an operand of a type can be made of."""
        if t in self._held[index]:
            return (t,)
        return (self.operands[index], *(held for held in self._held[index] if varies_no_more(held, t)))

    def _price(self, index: int, t: ShType) -> Price:
        """What it costs to have an operand in a type."""
        prices = (price_of(src, t) for src in self._sources(index, t))
        return min(prices, key=lambda p: p.cost(self.minimize))

    # what is tried

    def _of_one(self, axes: Sequence[str]) -> Iterator[dict[int, ShType]]:
        for i, t in enumerate(self.operands):
            for target in itertools.islice(others(t, axes), _MOST_OF_ONE):
                yield {i: target}

    def _of_two(self, axes: Sequence[str]) -> Iterator[dict[int, ShType]]:
        if len(self.operands) > _MOST_PAIRED:
            return
        few = [
            heapq.nsmallest(
                _MOST_IN_PAIRS,
                ({i: goal} for goal in itertools.islice(others(t, axes), _MOST_OF_ONE)),
                key=self._least,
            )
            for i, t in enumerate(self.operands)
        ]
        for left, right in itertools.combinations(few, 2):
            for one, other in itertools.product(left, right):
                yield {**one, **other}

    def _of_all(self, axes: Sequence[str]) -> Iterator[dict[int, ShType]]:
        """One place for each axis at fault, in every operand that is sharded or unreduced on it."""
        if len(self.operands) < 2:
            return
        for chosen_places in itertools.product(places_of(min(self.operands, key=lambda t: t.ndim)), repeat=len(axes)):
            changes = {}
            for i, t in enumerate(self.operands):
                chosen = {a: p for a, p in zip(axes, chosen_places, strict=True) if t.state(a) in _ONE_PLACE}
                target = with_places(t.with_axes(chosen, State.REDUCED), [*chosen], [*chosen.values()])
                if target is None:
                    break
                if target != t:
                    changes[i] = target
            else:
                if changes:
                    yield changes

    def _gathered(self) -> Iterator[dict[int, ShType]]:
        """Every operand on every device, whole: what types wherever one device would do."""
        for state in (State.REDUCED, State.INVARIANT):
            changes = {}
            for i, t in enumerate(self.operands):
                also = REPLICATED if t.differentiable else ()
                target = t.with_axes(t.axes(State.SHARDED, State.UNREDUCED, *also), state)
                if target != t:
                    changes[i] = target
            if changes:
                yield changes

    def try_(self, changes: dict[int, ShType]) -> Tried | None:
        """Changes as a fix, or None where the op still does not type."""
        changed = tuple(changes.get(i, t) for i, t in enumerate(self.operands))
        if changed not in self._seen:
            self._seen[changed] = self._tried(changes, changed)
        return self._seen[changed]

    def _tried(self, changes: dict[int, ShType], changed: tuple[ShType, ...]) -> Tried | None:
        typing = self._typing(changed)
        if typing is None:
            return None
        casts = [(src, dst) for src, dst in zip(changed, typing.operands, strict=True) if src != dst]
        prices = [self._price(i, t) for i, t in changes.items()] + [price_of(*pair) for pair in casts]
        back = prices if any(t.differentiable for t in typing.results) else []
        forward, backward = sum(p.forward_bytes for p in prices), sum(p.backward_bytes for p in back)
        fix = Fix(
            code="; ".join(f'sh.reshard({self.called[i]}, "{_target(t)}")' for i, t in changes.items()),
            forward=" and ".join(p.forward for p in prices if p.forward),
            backward=" and ".join(p.backward for p in back if p.backward),
            bytes_forward=forward,
            bytes_backward=backward,
        )
        memory = sum(t.local_bytes for t in typing.results)
        costs = cost(forward, backward, self.minimize)
        return Tried(costs, (*costs, memory, forward, len(casts)), fix, typing.results, changed)

    def try_all(self, goal: tuple[ShType, ...]) -> Tried | None:
        """Operands of other types as a fix; None where nothing changes or the op does not type."""
        changes = {i: g for i, (g, t) in enumerate(zip(goal, self.operands, strict=True)) if g is not t}
        return self.try_(changes) if changes else None

    def at_fault(self, operands: tuple[ShType, ...]) -> tuple[str, ...] | None:
        """The axes that the rule finds fault with; None if with nothing."""
        try:
            self.rule(operands)
        except ShardingTypeError as error:
            return error.axes
        return None


def _all_pending(search: Search) -> Tried | None:
    """Pending sums instead of every sharded operand, on the axes at fault or on all: what a linear op takes freely."""
    operands = search.operands
    axes: set[str] = set()
    current: tuple[ShType, ...] | None = operands
    while current is not None and (more := {*(search.at_fault(current) or ())} - axes):  # one axis after another
        axes |= more
        current = _pending(operands, axes)
    for chosen in (axes, {a for t in operands for a in t.mesh.axis_names}):
        pending = _pending(operands, chosen)
        for goal in () if pending is None else (pending, _alike_invariant(pending)):
            found = search.try_all(goal)
            if found is not None and not found.fix.bytes:
                return found
    return None


def _alike_invariant(operands: tuple[ShType, ...]) -> tuple[ShType, ...]:
    """The operands with reduced ones invariant on each axis on which another is: else that one is cast, and pays."""
    axes = {a for t in operands for a in t.axes(State.INVARIANT)}
    return tuple(
        t.with_axes(axes.intersection(t.axes(State.REDUCED)), State.INVARIANT) if t.differentiable else t
        for t in operands
    )


def _pending(operands: tuple[ShType, ...], axes: set[str]) -> tuple[ShType, ...] | None:
    """The operands with these axes unreduced wherever they are sharded; None if one has no sums."""
    out = []
    for t in operands:
        chosen = axes.intersection(t.axes(State.SHARDED))
        if chosen and not dtypes.summable(t.dtype_name):
            return None
        out.append(t.with_axes(chosen, State.UNREDUCED))
    return tuple(out)


def without_backward(rule: Rule, operands: tuple[ShType, ...]) -> tuple[Fix, ...]:
    """For an op that casts invariant operands to reduced: its reduced operands made invariant, if that is all free."""
    try:
        casts = rule(operands).operands
    except ShardingTypeError:
        return ()
    axes = {
        axis
        for t, goal in zip(operands, casts, strict=True)
        for axis in t.axes(State.INVARIANT)
        if goal.state(axis) is State.REDUCED
    }
    goal = tuple(t.with_axes(axes.intersection(t.axes(State.REDUCED)), State.INVARIANT) for t in operands)
    found = Search(rule, operands).try_all(goal)
    return () if found is None or found.fix.bytes else (found.fix,)


def called_names(operands: Sequence[ShType]) -> Sequence[str]:
    """What operands are called in printed code."""
    short = ("x",) if len(operands) == 1 else ("lhs", "rhs") if len(operands) == 2 else ()
    return short or [f"operand_{i}" for i in range(len(operands))]


def _target(t: ShType) -> str:
    """The type as the target of a reshard, which keeps the dtype."""
    return str(t).removeprefix(t.dtype_name)
