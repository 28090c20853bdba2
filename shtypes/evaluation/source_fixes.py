"""Rewrites the fixes of an error inside a lifted program as edits of the user's expressions, or places for `at=`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from shtypes._compat.debug_names import is_part
from shtypes._compat.eqn_frames import Frame, frames_of
from shtypes._compat.jaxprs import variables
from shtypes.context.frames import Owner
from shtypes.context.source_tree import filled
from shtypes.core.conversion import abstract_array
from shtypes.core.device_put import type_of
from shtypes.core.jax_context import complete_when_read
from shtypes.dispatch.apply import firsts, is_typed
from shtypes.dispatch.call_fixes import fixes_of_call, for_all_runs
from shtypes.errors import Fix, ShardingTypeError
from shtypes.evaluation.at_specs import is_backward, outputs
from shtypes.evaluation.frames import Source, Step, is_undifferentiated, source_of, source_of_var
from shtypes.evaluation.operand_names import Name, name_of_operand, result_names, times_of
from shtypes.evaluation.user_calls import Call, Evaluate, Run, call_of, evaluates, expression_names, run_around
from shtypes.evaluation.value_info import notes_kept
from shtypes.rules.candidate_types import place_of
from shtypes.rules.price_fixes import called_names
from shtypes.rules.suggest_fixes import MAX_FIXES
from shtypes.scopes.check_comm import drop_forbidden_fixes, is_bounded
from shtypes.scopes.comm import in_checkpoint
from shtypes.scopes.scope_rules import NotTransposed, has_comm_scope, in_force, rules_in_force
from shtypes.types import ShType, State

_RESHARD: Final = re.compile(r'sh\.reshard\(([^,()]+), "([^"]*)"\)')
_OUT: Final = "(..., out="


#: The hint of an error whose fixes would reshard values that have no name in the program.
IMPLICIT_HINT: Final = "sh.implicit_comm() around the call allows it"
#: The number of candidate types for the operands of a JAX call that are tried.
_MAX_TRIED: Final = 12
#: The number of equations that are typed after the failing call, to print fixes first with which they type.
_MOST_FOLLOWING: Final = 32


def edit_fixes(error: ShardingTypeError, step: Step, operands: Sequence[Any], evaluate: Evaluate) -> ShardingTypeError:
    """Rewrites an error's fixes when they are read; returns the same object."""
    subjects, error.subjects, error.operands = error.subjects, None, None
    if subjects is not None:  # else the fixes are of the program already, or there are none
        as_noted, of_op = notes_kept(), list(operands)
        typed = [x for x in operands if is_typed(x)]
        if len(typed) == len(subjects):
            error.same = firsts(typed)
        limited = has_comm_scope()

        def complete() -> None:
            with as_noted():
                unnamed = _edit_fixes(error, subjects, step, of_op, evaluate)  # type: ignore[arg-type]
            if is_bounded():  # fixes are written outside of functions with rules of their own
                with in_force(tuple([rule for rule in rules_in_force() if not isinstance(rule, NotTransposed)])):
                    drop_forbidden_fixes(error, in_checkpoint())
            if unnamed and not limited:
                error.hints = (*error.hints, IMPLICIT_HINT)

        complete_when_read(error, complete)
    return error


def name_results(error: ShardingTypeError, step: Step, branches: Sequence[Any], index: int) -> None:
    """Rewrites fixes of one result of an equation's branches as edits of what these return, when they are read."""

    def complete() -> None:
        names, fixes = result_names(step, branches, index), []
        for fix in error.fixes:
            targets = _RESHARD.findall(fix.code)
            parts = [
                (name, f'sh.reshard({name.expression}, "{target}")') for r, target in targets if (name := names.get(r))
            ]
            fixes.append(fix._replace(code=_written(parts, step)) if len(parts) == len(targets) else fix)
        error.fixes = tuple(fixes)

    complete_when_read(error, complete)


def _edit_fixes(
    error: ShardingTypeError, subjects: Sequence[ShType], step: Step, operands: Sequence[Any], evaluate: Evaluate
) -> bool:
    """Replaces an error's fixes; returns whether reshards would do and the user can name no operand of any."""
    typed = [x for x in operands if is_typed(x)]
    values: dict[str, Any] = {}
    names = error.names or called_names(subjects)
    if len(subjects) == len(typed) and all(x.type == t for x, t in zip(typed, subjects, strict=True)):
        values = dict(zip(names, typed, strict=True))
    else:
        for name, t in zip(names, subjects, strict=True):
            of_type = [x for x in typed if x.type == t]
            if len(of_type) == 1:
                values[name] = of_type[0]
    run = run_around(step)
    names_of_values = {
        id(run.body.env[var]): name for var, name in expression_names(run).items() if var in run.body.env
    }
    operand_names = {
        name: name_of_operand(step, source_of(step.body, x), x.type, names_of_values.get(id(x), Name()))
        for name, x in values.items()
    }
    differentiates = any(map(is_backward, run.body.jaxpr.eqns))  # prices include its backward pass then
    written = {name for name in operand_names.values() if name}
    is_op = len(written) == len(names) and not differentiates  # each fix of the op can be written as it is
    call = None if is_op else call_of(run)
    fixes = () if call is None else _fixes_of_call(call, run, step, evaluate, differentiates)
    types = {name: x.type for name, x in values.items()}
    of_op = () if fixes else error.fixes
    edited = fixes if fixes or differentiates else _all_edited(of_op, operand_names, types, step)
    with_out = () if differentiates else _fixes_with_out(run, step, evaluate)
    by_cost = sorted((*edited, *with_out), key=lambda fix: fix.order)  # which an edit may have changed
    error.fixes = edited if differentiates else tuple(by_cost[:MAX_FIXES])
    return not error.fixes and any(_RESHARD.match(fix.code) for fix in of_op)


def _all_edited(
    fixes: Sequence[Fix], operand_names: dict[str, Name], types: dict[str, ShType], step: Step
) -> tuple[Fix, ...]:
    renamed = (_edited_fix(fix, operand_names, types, step) for fix in fixes)
    return tuple(fix for fix in renamed if fix is not None)


def _fixes_of_call(call: Call, run: Run, step: Step, evaluate: Evaluate, differentiates: bool) -> tuple[Fix, ...]:
    """Fixes that reshard the operands of a call, among those that have a name."""
    types = call.types()
    evaluate_again = evaluates(call, evaluate)
    names = called_names(types)
    names_of_variables, variables = expression_names(run), call.jaxpr.invars
    sources = [source_of_var(call.body, v) for v in variables]
    operand_names = {
        name: name_of_operand(step, source, t, names_of_variables.get(v, Name()))
        for name, source, t, v in zip(names, sources, types, variables, strict=True)
    }
    returns = [*map(_returns, sources)] if differentiates else None
    fixed = [i for i, name in enumerate(names) if not operand_names[name]]
    try:
        fixes = fixes_of_call(evaluate_again, tuple(types), _MAX_TRIED, fixed=fixed, returns=returns)
        if differentiates and len(fixes) > 1:
            of_names = dict(zip(names, zip(variables, types, strict=True), strict=True))
            fixes = tuple(sorted(fixes, key=lambda fix: _stops(fix, of_names, run, evaluate)))
    except Exception:  # no other error of the second evaluation concerns the user
        return ()
    return _all_edited(fixes, operand_names, dict(zip(names, types, strict=True)), step)


#: From the name of a function of JAX, a call of it, and that as a function to its fixes with ``out=``.
OutFixes = Callable[[str, Call, Callable[..., list[Any]]], list[Fix]]
_namesakes: Final[list[OutFixes]] = []


def connect_namesakes(out_fixes: OutFixes) -> None:
    """Sets what finds fixes that call an op."""
    _namesakes[:] = [out_fixes]


def _fixes_with_out(run: Run, step: Step, evaluate: Evaluate) -> tuple[Fix, ...]:
    """Fixes that call the typed form of the function of JAX that the user called, with ``out=``."""
    origin, user = step(), run.frame
    if origin is None or origin.library or user is None or user.kind is not Owner.USERS or step.is_in_vmap(user):
        return ()
    if is_undifferentiated(run.body):  # the derivative that is written gives the type that there was
        return ()
    written, name = user.written(), origin.called.rpartition(".")[2]
    if written is None or not isinstance(written.node, ast.Call) or not _names_it(written.node.func, name):
        return ()
    eqns = [run.body.jaxpr.eqns[i] for i in run.numbers]
    first, *others = [(e.primitive, (frames := frames_of(e))[: frames.index(user)]) for e in eqns]
    call, n = call_of(run), times_of(run.step)
    if first in others or call is None or not n:  # several calls in a row
        return ()
    used = {*call.jaxpr.outvars, *variables([x for e in eqns for x in e.invars])}
    bound = len(written.bound_names())
    if not used.issuperset(v for e in eqns for v in e.outvars) or (bound > 1 and bound != len(call.jaxpr.outvars)):
        return ()  # the function has results that the program does not use
    several = len(call.jaxpr.outvars) > 1 or written.item()
    if several if len(eqns) > 1 else is_part(eqns[0]):
        return ()  # or it may have, or return them in another order
    try:
        fixes = _namesakes[0](origin.called, call, evaluates(call, evaluate))
    except Exception:  # no other error of the second evaluation concerns the user
        return ()
    return tuple(for_all_runs(fix, n) for fix in fixes)


def _names_it(func: ast.expr, name: str) -> bool:
    """Whether a called expression is a name, or an attribute of that name."""
    return name == (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", ""))


def _stops(fix: Fix, of_names: dict[str, tuple[Any, ShType]], run: Run, evaluate: Evaluate) -> bool:
    """Whether an equation soon after a run does not type if a fix reshards operands of the run."""
    goals = {}
    for name, target in _RESHARD.findall(fix.code):
        var, t = of_names[name]
        goals[var] = type_of(target, t.mesh, like=t)
    first = run.numbers[0]
    rest = call_of(run._replace(numbers=range(len(run.body.jaxpr.eqns))[first : first + _MOST_FOLLOWING]))
    if rest is None:
        return False
    types = [goals.get(v, t) for v, t in zip(rest.jaxpr.invars, rest.types(), strict=True)]
    try:
        jax.eval_shape(evaluates(rest, evaluate), *map(abstract_array, types))
    except ShardingTypeError:
        return True
    return False


def _returns(source: Source) -> bool:
    """Whether the backward pass in a program computes a cotangent of a value."""
    jaxpr = source.body.jaxpr
    backward = [i for i, eqn in enumerate(jaxpr.eqns) if is_backward(eqn)]
    if source.step is not None:
        lines, depth = _users_frames(source.step.eqn), _transposes(source.step.eqn)
        return any(_users_frames(e) == lines and _transposes(e) > depth for e in map(jaxpr.eqns.__getitem__, backward))
    cotangents = [jaxpr.eqns[i].outvars[j].aval for i, j in outputs(jaxpr, backward)]
    return any((ct.shape, ct.dtype) == (source.var.aval.shape, source.var.aval.dtype) for ct in cotangents)


def _transposes(eqn: Any) -> int:
    """How many backward passes an equation is inside: a gradient is in one, and what comes back of it in two."""
    return str(eqn.source_info.name_stack).count("transpose(")


def _users_frames(eqn: Any) -> list[Frame]:
    return [f for f in frames_of(eqn) if f.kind is Owner.USERS]


def _edited_fix(fix: Fix, operand_names: dict[str, Name], types: dict[str, ShType], step: Step) -> Fix | None:
    if _OUT in fix.code:  # of the op, and not of the call
        return None
    targets = dict(_RESHARD.findall(fix.code))
    if not _is_of_whole_values(targets, operand_names):
        return None
    parts: list[tuple[Name, str]] = []
    times, undifferentiated = set(), set()
    at: dict[str, str] = {}
    for name, target in targets.items():
        operand = operand_names.get(name, Name())
        if not operand:
            return None
        undifferentiated.add(operand.undifferentiated)
        own_target = _without_leading(target, operand.leading)
        if operand.place:
            if at.setdefault(operand.place, own_target) != own_target:
                return None  # a place has one type
            continue
        goal = _states(types[name], target) if operand.mapped else f'"{own_target}"'
        if not goal:
            return None
        parts.append((operand, f"sh.reshard({operand.expression}, {goal})"))
        times.add(operand.times)
    if len(undifferentiated) > 1:
        return None  # the fix has one price for all reshards
    if not parts and not at:
        return fix
    code = _written(parts, step)
    if at:
        places = ", ".join(f'"{place}": "{target}"' for place, target in at.items())
        lifted = f"sh.lift({step.body.at_specs.name}, at={{{places}}})"
        code = f"{code}; {lifted}" if parts and "  # " not in code else f"{lifted}; {code}" if parts else lifted
    if undifferentiated == {True}:
        fix = fix._replace(backward="", bytes_backward=0, later="", bytes_later=0)
    if len(times) > 1:
        return None  # the fix has one price for all reshards
    return for_all_runs(fix._replace(code=code), max(times, default=1), times_of(step))


def _written(parts: Sequence[tuple[Name, str]], step: Step) -> str:
    """Reshards as edits of the program, with their lines where these are not the failing one.

    Where a line reads one of the operands elsewhere, too, it is the expression around them.
    """
    codes: list[str] = []
    lines: list[str] = []
    for name, reshard in parts:
        place, line = name.place_in, name.line
        of_text = [
            n.place_in for n, _ in parts if place and n.place_in and (n.line, n.place_in.text) == (line, place.text)
        ]
        if place is not None and not all(of.is_only for of in of_text):
            filling = {n.place_in.number: code for n, code in parts if n.place_in in of_text}
            reshard = filled(place.text, filling)
            if reshard in codes:
                continue
        codes.append(reshard)
        lines.append(line)
    if any(lines):
        here = next((f.place for f in step.frames() if f.kind is Owner.USERS), "")
        lines = [line or here for line in lines]
        lines = lines if len({*lines}) > 1 else lines[:1]  # one for all parts, or each part's
        return f"{'; '.join(codes)}  # {', '.join(lines)}"
    return "; ".join(codes)


def _is_of_whole_values(targets: dict[str, str], operand_names: dict[str, Name]) -> bool:
    """Whether operands that the user writes in one expression have one target."""
    of_expression: dict[Name, set[str]] = {}
    for name, operand in operand_names.items():
        if operand:
            of_expression.setdefault(operand, set()).add(targets.get(name, ""))
    return all(len(goals) == 1 for goals in of_expression.values())


def _without_leading(target: str, dims: int) -> str:
    """A target without its first ``dims`` dims, which have size 1 and which the user's value has not."""
    if not dims:
        return target
    inside, bracket, rest = target.removeprefix("[").partition("]")
    return f"[{''.join(inside.split(',', dims)[dims:])}{bracket}{rest}"


def _states(t: ShType, target: str) -> str:
    """A target as states of the axes that change; empty if one shards or would shard a dim, maybe the mapped one."""
    dst = type_of(target, t.mesh, like=t)
    changed = {a: dst.state(a) for a in t.mesh.axis_names if place_of(dst, a) != place_of(t, a)}
    sharded = State.SHARDED in {*changed.values(), *map(t.state, changed)}
    return "" if sharded else ", ".join(f'{a}="{s.value}"' for a, s in changed.items())
