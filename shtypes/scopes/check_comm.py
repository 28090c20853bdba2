"""Checks communication against the enclosing scopes. A reshard is checked by its types, where it is bound.

All communication is in reshards and casts, and the types of cotangents follow from those of values. So checking a
reshard at the forward trace, before anything runs, proves both directions. Those that transposition adds are not
checked again.
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
from shtypes.scopes.comm import KINDS, Sums, in_checkpoint, open_trackers
from shtypes.scopes.scope_rules import (
    Budget,
    InBackward,
    NoComm,
    NotTransposed,
    Recomputed,
    Rules,
    ScopeRule,
    rules_in_force,
)
from shtypes.types import ShType, State
from shtypes.types.mesh import whole_axes
from shtypes.types.policy import current_policy
from shtypes.types.target import target_text


class Sent(NamedTuple):
    """The communication of a reshard in one direction."""

    kinds: tuple[str, ...] = ()  # the kinds of its collectives
    axes: tuple[str, ...] = ()  # their mesh axes
    bytes: int = 0  # bytes that each device sends
    launches: int = 0  # the number of collectives
    words: str = ""  # the collectives, for messages

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def sums(self) -> Sums:
        """Its bytes and launches."""
        return Sums(self.bytes, self.launches)


def sent_by(plan: Plan, transport: Transport = AS_IT_IS) -> Sent:
    """The communication of a plan. Determined by states, so that axes of size 1 count."""
    steps = [s for s in plan.steps if s.kind.communicates]
    axes = whole_axes(a for s in steps for a in s.axes)
    return Sent(tuple(s.kind.value for s in steps), axes, plan.bytes, plan.launches, transport.words(plan))


class _Event(NamedTuple):
    """The communication of an op in one direction, and the reason for it."""

    direction: str
    sent: Sent
    why: str


def check_comm(
    op: str,
    src: ShType,
    dst: ShType,
    *,
    name: str = "x",  # the value's name in advice
    call: str = "",  # the user's call, if it was a named collective: ``sh.all_gather(x, "tp")``
    inserted: bool = False,  # whether a typing rule inserted it
    has_gradient: bool = True,
    transport: Transport | None = None,  # None for the current one
) -> None:
    """Checks a reshard or cast, which the user called as ``op``, against the enclosing scopes."""
    if src == dst or not is_bounded():
        return
    transport = transport_in_force() if transport is None else transport
    end, returned = not_yet_varying(src, dst), transport.transposed()
    forward, backward = sent_by(transport.plan(src, end), transport), Sent()
    if src.differentiable and has_gradient:
        backward = sent_by(transport.backward(src, end), returned)
    try:
        check_sent(op, src, dst, forward, backward, inserted=inserted)
    except ShardingTypeError as error:
        error.hints = _hints(src, dst, error.axes, name, call)
        raise


def check_sent(op: str, src: ShType, dst: ShType, forward: Sent, backward: Sent, *, inserted: bool = False) -> None:
    """Like `check_comm`, for other communication: ``forward`` of the value, ``backward`` of its gradient."""
    if not is_bounded():
        return
    rules = rules_in_force()
    events, call = _events(src, dst, forward, backward, rules), _call(op, src, dst, inserted)
    _check_each(events, call, src, dst)
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
    """Whether an enclosing scope can forbid communication."""
    return any(isinstance(rule, NoComm | Budget) for rule in rules_in_force())


def _call(op: str, src: ShType, dst: ShType, inserted: bool) -> str:
    return f"`{op}` {'casts' if inserted else 'takes'} {src} to {dst}"


def _check_each(events: Sequence[_Event], call: str, src: ShType, dst: ShType) -> None:
    """Checks each event by itself, without the scopes' sums."""
    for event in events:
        error = next(filter(None, (_refused_by(rule, event, call, src, dst) for rule in rules_in_force())), None)
        if error is not None:
            raise error


def check_bound(
    op: str, src: ShType, dst: ShType, forward: Sent, backward: Sent, *, direction: str, inserted: bool = False
) -> None:
    """Like `check_sent`, for an op bound in one direction. Sums are counted when it runs."""
    if not is_bounded():
        return
    events = _events(src, dst, forward, backward, rules_in_force())
    if direction != "forward":
        events = [_Event("backward", forward, "the backward pass runs in the scope")] if forward else []
    _check_each(events, _call(op, src, dst, inserted), src, dst)


def forbidden(
    rule: ScopeRule, direction: str, sent: Sent, call: str, src: ShType, dst: ShType
) -> ShardingTypeError | None:
    """The error if a rule forbids the communication of ``call`` in a direction, by itself; else None."""
    error = _refused_by(rule, _Event(direction, sent, ""), call, src, dst)
    if error is not None:
        error.hints = _hints(src, dst, error.axes, "x")
    return error


def _refused_by(rule: ScopeRule, event: _Event, call: str, src: ShType, dst: ShType) -> ShardingTypeError | None:
    reason = _violation(rule, event)
    if not reason:
        return None
    error = _refusal(f"{reason} in the {event.direction} pass: {call}", event, src, dst)
    error.scope = rule
    return error


def _refusal(what: str, event: _Event, src: ShType, dst: ShType, times: int | None = 1) -> ShardingTypeError:
    how_often = "" if times == 1 else ", nobody knows how often" if times is None else f", {times} times"
    changed = [a for a, s, d in zip(src.mesh.axis_names, src.states, dst.states, strict=True) if s is not d]
    why = "; ".join(filter(None, (event.why, f"each device would send {event.sent.bytes} B{how_often}")))
    return ShardingTypeError(what, why=why, axes=changed)


def exceeded(rule: Budget, direction: str, sums: Sums, words: str) -> str:
    """The exceeded bound of a budget, as the start of a sentence; empty if none.

    ``words`` is the last collective; empty for all of them.
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


def _events(src: ShType, dst: ShType, forward: Sent, backward: Sent, rules: Rules) -> list[_Event]:
    return _events_of(
        forward, backward, rules, in_checkpoint(), f"the gradient goes back from {dst.cotangent()} to {src.cotangent()}"
    )


def _events_of(forward: Sent, backward: Sent, rules: Rules, recomputed: bool, gradient: str = "") -> list[_Event]:
    if any(isinstance(rule, InBackward) for rule in rules):
        # its gradient is of second order
        return [_Event("backward", forward, "it is in the backward function of a `custom_vjp`")] if forward else []
    events = [_Event("forward", forward, "")] if forward else []
    if backward and not any(isinstance(rule, NotTransposed) for rule in rules):
        events.append(_Event("backward", backward, gradient))
    if forward and (any(isinstance(rule, Recomputed) for rule in rules) or recomputed):
        events.append(_Event("backward", forward, "`checkpoint` may run it again there"))
    return events


def _violation(rule: ScopeRule, event: _Event) -> str:
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
    """Advice, which is not typed again because it applies outside the scope."""
    if any(src.state(a) not in (State.INVARIANT, State.REDUCED) for a in changed) or not changed:
        call = call or f'sh.reshard({name}, "{target_text(dst)}")'
        return (f"{call} before the scope",)
    reduced = ", ".join(f'{a}="R"' for a in changed if src.state(a) is State.INVARIANT)
    to = "" if current_policy() == "partial" else ', to="R"'
    return (
        f"sh.reshard({name}, {reduced}) before the scope",
        f"sh.constant({name}{to}) if it needs no gradient, such as a learning rate",
    )


def drop_forbidden_fixes(error: ShardingTypeError, recomputed: bool) -> None:
    """Keeps only the fixes of an error that the enclosing scopes allow; the cheapest others become advice.

    ``recomputed``: whether forward communication is recomputed in the backward pass.
    """
    refused = {fix: rule for fix in error.fixes if (rule := _refuses(fix, recomputed)) is not None}
    error.fixes = tuple(fix for fix in error.fixes if fix not in refused)
    outside = [f"{fix}, outside `{rule}`" for fix, rule in refused.items()]
    error.hints = (*error.hints, *outside[:_MOST_OUTSIDE])


#: The most forbidden fixes in an error's advice.
_MOST_OUTSIDE: Final = 2


def _refuses(fix: Fix, recomputed: bool) -> ScopeRule | None:
    """The first enclosing scope that forbids the communication of a fix by itself, or None."""
    forward, backward = (
        Sent(tuple(k for k in KINDS if k in words), tuple(_AXES.findall(words)), size, 1, words) if words else Sent()
        for words, size in ((fix.forward, fix.bytes_forward), (fix.backward, fix.bytes_backward))
    )
    rules = rules_in_force()
    for event in _events_of(forward, backward, rules, recomputed):
        for rule in rules:
            if _violation(rule, event):
                return rule
            if isinstance(rule, Budget) and exceeded(rule, event.direction, event.sent.sums, ""):
                return rule
    return None


_AXES: Final = re.compile(r"`(\w+)`")


def check_leaving(t: ShType) -> None:
    """Checks that a value may be converted to a plain array."""
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
    """Lets every open scope check the communication of JAX's ops on plain arrays so far."""
    for tracker in open_trackers():
        tracker.check_so_far()


_WRITTEN: Final = {
    State.VARYING: 'sh.lax.pvary(x, "{axis}")',
    State.REDUCED: 'sh.reshard(x, {axis}="R")',
    State.INVARIANT: 'sh.reshard(x, {axis}="I")',
    State.UNREDUCED: 'sh.reshard(x, {axis}="U")',
}


def casts_are_written(axes: Sequence[str]) -> Scope:
    """Context manager in which casts along ``axes`` must be written."""
    return changed(lambda s: s._replace(written=(*s.written, *axes)))


def check_written(src: ShType, dst: ShType) -> None:
    """Refuses an inserted cast along an axis where casts must be written."""
    for axis in current_settings().written:
        if axis not in src.mesh.shape or src.state(axis) is dst.state(axis) or not src.differentiable:
            continue
        before, after = src.state(axis), dst.state(axis)
        raise ShardingTypeError(
            f"a cast of mesh axis `{axis}` from {before.name.lower()} to {after.name.lower()} must be written here",
            why=f"{src} meets what needs {dst}, and `explicit=True` lets no rule insert it",
            hints=[_WRITTEN[after].format(axis=axis)] if after in _WRITTEN else ["sh.reshard(x, type)"],
        )
