"""Chooses the reshards of `implicit_comm` for a whole program, by the solver of `suggest` with fixed input types.

A plan is typed before it is used and must send what was predicted; otherwise each op chooses greedily.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.in_force import InForce, set_at
from shtypes._compat.jaxprs import with_inputs
from shtypes._compat.program_keys import key_of
from shtypes.caches import PROGRAMS, Bounded, NotesOn, Static
from shtypes.context.garbage import fewer_collections
from shtypes.context.settings import current_settings
from shtypes.core.array import wrap
from shtypes.core.jax_type import as_jax_type
from shtypes.core.meshes import context_mesh
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError, short
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.interpreter import Seen, evaluate_program, recording_types
from shtypes.evaluation.table import ROWS, sharded_sizes
from shtypes.evaluation.value_info import noting
from shtypes.lifting.lift import Completed, lift_op_by_op
from shtypes.lifting.next_values import Next, in_types_before
from shtypes.lifting.traced_program import Traced, connect_solver, has_backward
from shtypes.lifting.ways.choice import CALLS
from shtypes.resharding import Direction, cost
from shtypes.resharding.costs import CostModel, Link, as_cost_model, model_in_force
from shtypes.resharding.devices import Device, as_device
from shtypes.scopes.comm import connect_joint_optimizer, noting_undecided
from shtypes.scopes.scope_rules import Implicit, Objective, in_force, objective, rules_in_force
from shtypes.solver.apply import Decisions, evaluation, to_decisions
from shtypes.solver.graph import Graph
from shtypes.solver.items import Branches, Op, is_value, walk
from shtypes.solver.options import is_annotation, is_complete
from shtypes.solver.program import Program
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import Point, Search
from shtypes.solver.tables import Costs
from shtypes.solver.transfers import Transfer
from shtypes.traced.ledger import Ledger, Sent, ledger_of
from shtypes.traced.program import with_gradient
from shtypes.types import ShType

#: To minimize bytes, all links are equal, and devices compute a million times faster: work is a tie-breaker.
_LINK: Final = 1e9
_WORK: Final = 1e6
#: On more than two axes: the most decision variables with which pairs of axes vary together, not single axes.
_MOST_PAIRED: Final = 200
#: The price of a reshard (of 0.1 bytes), as a tie-breaker.
_RESHARD: Final = 0.1 / _LINK
#: What no search of seconds is worth: half a byte.
_GAP: Final = 0.5 / _LINK
#: Primitives whose options are known.
_KNOWN: Final = frozenset({*ROWS, *CALLS, "custom_jvp_call", "typed_call", "sharding_annotation"})
#: The most corrections of costs by the communication of typed plans.
_MOST_CORRECTIONS: Final = 4
#: Relative and absolute (rounded shards of small values) tolerance of predicted bytes.
_CLOSE: Final = 1e-3
_ROUNDED: Final = 16

#: The decisions of a program or the reason why there are none, with the constants with which they were typed.
_cache: Final[Bounded[tuple[Decisions | str, Any]]] = Bounded(PROGRAMS)
#: By the jaxpr of a trace.
_programs: Final[NotesOn[tuple[Any, Program]]] = NotesOn()


class _Inputs(NamedTuple):
    """A program whose typed values are all inputs."""

    jaxpr: Any
    consts: Sequence[Any]
    args: Sequence[Any]
    following: Next  # the results that are next values of its arguments
    traced: Traced
    grad: bool  # whether it is differentiated by its inputs: neither it nor a body of it takes gradients itself

    @property
    def types(self) -> list[ShType | None]:
        """The types of the inputs; None for plain ones."""
        return [x.type if is_typed(x) else None for x in self.args]


def _inputs(traced: Traced, following: Next, arrays: Sequence[Any]) -> _Inputs:
    jaxpr = traced.jaxpr
    pairs = [*zip(jaxpr.constvars, traced.consts, strict=True)]
    typed, plain = ([p for p in pairs if is_typed(p[1]) is each] for each in (True, False))
    consts = [c for _, c in plain]
    closed = with_inputs(jaxpr, [v for v, _ in plain], consts, [*(v for v, _ in typed), *jaxpr.invars])
    args = [*(c for _, c in typed), *traced.outer_values, *arrays]
    before = len(args) - len(arrays)
    places = tuple([at and at._replace(argument=before + at.argument) for at in following])
    return _Inputs(closed, consts, args, places, traced, not has_backward(closed, bodies=True))


class _Solver:
    """The solver's interface for `lift`."""

    @fewer_collections()
    def undecided(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> str:
        """The reason why a program has no plan, so that its ops choose greedily; empty if it has one."""
        decisions, _ = _cached_decisions(_inputs(traced, following, arrays))
        return decisions if isinstance(decisions, str) else ""

    @fewer_collections()
    def evaluate(self, traced: Traced, following: Next, arrays: Sequence[Any]) -> list[Any] | None:
        """The results of a program by its plan; None if its ops choose greedily."""
        inputs = _inputs(traced, following, arrays)
        decisions, same_constants = _cached_decisions(inputs)
        if isinstance(decisions, str):
            return None
        try:
            return _evaluate(_program(inputs), decisions, inputs.args)
        except ShardingTypeError:
            if same_constants:  # an enclosing scope refuses it
                raise
            return None


def _cached_decisions(inputs: _Inputs) -> tuple[Decisions | str, bool]:
    """The decisions of a program or the reason why there are none; and whether they were typed with these constants."""
    key = key_of(inputs.jaxpr, inputs.consts, Static)
    types = tuple([t and (t.serial, t.names) for t in inputs.types])

    def decide() -> tuple[Decisions | str, Any]:
        try:
            with noting_undecided():  # keeps these traces out of reports
                return _decide_with_gradient(inputs), key.values
        except ShardingTypeError as error:  # greedy ops may still type
            return error.what, key.values
        except Exception as error:
            return f"{type(error).__name__}: {short(str(error), 160)}", key.values

    form = (key.form, types, inputs.following, current_settings(), context_mesh())
    decisions, values = _cache.get_or_create(form, decide)
    return decisions, values == key.values


def _evaluate(program: Program, decisions: Decisions, args: Sequence[Any]) -> list[Any]:
    results: list[Any] = lift_op_by_op(evaluation(program, decisions))(*args)
    return results


def _program(inputs: _Inputs) -> Program:
    """The program in the solver's IR, which is kept while its trace is."""
    grad = inputs.grad
    arguments = [(f"argument {i}", grad and bool(t and t.differentiable), not t) for i, t in enumerate(inputs.types)]
    sharded = sharded_sizes(inputs.types)
    known, key = _programs.get(inputs.traced.jaxpr), (arguments, sharded)
    if known is not None and known[0] == key:
        return known[1]
    program = Program("f", inputs.jaxpr, inputs.consts, arguments, keep_annotations=True, sharded=sharded)
    return _programs.put(inputs.traced.jaxpr, (key, program))[1]


def _decide_with_gradient(inputs: _Inputs) -> Decisions | str:
    """The decisions for a program and its gradient, or for the program alone if JAX has no gradient of it."""
    loops = [loop for loop in _program(inputs).loops if loop.predicate is not None]
    if any(v.differentiated for loop in loops for v in loop.results):  # as JAX finds below
        inputs = inputs._replace(grad=False)
    try:
        return _decide(inputs)
    except Exception as error:
        refused = isinstance(error, ShardingTypeError) and error.__cause__ is None
        if refused or not inputs.grad:  # else it is the error of a primitive without gradient, or its cause is
            raise
        return _decide(inputs._replace(grad=False))


def _decide(inputs: _Inputs) -> Decisions | str:
    """The decisions, if they send what was predicted or no more than greedy ops; else the reason why not."""
    mesh = next(t.mesh for t in inputs.types if t is not None)
    program, goal = _program(inputs), objective()
    grad = inputs.grad
    if any(t is not None and t.mesh is not mesh for t in inputs.types):
        return "its arguments are on several meshes"
    if _objectives(program) - {goal}:  # each has its own
        return "it opens an `implicit_comm` with another objective"

    def run(evaluate: Callable[..., list[Any]], *args: Any) -> list[Any]:
        return in_types_before(evaluate(args), inputs.following, args)

    @functools.cache
    def greedy() -> tuple[Ledger, Seen]:
        with recording_types() as seen:
            return _ledger(functools.partial(run, functools.partial(_greedily, inputs)), inputs, grad), seen

    results = [(inputs.types[at.argument], at.is_gradient) if at else None for at in inputs.following]
    graph = Graph(
        program,
        mesh,
        grad=grad,
        types=inputs.types,
        results=results,
        seen=lambda op: greedy()[1].get(op.path),
    )
    costs, search = _search(graph, goal)
    typed_plans = list[tuple[Sent, Decisions]]()
    for _ in range(_MOST_CORRECTIONS):
        point = search.solve(reshard=_RESHARD)
        transfers = costs.transfers(point.assignment)
        if any(map(_is_before_annotation, transfers)):
            return "a reshard that it has itself takes its operand in no other type"
        decisions = to_decisions(costs, point.assignment, transfers)
        refused, predicted = None, False
        try:
            typed = _ledger(functools.partial(run, functools.partial(_evaluate, program, decisions)), inputs, grad)
            typed_plans.append((_sent(typed), decisions))
            if predicted := _is_predicted(typed, point):
                break
        except ShardingTypeError as error:
            refused = error
        if not costs.correct(point.assignment, types=refused is None):
            break
        search.reset()
    if not typed_plans:
        assert refused is not None
        raise refused
    if predicted and (goal.by == "time" or _options_are_complete(program)):
        return decisions  # else greedy ops may do better, or each device in its own steps
    sent, decisions = min(typed_plans, key=lambda plan: cost(plan[0][0], plan[0][1], goal.minimize))
    if _sends_no_more(sent, lambda: _sent(greedy()[0]), goal.minimize):
        return decisions
    return f"its ops send less by themselves than the plan does, which sends {sum(sent)} B"


def _is_before_annotation(t: Transfer) -> bool:
    """Whether a reshard is of the operand of a reshard that the program has itself."""
    return t.src != t.dst and t.use.node.op is not None and is_annotation(t.use.node.op.eqn)


def _objectives(program: Program) -> set[Implicit]:
    """The rules of the `implicit_comm` scopes that a program opens."""
    rules = {rule for op in program.ops for rule in (set_at(op.eqn) or InForce()).rules}
    return {rule for rule in rules if isinstance(rule, Implicit)}


def _greedily(inputs: _Inputs, args: Sequence[Any]) -> list[Any]:
    """The results of a program whose ops choose for themselves."""
    with noting():
        return evaluate_program(inputs.jaxpr, inputs.consts, args, AtSpecs(), tuple)


def _search(graph: Graph, goal: Implicit) -> tuple[Costs, Search]:
    """The costs of the decisions of a graph, and a search by them."""
    model, device = _hardware(goal.by)
    prices, by_bytes = Prices(graph.mesh, model), goal.by == "bytes"
    costs = Costs(graph, prices, device, 0.0, _WEIGHTS[goal.minimize], by_bytes=by_bytes)
    few = len(graph.sizes) < 3 or len(graph.decisions) <= _MOST_PAIRED
    return costs, Search(costs, seed=None, block=2 if few else 1, gap=_GAP if by_bytes else 0.0)


def _options_are_complete(program: Program) -> bool:
    """Whether the options cover all that the ops of a program can do."""
    nested = (item for item, _ in walk(program.items) if not isinstance(item, Op))
    if any(isinstance(item, Branches) or not item.scan.carry or item.predicate is not None for item in nested):
        return False  # each device may run its own steps; of branches, the one that sends most may send less
    counts = [(op.eqn, sum(map(is_value, op.operands))) for op in program.ops]
    return all(eqn.primitive.name in _KNOWN and is_complete(eqn, n) for eqn, n in counts if n)


def _sends_no_more(sent: Sent, greedy: Callable[[], Sent], minimize: Direction) -> bool:
    """Whether a plan sends no more than greedy ops, or these do not type, or have no gradient."""
    try:
        greedy_sent = greedy()
    except Exception:  # the plan was typed with its gradient
        return True
    return cost(*sent, minimize) <= cost(*greedy_sent, minimize)


def _is_predicted(ledger: Ledger, point: Point) -> bool:
    """Whether a program sends what a point predicts, which counts all branches."""
    sent = sum(entry.bytes * entry.runs for entry in ledger)
    return math.isclose(sent, float(point.cost.sent), rel_tol=_CLOSE, abs_tol=_ROUNDED)


def _sent(ledger: Ledger) -> Sent:
    """The bytes that a program sends forward and backward."""
    return ledger.forward().bytes, ledger.backward().bytes


def _ledger(run: Callable[..., Any], inputs: _Inputs, grad: bool) -> Ledger:
    """The ledger of a program; with ``grad``, of it and its gradient."""
    specimens = [wrap(as_jax_type(x.type), None) if is_typed(x) else x for x in inputs.args]
    around = tuple(
        rule for rule in rules_in_force() if isinstance(rule, Implicit)
    )  # the others judge the final program
    with in_force(around):
        return ledger_of(jax.make_jaxpr(with_gradient(run) if grad else run)(*specimens))


#: The weights of a byte sent forward and backward; of plans that send as much in both, one that sends less forward.
_WEIGHTS: Final[dict[Direction, tuple[float, float]]] = {
    "both": (1.0, 0.999),
    "forward": (1.0, 1e-4),
    "backward": (1e-4, 1.0),
}


def _hardware(by: Objective) -> tuple[CostModel, Device]:
    """The cost model of links and the device for an objective."""
    device = as_device("h100-sxm", "")
    if by == "time":
        return as_cost_model(model_in_force() or "h100-nvlink", ""), device
    flops = {name: rate * _WORK for name, rate in device.flops.items()}
    return as_cost_model(Link(_LINK), ""), Device(flops, device.bandwidth * _WORK)


connect_solver(_Solver())
connect_joint_optimizer(Completed)
