"""What `implicit_comm` inserts in a whole program: it is solved as for `suggest`, the types of its inputs fixed.

What is decided is typed once before it is used, and sends what was predicted; other programs are left to their ops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.in_force import InForce, set_at
from shtypes._compat.jaxprs import key_of, with_inputs
from shtypes.caches import PROGRAMS, Bounded, Static
from shtypes.context.settings import current_settings
from shtypes.core.array import wrap
from shtypes.core.jax_type import as_jax_type
from shtypes.core.meshes import context_mesh
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError, short
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.interpreter import Seen, evaluate_whole, recording_types
from shtypes.evaluation.table import ROWS
from shtypes.evaluation.value_info import noting, type_of
from shtypes.lifting.lift import Completed, Traced, as_it_is, connect_whole, has_backward
from shtypes.lifting.next_values import Next, hides, in_types_before
from shtypes.lifting.ways.choice import CALLS
from shtypes.resharding import Direction, cost
from shtypes.resharding.costs import CostModel, Link, as_cost_model, model_in_force
from shtypes.resharding.devices import Device, as_device
from shtypes.scopes.comm import (
    Implicit,
    Objective,
    connect_completed,
    in_force,
    noting_undecided,
    objective,
    rules_in_force,
)
from shtypes.solver.apply import Decisions, decided, evaluation
from shtypes.solver.graph import Graph
from shtypes.solver.options import only_places
from shtypes.solver.program import Program
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import Search
from shtypes.solver.tables import Costs
from shtypes.traced.ledger import Sent, sent_by_program
from shtypes.traced.program import with_gradient
from shtypes.types import ShType

#: Where bytes count, all links are alike, and work only tells equals apart: it goes at a million times its pace.
_LINK: Final = 1e9
_WORK: Final = 1e6
#: On more than two axes, pairs of them vary together in programs of so many decisions; in larger ones each by itself.
_FEW: Final = 200
#: What a reshard counts, in bytes: of equals the one with fewer is taken.
_RESHARD: Final = 0.1 / _LINK
#: Besides primitives with a row, those of which all options are known.
_KNOWN: Final = frozenset({*ROWS, *CALLS, "custom_jvp_call", "typed_call", "sharding_annotation"})
#: How often costs are corrected by what the typed ops send.
_CORRECTED: Final = 4
#: What is predicted may differ from what is sent by so much, and by so many bytes: of small values parts are rounded.
_CLOSE: Final = 0.01
_ROUNDED: Final = 4096


#: The decisions about a program, or why there are none, and the numbers in it with which they were typed.
_cache: Final[Bounded[tuple[Decisions | str, Any]]] = Bounded(PROGRAMS)


class _Inputs(NamedTuple):
    """A program whose typed values are all inputs."""

    jaxpr: Any
    consts: Sequence[Any]
    args: Sequence[Any]
    following: Next  # which of its results are next values of its arguments

    @property
    def types(self) -> list[ShType | None]:
        """The types of the inputs; None of plain ones."""
        return [x.type if is_typed(x) else None for x in self.args]


def _inputs(traced: Traced, following: Next, arrays: Sequence[Any]) -> _Inputs:
    jaxpr = traced.jaxpr
    pairs = [*zip(jaxpr.constvars, traced.consts, strict=True)]
    typed, plain = ([p for p in pairs if is_typed(p[1]) is each] for each in (True, False))
    consts = [c for _, c in plain]
    closed = with_inputs(jaxpr, [v for v, _ in plain], consts, [*(v for v, _ in typed), *jaxpr.invars])
    args = [*(c for _, c in typed), *traced.around, *arrays]
    before = len(args) - len(arrays)
    return _Inputs(closed, consts, args, tuple([None if at is None else before + at for at in following]))


class _Solver:
    """The solver as `lift` asks it."""

    def undecided(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> str:
        """Why a program is not decided about, whose ops then choose for themselves; empty where it is."""
        found, _ = _decided(_inputs(traced, following, arrays))
        return found if isinstance(found, str) else ""

    def evaluate(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any] | None:
        """The results of a program by its decisions; None where its ops choose for themselves."""
        whole = _inputs(traced, following, arrays)
        decisions, has_these_numbers = _decided(whole)
        if isinstance(decisions, str):
            return None
        try:
            return _evaluated(whole, decisions, whole.args)
        except ShardingTypeError:
            if has_these_numbers:  # a scope around refuses it
                raise
            return None


def _decided(whole: _Inputs) -> tuple[Decisions | str, bool]:
    """The decisions about programs of this form, or why there are none; and whether of one with these numbers."""
    key = key_of(whole.jaxpr, whole.consts, Static)
    types = tuple([t and (t.serial, t.names) for t in whole.types])

    def decide() -> tuple[Decisions | str, Any]:
        try:
            with noting_undecided():  # what is traced on the way is no part of a report
                return _decide(whole), key.values
        except ShardingTypeError as error:  # whatever the solver does not know, ops may
            return error.what, key.values
        except Exception as error:
            return f"{type(error).__name__}: {short(str(error), 160)}", key.values

    found, values = _cache.get_or_create((key.form, types, whole.following, current_settings(), context_mesh()), decide)
    return found, values == key.values


def _evaluated(whole: _Inputs, decisions: Decisions, args: Sequence[Any]) -> list[Any]:
    results: list[Any] = as_it_is(evaluation(_program(whole), decisions))(*args)
    return results


def _program(whole: _Inputs) -> Program:
    arguments = [(f"argument {i}", t is not None and t.differentiable, t is None) for i, t in enumerate(whole.types)]
    return Program("f", whole.jaxpr, whole.consts, arguments, keeps=True)


def _decide(whole: _Inputs) -> Decisions | str:
    """The decisions, if they send what was predicted, or no more than ops that choose for themselves; or why not."""
    mesh = next(t.mesh for t in whole.types if t is not None)
    if any(t is not None and t.mesh is not mesh for t in whole.types):
        return "its arguments are on several meshes"
    program, goal, grad = _program(whole), objective(), not has_backward(whole.jaxpr)
    rules = {rule for op in program.ops for rule in (set_at(op.eqn) or InForce()).rules}
    if any(isinstance(rule, Implicit) and rule != goal for rule in rules):  # each has its own objective
        return "it opens an `implicit_comm` with another objective"

    made: list[Any] = []  # the types of the results of its ops

    def by_its_ops(*args: Any) -> list[Any]:
        with noting():
            outs = evaluate_whole(whole.jaxpr, whole.consts, args, AtSpecs(), tuple)
        made[:] = map(type_of, outs)
        return in_types_before(outs, whole.following, args, gradients=not grad)

    @functools.cache
    def alone() -> tuple[Sent, Seen]:
        with recording_types() as seen:
            return _sent(by_its_ops, whole, grad), seen

    results = [None if at is None else whole.types[at] for at in whole.following]
    if not grad and any(results):
        alone()
        results = [None if hides(t) else kept for t, kept in zip(made, results, strict=True)]
    graph = Graph(program, mesh, grad=grad, types=whole.types, results=results, seen=lambda op: alone()[1].get(op.path))
    model, device = _pace(goal.by)
    prices = Prices(mesh, model)
    costs = Costs(graph, prices, device, 0.0, _WEIGHTS[goal.minimize], by_bytes=goal.by == "bytes")
    few = len(mesh.axis_names) < 3 or len(graph.decisions) <= _FEW
    search = Search(costs, seed=None, block=2 if few else 1)
    for _ in range(_CORRECTED):
        point = search.solve(reshard=_RESHARD)
        ways = costs.ways(point.assignment)
        if any(w.src != w.dst and w.use.node.op is not None and only_places(w.use.node.op.eqn) for w in ways):
            return "a reshard that it has itself takes its operand in no other type"
        decisions = decided(costs, point.assignment, ways)
        refused, predicted = None, False
        try:
            sent = _sent(lambda *args, by=decisions: _evaluated(whole, by, args), whole, grad)
            predicted = math.isclose(sum(sent[: 1 + grad]), float(point.cost.sent), rel_tol=_CLOSE, abs_tol=_ROUNDED)
            if predicted and (goal.by == "time" or _is_all_known(program)):
                return decisions
            if predicted:  # what no option says, as of the body of a while loop, its ops may do better
                break
        except ShardingTypeError as error:
            refused = error
        if not costs.corrected(point.assignment, types=refused is None):
            break
        search.again()
    if refused is not None:
        raise refused
    if _is_no_more(sent, lambda: alone()[0], goal.minimize, otherwise=predicted):
        return decisions
    return f"its ops send less by themselves than the plan does, which sends {sum(sent[:2])} B"


def _is_all_known(program: Program) -> bool:
    """Whether the options of a program are all that its ops have."""
    return all(op.eqn.primitive.name in _KNOWN for op in program.ops)


def _is_no_more(sent: Sent, alone: Callable[[], Sent], minimize: Direction, *, otherwise: bool) -> bool:
    """Whether a plan sends no more than ops by themselves; ``otherwise`` where a scope forbids what these send."""
    try:
        theirs = alone()
    except ShardingTypeError:
        if otherwise:
            return True
        raise
    return cost(*sent, minimize) <= cost(*theirs, minimize)


def _sent(run: Callable[..., Any], whole: _Inputs, grad: bool) -> Sent:
    """What a program sends forward, and backward, with what is differentiated of it."""
    specimens = [wrap(as_jax_type(x.type), None) if is_typed(x) else x for x in whole.args]
    around = tuple(rule for rule in rules_in_force() if isinstance(rule, Implicit))  # others see what is kept
    with in_force(around):
        return sent_by_program(jax.make_jaxpr(with_gradient(run) if grad else run)(*specimens))


#: What a byte counts that is sent forward, and one that is sent backward.
_WEIGHTS: Final[dict[Direction, tuple[float, float]]] = {
    "both": (1.0, 1.0),
    "forward": (1.0, 1e-4),
    "backward": (1e-4, 1.0),
}


def _pace(by: Objective) -> tuple[CostModel, Device]:
    """The links, and what one device does."""
    device = as_device("h100-sxm", "")
    if by == "time":
        return as_cost_model(model_in_force() or "h100-nvlink", ""), device
    flops = {name: rate * _WORK for name, rate in device.flops.items()}
    return as_cost_model(Link(_LINK), ""), Device(flops, device.bandwidth * _WORK)


connect_whole(_Solver())
connect_completed(Completed)
