"""The user's call around an equation of a lifted program, as a jaxpr with its arguments, to be evaluated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from shtypes._compat.eqn_frames import Frame, frames_of
from shtypes._compat.jaxprs import is_literal, with_inputs
from shtypes.context.frames import Owner
from shtypes.core.elementwise_fns import STOP_GRADIENT
from shtypes.core.local import local
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.at_specs import is_backward, outputs, runs_of
from shtypes.evaluation.frames import Body, Step, is_undifferentiated, source_of_var
from shtypes.evaluation.operand_names import Name, argument_name, times_of
from shtypes.evaluation.value_info import is_constant, noted_as
from shtypes.types import ShType

#: Evaluates a jaxpr for its constants and arguments.
Evaluate = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


class Run(NamedTuple):
    """The equations of one expression, of the user's or a library's, in a body of the program."""

    step: Step  # the failing equation, or one that encloses it
    frame: Frame | None  # of the expression; None without one: then the run has all equations of the body
    numbers: Sequence[int]  # the indices of the equations

    @property
    def body(self) -> Body:
        """The body of the equations."""
        return self.step.body


def run_around(step: Step) -> Run:
    """The run of the innermost enclosing expression of an equation."""
    level, frame = step, None
    while True:
        frame = next((f for f in frames_of(level.eqn) if f.kind in (Owner.USERS, Owner.INSTALLED)), None)
        if frame is not None or level.body.outer is None:
            break
        level = level.body.outer
    jaxpr = level.body.jaxpr
    place = next(i for i, eqn in enumerate(jaxpr.eqns) if eqn is level.eqn)
    run: Sequence[int] = range(len(jaxpr.eqns))
    if frame is not None:
        run = next((each for each in runs_of(jaxpr, frame) if place in each), [place])
    return Run(level, frame, run)


def expression_names(run: Run) -> dict[Any, Name]:
    """The names of the operands in the user's expression, by the variables that enter the run; empty if unclear."""
    frame, eqn = run.frame, run.step.eqn
    if frame is None or frame.kind is not Owner.USERS or is_backward(eqn):
        return {}
    makers = {v: e for i in run.numbers for e in (run.body.jaxpr.eqns[i],) for v in e.outvars}
    roots = []
    for var in (v for v in eqn.invars if not is_literal(v)):
        while var in makers and len(made_of := [v for v in makers[var].invars if not is_literal(v)]) == 1:
            (var,) = made_of
        roots.append(var)
    texts = frame.operands()
    if len(texts) != len(roots) or not makers.keys().isdisjoint(roots):
        return {}
    mapped = run.step.is_in_vmap(frame)
    name = Name(mapped=mapped, times=times_of(run.step), undifferentiated=is_undifferentiated(run.body))
    written = frame.written()
    places = [None if written is None else written.place_of(text) for text in texts]
    named = zip(roots, texts, places, strict=True)
    return {var: name._replace(expression=text, place_in=place) for var, text, place in named}


class Call(NamedTuple):
    """The equations of one call in the user's program, such as ``jnp.median(x)``, as a jaxpr of its typed arguments."""

    body: Body
    jaxpr: Any
    consts: list[Any]  # the other arguments
    values: list[Any]  # for each typed argument, the value, or its type if the value was dropped

    def types(self) -> list[ShType]:
        """The types of the typed arguments."""
        return [x.type if is_typed(x) else x for x in self.values]


def call_of(run: Run) -> Call | None:
    """A run as a call; None if a value is gone."""
    body, jaxpr = run.body, run.body.jaxpr
    eqns = [jaxpr.eqns[i] for i in run.numbers]
    inside = {var for eqn in eqns for var in eqn.outvars}
    used = dict.fromkeys(v for eqn in eqns for v in eqn.invars if not is_literal(v) and v not in inside)
    if not all(v in body.env for v in used):
        return None
    outs = [jaxpr.eqns[i].outvars[j] for i, j in outputs(jaxpr, run.numbers)] or eqns[-1].outvars
    typed = [v for v in used if is_typed(body.env[v]) or isinstance(body.env[v], ShType)]
    plain = [v for v in used if v not in typed]
    consts = [body.env[v] for v in plain]
    part = with_inputs(jaxpr, plain, consts, typed).replace(outvars=outs, eqns=eqns)
    return Call(body, part, consts, [body.env[v] for v in typed])


def evaluates(call: Call, evaluate: Evaluate) -> Callable[..., list[Any]]:
    """A call as a function of its typed operands."""
    constant = [is_typed(x) and is_constant(x) for x in call.values]
    stopped = [c or _is_closed_over(call, i) for i, c in enumerate(constant)]

    def evaluate_again(*xs: Any) -> list[Any]:
        values = [_stopped(x) if stops else x for x, stops in zip(xs, stopped, strict=True)]
        return evaluate(call.jaxpr, call.consts, noted_as(constant, values))

    return evaluate_again


def _is_closed_over(call: Call, i: int) -> bool:
    """Whether an operand of a call is a concrete value of the program's closure, which has no gradient."""
    x, source = call.values[i], source_of_var(call.body, call.jaxpr.invars[i])
    while source.step is not None and source.step.eqn.primitive.name == "closed_over":
        source = source_of_var(source.body, source.step.eqn.invars[0])
    is_inside = source.step is not None or source.body.outer is not None
    return is_typed(x) and not (is_inside or argument_name(source)) and not isinstance(x, jax.core.Tracer)


def _stopped(x: Any) -> Any:
    """`stop_gradient` of a value."""
    return local(STOP_GRADIENT, x, out=jax.typeof(x)) if is_inexact(x) else x
