"""A plain program, evaluated equation by equation: with the typed ops where an operand is typed, else as it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from shtypes._compat.jaxprs import bound, captured, is_literal, jaxpr_of, literal_value
from shtypes._compat.plain_programs import as_written, bind_plain
from shtypes._compat.typed import is_of_typed, is_typed_var
from shtypes.context.eqn_source import set_current_eqn
from shtypes.context.user_line import placed
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.at_specs import Outside
from shtypes.evaluation.branch_types import mesh_of
from shtypes.evaluation.eqn_cache import again
from shtypes.evaluation.frames import Body, Step, current
from shtypes.evaluation.in_force import scopes_of
from shtypes.evaluation.iota_analysis import carry
from shtypes.evaluation.source_fixes import in_the_programs_words
from shtypes.evaluation.table import BODIES, EQUATIONS, FALLBACK, OF_ONE_DEVICE, ROWS
from shtypes.evaluation.undo_ravel import unraveled
from shtypes.evaluation.unsupported import REASONS, reason
from shtypes.evaluation.value_info import beside_others, is_constant, note_constant
from shtypes.evaluation.widened import follow


def evaluate_closed(closed: Any, args: Sequence[Any]) -> list[Any]:
    """The results of a program that has its constants."""
    return evaluate(jaxpr_of(closed), captured(closed), args)


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results of a program, for typed and plain arguments, inside the equation that is being evaluated."""
    outer = current()
    return _run(jaxpr, consts, args, Body.inside(outer) if outer is not None else Body.whole(Outside()))


def evaluate_whole(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], outside: Outside, arguments: Callable[[], Sequence[str]]
) -> list[Any]:
    """The results of a whole program.

    Args:
        jaxpr: The program.
        consts: Its constants.
        args: Typed and plain arguments.
        outside: What is said of it from outside.
        arguments: What the arguments are called.
    """
    return _run(jaxpr, consts, args, Body.whole(outside, arguments, mesh_of(args)))


def evaluate_call(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The results of the program of a function of JAX that the user called."""
    return _run(jaxpr, consts, args, Body.of_call(mesh_of(args)))


def _run(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], body: Body) -> list[Any]:
    jaxpr = unraveled(jaxpr)
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    body = body._replace(jaxpr=jaxpr, env=env)

    def read(atom: Any) -> Any:
        return literal_value(atom) if is_literal(atom) else env[atom]

    last = _last_uses(jaxpr)
    marks = body.outside.marks(jaxpr, body.scope, body.places)
    with scopes_of(body.in_force) as scopes:
        for i, eqn in enumerate(jaxpr.eqns):
            scopes.enter(eqn)
            step = Step(eqn, body, scopes.now)
            outs = _evaluated(step, [read(atom) for atom in eqn.invars], marks.get(i, ()))
            env.update(zip(eqn.outvars, outs, strict=True))
            for var in last.get(i, ()):
                value = env.pop(var, None)
                if is_typed(value):  # an error may have to know what it was
                    env[var] = value.type
    return [read(atom) for atom in jaxpr.outvars]


@functools.lru_cache(maxsize=256)
def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Which variables nothing uses after each equation."""
    uses: dict[int, list[Any]] = {}
    kept = {var for var in (*jaxpr.constvars, *jaxpr.outvars) if not is_literal(var)}
    for i in range(len(jaxpr.eqns) - 1, -1, -1):
        eqn = jaxpr.eqns[i]
        for var in (*eqn.outvars, *eqn.invars):
            if not is_literal(var) and var not in kept:
                kept.add(var)
                uses.setdefault(i, []).append(var)
    return uses


def _evaluated(step: Step, operands: list[Any], marks: Sequence[tuple[int, str]]) -> list[Any]:
    eqn, outside = step.eqn, step.body.outside
    name = eqn.primitive.name
    constant = all(map(is_constant, operands))
    if name not in BODIES and not any(map(is_typed, operands)):
        outs = bind_plain(eqn, operands)
        for _, place in marks:
            outside.met.add(place)
    else:
        found = _typed(step, operands, marks)
        if isinstance(found, ShardingTypeError):
            raise found
        outs = found
    if constant:
        for out in outs:
            note_constant(out)
    follow(eqn, operands, outs)
    return outs


def _typed(step: Step, operands: list[Any], marks: Sequence[tuple[int, str]]) -> list[Any] | ShardingTypeError:
    """The results of an equation, or its refusal: to one raised in here JAX would add the plain program's trace."""
    eqn, outside = step.eqn, step.body.outside
    name = eqn.primitive.name
    with set_current_eqn(step), as_written(eqn, step.lines()):
        try:
            body = BODIES.get(name)
            if body is not None:
                outs = again(eqn, operands, body) if name == "typed_call" else body(eqn, operands)
            else:
                outs = [outside.finished(x, operands) for x in again(eqn, operands, by_row)]
            for j, place in marks:
                outs[j] = outside.resharded(outs[j], place)
        except ShardingTypeError as error:
            if step.body.of_function:
                return error.with_traceback(None)
            placed(error, _shown(name, operands))
            return in_the_programs_words(error, step, operands, evaluate).with_traceback(None)
    return outs


def by_row(eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation by the row of its primitive."""
    name = eqn.primitive.name
    if is_of_typed(eqn):  # of what the program closes over
        if any(is_typed(x) and not is_typed_var(v) for x, v in zip(operands, eqn.invars, strict=True)):
            raise missing(eqn)
        return bound(eqn, operands)
    of_equation = EQUATIONS.get(name)
    if of_equation is not None:
        given = beside_others(operands)
        carry(name, operands, given)
        return _checked(eqn, of_equation(eqn, given))
    found = ROWS.get(name)
    if found is None:
        traced = OF_ONE_DEVICE[0](eqn, operands)
        if traced is None and name not in REASONS:
            traced = FALLBACK[0](eqn, operands)
        if traced is None:
            raise missing(eqn)
        return traced
    given = beside_others(operands)
    try:
        out = found(*given, **eqn.params)
    except TypeError as error:
        if not isinstance(error, ShardingTypeError) and not _fits(found, given, eqn.params):
            raise ShardingTypeError(
                f"`{name}` has the parameters {', '.join(sorted(eqn.params))}, which this row of `lift` does not know",
                why="this release of JAX writes the primitive in another way",
            ) from None
        raise
    return _checked(eqn, list(out) if eqn.primitive.multiple_results else [out])


def _fits(fn: Any, operands: Sequence[Any], params: dict[str, Any]) -> bool:
    try:
        inspect.signature(fn).bind(*operands, **params)
    except TypeError:
        return False
    return True


def missing(eqn: Any) -> ShardingTypeError:
    """What is said of a primitive that has no row."""
    name = eqn.primitive.name
    return ShardingTypeError(
        f"`lift` has no row for the primitive `{name}` with typed operands",
        why=reason(name),
        hints=[
            "sh.local_map of the function that calls it, with the types of its operands and results",
            f"sh.lift.register(primitive) with a function of typed values, for `{name}`",
        ],
    )


def _shown(name: str, operands: Sequence[Any]) -> str:
    return f"{name}({', '.join(str(x.type) for x in operands if is_typed(x))})"


def _checked(eqn: Any, outs: list[Any]) -> list[Any]:
    """The results, which have the shapes and dtypes that the plain program says."""
    for var, out in zip(eqn.outvars, outs, strict=True):
        if is_typed(out) and (out.type.shape != tuple(var.aval.shape) or out.type.dtype != var.aval.dtype):
            raise ShardingTypeError(
                f"`lift` of `{eqn.primitive.name}` gave {out.type}, and the plain program {var.aval}: please report it"
            )
    return outs


__all__ = ["by_row", "evaluate", "evaluate_call", "evaluate_closed", "evaluate_whole", "missing"]
