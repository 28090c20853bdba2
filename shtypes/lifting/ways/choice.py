"""Registers the ways to compute a primitive along a sharded dim, and chooses among them and a gather by bytes.

A way is a function of an equation and its typed operands that returns the results, or None where it does not apply. It
consists of per-device functions and collectives, which are typed, transposed and counted as those of local mode.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import jaxpr_of
from shtypes._compat.plain_programs import alone, search_of
from shtypes._compat.program_keys import key_of_equation
from shtypes._compat.tracing import trace_typed
from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.core.collective import once
from shtypes.core.jax_type import as_jax_type
from shtypes.core.meshes import AnyMesh, use_mesh
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.bound_primitive import NAMES
from shtypes.evaluation.table import BODIES, CHOICES, ROWS, WAYS, Row
from shtypes.evaluation.value_info import noting
from shtypes.ops.shards import across_shards, axes_of, type_of
from shtypes.resharding import Cost, Direction, cost
from shtypes.rules.candidate_types import finish_cost
from shtypes.rules.price_fixes import total_cost
from shtypes.scopes.comm import implicit_comm, note_ways
from shtypes.scopes.scope_rules import minimizing, objective, without_scopes
from shtypes.traced.ledger import sent_by_program
from shtypes.types import State

Way = Callable[[Any, Sequence[Any]], Sequence[Any] | None]
#: For an equation and operand types, the number of the chosen way, -1 for its row, and of all that may apply.
_chosen: Final[Bounded[tuple[int, frozenset[int]]]] = Bounded()
#: Ways whose results are sharded along other dims than the operands: only the solver takes them.
_elsewhere: Final[set[Way]] = set()
#: Ways that are right only for operands as JAX requires them, such as sorted ones.
_assuming: Final[set[Way]] = set()
#: The predicates of ways that apply to some equations of a primitive only, such as some calls.
_only: Final[dict[Way, Callable[[Any], Any]]] = {}
#: The primitives of jitted functions.
CALLS: Final = ("jit", "pjit")


def way(
    *names: str, only: Callable[[Any], Any] | None = None, elsewhere: bool = False, assumes: bool = False
) -> Callable[[Way], Way]:
    """Registers a function as a way of primitives.

    Args:
        *names: The primitives.
        only: Which equations it applies to; the solver takes a call that has a way as one operation.
        elsewhere: Whether the results are sharded along other dims than the operands.
        assumes: Whether it is right only for operands as JAX requires them, such as sorted ones: `suggest` plans
            without it.
    """

    def add(f: Way) -> Way:
        for name in names:
            WAYS.setdefault(name, []).append(f)
            CHOICES[name] = evaluated
        if elsewhere:
            _elsewhere.add(f)
        if assumes:
            _assuming.add(f)
        if only is not None:
            _only[f] = only
        return f

    return add


def ways_of(eqn: Any) -> Sequence[Way]:
    """The ways of an equation."""
    return [f for f in WAYS.get(eqn.primitive.name, ()) if f not in _only or _only[f](eqn)]


def assumes(f: Way) -> bool:
    """Whether a way is right only for operands as JAX requires them."""
    return f in _assuming


def evaluated(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates an equation by its row after a gather, or by a way that sends less, and no more forward than that."""
    row = _row_of(eqn)
    if not any(dim.axes for x in operands if is_typed(x) for dim in x.type.dims) or not (ways := ways_of(eqn)):
        return row(eqn, operands)
    number, among = _chosen_for(eqn, operands, row, ways)
    note_ways(among)
    if number < 0:
        return row(eqn, operands)
    key = key_of_equation(eqn), number, current_settings()
    with across_shards(name_of(eqn)):
        results = once(lambda: ways[number](eqn, operands), *operands, key=key)
    return row(eqn, operands) if results is None else list(results)


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


def _chosen_for(eqn: Any, operands: Sequence[Any], row: Row, ways: Sequence[Way]) -> tuple[int, frozenset[int]]:
    """The number of the requested way, if it applies, or of the one that sends least; and of all that may apply."""
    serials = tuple([x.type.serial if is_typed(x) else None for x in operands])
    key = (key_of_equation(eqn), serials, current_settings()._replace(speculative=False))

    def choose() -> tuple[int, frozenset[int]]:
        asked = objective().way
        if asked is not None and asked < len(ways) and (asked < 0 or _price(ways[asked], eqn, operands) is not None):
            return asked, frozenset({asked})
        prices = {i: _price(f, eqn, operands) for i, f in enumerate(ways) if f not in _elsewhere}
        known = {i: price for i, price in prices.items() if price is not None}
        after_gather = _price(row, eqn, operands) if known else None  # type: ignore[arg-type]
        known |= {} if after_gather is None else {-1: after_gather}
        elsewhere = {i for i, f in enumerate(ways) if f in _elsewhere}
        most = known[-1][0] if -1 in known else sys.maxsize
        best = min(known, key=lambda i: (known[i][0] > most, known[i][1], i < 0), default=-1)
        return best, frozenset({*known, *elsewhere})

    return _chosen.get_or_create(key, choose)


@contextlib.contextmanager
def apart(mesh: AnyMesh) -> Iterator[None]:
    """A scope in which no op communicates, to trace one equation apart from its program."""
    with without_scopes(), noting(), alone(), use_mesh(mesh):
        yield


@contextlib.contextmanager
def tried_apart(mesh: AnyMesh, minimize: Direction = "both") -> Iterator[None]:
    """A scope as `apart` in which ops may communicate."""
    with apart(mesh), implicit_comm(minimize=minimize):
        yield


def _price(f: Way, eqn: Any, operands: Sequence[Any]) -> tuple[int, Cost] | None:
    """The bytes that a way sends forward, and its cost, both with the reduction of results that it leaves unreduced.

    None where it does not apply.
    """
    minimize, left = minimizing(), list[tuple[int, Cost]]()
    taken = [True]

    def run(*arrays: Any) -> Any:
        rest = iter(arrays)
        results = f(eqn, [next(rest) if is_typed(x) else x for x in operands])
        taken[:] = [results is not None]
        types = [x.type for x in results or () if is_typed(x)]
        left[:] = [(finish_cost(t, "forward")[0], finish_cost(t, minimize)) for t in types]
        return results or ()

    types = [as_jax_type(x.type) for x in operands if is_typed(x)]
    try:
        with tried_apart(types[0].mesh, minimize):
            forward, backward = sent_by_program(trace_typed(run, types))
    except ShardingTypeError:
        return None
    finished = [each for _, each in left]
    total = total_cost((cost(forward, backward, minimize), *finished))
    return (forward + sum(first for first, _ in left), total) if taken[0] else None
