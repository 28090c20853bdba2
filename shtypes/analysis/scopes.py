"""Scopes that forbid, bound or allow communication. Pure: a move is judged by its types, where it is made.

All communication is in reshards and casts, and the types of cotangents follow from those of values. So judging a move
at the forward trace, before anything runs, proves both directions. Moves that transposition makes are not judged again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from shtypes import ambient
from shtypes.errors import ShardingTypeError
from shtypes.policy import current_ambient, current_policy
from shtypes.reshard import Kind, Plan, backward, plan
from shtypes.types import ShType, State

F = TypeVar("F", bound=Callable[..., Any])
Direction = Literal["both", "forward", "backward"]

#: What reports call the kinds that communicate.
KINDS: Final = tuple(kind.value for kind in Kind if kind.communicates)


# what a scope says


@dataclass(frozen=True)
class NoComm:
    """Nothing communicates in a direction."""

    direction: Direction

    def __str__(self) -> str:
        return "no_comm" if self.direction == "both" else f'no_comm("{self.direction}")'


@dataclass(frozen=True)
class Budget:
    """What each move may communicate, in each direction; None for no bound."""

    kinds: tuple[str, ...] | None
    axes: tuple[str, ...] | None
    bytes: int | None
    launches: int | None

    def __str__(self) -> str:
        return "comm_budget"


@dataclass(frozen=True)
class Implicit:
    """Ops insert the cheapest reshards that make them type."""


@dataclass(frozen=True)
class Recomputed:
    """What communicates forward does so again in the backward pass: inside `checkpoint`."""


@dataclass(frozen=True)
class InBackward:
    """What communicates does so in the backward pass: the backward function of a `custom_vjp`."""


Rule = NoComm | Budget | Implicit | Recomputed | InBackward
Rules = tuple[Rule, ...]


def rules_in_force() -> Rules:
    """The rules of all scopes around the code, outermost first."""
    found: Any = current_ambient().scopes
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def in_force(rules: Rules) -> Iterator[None]:
    """A scope in which exactly these rules hold."""
    with ambient.scope(current_ambient()._replace(scopes=rules)):
        yield


def under(rules: Rules | None, f: F, *more: Rule) -> F:
    """A function that runs under some rules, whatever is in force where it is called.

    Args:
        rules: The rules; None for those in force at the call.
        f: The function.
        *more: Rules besides.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with in_force((*(rules_in_force() if rules is None else rules), *more)):
            return f(*args, **kwargs)

    call.__name__ = getattr(f, "__name__", "f")
    return call  # type: ignore[return-value]


# the public scopes


class CommScope(contextlib.ContextDecorator):
    """A scope: a context manager, or a decorator whose function runs in it; may be entered many times."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._entered = threading.local()

    def __enter__(self) -> None:
        scope = in_force((*rules_in_force(), self.rule))
        scope.__enter__()
        self._stack().append(scope)

    def __exit__(self, *error: Any) -> None:
        self._stack().pop().__exit__(*error)

    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "scopes"):
            self._entered.scopes = []
        found: list[Any] = self._entered.scopes
        return found


def no_comm(direction: Any = "both") -> Any:
    """A scope without communication: what would communicate is an error, before anything runs.

    A context manager or a decorator (with or without parentheses), around or inside traced code. Casts that communicate
    in the backward pass alone are errors too, unless only ``"forward"`` is asked for. A plain array that is sharded
    cannot leave: what JAX does with it is not known to the types.

    Args:
        direction: ``"both"``, ``"forward"``, or ``"backward"``, which forbids only what communicates backward: casts
            from invariant, most reshards, and forward communication that `shtypes.checkpoint` runs again.

    Raises:
        ShardingTypeError: (inside) an op or a reshard would communicate. It names the collective, its bytes and fixes.

    Example:
        >>> import shtypes as sh
        >>> @sh.no_comm
        ... def block(x, w):
        ...     return sh.silu(x @ w)
        >>> with sh.use_mesh(sh.make_mesh({"tp": 2})):
        ...     print(sh.typeof(block(sh.ones("f32[2, 4]"), sh.ones("f32[4, 8@tp]"))))
        f32[2,8@tp]
    """
    if callable(direction):
        return CommScope(NoComm("both"))(direction)
    if direction not in get_args(Direction):
        raise ShardingTypeError(
            f"`no_comm` forbids communication forward, backward or both, not {direction!r:.60}",
            hints=["sh.no_comm()", 'sh.no_comm("forward")', 'sh.no_comm("backward")'],
        )
    return CommScope(NoComm(direction))


def comm_budget(
    *,
    kinds: str | Iterable[str] | None = None,
    axes: str | Iterable[str] | None = None,
    bytes: int | None = None,
    launches: int | None = None,
) -> CommScope:
    """A scope in which each reshard and each cast may communicate so much, forward and backward each.

    A context manager or a decorator. It bounds single moves; what a program sends in all, loops counted, is for
    `shtypes.assert_comm`. What is None is not bounded.

    Args:
        kinds: The kinds of collectives that are allowed, such as ``"all-reduce"``.
        axes: The mesh axes that they may run over.
        bytes: The most that each device may send for one move.
        launches: The most collectives that one move may launch.

    Raises:
        ShardingTypeError: there is no such kind; (inside) a move would exceed the budget.
    """
    names = _names(kinds)
    for kind in names or ():
        if kind not in KINDS:
            raise ShardingTypeError(f"there is no collective {kind!r}; they are {', '.join(KINDS)}")
    return CommScope(Budget(names, _names(axes), bytes, launches))


def implicit_comm(f: Any = None) -> Any:
    """A scope in which an op that does not type inserts the cheapest reshards of its operands that make it type.

    They print as ``cast``, and the ledger lists them as inserted. A context manager or a decorator (with or without
    parentheses); `no_comm` and `comm_budget` around or inside it still hold.
    """
    scope = CommScope(Implicit())
    return scope if f is None else scope(f)


def _names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, str) else tuple(sorted(given))


# judging


def allows_implicit() -> bool:
    """Whether ops may insert reshards."""
    return any(isinstance(rule, Implicit) for rule in rules_in_force())


class Sent(NamedTuple):
    """What a move communicates in one direction.

    Attributes:
        kinds: The kinds of its collectives.
        axes: The mesh axes that they run over.
        bytes: Bytes that each device sends.
        launches: How many collectives run.
        words: The collectives in words.
    """

    kinds: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    bytes: int = 0
    launches: int = 0
    words: str = ""

    def __bool__(self) -> bool:
        return bool(self.kinds)


def sent_by(plan: Plan) -> Sent:
    """What a plan communicates; by states, so that the size of an axis does not matter."""
    steps = [s for s in plan.steps if s.kind.communicates]
    axes = dict.fromkeys(a for s in steps for a in s.axes)
    return Sent(tuple(s.kind.value for s in steps), tuple(axes), plan.bytes, plan.launches, plan.words)


class _Event(NamedTuple):
    """What a move sends, in which direction and why there."""

    direction: str
    sent: Sent
    why: str


def judge(
    op: str, src: ShType, dst: ShType, *, name: str = "x", inserted: bool = False, has_gradient: bool = True
) -> None:
    """Checks a reshard or a cast against the scopes around it.

    Args:
        op: What the user called.
        src: The type before.
        dst: The type after.
        name: What the value is called in advice.
        inserted: Whether a typing rule asks for it.
        has_gradient: Whether the value may be differentiated.

    Raises:
        ShardingTypeError: a scope forbids it.
    """
    if src == dst or not rules_in_force():
        return
    goal = dst
    for axis in dst.axes(State.VARYING):  # to varying costs what to reduced does
        if src.state(axis) is not State.VARYING:
            goal = goal.with_axis(axis, State.REDUCED)
    forth = plan(src, goal)
    back = backward(forth) if src.differentiable and has_gradient else None
    try:
        judge_sent(op, src, dst, sent_by(forth), Sent() if back is None else sent_by(back), inserted=inserted)
    except ShardingTypeError as error:
        error.hints = _hints(src, dst, error.axes, name)
        raise


def judge_sent(op: str, src: ShType, dst: ShType, forth: Sent, back: Sent, *, inserted: bool = False) -> None:
    """Checks what communicates against the scopes around it.

    Args:
        op: What the user called.
        src: The type before.
        dst: The type after.
        forth: What is sent for the value.
        back: What is sent for its gradient.
        inserted: Whether a typing rule asks for it.

    Raises:
        ShardingTypeError: a scope forbids it.
    """
    rules = rules_in_force()
    events = _events(src, dst, forth, back, rules)
    for rule in rules:
        for event in events:
            reason = _against(rule, event)
            if reason:
                changed = [a for a, s, d in zip(src.mesh.axis_names, src.states, dst.states, strict=True) if s is not d]
                raise ShardingTypeError(
                    f"{reason} in the {event.direction} pass: `{op}` {'casts' if inserted else 'takes'} {src} to {dst}",
                    why="; ".join(filter(None, (event.why, f"each device would send {event.sent.bytes} B"))),
                    axes=changed,
                )


def _events(src: ShType, dst: ShType, forth: Sent, back: Sent, rules: Rules) -> list[_Event]:
    if any(isinstance(rule, InBackward) for rule in rules):
        # Its own gradient is one of second order.
        return [_Event("backward", forth, "it is in the backward function of a `custom_vjp`")] if forth else []
    events = [_Event("forward", forth, "")] if forth else []
    if back:
        events.append(_Event("backward", back, f"the gradient goes back from {dst.cotangent()} to {src.cotangent()}"))
    if forth and any(isinstance(rule, Recomputed) for rule in rules):
        events.append(_Event("backward", forth, "`checkpoint` may run it again there"))
    return events


def _against(rule: Rule, event: _Event) -> str:
    """What of an event a rule forbids, as the start of a sentence; empty if nothing."""
    sent = event.sent
    if isinstance(rule, NoComm):
        return f"`{rule}` forbids {sent.words}" if rule.direction in ("both", event.direction) else ""
    if not isinstance(rule, Budget):
        return ""
    if rule.kinds is not None and not set(sent.kinds) <= set(rule.kinds):
        return f"`comm_budget` allows {_listed(rule.kinds)} only, not {sent.words}"
    if rule.axes is not None and not set(sent.axes) <= set(rule.axes):
        return f"`comm_budget` allows collectives over {_listed([f'`{a}`' for a in rule.axes])} only, not {sent.words}"
    if rule.bytes is not None and sent.bytes > rule.bytes:
        return f"`comm_budget` allows {rule.bytes} B/device for one move, not {sent.bytes} for {sent.words}"
    if rule.launches is not None and sent.launches > rule.launches:
        return f"`comm_budget` allows {rule.launches} collectives for one move, not {sent.launches}: {sent.words}"
    return ""


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items) or "nothing"


def _hints(src: ShType, dst: ShType, changed: Sequence[str], name: str) -> tuple[str, ...]:
    """What else to do. It cannot be typed again here, because it is outside the scope."""
    if any(src.state(a) not in (State.INVARIANT, State.REDUCED) for a in changed) or not changed:
        return (f'sh.reshard({name}, "{str(dst).removeprefix(dst.dtype_name)}") before the scope',)
    reduced = ", ".join(f'{a}="R"' for a in changed if src.state(a) is State.INVARIANT)
    to = "" if current_policy() == "partial" else ', to="R"'
    return (
        f"sh.reshard({name}, {reduced}) before the scope",
        f"sh.constant({name}{to}) if it needs no gradient, such as a learning rate",
    )


def judge_leaving(t: ShType) -> None:
    """Checks that a value may become a plain array.

    Raises:
        ShardingTypeError: it is sharded, and a scope forbids or bounds communication.
    """
    sharded = t.axes(State.SHARDED)
    rule = next((rule for rule in rules_in_force() if isinstance(rule, (NoComm, Budget))), None)
    if sharded and rule is not None:
        raise ShardingTypeError(
            f"`{rule}` cannot vouch for {t} as a plain array: it is sharded over {', '.join(sharded)}",
            why="JAX places what is computed on it, and may communicate where no type shows it",
            hints=["use the function of the same name in shtypes", "x.to_jax() outside the scope"],
            axes=sharded,
        )


__all__ = ["CommScope", "comm_budget", "implicit_comm", "no_comm"]
