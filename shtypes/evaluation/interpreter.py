"""Evaluates a plain program equation by equation: with typed ops where an operand is typed, else by JAX."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import trace_context
from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import (
    bind_eqn,
    has_zero_derivative,
    is_literal,
    jaxpr_of,
    literal_value,
    vars_with_cotangents,
)
from shtypes._compat.plain_programs import as_written, bind_plain
from shtypes._compat.program_mesh import constants
from shtypes._compat.tracing import refuse_escaped
from shtypes._compat.typed import is_of_typed, is_typed_var
from shtypes.caches import COMPILED, Bounded, Static
from shtypes.context.eqn_source import set_current_eqn
from shtypes.context.scope import attribute_set
from shtypes.context.user_line import placed
from shtypes.core.local import Local
from shtypes.core.meshes import context_mesh
from shtypes.core.operation import Operation, noting_bound
from shtypes.core.reshard import Reshard, reshard_once
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.frames import Body, Step, current, scopes_of
from shtypes.evaluation.positions import copy_position_notes, note_results
from shtypes.evaluation.source_fixes import edit_fixes
from shtypes.evaluation.table import BODIES, CHOICES, FALLBACKS, ROWS, Row, rewritten, sharded_sizes, why_no_row
from shtypes.evaluation.undo_ravel import undo_ravel
from shtypes.evaluation.value_info import (
    is_constant,
    mesh_of,
    note_constant,
    operand_key,
    sharded_constant,
    type_constants,
)
from shtypes.scopes.check_comm import is_bounded
from shtypes.scopes.scope_rules import allows_implicit, not_transposed, rules_in_force
from shtypes.types import ShType

#: By the path of an equation, the types of its operands and results, None for plain values.
Seen = dict[tuple[int, ...], tuple[list[ShType | None], list[ShType | None]]]


class _Thread(threading.local):
    seen: Seen | None = None  # where types are recorded


_thread: Final = _Thread()


def recording_types() -> contextlib.AbstractContextManager[Seen]:
    """A scope that records the types of the operands and results of evaluated equations."""
    return attribute_set(_thread, "seen", Seen())


def _types(values: Sequence[Any]) -> list[ShType | None]:
    return [jax.typeof(x) if is_typed(x) else None for x in values]


def evaluate_closed(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a closed jaxpr inside the current equation."""
    return evaluate(jaxpr_of(closed), constants(closed), args)


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr for typed and plain arguments, inside the current equation."""
    outer = current()
    return _run(jaxpr, consts, args, Body.inside(outer) if outer is not None else Body(None, {}, None, AtSpecs()))


def evaluate_program(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], at_specs: AtSpecs, arguments: Callable[[], Sequence[str]]
) -> list[Any]:
    """Evaluates a lifted function's program."""
    mesh = mesh_of(args)
    body = Body(None, {}, None, at_specs, arguments=arguments, mesh=mesh)
    for var, x in zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True):
        if isinstance(x, jax.core.Tracer) and not is_typed(x):
            _refuse_escaped(x, next((Step(eqn, body) for eqn in jaxpr.eqns if var in eqn.invars), None))
    if mesh is not None and any(map(is_typed, args)):
        consts, args = ([sharded_constant(x, mesh) for x in xs] for xs in (consts, args))
    return _run(jaxpr, consts, args, body)


def _refuse_escaped(x: Any, user: Step | None) -> None:
    """Refuses a plain value whose trace has ended, at the line of the equation that uses it."""
    with set_current_eqn(user):
        try:
            refuse_escaped(x)
        except ShardingTypeError as error:
            raise placed(error, "lift" if user is None else user.eqn.primitive.name) from None


def evaluate_jax_function(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluates the program of a JAX function that the user called on typed values."""
    return _run(jaxpr, consts, args, Body(None, {}, current(), AtSpecs(), mesh=mesh_of(args), of_function=True))


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], body: Body) -> list[Any]:
    jaxpr = undo_ravel(jaxpr)
    if (allows_implicit() or any(map(set_at, jaxpr.eqns))) and not body.at_specs.at:  # here, or in a scope of its own
        jaxpr = rewritten(jaxpr, sharded_sizes(x.type for x in args if is_typed(x)))
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    body = body._replace(jaxpr=jaxpr, env=env)

    def read(atom: Any) -> Any:
        return literal_value(atom) if is_literal(atom) else env[atom]

    last = _last_uses(jaxpr)
    marks = body.at_specs.marks(jaxpr, body.scope, body.places)
    with scopes_of(body.in_force) as scopes:
        for i, eqn in enumerate(jaxpr.eqns):
            scopes.enter(eqn)
            step = Step(eqn, body, scopes.now)
            with not_transposed() if is_bounded() and i in _without_cotangents(jaxpr) else contextlib.nullcontext():
                outs = _evaluate_eqn(step, [read(atom) for atom in eqn.invars], marks.get(i, ()))
            env.update(zip(eqn.outvars, outs, strict=True))
            for var in last.get(i, ()):
                value = env.pop(var, None)
                if is_typed(value):  # for error messages
                    env[var] = value.type
    return [read(atom) for atom in jaxpr.outvars]


@functools.lru_cache(maxsize=256)
def _without_cotangents(jaxpr: Any) -> frozenset[int]:
    """The equations whose results have zero cotangents, such as the maximum in a softmax."""
    found = vars_with_cotangents(jaxpr)
    return frozenset(i for i, eqn in enumerate(jaxpr.eqns) if found.isdisjoint(eqn.outvars))


@functools.lru_cache(maxsize=256)
def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """For each equation, the variables whose last use it is."""
    uses: dict[int, list[Any]] = {}
    used_later = {var for var in (*jaxpr.constvars, *jaxpr.outvars) if not is_literal(var)}
    for i in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[i]
        for var in (*eqn.outvars, *eqn.invars):
            if not is_literal(var) and var not in used_later:
                used_later.add(var)
                uses.setdefault(i, []).append(var)
    return uses


def _evaluate_eqn(step: Step, operands: list[Any], marks: Sequence[tuple[int, str]]) -> list[Any]:
    eqn, at_specs = step.eqn, step.body.at_specs
    name = eqn.primitive.name
    constant = has_zero_derivative(eqn) or all(map(is_constant, operands))
    if name not in BODIES and not any(map(is_typed, operands)):
        outs = bind_plain(eqn, operands)
        for _, place in marks:
            at_specs.met.add(place)
    else:
        results = _evaluate_typed(step, operands, marks)
        if isinstance(results, ShardingTypeError):
            raise results
        outs = results
    if constant:
        for out in outs:
            note_constant(out)
    note_results(eqn, operands, outs)
    if _thread.seen is not None:
        _thread.seen[step.path()] = _types(operands), _types(outs)
    return outs


def _evaluate_typed(step: Step, operands: list[Any], marks: Sequence[tuple[int, str]]) -> list[Any] | ShardingTypeError:
    """The results of an equation, or its error, returned because JAX would add the plain traceback to a raised one."""
    eqn, at_specs = step.eqn, step.body.at_specs
    name = eqn.primitive.name
    with set_current_eqn(step), as_written(eqn, step.lines()):
        try:
            row = row_of(name, BODIES)
            if row is not None:
                outs = replay_or_run(eqn, operands, row) if name == "typed_call" else row(eqn, operands)
            else:
                outs = [at_specs.finished(x, operands) for x in replay_or_run(eqn, operands, by_row)]
            for j, place in marks:
                outs[j] = at_specs.resharded(outs[j], place)
        except ShardingTypeError as error:
            if step.body.of_function:
                return error.with_traceback(None)
            named_by = {"typed_call": "call", "jit": "name", "pjit": "name"}.get(name)
            name = name if named_by is None else str(eqn.params[named_by]).removeprefix("_")
            placed(error, f"{name}({', '.join(str(x.type) for x in operands if is_typed(x))})")
            return edit_fixes(error, step, operands, evaluate).with_traceback(None)
    return outs


def row_of(name: str, table: Mapping[str, Row]) -> Row | None:
    """The row of a primitive; inside `implicit_comm`, the choice among it and `table.WAYS`."""
    return CHOICES[name] if name in CHOICES and name in table and allows_implicit() else table.get(name)


def by_row(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates an equation by the row of its primitive, or a fallback."""
    name = eqn.primitive.name
    if is_of_typed(eqn):  # a typed op on the program's closure
        if any(is_typed(x) and not is_typed_var(v) for x, v in zip(operands, eqn.invars, strict=True)):
            raise no_row_error(eqn)
        return bind_eqn(eqn, operands)
    row = row_of(name, ROWS)
    if row is not None:
        args = type_constants(operands)
        copy_position_notes(name, operands, args)
        return _check_results(eqn, row(eqn, args))
    for fallback in FALLBACKS:
        outs = fallback(eqn, operands)
        if outs is not None:
            return outs
    raise no_row_error(eqn)


def no_row_error(eqn: Any) -> ShardingTypeError:
    """The error for a primitive that has no row."""
    name = eqn.primitive.name
    return ShardingTypeError(
        f"`lift` has no row for the primitive `{name}` with typed operands",
        why=why_no_row(name),
        hints=[
            "sh.local_map of the function that calls it, with the types of its operands and results",
            f"sh.lift.register(primitive) with a function of typed values, for `{name}`",
        ],
    )


def _check_results(eqn: Any, outs: list[Any]) -> list[Any]:
    """Checks that results have the shapes and dtypes of the plain program; returns them."""
    for var, out in zip(eqn.outvars, outs, strict=True):
        if is_typed(out) and (out.type.shape != tuple(var.aval.shape) or out.type.dtype != var.aval.dtype):
            raise ShardingTypeError(
                f"`lift` of `{eqn.primitive.name}` gave {out.type}, and the plain program {var.aval}: please report it"
            )
    return outs


class RowRecord(NamedTuple):
    """The operations that a row bound. Values are numbered: the operands first, then the results of each step."""

    steps: tuple[tuple[Operation, tuple[int, ...]], ...]  # operations, with the numbers of their operands
    results: tuple[int, ...]

    def replay(self, operands: Sequence[Any]) -> list[Any]:
        """Binds the operations on operands of the same types, and returns the results."""
        values = list(operands)
        for operation, places in self.steps:
            xs = [values[i] for i in places]
            values += [reshard_once(operation, *xs)] if isinstance(operation, Reshard) else operation.bind(*xs)
        return [values[i] for i in self.results]


_records: Final[Bounded[RowRecord | None]] = Bounded(COMPILED)
_NEVER: Final = RowRecord((), ())


def replay_or_run(eqn: Any, operands: list[Any], row: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Evaluates an equation by ``row``, or replays the record of an equal equation."""
    key = key_of_operands(eqn, operands)
    if key is None:
        return row(eqn, operands)
    before = _records.get(key)
    if before is _NEVER:
        return row(eqn, operands)
    if before is not None:
        return before.replay(operands)
    with noting_bound() as bound:
        outs = row(eqn, operands)
    _records.put(key, _record(operands, bound, outs) or _NEVER)
    return outs


def key_of_operands(eqn: Any, operands: Sequence[Any]) -> tuple[Any, ...] | None:
    """The cache key of an equation; None if it is evaluated each time: with effects or scope rules, or eagerly."""
    if eqn.effects or rules_in_force() or not any(isinstance(x, jax.core.Tracer) for x in operands):
        return None
    context = trace_context()
    params = [(k, Static(v) if isinstance(v, (int, float, complex)) else v) for k, v in eqn.params.items()]
    of_operands = list(map(operand_key, operands))
    if None in of_operands:
        return None
    key = [context, context_mesh(), eqn.primitive, *params, *of_operands]
    ids = list(map(id, operands))
    if len(set(ids)) < len(ids):
        key.append(tuple(map(ids.index, ids)))  # which operands are the same value
    try:
        hash(frozen := tuple(key))
    except TypeError:
        return None
    return None if context is None else frozen


def _record(operands: Sequence[Any], bound: Sequence[Any], outs: Sequence[Any]) -> RowRecord | None:
    """The record of a row; None if it bound an operation or used a value that cannot be replayed."""
    places: dict[int, int] = {}
    for i, x in enumerate(operands):
        places.setdefault(id(x), i)
    steps, count = [], len(operands)
    for operation, args, results in bound:
        can_replay = isinstance(operation, Local) or (isinstance(operation, Reshard) and not operation.inserted)
        if not can_replay or any(id(x) not in places for x in args):
            return None  # `dispatch.apply.cast` shares inserted reshards among ops
        steps.append((operation, tuple(places[id(x)] for x in args)))
        for y in results:
            places[id(y)] = count
            count += 1
    if any(id(out) not in places for out in outs):
        return None
    return RowRecord(tuple(steps), tuple(places[id(out)] for out in outs))
