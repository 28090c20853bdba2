"""Names of operands in the fixes of a lifted program: expressions of the user's, or places of `at=`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shtypes._compat.eqn_frames import Frame, frames_of, is_in_vmap
from shtypes._compat.jaxprs import inner_jaxprs, is_literal
from shtypes.context.frames import Owner
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.at_specs import is_backward, outputs, results, scope_of
from shtypes.evaluation.frames import Body, Source, Step, source_of
from shtypes.types import ShType


class Name(NamedTuple):
    """An operand in a fix: an expression of the user's or a place of `at=`; False if the user can write neither."""

    expression: str = ""
    line: str = ""  # of the expression, if it is not the failing line
    place: str = ""
    leading: int = 0  # the number of dims of size 1 that the operand has before those of the expression
    mapped: bool = False  # whether the expression is inside `jax.vmap`, where the operand has fewer dims
    times: int = 1  # the number of times that it runs

    def __bool__(self) -> bool:
        return bool(self.expression or self.place)


def name_of_source(step: Step, source: Source | None, t: ShType, steps: int = 8) -> Name:
    """The name of a value, or the only name of the values of its type that it is computed from, in so many steps."""
    if source is None or not steps:
        return Name()
    if source.step is None:
        return _of_argument(step, argument_name(source))
    maker, var = source.step, source.var
    name = _name_by_frames(step, maker, var) or _name_before_broadcast(maker) or _at_place(step, maker, var)
    if name is not None:
        return name
    names = {name_of_source(step, origin, t, steps - 1) for origin in _sources_of_type(maker, t)}
    return names.pop() if len(names) == 1 else Name()


def _sources_of_type(maker: Step, t: ShType) -> list[Source | None]:
    """The sources of an equation's operands of a type."""
    body, env = maker.body, maker.body.env
    operands = [(v, env[v]) for v in maker.eqn.invars if not is_literal(v) and v in env]
    return [
        source_of_var(body, v) or (source_of(maker, x) if is_typed(x) else None)
        for v, x in operands
        if isinstance(of := x.type if is_typed(x) else x, ShType) and of == t  # else it is a plain array
    ]


def argument_name(source: Source) -> str:
    """The name of a program's argument; empty for values of its closure."""
    named = zip(source.body.jaxpr.invars, source.body.arguments(), strict=False)
    return next((name for var, name in named if var is source.var), "")


def _of_argument(step: Step, text: str) -> Name:
    """An argument of the program, with the line that can write it where the failing one means something else by it."""
    of_user = [f for f in step.frames() if f.kind is Owner.USERS]
    name = re.split(r"\W", text, maxsplit=1)[0]
    if not of_user or name not in of_user[-1].code.co_varnames:
        return Name(text)
    (first, *others), program = of_user, of_user[-1].code
    if _means(first, name, program):
        return Name(text)
    calls = (f.place for f in others if _means(f, name, program) and re.search(rf"\b{name}\b", f.expression()))
    return Name(text, next(calls, f"{of_user[-1].place.rpartition(':')[0]}:{program.co_firstlineno}"))


def _means(frame: Frame, name: str, program: Any) -> bool:
    """Whether a name is that of the program's argument where a frame is."""
    return name in frame.code.co_freevars or (frame.code is program and not frame.is_bound_before(name))


def _name_by_frames(step: Step, maker: Step, var: Any) -> Name | None:
    """The user's expression for the result of ``maker`` that ``step`` uses; None if both are of one call."""
    frames, maker_frames = step.frames(), maker.frames()
    used, gave = _user_frame(frames), _user_frame(maker_frames)
    if gave is None or (gave == used and not is_backward(step.eqn)) or is_backward(maker.eqn):
        return None
    name, use = Name(mapped=is_in_vmap(maker_frames, gave)), "" if used is None else used.expression()
    text, (values, repeats), names = gave.expression(), _values(maker, var, gave), gave.unpacked_into()
    is_item = len(names) > 1 and use  # of what the call returns; without an expression the line itself unpacks
    if text and not is_item and (values == [var] or (repeats and var in values)):
        text += gave.item() if use != text + gave.item() else ""
        same_line = used is not None and used.place == gave.place
        return name._replace(expression=text, line="" if same_line else gave.place, times=times_of(maker))
    variables = maker.eqn.outvars if len(maker.eqn.outvars) > 1 else values
    name_of_var = dict(zip(variables, names, strict=True)) if len(variables) == len(names) else {}
    text = names[0] if len(names) == 1 else name_of_var.get(var, "")
    is_there = text and re.search(rf"\b{text}\b", use)
    return name._replace(expression=text, times=times_of(step)) if is_there else None


def _name_before_broadcast(maker: Step) -> Name | None:
    """The name of the operand of an equation that only prepends dims of size 1, or enters a value of the closure."""
    eqn, body = maker.eqn, maker.body
    dims = _leading_dims(eqn)
    if dims is None:
        return None
    var = eqn.invars[0]
    source = next((e for e in body.jaxpr.eqns if var in e.outvars), None)
    if source is not None:
        name = _name_by_frames(maker, Step(source, body), var)
    else:
        name = Name(argument_name(Source(None, var, body))) if body.outer is None and var in body.jaxpr.invars else None
    return None if name is None or not name.expression else name._replace(leading=dims)


def _leading_dims(eqn: Any) -> int | None:
    """The number of dims of size 1 that an equation prepends to its operand's; None for other equations."""
    if eqn.primitive.name == "closed_over":
        return 0
    if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
        return None
    shape, src = eqn.params["shape"], eqn.invars[0].aval.shape
    dims = len(shape) - len(src)
    dst_dims = tuple(range(dims, len(shape)))
    return dims if shape == (1,) * dims + src and eqn.params["broadcast_dimensions"] == dst_dims else None


def _user_frame(frames: Sequence[Frame]) -> Frame | None:
    return next((f for f in frames if f.kind is Owner.USERS), None)


def times_of(step: Step) -> int:
    """The number of times that an equation runs: in unrolled Python loops, and in the loops of enclosing equations."""
    eqn, outer = step.eqn, step.body.outer
    copies = (e for e in step.body.jaxpr.eqns if e.primitive is eqn.primitive and frames_of(e) == frames_of(eqn))
    times = sum(is_backward(e) == is_backward(eqn) for e in copies)
    if outer is None:
        return times
    return times * times_of(outer) * max((trips or 1 for _, trips in inner_jaxprs(outer.eqn)), default=1)


def _values(maker: Step, var: Any, frame: Frame) -> tuple[list[Any], bool]:
    """The results of an expression's frame, and whether it ran several times."""
    jaxpr = maker.body.jaxpr
    run = [i for i, eqn in enumerate(jaxpr.eqns) if frame in frames_of(eqn) and not is_backward(eqn)]
    first, *others = [frames_of(jaxpr.eqns[i]) for i in run] or [[]]
    values = [jaxpr.eqns[i].outvars[j] for i, j in outputs(jaxpr, run)] if run else [var]
    return values, first in others


def _at_place(step: Step, maker: Step, var: Any) -> Name | None:
    """A place for `at=` that has the variable as a result and does not contain the failing equation."""
    body = maker.body
    scope = scope_of(str(maker.eqn.source_info.name_stack))
    own_scope = scope_of(str(step.eqn.source_info.name_stack)) if step.body is body else None
    candidates = []
    if scope and scope != own_scope:
        candidates.append("/".join((*body.scope, *scope)))
    candidates += [f.place for f in frames_of(maker.eqn) if f.kind is Owner.INSTALLED]
    jaxpr = body.jaxpr
    place = next(
        (p for p in candidates if var in (jaxpr.eqns[i].outvars[j] for i, j in results(jaxpr, p, body.scope))), None
    )
    return None if place is None else Name(place=place)


def source_of_var(body: Body, var: Any) -> Source | None:
    """The source of a variable; None for an argument of an inner body."""
    eqn = next((eqn for eqn in body.jaxpr.eqns if var in eqn.outvars), None)
    if eqn is not None:
        return Source(Step(eqn, body), var, body)
    return Source(None, var, body) if body.outer is None else None
