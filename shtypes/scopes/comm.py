"""Scopes that forbid, bound or allow communication; needs no JAX. `check_comm` checks reshards against them.

`traced.comm_tracker` checks sums over a scope, and the communication of JAX's ops on plain arrays.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_args, overload

from shtypes.caches import NotesOn
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.scope import Open, Scope, attribute_set
from shtypes.context.settings import current_settings
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Direction, Kind
from shtypes.scopes.scope_rules import (
    Budget,
    FinishesScalars,
    Implicit,
    NoComm,
    Objective,
    Rules,
    ScopeRule,
    allows_implicit,
    finishes_scalars,
    in_force,
    objective,
    rules_in_force,
)

F = TypeVar("F", bound=Callable[..., Any])

#: The names of the collectives in reports.
KINDS: Final = tuple(kind.value for kind in Kind if kind.communicates)


def under_rules(rules: Rules | None, f: F, *more: ScopeRule) -> F:
    """Wraps a function to run under ``rules``, by default those where it is called, and ``more``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        active = rules_in_force() if rules is None else rules
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(in_force((*active, *more)))
            scopes.enter_context(_sharing(_cache_for(active)))
            if rules is not None:  # their scopes may have ended
                for rule in dict.fromkeys(active):
                    scopes.enter_context(_tracked(rule))
            return f(*args, **kwargs)

    call.__name__ = getattr(f, "__name__", "f")
    return call  # type: ignore[return-value]


# state of open scopes

#: The reshards that ops inserted in one run of a scope, by concrete value, for reuse by later ops of the run.
InsertedReshards = NotesOn[dict[Any, Any]]


class Sums(NamedTuple):
    """Bytes and launches, multiplied by the lengths of loops."""

    bytes: int = 0  # sent by each device
    launches: int = 0  # the number of collectives
    bounded: bool = True  # False if some are in a `while` loop, whose length is unknown

    def __add__(self, other: object) -> Sums:
        if not isinstance(other, Sums):
            return NotImplemented
        return Sums(self.bytes + other.bytes, self.launches + other.launches, self.bounded and other.bounded)

    def times(self, n: int | None) -> Sums:
        """Multiplied by ``n``; unbounded if None."""
        if n is None:
            return self._replace(bounded=self.bounded and not self.launches)
        return Sums(self.bytes * n, self.launches * n, self.bounded)


class _ScopeTracker(Protocol):
    """The interface of `traced.comm_tracker.CommTracker`: the communication of one run of a scope."""

    rule: ScopeRule

    def total(self) -> Any: ...
    def leave(self) -> None: ...


class _Thread(threading.local):
    undecided: dict[str, None] | None = None  # why functions were not optimized jointly, if collected
    ways: set[int] | None = None  # the numbers of algorithms that may apply, if collected
    inserted: InsertedReshards | None = None  # of the outermost open run of a scope that inserts reshards

    def __init__(self) -> None:
        self.trackers: list[_ScopeTracker] = []  # of the open scopes, outermost first


_thread: Final = _Thread()
_make_tracker: Callable[[ScopeRule, Any], _ScopeTracker] | None = None
_in_checkpoint: Callable[[], bool] | None = None
_announce_program: Callable[[], None] | None = None
_joint_optimizer: Callable[[Any], Any] | None = None


def connect_tracker(
    make: Callable[[ScopeRule, Any], _ScopeTracker], checkpoint: Callable[[], bool], announce: Callable[[], None]
) -> None:
    """Sets the tracker of scopes and what they ask of running JAX programs; else each reshard is checked alone."""
    global _make_tracker, _in_checkpoint, _announce_program
    _make_tracker, _in_checkpoint, _announce_program = make, checkpoint, announce


def connect_joint_optimizer(optimizer: Callable[[Any], Any]) -> None:
    """Sets the joint optimizer of a function's reshards; without it, each op chooses for itself."""
    global _joint_optimizer
    _joint_optimizer = optimizer


def note_undecided(f: Callable[..., Any], why: str) -> None:
    """Notes why the ops of a function choose for themselves, though `implicit_comm` would optimize them jointly."""
    if _thread.undecided is not None:
        _thread.undecided[f"`{getattr(f, '__name__', 'f')}` is not decided as a whole: {why}"] = None


def note_ways(numbers: Iterable[int]) -> None:
    """Notes the numbers of the algorithms that may apply to an op along sharded dims, for `noting_ways`."""
    if _thread.ways is not None:
        _thread.ways.update(numbers)


def noting_ways() -> contextlib.AbstractContextManager[set[int]]:
    """Collects the numbers of the algorithms that may apply to ops along sharded dims in it, as in `Implicit.way`."""
    return attribute_set(_thread, "ways", set[int]())


def noting_undecided() -> contextlib.AbstractContextManager[dict[str, None]]:
    """Collects why functions traced in it are not optimized jointly."""
    return attribute_set(_thread, "undecided", dict[str, None]())


def announce_program() -> None:
    """Announces that JAX is about to run a program on typed values, if scopes are open."""
    if _announce_program is not None and rules_in_force():
        _announce_program()


def in_checkpoint() -> bool:
    """Whether the code is inside `jax.checkpoint`, which may recompute it in the backward pass."""
    return _in_checkpoint is not None and _in_checkpoint()


def open_trackers() -> list[Any]:
    """The trackers of this thread's open scopes whose rules apply, outermost first."""
    if not _thread.trackers:
        return []
    rules = rules_in_force()
    return [tracker for tracker in _thread.trackers if tracker.rule in rules]


@contextlib.contextmanager
def _tracked(rule: ScopeRule, spent: Any = None) -> Iterator[_ScopeTracker | None]:
    """Tracks one part of a scope's run, and checks it at its end."""
    nothing_runs = current_settings().speculative or is_tracing_plain()
    if _make_tracker is None or not isinstance(rule, (NoComm, Budget)) or nothing_runs:
        yield None
        return
    tracker = _make_tracker(rule, spent)
    _thread.trackers.append(tracker)
    try:
        yield tracker
        tracker.leave()
    finally:
        _thread.trackers.remove(tracker)


# the public scopes


_run_numbers: Final = itertools.count(1)


class CommScope(Scope):
    """A scope that adds a rule; `no_comm` and `comm_budget` are also checked against the trace at its end."""

    def __init__(self, rule: ScopeRule) -> None:
        super().__init__(self.new_run)
        self.rule = rule

    def new_run(self) -> Open:
        """Returns a function that opens the next part of a run; parts share one count."""
        spent: Any = None
        rule, cache = self.rule, _cache_for((self.rule,))
        if isinstance(rule, Budget) and is_tracing_plain():  # each run is evaluated later, by itself
            rule = replace(rule, run=next(_run_numbers))

        @contextlib.contextmanager
        def part() -> Iterator[None]:
            nonlocal spent
            with _sharing(cache), in_force((*rules_in_force(), rule)), _tracked(rule, spent) as tracker:
                yield
                spent = None if tracker is None else tracker.total()

        return part


@overload
def no_comm(direction: Direction = "both") -> CommScope: ...
@overload
def no_comm(direction: F) -> F: ...
def no_comm(direction: Any = "both") -> Any:
    """A scope without communication: what would communicate is an error, before anything runs.

    A context manager or a decorator (with or without parentheses), around or inside traced code. Casts that communicate
    in the backward pass alone are errors too, unless only ``"forward"`` is forbidden. So are JAX's ops on plain arrays
    that are sharded, or that JAX places: no type shows their communication.

    Args:
        direction: ``"both"``, ``"forward"``, or ``"backward"``, which forbids only what communicates backward: casts
            from invariant, most reshards, and forward communication that `shtypes.checkpoint` runs again.

    Raises:
        ShardingTypeError: (inside) an op or a reshard would communicate. The error names the collective, its bytes and
            fixes.

    Examples:
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
    """A scope with a bound on communication, for the forward pass and the backward pass each.

    A context manager, or a decorator that bounds each call. The body of a `scan` counts once for each step; that of a
    `while` loop runs an unknown number of times, so a bound on bytes or launches forbids communication there. None is
    no bound.

    Args:
        kinds: The kinds of collectives that are allowed, such as ``"all-reduce"``.
        axes: The mesh axes that they may run over.
        bytes: The most that each device may send in each pass.
        launches: The most collectives that may run in each pass.

    Raises:
        ShardingTypeError: there is no such kind; (inside) a reshard, or the sum of all, exceeds the budget.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.abstract_mesh({"tp": 4})), sh.comm_budget(bytes=1000, launches=2):
        ...     pending = sh.abstract_array("f32[64]{U:tp}")
        ...     _ = sh.all_reduce(pending), sh.all_reduce(pending)
    """
    names = _names(kinds)
    for kind in names or ():
        if kind not in KINDS:
            raise ShardingTypeError(f"there is no collective {kind!r}; they are {', '.join(KINDS)}")
    for what, bound in (("bytes", bytes), ("launches", launches)):
        if bound is not None and not isinstance(bound, int):
            raise ShardingTypeError(f"`comm_budget` takes a whole number of {what}, not {bound!r:.60}")
    return CommScope(Budget(names, _names(axes), bytes, launches))


@overload
def implicit_comm(f: None = None, *, minimize: Direction = "both", by: Objective = "bytes") -> CommScope: ...
@overload
def implicit_comm(f: F, *, minimize: Direction = "both", by: Objective = "bytes") -> F: ...
def implicit_comm(f: Any = None, *, minimize: Any = "both", by: Any = "bytes") -> Any:
    """A scope in which ops that do not type insert reshards of their operands that make them type.

    A lifted program in it, and a function that it decorates, are optimized as one: of all reshards that make them type,
    for the types of their arguments, the cheapest. Otherwise each op takes the cheapest for itself, and so do the joins
    of loops and branches. Inserted reshards print as ``cast``, and the ledger lists them as inserted. A context manager
    or a decorator (with or without parentheses); `no_comm` and `comm_budget` around or inside it still apply.

    Args:
        f: A function to decorate.
        minimize: The communication to minimize: ``"forward"``, ``"backward"``, or in ``"both"`` passes; on a tie, that
            of both. The innermost scope decides.
        by: What to minimize over a program or function: ``"bytes"`` that each device sends, then the work of each
            device; or the ``"time"`` of both, by the current cost model, or else by the links and products of an H100.

    Raises:
        ShardingTypeError: there is no such direction or objective.
    """
    if minimize not in get_args(Direction):
        raise ShardingTypeError(
            f"`implicit_comm` minimizes what is sent forward, backward or both, not {minimize!r:.60}",
            hints=[f'sh.implicit_comm(minimize="{direction}")' for direction in get_args(Direction)],
        )
    if by not in get_args(Objective):
        raise ShardingTypeError(
            f"`implicit_comm` decides by bytes or by time, not by {by!r:.60}",
            hints=[f'sh.implicit_comm(by="{objective}")' for objective in get_args(Objective)],
        )
    scope = _ImplicitScope(Implicit(minimize, by))
    return scope if f is None else scope(f)


class _ImplicitScope(CommScope):
    """`implicit_comm`: optimizes the functions that it decorates jointly."""

    def __init__(self, rule: Implicit) -> None:
        super().__init__(rule)
        self._of_functions = CommScope(replace(rule, joint=True))

    def __call__(self, f: F) -> F:
        if _joint_optimizer is None or not callable(f):
            return super().__call__(f)
        joint: F = self._of_functions(_joint_optimizer(f))
        return joint


def optimized_jointly(f: F) -> F:
    """The function, optimized jointly if it is inside of a function that `implicit_comm` decorates."""
    joint: F = f if _joint_optimizer is None or not objective().joint else _joint_optimizer(f)
    return joint


def _names(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(sorted(names))


def _sharing(cache: InsertedReshards | None) -> contextlib.AbstractContextManager[InsertedReshards | None]:
    """Shares ``cache`` in a part of a run of a scope that inserts reshards; a nested run uses the outer's."""
    return attribute_set(_thread, "inserted", cache if _thread.inserted is None else _thread.inserted)


def inserted_reshards() -> InsertedReshards | None:
    """The reshards inserted so far in the open run of a scope; None where ops may not insert."""
    return _thread.inserted if allows_implicit() or finishes_scalars() else None


def _cache_for(rules: Rules) -> InsertedReshards | None:
    return NotesOn() if any(isinstance(rule, Implicit | FinishesScalars) for rule in rules) else None


def finishing_scalars() -> CommScope:
    """A scope in which ops may finish scalars, as norms of many arrays need: a few bytes each."""
    return CommScope(FinishesScalars())
