"""Fixes for an op that does not type: other types for its operands, tried by the same rule and priced. Pure."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from shtypes import dtypes
from shtypes.errors import Fix, ShardingTypeError
from shtypes.ops.rules.typing import Typing
from shtypes.types import ShType, State

if TYPE_CHECKING:
    from shtypes.reshard import Price

#: How many fixes an error prints.
MOST: Final = 4
#: Of the types that one operand could have, how many are tried together with those of a second operand.
_MOST_IN_PAIRS: Final = 16
#: Of how many operands pairs are tried: there are many of many.
_MOST_PAIRED: Final = 5
_ONE_PLACE: Final = frozenset({State.SHARDED, State.UNREDUCED})


#: The typing of an op from its operands' types.
Rule = Callable[[tuple[ShType, ...]], Typing]


class _Tried(NamedTuple):
    """A set of changes that types."""

    rank: tuple[int, ...]
    fix: Fix
    result: tuple[ShType, ...]
    operands: tuple[ShType, ...]


def fixes(rule: Rule, operands: tuple[ShType, ...], names: Sequence[str] | None = None) -> tuple[Fix, ...]:
    """Reshards that make an op type: of one operand if that is enough, else of two; cheapest first, at most four.

    Only the mesh axes that the rule's error names change. Fixes cost what their reshards send in both directions; of
    equal costs, the one whose result is smallest on each device comes first. The casts that the rule then inserts are
    part of the price. If none of them is free, but every sharded operand made unreduced is, that comes first.

    Args:
        rule: Types the op from its operands' types.
        operands: The types that the rule refuses.
        names: What the operands are called in the printed code.
    """
    if _thread.silent:
        return ()
    called = names or called_names(operands)
    found = [t.fix for t in _search(rule, operands, called)]
    if not found or _costs(found[0]):
        pending = _all_pending(rule, operands, called)
        if pending is not None:
            found = [pending.fix, *found][:MOST]
    return tuple(found)


def priced_fixes(
    rule: Rule, operands: tuple[ShType, ...], price: Callable[[tuple[ShType, ...]], tuple[str, str, int, int]]
) -> tuple[Fix, ...]:
    """As `fixes`, for a rule that does more than casts: ``price`` says what all of it costs with other operands."""
    with _silence():
        called = called_names(operands)
        found = _search(rule, operands, called, _ranked)
        pending = _all_pending(rule, operands, called)
        if pending is not None:
            alike = _try_all(rule, operands, called, _alike_invariant(pending.operands))
            found += [t for t in (pending, alike) if t is not None and all(t.operands != f.operands for f in found)]
        again = [(Fix(t.fix.code, *price(t.operands)), t.result) for t in found]
    first: dict[tuple[ShType, ...], Fix] = {}
    for fix, result in sorted(again, key=lambda pair: pair[0].bytes_forward + pair[0].bytes_backward):
        first.setdefault(result, fix)  # of those with equal results the cheapest, now that all of the price is known
    return tuple(first.values())[:MOST]


class _Thread(threading.local):
    silent = False


_thread: Final = _Thread()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """No fixes for what is only tried."""
    before, _thread.silent = _thread.silent, True
    try:
        yield
    finally:
        _thread.silent = before


def _costs(fix: Fix) -> bool:
    return bool(fix.bytes_forward or fix.bytes_backward)


def _all_pending(rule: Rule, operands: tuple[ShType, ...], called: Sequence[str]) -> _Tried | None:
    """Pending sums instead of every sharded operand, on the axes at fault or on all: what a linear op takes freely."""
    axes: set[str] = set()
    current: tuple[ShType, ...] | None = operands
    while current is not None and (more := _axes_at_fault(rule, current) - axes):  # one axis after another
        axes |= more
        current = _pending(operands, axes)
    for chosen in (axes, {a for t in operands for a in t.mesh.axis_names}):
        pending = _pending(operands, chosen)
        for goal in () if pending is None else (pending, _alike_invariant(pending)):
            found = _try_all(rule, operands, called, goal)
            if found is not None and not _costs(found.fix):
                return found
    return None


def _alike_invariant(operands: tuple[ShType, ...]) -> tuple[ShType, ...]:
    """The operands with reduced ones invariant on each axis on which another is: else that one is cast, and pays."""
    axes = {a for t in operands for a in t.axes(State.INVARIANT)}
    out = []
    for t in operands:
        for axis in axes.intersection(t.axes(State.REDUCED)) if t.differentiable else ():
            t = t.with_axis(axis, State.INVARIANT)
        out.append(t)
    return tuple(out)


def _try_all(
    rule: Rule, operands: tuple[ShType, ...], called: Sequence[str], goal: tuple[ShType, ...]
) -> _Tried | None:
    """Operands of other types as a fix; None where nothing changes or the op does not type."""
    changes = {i: g for i, (g, t) in enumerate(zip(goal, operands, strict=True)) if g is not t}
    return _try(rule, operands, called, changes) if changes else None


def _axes_at_fault(rule: Rule, operands: tuple[ShType, ...]) -> set[str]:
    try:
        rule(operands)
    except ShardingTypeError as error:
        return set(error.axes)
    return set()


def _pending(operands: tuple[ShType, ...], axes: set[str]) -> tuple[ShType, ...] | None:
    """The operands with these axes unreduced wherever they are sharded; None if one has no sums."""
    out = []
    for t in operands:
        chosen = [a for a in t.mesh.axis_names if a in axes and t.state(a) is State.SHARDED]
        if chosen and not dtypes.summable(t.dtype_name):
            return None
        for axis in chosen:
            t = t.with_axis(axis, State.UNREDUCED)
        out.append(t)
    return tuple(out)


def cheapest(rule: Rule, operands: tuple[ShType, ...]) -> tuple[ShType, ...] | None:
    """The operands' types with the cheapest fix applied; None if no fix types.

    Args:
        rule: Types the op from its operands' types.
        operands: The types that the rule refuses.
    """
    found = _search(rule, operands, called_names(operands))
    return found[0].operands if found else None


def without_backward(rule: Rule, operands: tuple[ShType, ...]) -> tuple[Fix, ...]:
    """For an op that casts invariant operands to reduced: its reduced operands made invariant, if that is all free.

    Args:
        rule: Types the op from its operands' types.
        operands: The types.
    """
    try:
        casts = rule(operands).operands
    except ShardingTypeError:
        return ()
    axes = [
        axis
        for t, goal in zip(operands, casts, strict=True)
        for axis in t.mesh.axis_names
        if t.state(axis) is State.INVARIANT and goal.state(axis) is State.REDUCED
    ]
    changes: dict[int, ShType] = {}
    for i, t in enumerate(operands):
        for axis in axes:
            if t.state(axis) is State.REDUCED:
                changes[i] = changes.get(i, t).with_axis(axis, State.INVARIANT)
    found = _try(rule, operands, called_names(operands), changes) if changes else None
    return () if found is None or found.fix.bytes_forward or found.fix.bytes_backward else (found.fix,)


def called_names(operands: Sequence[ShType]) -> Sequence[str]:
    """What operands are called in printed code."""
    short = ("x",) if len(operands) == 1 else ("lhs", "rhs") if len(operands) == 2 else ()
    return short or [f"operand_{i}" for i in range(len(operands))]


def _ranked(tried: Iterable[_Tried]) -> list[_Tried]:
    """The cheapest by what is known so far, those with equal results too."""
    return sorted(tried, key=lambda t: (t.rank, t.fix.code))[: 2 * MOST]


def _search(
    rule: Rule,
    operands: tuple[ShType, ...],
    called: Sequence[str],
    best: Callable[[Iterable[_Tried]], list[_Tried]] | None = None,
) -> list[_Tried]:
    """The best changes that type; none if the rule refuses nothing."""
    best = best or _best
    try:
        rule(operands)
    except ShardingTypeError as error:
        axes = error.axes
    else:
        return []
    others = [list(_others(t, axes)) for t in operands]
    for count, most in ((1, None), (2, _MOST_IN_PAIRS)):
        if count == 2 and len(operands) > _MOST_PAIRED:
            continue
        tried = [
            found
            for chosen in itertools.combinations(range(len(operands)), count)
            for targets in itertools.product(*(others[i][:most] for i in chosen))
            if (found := _try(rule, operands, called, dict(zip(chosen, targets, strict=True)))) is not None
        ]
        if tried:
            return best(tried)
    return best(_together(rule, operands, called, axes)) if len(operands) > 2 else []


def _together(rule: Rule, operands: tuple[ShType, ...], called: Sequence[str], axes: Sequence[str]) -> Iterator[_Tried]:
    """One place for each axis at fault, in every operand that is sharded or unreduced on it."""
    for places in itertools.product(_places(min(operands, key=lambda t: t.ndim)), repeat=len(axes)):
        changes = {}
        for i, t in enumerate(operands):
            chosen = [(a, p) for a, p in zip(axes, places, strict=True) if t.state(a) in _ONE_PLACE]
            bare = t
            for axis, _ in chosen:
                bare = bare.with_axis(axis, State.REDUCED)
            target = _placed(bare, [a for a, _ in chosen], [p for _, p in chosen])
            if target is None:
                break
            if target != t:
                changes[i] = target
        else:
            found = _try(rule, operands, called, changes) if changes else None
            if found is not None:
                yield found


def _best(tried: Iterable[_Tried]) -> list[_Tried]:
    """The cheapest, and of those with equal results only the first."""
    first: dict[tuple[ShType, ...], _Tried] = {}
    for t in sorted(tried, key=lambda t: (t.rank, t.fix.code)):
        first.setdefault(t.result, t)
    return list(first.values())[:MOST]


def _others(operand: ShType, axes: Sequence[str]) -> Iterator[ShType]:
    """The other types that an operand could be resharded to on these axes."""
    free = [a for a in axes if operand.state(a) is not State.VARYING]
    bare = operand
    for axis in free:
        bare = bare.with_axis(axis, State.REDUCED)
    seen = {operand}
    for order in itertools.permutations(free):
        for places in itertools.product(_places(operand), repeat=len(order)):
            target = _placed(bare, order, places)
            if target is not None and target not in seen:
                seen.add(target)
                yield target


def _places(operand: ShType) -> list[State | int]:
    """Where an axis could be: a state, or sharding a dim."""
    states = [State.REDUCED, State.INVARIANT] if operand.differentiable else [State.REDUCED]
    if dtypes.summable(operand.dtype_name):
        states.append(State.UNREDUCED)
    return [*range(operand.ndim), *states]


def _placed(bare: ShType, axes: Sequence[str], places: Sequence[State | int]) -> ShType | None:
    """``bare`` with each axis at its place; None where an axis does not divide."""
    for axis, place in zip(axes, places, strict=True):
        if isinstance(place, State):
            bare = bare.with_axis(axis, place)
        elif bare.local_shape[place] % bare.mesh.shape[axis]:
            return None
        else:
            bare = bare.with_axis(axis, State.SHARDED, place)
    return bare


def _try(
    rule: Rule,
    operands: tuple[ShType, ...],
    names: Sequence[str],
    changes: dict[int, ShType],
) -> _Tried | None:
    """The changes as a fix, or None where the op still does not type."""
    changed = tuple(changes.get(i, t) for i, t in enumerate(operands))
    try:
        typing = rule(changed)
    except ShardingTypeError:
        return None
    casts = [(src, dst) for src, dst in zip(changed, typing.operands, strict=True) if src != dst]
    prices = [_price(*pair) for pair in (*((operands[i], t) for i, t in changes.items()), *casts)]
    back = prices if any(t.differentiable for t in typing.results) else []
    forward, backward = sum(p.forward_bytes for p in prices), sum(p.backward_bytes for p in back)
    fix = Fix(
        code="; ".join(f'sh.reshard({names[i]}, "{_target(t)}")' for i, t in changes.items()),
        forward=" and ".join(p.forward for p in prices if p.forward),
        backward=" and ".join(p.backward for p in back if p.backward),
        bytes_forward=forward,
        bytes_backward=backward,
    )
    memory = sum(t.local_bytes for t in typing.results)
    return _Tried((forward + backward, memory, forward, len(casts)), fix, typing.results, changed)


def _price(src: ShType, dst: ShType) -> Price:
    """What a reshard, or a cast that the rule inserts, costs; to varying costs what to reduced does."""
    from shtypes.reshard import price

    for axis in dst.axes(State.VARYING):
        if src.state(axis) is not State.VARYING:
            dst = dst.with_axis(axis, State.REDUCED)
    return price(src, dst)


def _target(t: ShType) -> str:
    """The type as the target of a reshard, which keeps the dtype."""
    return str(t).removeprefix(t.dtype_name)
