"""Scopes that forbid, bound or allow communication. Pure: what they say is checked in `check_comm`.

What a scope sees besides single moves (their sum, and what JAX does on plain arrays) is in `traced.comm_tracker`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, get_args, overload

from shtypes.caches import NotesOn
from shtypes.context import settings
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.scope import Open, Scope
from shtypes.context.settings import current, current_settings
from shtypes.errors import ShardingTypeError
from shtypes.resharding import Direction, Kind

F = TypeVar("F", bound=Callable[..., Any])

#: What is to be least of a program that is decided as a whole.
Objective = Literal["bytes", "time"]
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
    """A bound on the communication of a scope, in each direction; None for no bound."""

    kinds: tuple[str, ...] | None
    axes: tuple[str, ...] | None
    bytes: int | None
    launches: int | None
    run: int = (
        0  # which run of the scope it is, in a plain program that is lifted; else they are told apart as they run
    )

    @property
    def bounds_sums(self) -> bool:
        """Whether it says how much, and not only what."""
        return self.bytes is not None or self.launches is not None

    def __str__(self) -> str:
        return "comm_budget"


@dataclass(frozen=True)
class Implicit:
    """Ops insert the cheapest reshards that make them type: those that send least in the direction that matters."""

    minimize: Direction = "both"
    by: Objective = "bytes"  # what is least of a whole program: bytes, or time
    whole: bool = False  # whether it decorates a function: then what is differentiated in it is decided as a whole
    out: Any = None  # the type that a call asks for: what brings its result there counts
    #: The number of the way in which ops along sharded dims are computed, where they have it; -1 gathers.
    way: int | None = None


@dataclass(frozen=True)
class FinishesScalars:
    """Ops finish pending sums of one element, such as norms, where they would not type with them; nothing else.

    Reductions to one element, such as whether all elements are finite, may be of sharded dims.
    """


@dataclass(frozen=True)
class FinishesSums:
    """Ops that may communicate finish pending sums with which they would not type, before they try anything else.

    In a function that is made of several, so that what it sends for each row is a number, and not the row.
    """


@dataclass(frozen=True)
class Recomputed:
    """What communicates forward does so again in the backward pass: inside `checkpoint`."""


@dataclass(frozen=True)
class InBackward:
    """What communicates does so in the backward pass: the backward function of a `custom_vjp`."""


@dataclass(frozen=True)
class NotTransposed:
    """What communicates has no backward pass: its gradient is computed in another way, which is judged by itself."""


ScopeRule = NoComm | Budget | Implicit | FinishesScalars | FinishesSums | Recomputed | InBackward | NotTransposed
Rules = tuple[ScopeRule, ...]


def rules_in_force() -> Rules:
    """The rules of all scopes around the code, outermost first; of those that refuse none where code is only tried."""
    found: Any = current.value.scopes
    if current.value.tried:
        return tuple(rule for rule in found if isinstance(rule, Implicit | FinishesScalars | FinishesSums))
    return found  # type: ignore[no-any-return]


def in_force(rules: Rules) -> contextlib.AbstractContextManager[None]:
    """A scope in which exactly these rules hold."""
    return settings.scope(current_settings()._replace(scopes=rules))


def trying() -> contextlib.AbstractContextManager[None]:
    """A scope in which code is only tried: no scope around it refuses anything."""
    return settings.scope(current_settings()._replace(tried=True))


def without_scopes() -> contextlib.AbstractContextManager[None]:
    """A scope in which no scope of communication is in force."""
    return settings.scope(current_settings()._replace(scopes=(), tried=False))


def under(rules: Rules | None, f: F, *more: ScopeRule) -> F:
    """A function that runs under some rules and ``more``, whatever is in force where it is called.

    With None for the rules, under those in force at the call.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        held = rules_in_force() if rules is None else rules
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(in_force((*held, *more)))
            scopes.enter_context(_inserting(_forms_of(held)))
            if rules is not None:  # the scopes that they are of may be left by now
                for rule in dict.fromkeys(held):
                    scopes.enter_context(_tracked(rule))
            return f(*args, **kwargs)

    call.__name__ = getattr(f, "__name__", "f")
    return call  # type: ignore[return-value]


# what scopes see while they are open

#: What ops inserted in one run of a scope that lets them: of a value outside of traces, what it was brought into. It
#: serves the ops that follow in the run.
InsertedForms = NotesOn[dict[Any, Any]]


class Sums(NamedTuple):
    """Bytes and launches, loops counted."""

    bytes: int = 0  # bytes that each device sent
    launches: int = 0  # collectives that ran
    bounded: bool = True  # False where something runs in a `while` loop, whose length is unknown

    def __add__(self, other: object) -> Sums:
        if not isinstance(other, Sums):
            return NotImplemented
        return Sums(self.bytes + other.bytes, self.launches + other.launches, self.bounded and other.bounded)

    def times(self, n: int | None) -> Sums:
        """Scaled by ``n``; unbounded if None."""
        if n is None:
            return self._replace(bounded=self.bounded and not self.launches)
        return Sums(self.bytes * n, self.launches * n, self.bounded)


class _ScopeTracker(Protocol):
    """The part of `traced.comm_tracker.CommTracker` that is used here: the communication of one run of a scope."""

    rule: ScopeRule

    def total(self) -> Any: ...
    def leave(self) -> None: ...


class _Thread(threading.local):
    undecided: dict[str, None] | None = None  # why functions were not decided as a whole, where that is asked
    inserted: InsertedForms | None = None  # of the outermost run that is open of a scope that lets ops insert

    def __init__(self) -> None:
        self.trackers: list[_ScopeTracker] = []  # of the scopes that are open, outermost first


_thread: Final = _Thread()
_make_tracker: Callable[[ScopeRule, Any], _ScopeTracker] | None = None
_runs_again: Callable[[], bool] | None = None
_runs_program: Callable[[], None] | None = None
_completed: Callable[[Any], Any] | None = None


def connect_tracker(
    make: Callable[[ScopeRule, Any], _ScopeTracker], runs_again: Callable[[], bool], runs_program: Callable[[], None]
) -> None:
    """Says what tracks a scope and what knows JAX's own programs; without them, each move is judged alone."""
    global _make_tracker, _runs_again, _runs_program
    _make_tracker, _runs_again, _runs_program = make, runs_again, runs_program


def connect_completed(completed: Callable[[Any], Any]) -> None:
    """Says how what a function inserts is decided as a whole; without it, each op chooses for itself."""
    global _completed
    _completed = completed


def note_undecided(f: Callable[..., Any], why: str) -> None:
    """Notes why each op of a function chooses for itself though `implicit_comm` would decide it as a whole."""
    if _thread.undecided is not None:
        _thread.undecided[f"`{getattr(f, '__name__', 'f')}` is not decided as a whole: {why}"] = None


@contextlib.contextmanager
def noting_undecided() -> Iterator[dict[str, None]]:
    """What functions traced in it are not decided as a whole, and why."""
    outer, _thread.undecided = _thread.undecided, {}
    try:
        yield _thread.undecided
    finally:
        _thread.undecided = outer


def program_runs() -> None:
    """Says that JAX is about to run a program on typed values, if scopes are open."""
    if _runs_program is not None and rules_in_force():
        _runs_program()


def runs_again() -> bool:
    """Whether the code is in JAX's own `checkpoint`, which may run it again in the backward pass."""
    return _runs_again is not None and _runs_again()


def open_trackers() -> list[Any]:
    """The trackers of the scopes that are open in this thread and in force here, outermost first."""
    if not _thread.trackers:
        return []
    rules = rules_in_force()
    return [tracker for tracker in _thread.trackers if tracker.rule in rules]


@contextlib.contextmanager
def _tracked(rule: ScopeRule, spent: Any = None) -> Iterator[_ScopeTracker | None]:
    """Tracks a part of a run of a scope, and checks it when it is left."""
    nothing_runs = current_settings().tried or is_tracing_plain()
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


_runs: Final = itertools.count(1)


class CommScope(Scope):
    """A scope of communication: what it says is checked move by move, and on the trace when it is left."""

    def __init__(self, rule: ScopeRule) -> None:
        super().__init__(self.new_run)
        self.rule = rule

    def new_run(self) -> Open:
        """A function that opens each part of a run; the communication of one part counts in the next."""
        spent: Any = None
        rule, forms = self.rule, _forms_of((self.rule,))
        if isinstance(rule, Budget) and is_tracing_plain():  # evaluated afterwards, each run by itself
            rule = replace(rule, run=next(_runs))

        @contextlib.contextmanager
        def part() -> Iterator[None]:
            nonlocal spent
            with _inserting(forms), in_force((*rules_in_force(), rule)), _tracked(rule, spent) as tracker:
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
    in the backward pass alone are errors too, unless only ``"forward"`` is asked for. What JAX is asked to do on plain
    arrays that are sharded, or that it places, is an error as well: no type shows what that sends.

    Args:
        direction: ``"both"``, ``"forward"``, or ``"backward"``, which forbids only what communicates backward: casts
            from invariant, most reshards, and forward communication that `shtypes.checkpoint` runs again.

    Raises:
        ShardingTypeError: (inside) an op or a reshard would communicate. It names the collective, its bytes and fixes.

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
    """A scope in which all that runs may communicate so much, in the forward pass and in the backward pass each.

    A context manager, or a decorator, whose budget is that of one call. What runs in a `scan` counts as often as it
    runs; in a `while` loop that number is unknown, and a bound on bytes or launches forbids it there. What is None is
    not bounded.

    Args:
        kinds: The kinds of collectives that are allowed, such as ``"all-reduce"``.
        axes: The mesh axes that they may run over.
        bytes: The most that each device may send in each pass.
        launches: The most collectives that may run in each pass.

    Raises:
        ShardingTypeError: there is no such kind; (inside) a move, or the sum of all, exceeds the budget.

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
    """A scope in which what does not type inserts the reshards of operands that make it type.

    A program that is lifted in it, and a function that it decorates, are decided as a whole: of all reshards that make
    them type, for the types of their arguments, those by which they cost least. Else each op takes what is cheapest for
    itself. So may the joins of loops and branches. They print as ``cast``, and the ledger lists them as inserted. A
    context manager or a decorator (with or without parentheses); `no_comm` and `comm_budget` around or inside it still
    hold.

    Args:
        f: A function to decorate.
        minimize: What is to be least where there is a choice: what is sent ``"forward"``, ``"backward"``, or in
            ``"both"`` passes; of choices that are equal there, what both send. Of scopes inside one another the
            innermost says.
        by: What is least of what is decided as a whole: ``"bytes"`` that each device sends, and of plans that send as
            much the work of each device; or the ``"time"`` of both, by the cost model in force, or else by the links
            and products of an H100.

    Raises:
        ShardingTypeError: there is no such direction, or nothing else to be least.
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
    """One that decides as a whole about the functions that it decorates."""

    def __init__(self, rule: Implicit) -> None:
        super().__init__(rule)
        self._of_functions = CommScope(replace(rule, whole=True))

    def __call__(self, f: F) -> F:
        return super().__call__(f) if _completed is None or not callable(f) else self._of_functions(_completed(f))


def as_a_whole(f: F) -> F:
    """A function that is differentiated: decided as a whole inside of a function that `implicit_comm` decorates."""
    found: F = f if _completed is None or not objective().whole else _completed(f)
    return found


def _names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, str) else tuple(sorted(given))


@contextlib.contextmanager
def _inserting(forms: InsertedForms | None) -> Iterator[None]:
    """A part of a run of a scope that lets ops insert; inside of another run it is a part of that."""
    outer = _thread.inserted
    _thread.inserted = forms if outer is None else outer
    try:
        yield
    finally:
        _thread.inserted = outer


def inserted_forms() -> InsertedForms | None:
    """The reshards inserted so far in the open run of a scope that lets ops insert; None where they may not."""
    return _thread.inserted if allows_implicit() or finishes_scalars() else None


def _forms_of(rules: Rules) -> InsertedForms | None:
    return NotesOn() if any(isinstance(rule, Implicit | FinishesScalars) for rule in rules) else None


def allows_implicit() -> bool:
    """Whether ops may insert reshards."""
    return any(isinstance(rule, Implicit) for rule in rules_in_force())


def minimizing() -> Direction:
    """The direction that the innermost `implicit_comm` minimizes."""
    return objective().minimize


def objective() -> Implicit:
    """What the innermost `implicit_comm` says."""
    found = [rule for rule in rules_in_force() if isinstance(rule, Implicit)]
    return found[-1] if found else Implicit()


def finishing_scalars() -> CommScope:
    """A scope in which ops may finish scalars: what norms of many arrays need, at a few bytes each."""
    return CommScope(FinishesScalars())


def finishes_scalars() -> bool:
    """Whether ops may finish pending scalars."""
    return any(isinstance(rule, FinishesScalars) for rule in rules_in_force())


def finishes_sums() -> bool:
    """Whether ops that may communicate finish pending sums before they try anything else."""
    return any(isinstance(rule, FinishesSums) for rule in rules_in_force())
