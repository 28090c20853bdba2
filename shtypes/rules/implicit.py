"""What `implicit_comm` inserts: for each op that does not type, one of the reshards that make it type. Pure.

By itself it takes the cheapest, with what it leaves to do: a pending sum is reduced before long. Where the function can
be traced again, `look_ahead` tries other choices and takes those by which the whole of it sends least. Ops of one name
on operands of the same types choose alike, so that layers do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, get_args

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.resharding import Cost, Direction
from shtypes.rules.candidate_types import finishing
from shtypes.rules.suggest_fixes import Candidate, FixPrice, Held, Rule, Search, added
from shtypes.rules.typing import Typing
from shtypes.types import ShType

#: An op and the types that it does not take.
ChoicePoint = tuple[str, tuple[ShType, ...]]
#: Choices that were made: at a place, the types of the operands.
Choices = tuple[tuple[ChoicePoint, tuple[ShType, ...]], ...]

#: How many ways are considered at each place.
_WAYS: Final = 12
#: Functions whose module starts so are of this package.
_OWN: Final = f"{__package__.partition('.')[0]}."
#: The ways that were found.
_known: Final[Bounded[list[Candidate]]] = Bounded()


class Seen:
    """What a trace comes to.

    Attributes:
        places: The ops that do not type, in order, with the ways at each.
        shards: The functions of shards and the types that they are given: what they compute depends on these.
        directions: What the scopes around the choices want to be least.
    """

    def __init__(self) -> None:
        self.places: dict[ChoicePoint, list[tuple[ShType, ...]]] = {}
        self.shards: list[tuple[str, tuple[ShType, ...]]] = []
        self.directions: set[Direction] = set()

    @property
    def direction(self) -> Direction:
        """What the choices are to make least; both directions where scopes of several are in it."""
        return next(iter(self.directions)) if len(self.directions) == 1 else "both"


class LookAheadSignal(BaseException):
    """Leaves a function at its first choice: it is traced again, with all of its choices in view."""


class _Thread(threading.local):
    #: Whether a function that can be traced again is running for the first time.
    waiting = False
    #: What the function that is traced comes to.
    seen: Seen | None = None


_thread: Final = _Thread()


def chosen(
    name: str, rule: Rule, types: tuple[ShType, ...], held: Held = (), minimize: Direction = "both"
) -> Typing | None:
    """The typing of an op with some operands resharded; None if no reshard makes it type.

    Args:
        name: The op.
        rule: Types it from its operands' types.
        types: The types that the rule refuses.
        held: For each operand, types that the value was given already.
        minimize: What is to be least.
    """
    ways = _ways(rule, types, held, minimize)
    if not ways:
        return None
    plan: Any = current_settings().plan
    if len(ways) > 1:
        may_look_ahead()
    place = (name, types)
    if _thread.seen is not None:
        _thread.seen.places.setdefault(place, [way.operands for way in ways])
        _thread.seen.directions.add(minimize)
    wanted = next((goal for at, goal in plan or () if at == place), ways[0].operands)
    known = (way.operands for aim in (minimize, *get_args(Direction)) for way in _ways(rule, types, held, aim))
    return rule(wanted if wanted in known else ways[0].operands)


def _ways(rule: Rule, types: tuple[ShType, ...], held: Held, minimize: Direction) -> list[Candidate]:
    """The ways to make an op type, the cheapest first; the same op asks for them in each layer and each trace."""
    now = current_settings()._replace(plan=None, shared=False, tried=False, aim="")
    key = (now, minimize, _parts(rule), tuple(t.serial for t in types), tuple(held))

    def found() -> list[Candidate]:
        ways = Search(rule, types, held=held, minimize=minimize).best(_WAYS)
        return sorted(ways, key=lambda way: _in_order(way, minimize))

    return _known.made(key, found)


def _parts(x: Any) -> Any:
    """What a rule computes from: two with the same parts are one rule, made twice. A user's function is itself."""
    if not isinstance(x, FunctionType) or not f"{x.__module__}".startswith(_OWN):
        return type(x), x
    cells = tuple(_parts(cell.cell_contents) for cell in x.__closure__ or ())
    return x.__code__, cells, x.__defaults__, tuple((x.__kwdefaults__ or {}).items())


def _in_order(way: Candidate, minimize: Direction) -> tuple[Cost, FixPrice, str]:
    return added((way.price.sent, *(finishing(t, minimize) for t in way.results))), way.price, way.fix.code


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Where a function runs that can be traced again."""
    before, _thread.waiting = _thread.waiting, True
    try:
        yield
    finally:
        _thread.waiting = before


def is_waiting() -> bool:
    """Whether a function around can be traced again."""
    return _thread.waiting


def may_look_ahead() -> None:
    """Leaves a function that can be traced again, by `LookAheadSignal`, where something is to be chosen."""
    if _thread.waiting and current_settings().plan is None:
        raise LookAheadSignal


def note_shards(name: str, types: tuple[ShType, ...]) -> None:
    """Notes a function of shards: what is chosen for the ops before it must not change what it is given."""
    if _thread.seen is not None:
        _thread.seen.shards.append((name, types))


@contextlib.contextmanager
def noting() -> Iterator[Seen]:
    """What is traced here comes to."""
    before, _thread.seen = _thread.seen, Seen()
    try:
        yield _thread.seen
    finally:
        _thread.seen = before
