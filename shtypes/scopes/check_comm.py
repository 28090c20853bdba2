"""Checks communication against the scopes around it. Pure: a move is checked by its types, where it is bound.

All communication is in reshards and casts, and the types of cotangents follow from those of values. So judging a move
at the forward trace, before anything runs, proves both directions. Moves that transposition makes are not judged again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import current_settings
from shtypes.errors import Fix, ShardingTypeError, how_many
from shtypes.resharding import Plan
from shtypes.resharding.transport import AS_IT_IS, Transport, transport_in_force
from shtypes.rules.candidate_types import not_yet_varying
from shtypes.scopes.comm import (
    KINDS,
    Budget,
    InBackward,
    NoComm,
    NotTransposed,
    Recomputed,
    Rules,
    ScopeRule,
    Sums,
    open_trackers,
    rules_in_force,
    runs_again,
)
from shtypes.types import ShType, State
from shtypes.types.mesh import whole_axes
from shtypes.types.policy import current_policy
from shtypes.types.target import target_text


class Sent(NamedTuple):
    """The communication of a move in one direction."""

    kinds: tuple[str, ...] = ()  # the kinds of its collectives
    axes: tuple[str, ...] = ()  # the mesh axes that they run over
    bytes: int = 0  # bytes that each device sends
    launches: int = 0  # how many collectives run
    words: str = ""  # the collectives in words

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def sums(self) -> Sums:
        """The sums of bytes."""
        return Sums(self.bytes, self.launches)


def sent_by(plan: Plan, transport: Transport = AS_IT_IS) -> Sent:
    """The communication of a plan; by states, so that the size of an axis does not matter."""
    steps = [s for s in plan.steps if s.kind.communicates]
    axes = whole_axes(a for s in steps for a in s.axes)
    return Sent(tuple(s.kind.value for s in steps), axes, plan.bytes, plan.launches, transport.words(plan))


class _Event(NamedTuple):
    """The communication of a move in a direction, and why it is there."""

    direction: str
    sent: Sent
    why: str


def check_comm(
    op: str,
    src: ShType,
    dst: ShType,
    *,
    name: str = "x",  # what advice calls the value
    call: str = "",  # what the user wrote, if it was a named form: ``sh.all_gather(x, "tp")``
    inserted: bool = False,  # whether a typing rule asks for it
    has_gradient: bool = True,
    transport: Transport | None = None,  # None for the one in force
) -> None:
    """Checks a reshard or a cast that the user called as ``op`` against the scopes around it."""
    if src == dst or not is_bounded():
        return
    transport = transport_in_force() if transport is None else transport
    end, returned = not_yet_varying(src, dst), transport.transposed()
    forth, back = sent_by(transport.plan(src, end), transport), Sent()
    if src.differentiable and has_gradient:
        back = sent_by(transport.backward(src, end), returned)
    try:
        check_sent(op, src, dst, forth, back, inserted=inserted)
    except ShardingTypeError as error:
        error.hints = _hints(src, dst, error.axes, name, call)
        raise


def check_sent(op: str, src: ShType, dst: ShType, forth: Sent, back: Sent, *, inserted: bool = False) -> None:
    """As `check_comm`, for communication that is not a reshard: ``forth`` of the value, ``back`` of its gradient."""
    if not is_bounded():
        return
    rules = rules_in_force()
    events, call = _events(src, dst, forth, back, rules), _call(op, src, dst, inserted)
    _judge_alone(events, call, src, dst)
    budgets = [rule for rule in dict.fromkeys(rules) if isinstance(rule, Budget) and rule.bounds_sums]
    if not events or not budgets:
        return
    moved: dict[str, Sums] = {}
    for e in events:
        moved[e.direction] = moved.get(e.direction, Sums()) + e.sent.sums
    trackers = [
        (tracker.rule, *tracker.sums(moved, inserted)) for tracker in open_trackers() if tracker.rule in budgets
    ]
    tracked = {rule for rule, *_ in trackers}
    for rule, sums, times in (*trackers, *((rule, moved, 1) for rule in budgets if rule not in tracked)):
        for event in events:
            reason = exceeded(rule, event.direction, sums.get(event.direction, Sums()), event.sent.words)
            if reason:
                raise _refusal(f"{reason}: {call}", event, src, dst, times)


def is_bounded() -> bool:
    """Whether a scope around can forbid what communicates."""
    return any(isinstance(rule, NoComm | Budget) for rule in rules_in_force())


def _call(op: str, src: ShType, dst: ShType, inserted: bool) -> str:
    return f"`{op}` {'casts' if inserted else 'takes'} {src} to {dst}"


def _judge_alone(events: Sequence[_Event], call: str, src: ShType, dst: ShType) -> None:
    """Checks what communicates by itself, whatever else does."""
    for event in events:
        error = next(filter(None, (_refused_by(rule, event, call, src, dst) for rule in rules_in_force())), None)
        if error is not None:
            raise error


def check_bound(
    op: str, src: ShType, dst: ShType, forth: Sent, back: Sent, *, direction: str, inserted: bool = False
) -> None:
    """As `check_sent`, for an operation bound in a direction, inserted or not; sums are counted when it runs."""
    if not is_bounded():
        return
    events = _events(src, dst, forth, back, rules_in_force())
    if direction != "forward":
        events = [_Event("backward", forth, "the backward pass runs in the scope")] if forth else []
    _judge_alone(events, _call(op, src, dst, inserted), src, dst)


def forbidden(
    rule: ScopeRule, direction: str, sent: Sent, call: str, src: ShType, dst: ShType
) -> ShardingTypeError | None:
    """The error if a rule forbids what ``call`` sends in a direction, whatever else is sent; None if not."""
    error = _refused_by(rule, _Event(direction, sent, ""), call, src, dst)
    if error is not None:
        error.hints = _hints(src, dst, error.axes, "x")
    return error


def _refused_by(rule: ScopeRule, event: _Event, call: str, src: ShType, dst: ShType) -> ShardingTypeError | None:
    reason = _against(rule, event)
    if not reason:
        return None
    error = _refusal(f"{reason} in the {event.direction} pass: {call}", event, src, dst)
    error.scope = rule
    return error


def _refusal(what: str, event: _Event, src: ShType, dst: ShType, times: int | None = 1) -> ShardingTypeError:
    often = "" if times == 1 else ", nobody knows how often" if times is None else f", {times} times"
    changed = [a for a, s, d in zip(src.mesh.axis_names, src.states, dst.states, strict=True) if s is not d]
    why = "; ".join(filter(None, (event.why, f"each device would send {event.sent.bytes} B{often}")))
    return ShardingTypeError(what, why=why, axes=changed)


def exceeded(rule: Budget, direction: str, sums: Sums, words: str) -> str:
    """The part of a budget that is exceeded, as the start of a sentence; empty if none.

    ``words`` are the collective that comes last; empty where all of them are meant.
    """
    if not sums.bounded:
        return (
            f"`comm_budget` bounds the {direction} pass, and {words or 'a collective'} is in a loop of unknown length"
        )
    by = f"and {words} makes it" if words else "and its scope comes to"
    if rule.bytes is not None and sums.bytes > rule.bytes:
        return f"`comm_budget` allows {rule.bytes} B/device in the {direction} pass, {by} {sums.bytes}"
    if rule.launches is not None and sums.launches > rule.launches:
        allowed = how_many(rule.launches, "collective")
        return f"`comm_budget` allows {allowed} in the {direction} pass, {by} {sums.launches}"
    return ""


def _events(src: ShType, dst: ShType, forth: Sent, back: Sent, rules: Rules) -> list[_Event]:
    return _events_of(
        forth, back, rules, runs_again(), f"the gradient goes back from {dst.cotangent()} to {src.cotangent()}"
    )


def _events_of(forth: Sent, back: Sent, rules: Rules, again: bool, gradient: str = "") -> list[_Event]:
    if any(isinstance(rule, InBackward) for rule in rules):
        # The gradient of it is one of second order.
        return [_Event("backward", forth, "it is in the backward function of a `custom_vjp`")] if forth else []
    events = [_Event("forward", forth, "")] if forth else []
    if back and not any(isinstance(rule, NotTransposed) for rule in rules):
        events.append(_Event("backward", back, gradient))
    if forth and (any(isinstance(rule, Recomputed) for rule in rules) or again):
        events.append(_Event("backward", forth, "`checkpoint` may run it again there"))
    return events


def _against(rule: ScopeRule, event: _Event) -> str:
    """The part of an event that a rule forbids, as the start of a sentence; empty if none."""
    sent = event.sent
    if isinstance(rule, NoComm):
        return f"`{rule}` forbids {sent.words}" if rule.direction in ("both", event.direction) else ""
    if not isinstance(rule, Budget):
        return ""
    if rule.kinds is not None and not set(sent.kinds) <= set(rule.kinds):
        return f"`comm_budget` allows {_listed(rule.kinds)} only, not {sent.words}"
    if rule.axes is not None and not set(sent.axes) <= set(rule.axes):
        return f"`comm_budget` allows collectives over {_listed([f'`{a}`' for a in rule.axes])} only, not {sent.words}"
    return ""


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "nothing"


def _hints(src: ShType, dst: ShType, changed: Sequence[str], name: str, call: str = "") -> tuple[str, ...]:
    """Advice; not typed again, because it is outside the scope."""
    if any(src.state(a) not in (State.INVARIANT, State.REDUCED) for a in changed) or not changed:
        call = call or f'sh.reshard({name}, "{target_text(dst)}")'
        return (f"{call} before the scope",)
    reduced = ", ".join(f'{a}="R"' for a in changed if src.state(a) is State.INVARIANT)
    to = "" if current_policy() == "partial" else ', to="R"'
    return (
        f"sh.reshard({name}, {reduced}) before the scope",
        f"sh.constant({name}{to}) if it needs no gradient, such as a learning rate",
    )


def keep_to_scopes(error: ShardingTypeError, again: bool) -> None:
    """Leaves an error the fixes that the scopes around allow; the cheapest of the others become advice.

    ``again`` says whether what communicates forward runs again in the backward pass.
    """
    refused = {fix: rule for fix in error.fixes if (rule := _refuses(fix, again)) is not None}
    error.fixes = tuple(fix for fix in error.fixes if fix not in refused)
    outside = [f"{fix}, outside `{rule}`" for fix, rule in refused.items()]
    error.hints = (*error.hints, *outside[:_MOST_OUTSIDE])


#: Of the fixes that a scope forbids, how many an error shows.
_MOST_OUTSIDE: Final = 2


def _refuses(fix: Fix, again: bool) -> ScopeRule | None:
    """The first scope around that forbids what a fix sends by itself; None if none does."""
    forth, back = (
        Sent(tuple(k for k in KINDS if k in words), tuple(_AXES.findall(words)), size, 1, words) if words else Sent()
        for words, size in ((fix.forward, fix.bytes_forward), (fix.backward, fix.bytes_backward))
    )
    rules = rules_in_force()
    for event in _events_of(forth, back, rules, again):
        for rule in rules:
            if _against(rule, event):
                return rule
            if isinstance(rule, Budget) and exceeded(rule, event.direction, event.sent.sums, ""):
                return rule
    return None


_AXES: Final = re.compile(r"`(\w+)`")


def check_leaving(t: ShType) -> None:
    """Checks that a value may become a plain array."""
    sharded = t.axes(State.SHARDED)
    rule = next((rule for rule in rules_in_force() if isinstance(rule, (NoComm, Budget))), None)
    if sharded and rule is not None:
        error = ShardingTypeError(
            f"`{rule}` cannot vouch for {t} as a plain array: it is sharded over {', '.join(sharded)}",
            why="JAX places what is computed on it, and may communicate where no type shows it",
            hints=["use the function of the same name in shtypes", "x.to_jax() outside the scope"],
            axes=sharded,
        )
        error.scope = rule
        raise error


def check_now() -> None:
    """Lets every open scope check what JAX did on plain arrays so far."""
    for tracker in open_trackers():
        tracker.look()


_WRITTEN: Final = {
    State.VARYING: 'sh.lax.pvary(x, "{axis}")',
    State.REDUCED: 'sh.reshard(x, {axis}="R")',
    State.INVARIANT: 'sh.reshard(x, {axis}="I")',
    State.UNREDUCED: 'sh.reshard(x, {axis}="U")',
}


def casts_are_written(axes: Sequence[str]) -> Scope:
    """A scope in which nothing is cast unasked along ``axes``."""
    return changed(lambda s: s._replace(written=(*s.written, *axes)))


def check_written(src: ShType, dst: ShType) -> None:
    """Refuses a cast that a rule inserts along an axis where casts are to be written."""
    for axis in current_settings().written:
        if axis not in src.mesh.shape or src.state(axis) is dst.state(axis) or not src.differentiable:
            continue
        before, after = src.state(axis), dst.state(axis)
        raise ShardingTypeError(
            f"a cast of mesh axis `{axis}` from {before.name.lower()} to {after.name.lower()} must be written here",
            why=f"{src} meets what needs {dst}, and `explicit=True` lets no rule insert it",
            hints=[_WRITTEN[after].format(axis=axis)] if after in _WRITTEN else ["sh.reshard(x, type)"],
        )
