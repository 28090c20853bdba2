"""Registers the ways to compute a primitive along a sharded dim, and chooses among them and a gather by bytes.

A way is a function of an equation and its typed operands that returns the results, or None where it does not apply. It
consists of per-device functions and collectives, which are typed, transposed and counted as those of local mode.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import trace_context
from shtypes._compat.jaxprs import bind_eqn, captured, inner_jaxprs, jaxpr_of
from shtypes._compat.plain_programs import alone, results_of, search_of
from shtypes._compat.program_keys import key_of_equation
from shtypes._compat.tracing import trace_typed
from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.core.collective import Collective, checked, once
from shtypes.core.jax_type import as_jax_type
from shtypes.core.meshes import AnyMesh, use_mesh
from shtypes.core.operation import Operation, applied_by
from shtypes.core.reshard import Reshard, move, reshard_once
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.casts import cast
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.bound_primitive import NAMES
from shtypes.evaluation.table import BODIES, CHOICES, ROWS, WAYS, Row
from shtypes.evaluation.value_info import copy_notes, noting, operand_key
from shtypes.ops.shards import across_shards, axes_of, type_of
from shtypes.resharding import Cost, Direction, cost
from shtypes.rules.candidate_types import finish_cost
from shtypes.rules.price_fixes import total_cost
from shtypes.scopes.comm import CommScope, note_ways
from shtypes.scopes.scope_rules import Implicit, minimizing, objective, without_scopes
from shtypes.traced.ledger import sent_by_program
from shtypes.types import State

_Run = Callable[[Any, Sequence[Any]], Sequence[Any] | None]


class Way(NamedTuple):
    """A way of primitives.

    Attributes:
        run: Returns the results of an equation of its operands, or None where it does not apply.
        only: Which equations it applies to; the solver takes a call that has a way as one operation.
        elsewhere: Whether the results are sharded along other dims than the operands: only the solver takes it.
        assumes: Whether it is right only for operands as JAX requires them, such as sorted ones: `suggest` plans
            without it.
    """

    run: _Run
    only: Callable[[Any], Any]
    elsewhere: bool
    assumes: bool


class _Price(NamedTuple):
    """What a way sends, with the reduction of results that it leaves unreduced."""

    forward: int  # bytes
    cost: Cost
    program: Any  # of the way, for the operands' types


class _Choice(NamedTuple):
    """How an equation is evaluated."""

    number: int  # of the way; -1 for its row
    among: frozenset[int]  # the numbers of all ways that may apply
    program: Any = None  # of the way; None if it is not the same for all operands of these types


#: By equation and operands, the choice.
_chosen: Final[Bounded[_Choice]] = Bounded()
#: The primitives of jitted functions.
CALLS: Final = ("jit", "pjit")


def way(
    *names: str, only: Callable[[Any], Any] = lambda eqn: True, elsewhere: bool = False, assumes: bool = False
) -> Callable[[_Run], _Run]:
    """Registers a function as a way of primitives, with the attributes of `Way`."""

    def add(f: _Run) -> _Run:
        for name in names:
            WAYS.setdefault(name, []).append(Way(f, only, elsewhere, assumes))
            CHOICES[name] = evaluated
        return f

    return add


def ways_of(eqn: Any) -> Sequence[Way]:
    """The ways of an equation."""
    return [each for each in WAYS.get(eqn.primitive.name, ()) if each.only(eqn)]


def evaluated(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates an equation by its row after a gather, or by a way that sends less, and no more forward than that."""
    row = _row_of(eqn)
    if not any(dim.axes for x in operands if is_typed(x) for dim in x.type.dims) or not (ways := ways_of(eqn)):
        return row(eqn, operands)
    number, among, program = _chosen_for(eqn, operands, row, ways)
    note_ways(among)
    if number < 0:
        return row(eqn, operands)
    key = key_of_equation(eqn), number, current_settings()
    binds_again = program is not None and any(isinstance(x, jax.core.Tracer) for x in operands)

    def run() -> Sequence[Any] | None:
        return _bound_again(program, operands) if binds_again else ways[number].run(eqn, operands)

    with across_shards(name_of(eqn)):
        results = once(run, *operands, key=key)
    return row(eqn, operands) if results is None else list(results)


def _bound_again(program: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of the program of a way; equal operations of equal values are bound once in a trace."""

    def step(eqn: Any, xs: list[Any]) -> Sequence[Any]:
        operation = applied_by(eqn)
        if isinstance(operation, Reshard):
            (x,) = xs
            if not operation.inserted:
                return [reshard_once(operation, x)]
            insert = functools.partial(move, inserted=True) if operation.forward_comm() else cast
            return [insert(x, operation.dst, constant=operation.constant)]
        if isinstance(operation, Collective):  # whatever it is a part of
            key = replace(operation.op, across=""), operation.src.serial
            return [once(lambda: checked(operation, *xs), *xs, key=key)]
        if isinstance(operation, Operation):
            return once(lambda: operation.bind(*xs), *xs, key=operation)  # type: ignore[no-any-return]
        traced = [x for x in xs if isinstance(x, jax.core.Tracer)]
        return once(lambda: bind_eqn(eqn, xs), *traced, key=key_of_equation(eqn, xs))  # type: ignore[no-any-return]

    return results_of(jaxpr_of(program), captured(program), list(filter(is_typed, operands)), step)


def _row_of(eqn: Any) -> Row:
    name = eqn.primitive.name
    return ROWS[name] if name in ROWS else BODIES[name]


def gathered_first(eqn: Any, operands: Sequence[Any], dims: Sequence[int]) -> Sequence[Any] | None:
    """The results of an equation's row after a gather of dims of its first operand; None if no axis shards them."""
    x, *others = operands
    axes = [a for d in dims for a in axes_of(x, d)] if is_typed(x) else []
    if not axes:
        return None
    return _row_of(eqn)(eqn, [move(x, type_of(x).with_axes(axes, State.REDUCED), inserted=True), *others])


def name_of(eqn: Any) -> str:
    """The name of an equation in messages: of a jitted function of JAX its name."""
    if search_of(eqn):
        return "searchsorted"
    name = eqn.primitive.name
    return str(eqn.params["name"]).removeprefix("_") if "jaxpr" in eqn.params else NAMES.get(name, name)


def innermost(eqn: Any) -> Any:
    """The equation of a call of it alone, or of a call of such a call; other equations themselves."""
    if eqn.primitive.name in CALLS:
        body = jaxpr_of(eqn.params["jaxpr"])
        if len(body.eqns) == 1 and body.eqns[0].invars == body.invars and body.eqns[0].outvars == body.outvars:
            return innermost(body.eqns[0])
    return eqn


def _chosen_for(eqn: Any, operands: Sequence[Any], row: Row, ways: Sequence[Way]) -> _Choice:
    """The requested way, if it applies, or the one that sends least."""
    of_operands = list(map(operand_key, operands))
    settings = current_settings()._replace(speculative=False), trace_context()
    key = (key_of_equation(eqn), *of_operands, *settings)

    def choose() -> _Choice:
        asked = objective().way
        if asked is not None and asked < len(ways):
            price = None if asked < 0 else _price(ways[asked].run, eqn, operands)
            if asked < 0 or price is not None:
                return _Choice(asked, frozenset({asked}), program_of(price))
        prices = {i: _price(each.run, eqn, operands) for i, each in enumerate(ways) if not each.elsewhere}
        known = {i: price for i, price in prices.items() if price is not None}
        after_gather = _price(row, eqn, operands) if known else None  # type: ignore[arg-type]
        known |= {} if after_gather is None else {-1: after_gather}
        elsewhere = {i for i, each in enumerate(ways) if each.elsewhere}
        most = known[-1].forward if -1 in known else sys.maxsize
        best = min(known, key=lambda i: (known[i].forward > most, known[i].cost, i < 0), default=-1)
        return _Choice(best, frozenset({*known, *elsewhere}), program_of(known.get(best)))

    def program_of(price: _Price | None) -> Any:
        if price is None or None in of_operands:
            return None
        loops = any(map(inner_jaxprs, jaxpr_of(price.program).eqns))  # plain values in them have the mesh of the trace
        return None if loops else price.program

    return _chosen.get_or_create(key, choose)


@contextlib.contextmanager
def apart(mesh: AnyMesh) -> Iterator[None]:
    """A scope in which no op communicates, to trace one equation apart from its program."""
    with without_scopes(), noting(), alone(), use_mesh(mesh):
        yield


@contextlib.contextmanager
def tried_apart(mesh: AnyMesh, minimize: Direction = "both", way: int | None = None) -> Iterator[None]:
    """A scope as `apart` in which ops may communicate, by a way if one is given."""
    with apart(mesh), CommScope(Implicit(minimize, way=way)):
        yield


def _price(f: _Run, eqn: Any, operands: Sequence[Any]) -> _Price | None:
    """What a way sends; None where it does not apply."""
    minimize, way, left = minimizing(), objective().way, list[tuple[int, Cost]]()
    taken = [True]

    def run(*arrays: Any) -> Any:
        rest = iter(arrays)
        like = [next(rest) if is_typed(x) else x for x in operands]
        for x, y in zip(operands, like, strict=True):
            copy_notes(x, to=y)
        with across_shards(name_of(eqn)):
            results = f(eqn, like)
        taken[:] = [results is not None]
        types = [x.type for x in results or () if is_typed(x)]
        left[:] = [(finish_cost(t, "forward")[0], finish_cost(t, minimize)) for t in types]
        return results or ()

    types = [as_jax_type(x.type) for x in operands if is_typed(x)]
    try:
        with tried_apart(types[0].mesh, minimize, way):
            forward, backward = sent_by_program(program := trace_typed(run, types))
    except ShardingTypeError:
        return None
    finished = [each for _, each in left]
    total = total_cost((cost(forward, backward, minimize), *finished))
    return _Price(forward + sum(first for first, _ in left), total, program) if taken[0] else None
