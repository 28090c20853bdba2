"""Looks ahead for `implicit_comm`: traces a function with other choices, and takes those by which it sends least."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, cast

import jax

from shtypes._compat import no_trace_is_running
from shtypes.caches import Bounded
from shtypes.context import ambient
from shtypes.context.ambient import current_ambient
from shtypes.core.array import wrap
from shtypes.core.hitype import HiShType
from shtypes.core.meshes import context_mesh
from shtypes.core.operation import Operation, applied_by
from shtypes.rules.implicit import ChoicePoint, Choices, LookAheadSignal, Seen, is_waiting, noting, waiting
from shtypes.scopes.comm import allows_implicit, connect_look_ahead, open_watches
from shtypes.traced.equations import equations
from shtypes.traced.leaves import split
from shtypes.types import ShType

F = TypeVar("F", bound=Callable[..., Any])

#: How often a function is traced to find its choices.
MOST_TRACES: Final = 64
#: How many calls a function remembers the choices of.
_KNOWN: Final = 64
#: Where a function keeps the one that looks ahead through it.
_NAME: Final = "_shtypes_look_ahead"
_attempts: Final = itertools.count()


class Found(NamedTuple):
    """What was found for a call."""

    choices: Choices  # what ops that do not type insert; the others choose for themselves
    shared: bool  # whether ops take a value in the form that another op had it brought into


def look_ahead(f: F) -> F:
    """The function, which is traced again where a scope has to choose what it inserts; else it is as it was.

    What it does besides is done as often, as whenever JAX traces a function again.
    """
    given: Any = f
    before = getattr(given, _NAME, None)
    if getattr(before, "__wrapped__", None) is f:
        return cast(F, before)  # JAX knows functions by their identity
    known: Bounded[Found] = Bounded(_KNOWN)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        now = current_ambient()
        if is_waiting() or now.plan is not None:
            return f(*args, **kwargs)
        if no_trace_is_running():  # what runs at once runs once
            if not allows_implicit():
                return f(*args, **kwargs)
            found = known.made(_key(now, args, kwargs), lambda: _best(f, args, kwargs, shared=False))
        else:
            try:
                with waiting():
                    return f(*args, **kwargs)
            except LookAheadSignal:
                for watch in open_watches():
                    watch.forget()
            found = _best(f, args, kwargs, shared=True)
        if not (found.choices or found.shared):  # each op chooses for itself, or what is called here looks ahead
            return f(*args, **kwargs)
        with ambient.scope(now._replace(plan=found.choices, shared=found.shared)):
            return f(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        setattr(given, _NAME, call)
    return call  # type: ignore[return-value]


def _key(now: ambient.Ambient, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the choices of a call follow from."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    return now, context_mesh(), tree, tuple(jax.typeof(x) if _is_array(x) else (type(x), x) for x in leaves)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def _best(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, shared: bool) -> Found:
    """The choices by which a function sends least, as far as they are found; none if it cannot be traced.

    Functions of shards are given what they are given where each op chooses for itself, as in a call that runs at once.
    """
    arrays, again = split((args, kwargs), _is_array)
    specimens = list(map(_specimen, arrays))

    def of_arrays(*values: Any) -> Any:
        args, kwargs = again(values)
        return [x for x in jax.tree.leaves(f(*args, **kwargs)) if _is_array(x)]

    def attempt(choices: dict[ChoicePoint, tuple[ShType, ...]], shared: bool) -> tuple[float, Seen]:
        # The number makes each attempt a trace of its own: what is cached notes no places.
        plan = (*choices.items(), ((f"attempt {next(_attempts)}", ()), ()))
        with ambient.scope(current_ambient()._replace(plan=plan, shared=shared, tried=True)), noting() as seen:
            try:
                return sum(_sent(jax.make_jaxpr(of_arrays)(*specimens))), seen
            except Exception:  # it wants values, or what it asks for by name later on does not fit these choices
                return math.inf, seen

    best: dict[ChoicePoint, tuple[ShType, ...]] = {}
    least, seen = attempt(best, shared)
    if seen.shards and shared:
        alone, by_itself = attempt(best, False)
        if by_itself.shards != seen.shards:
            least, seen, shared = alone, by_itself, False
    places, shards = seen.places, seen.shards
    left, improved = MOST_TRACES, True
    while improved:
        improved = False
        for place in list(places):
            taken = best.get(place, places[place][0])
            for way in [w for w in places[place] if w != taken]:
                if not left:
                    break
                left -= 1
                sent, seen = attempt({**best, place: way}, shared)
                if sent < least and (math.isinf(least) or seen.shards == shards):
                    best, least, places, improved = {**best, place: way}, sent, {**places, **seen.places}, True
                    shards = seen.shards
    return Found(tuple(best.items()), shared and not math.isinf(least))


def _specimen(x: Any) -> Any:
    t: Any = jax.typeof(x)
    return wrap(t, None) if type(t) is HiShType else jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=t.sharding)


def _sent(jaxpr: Any) -> Iterator[int]:
    """Bytes that a traced program sends, and will send when it is differentiated."""
    for found in equations(jaxpr):
        operation = applied_by(found.eqn)
        if isinstance(operation, Operation):
            back = operation.back() if found.direction == "forward" and not found.depth else ()
            yield sum(s.step.bytes for s in (*operation.forth(), *back)) * (found.times or 1)


connect_look_ahead(look_ahead)
