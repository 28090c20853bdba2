"""Looks ahead for `implicit_comm`: traces a function with other choices, and takes those by which it sends least."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args

import jax

from shtypes._compat import no_trace_is_running
from shtypes.caches import Bounded
from shtypes.context import settings
from shtypes.context.settings import current_settings
from shtypes.core.array import wrap
from shtypes.core.jax_type import HiShType
from shtypes.core.meshes import context_mesh
from shtypes.resharding import Direction, cost
from shtypes.rules.implicit import ChoicePoint, Choices, LookAheadSignal, Seen, is_waiting, noting, waiting
from shtypes.scopes.comm import allows_implicit, connect_look_ahead, open_trackers
from shtypes.traced.ledger import Sent, sent_by_program
from shtypes.traced.program import split
from shtypes.types import ShType

F = TypeVar("F", bound=Callable[..., Any])

#: How often a function is traced to find its choices, for one direction.
MOST_TRACES: Final = 64
#: How many calls a function remembers the choices of.
_KNOWN: Final = 64
#: Where a function keeps the one that looks ahead through it.
_NAME: Final = "_shtypes_look_ahead"
_attempts: Final = itertools.count()
_searches: Final = itertools.count(1)


#: At places, the types of the operands that are taken.
Choice = dict[ChoicePoint, tuple[ShType, ...]]


class Found(NamedTuple):
    """The choices for a call."""

    choices: Choices  # what ops that do not type insert; the others choose for themselves
    shared: bool  # whether ops take a value in the form that another op had it brought into


def look_ahead(f: F) -> F:
    """The function, which is traced again where a scope has to choose what it inserts; else it is as it was.

    What it does besides is done as often, as whenever JAX traces a function again.
    """
    function: Any = f
    before = getattr(function, _NAME, None)
    if getattr(before, "__wrapped__", None) is f:
        return cast(F, before)  # JAX knows functions by their identity
    cache: Bounded[Found] = Bounded(_KNOWN)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        now = current_settings()
        if is_waiting() or now.plan is not None:
            return f(*args, **kwargs)
        if no_trace_is_running():  # what runs at once runs once
            if not allows_implicit():
                return f(*args, **kwargs)
            best = cache.made(_key(now, args, kwargs), lambda: _best(f, args, kwargs, shared=False))
        else:
            try:
                with waiting():
                    return f(*args, **kwargs)
            except LookAheadSignal:
                for tracker in open_trackers():
                    tracker.forget()
            best = _best(f, args, kwargs, shared=True)
        if not (best.choices or best.shared):  # each op chooses for itself, or what is called here looks ahead
            return f(*args, **kwargs)
        with settings.scope(now._replace(plan=best.choices, shared=best.shared)):
            return f(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        setattr(function, _NAME, call)
    return call  # type: ignore[return-value]


def _key(now: settings.Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the choices of a call follow from."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    return now, context_mesh(), tree, tuple(jax.typeof(x) if _is_array(x) else (type(x), x) for x in leaves)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


class _State(NamedTuple):
    """How far a search is."""

    choices: Choice
    sent: Sent | None  # what the function then sends; None where it cannot be traced
    seen: Seen

    def cost(self, direction: Direction) -> tuple[float, float]:
        return (math.inf, math.inf) if self.sent is None else cost(*self.sent, direction)

    @property
    def complete(self) -> Choice:
        """The choices, with what ops choose for themselves."""
        return {place: self.choices.get(place, ways[0]) for place, ways in self.seen.places.items()}


def _best(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, shared: bool) -> Found:
    """The choices by which a function sends least, as far as the search gets; none if it cannot be traced.

    Functions of shards are given what they are given where each op chooses for itself, as in a call that runs at once.
    What is best for the other directions is tried too: steps that change nothing in one lead to where it does, and what
    both send together has lows of its own.
    """
    attempt = _attempting(f, args, kwargs)
    start = attempt({}, shared, "")
    if start.seen.shards and shared:
        alone = attempt({}, False, "")
        if alone.seen.shards != start.seen.shards:
            start, shared = alone, False

    def towards(aim: str) -> Callable[[Choice], _State]:
        return lambda choices: attempt(choices, shared, aim)

    direction = start.seen.direction
    best = _climbed(start, direction, towards(""))
    for other in get_args(Direction):
        if other != direction and best.cost(direction)[0] > 0:
            there = _climbed(towards(other)({}), other, towards(other))
            here = towards("")(there.complete)
            if here.cost(direction) < best.cost(direction) and here.seen.shards == best.seen.shards:
                best = _climbed(here, direction, towards(""))
    return Found(tuple(best.choices.items()), shared and best.sent is not None)


def _climbed(start: _State, direction: Direction, attempt: Callable[[Choice], _State]) -> _State:
    """The best state that a search reaches from a start, one choice after another."""
    best, left, improved = start, MOST_TRACES, True
    places = start.seen.places
    while improved:
        improved = False
        for place in list(places):
            taken = best.choices.get(place, places[place][0])
            for way in [w for w in places[place] if w != taken]:
                if not left:
                    break
                left -= 1
                state = attempt({**best.choices, place: way})
                alike = best.sent is None or state.seen.shards == best.seen.shards
                if state.cost(direction) < best.cost(direction) and alike:
                    best, places, improved = state, {**places, **state.seen.places}, True
    return best


def _attempting(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Choice, bool, str], _State]:
    """What traces a function with other choices, shared or not, that aim at sending least in a direction."""
    arrays, again = split((args, kwargs), _is_array)
    specimens = list(map(_specimen, arrays))
    search = next(_searches)

    def of_arrays(*values: Any) -> Any:
        args, kwargs = again(values)
        return [x for x in jax.tree.leaves(f(*args, **kwargs)) if _is_array(x)]

    @functools.cache
    def traced(choices: frozenset[tuple[ChoicePoint, tuple[ShType, ...]]], shared: bool, aim: str) -> tuple[Any, Seen]:
        # The number makes each attempt a trace of its own: what is cached notes no places.
        plan = (*choices, ((f"attempt {next(_attempts)}", ()), ()))
        around = current_settings()._replace(plan=plan, shared=shared, tried=True, aim=aim, search=search)
        with settings.scope(around), noting() as seen:
            try:
                return sent_by_program(jax.make_jaxpr(of_arrays)(*specimens)), seen
            except Exception:  # it wants values, or what it asks for by name later on does not fit these choices
                return None, seen

    return lambda choices, shared, aim: _State(choices, *traced(frozenset(choices.items()), shared, aim))


def _specimen(x: Any) -> Any:
    t: Any = jax.typeof(x)
    return wrap(t, None) if type(t) is HiShType else jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=t.sharding)


connect_look_ahead(look_ahead)
