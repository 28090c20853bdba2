"""The ways in which a call with ``out=`` may run: across shards, or with operands gathered first."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from shtypes._compat.jaxprs import equations
from shtypes._compat.tracing import trace_typed
from shtypes.caches import PROGRAMS
from shtypes.core.jax_type import as_jax_type
from shtypes.dispatch.apply import is_array
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError, how_many
from shtypes.evaluation.table import MOVING, WAYS
from shtypes.resharding import cost
from shtypes.scopes.comm import noting_ways, under_rules
from shtypes.scopes.scope_rules import objective, speculative_tracing
from shtypes.traced.ledger import sent_by_program
from shtypes.types import ShType, State


class Gathered(NamedTuple):
    """In place of the number of a way: operands are gathered over some axes, first of all.

    Attributes:
        axes: The axes.
        state: Their state then, in which gradients are pending or equal.
    """

    axes: tuple[str, ...]
    state: State

    def of(self, x: Any) -> Any:
        """An operand that these axes do not shard."""
        return finished(x, x.type.with_axes([a for a in x.type.axes(State.SHARDED) if a in self.axes], self.state))


#: The number of a way of primitives, or what is gathered before; None for what sends least without a reshard.
Way = int | Gathered | None


def _gathers(operands: Sequence[ShType], results: Sequence[Any]) -> set[Way]:
    """The gathers of operands over the axes that shard them, and over those that shard no result."""
    result_axes = {a for t in results if isinstance(t, ShType) for a in t.axes(State.SHARDED)}
    axes = tuple(dict.fromkeys(a for t in operands for a in t.axes(State.SHARDED)))
    other_axes = tuple(a for a in axes if a not in result_axes)
    return {Gathered(each, s) for each in (axes, other_axes) if each for s in (State.REDUCED, State.INVARIANT)}


def _order_of(way: Way) -> tuple[int, ...]:
    """The place of a way in the order in which ways are tried, of which the first of equal ones is taken."""
    if isinstance(way, Gathered):
        return 1, len(way.axes), way.state is State.INVARIANT
    return (0,) if way is None else (2, way)


def in_way(run_equations: Callable[..., list[Any]], way: Way) -> Callable[..., list[Any]]:
    """The function with the requested way of each primitive that has it, and without the call's ``out=``."""
    if isinstance(way, Gathered):
        run = in_way(run_equations, None)
        return lambda *operands: run(*map(way.of, operands))
    return under_rules(None, run_equations, replace(objective(), out=None, way=way))


class InWay(NamedTuple):
    """The program of a call in one way.

    Attributes:
        sent: The bytes that it sends, forward and backward.
        results: The types of its results; None where it does not type.
        ways: The ways of the equations in it.
    """

    sent: tuple[int, int]
    results: Sequence[Any] | None
    ways: set[int]


def traced_in_way(run_equations: Callable[..., list[Any]], types: Sequence[ShType], way: Way) -> InWay:
    """The traced program of a call in a way."""
    with speculative_tracing(), noting_ways() as ways:
        try:
            program = trace_typed(in_way(run_equations, way), list(map(as_jax_type, types)))
        except ShardingTypeError:
            return InWay((sys.maxsize, sys.maxsize), None, ways)
        return InWay(sent_by_program(program), program.out_avals, ways)


@functools.lru_cache(maxsize=PROGRAMS)
def has_ways(jaxpr: Any) -> bool:
    """Whether a primitive of a program, or a call of it, has ways across shards."""
    return any(eqn.primitive.name in WAYS or eqn.primitive.name in MOVING for eqn in equations(jaxpr))


def best_way(types: Sequence[ShType], out: Any, traced: Callable[[Way], InWay]) -> Way:
    """The way that sends least with the reshard to an ``out=``, but not more forward than a gather."""
    ways: dict[Way, tuple[int, int]] = {}
    untried: set[Way] = {None}
    while untried:  # a way may lead to equations that have others
        way = min(untried, key=_order_of)
        program = traced(way)
        last = _to_out(program, out)
        sent = (sys.maxsize, sys.maxsize) if last is None else sent_by_program(last)
        ways[way] = program.sent[0] + sent[0], program.sent[1] + sent[1]
        untried |= program.ways | (set() if last is None else _gathers(types, last.out_avals))
        untried -= ways.keys()
    gathered = (sent for way, (sent, _) in ways.items() if way == -1 or isinstance(way, Gathered))
    gather = min(gathered, default=ways[None][0])
    return min(ways, key=lambda way: (ways[way][0] > gather, cost(*ways[way], objective().minimize)))


def _to_out(program: InWay, out: Any) -> Any:
    """The program of the reshard to ``out``; None where a way or the reshard does not type."""
    if program.results is None:
        return None
    try:
        with speculative_tracing():
            return trace_typed(lambda *xs: reshard_all(xs, out), program.results)
    except ShardingTypeError:
        return None


def reshard_all(results: Any, out: Any) -> Any:
    """Reshards the results of a call to the types of ``out=``: one for all, or a tuple with one for each."""
    leaves, tree = jax.tree.flatten(results)
    count = sum(map(is_array, leaves))
    outs = list(out) if isinstance(out, (tuple, list)) and not hasattr(out, "_fields") else [out] * count
    if len(outs) != count:
        raise ShardingTypeError(f"`out=` has {how_many(len(outs), 'type')}, and the call {how_many(count, 'result')}")
    types = iter(outs)
    return jax.tree.unflatten(tree, [finished(x, next(types)) if is_array(x) else x for x in leaves])
