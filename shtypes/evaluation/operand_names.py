"""Names of operands in the fixes of a lifted program: expressions of the user's, or places of `at=`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shtypes._compat.debug_names import argument_names, name_in, result_path
from shtypes._compat.eqn_frames import Frame, frames_of, of_frames
from shtypes._compat.jaxprs import inner_jaxprs, is_literal, jaxpr_of, variables
from shtypes.context.frames import Owner
from shtypes.context.source_tree import Place, name_at
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.at_specs import is_backward, is_result, outputs, scope_of
from shtypes.evaluation.frames import Body, Source, Step, is_in_vmap, is_undifferentiated, source_of_var
from shtypes.types import ShType


class Name(NamedTuple):
    """An operand in a fix: an expression of the user's or a place of `at=`; False if the user can write neither."""

    expression: str = ""
    line: str = ""  # of the expression, if it is not the failing line
    place: str = ""
    leading: int = 0  # the number of dims of size 1 that the operand has before those of the expression
    mapped: bool = False  # whether the expression is inside `jax.vmap`, where the operand has fewer dims
    times: int = 1  # the number of times that it runs
    place_in: Place | None = None  # in the expression that uses it
    undifferentiated: bool = False  # whether it is in a function with a custom derivative

    def __bool__(self) -> bool:
        return bool((self.expression and self.times) or self.place)


def name_of_operand(step: Step, source: Source | None, t: ShType, written: Name) -> Name:
    """The name of an operand: where it is computed, else as ``written`` where it is read, else of its operands."""
    computed = _name_of_source(step, source, t, 1)
    if not computed.times and computed.expression == written.expression:  # it runs for other shapes, too
        written = Name()
    if written and source is not None and _is_read_before(step, source):
        return written
    return computed or written or _name_of_source(step, source, t, 8)


def _name_of_source(step: Step, source: Source | None, t: ShType, steps: int) -> Name:
    """The name of a value, or of the only value of its type that it is computed from, in fewer steps."""
    if source is None or not steps:
        return Name()
    inside = source.inside if source.inside is not None and _is_of_branch(source.inside.body) else None
    if name := _name_of_source(step, inside, t, steps):  # other branches take the value, too
        return name
    undifferentiated = is_undifferentiated(source.body)
    if source.step is None:
        name = _of_argument(step, source)
        return (
            name._replace(undifferentiated=undifferentiated) if name else _name_of_source(step, source.inside, t, steps)
        )
    maker, var = source.step, source.var
    of_line = _name_by_frames(step, source)
    nearest = of_line or _name_before_broadcast(maker) or _at_place(step, maker, var)
    if nearest:
        return nearest._replace(undifferentiated=undifferentiated)
    sources = _sources_of_type(maker, t)
    before = _name_of_source(maker, sources[0], t, steps - 1) if len(sources) == 1 else Name()
    here, there = ("" if frame is None else frame.place for frame in (_user_frame(of.frames()) for of in (step, maker)))
    if before.expression:
        before = before._replace(line="" if (line := before.line or there) == here else line)
    return before or _name_of_source(step, source.inside, t, steps) or (Name() if of_line is None else of_line)


def _is_of_branch(body: Body) -> bool:
    return body.outer is not None and body.outer.eqn.primitive.name == "cond"


def _sources_of_type(maker: Step, t: ShType) -> list[Source]:
    """The sources of an equation's operands of a type; of a loop or branches none, whose results may differ."""
    body, env = maker.body, maker.body.env
    if maker.eqn.primitive.name in ("scan", "while", "cond"):
        return []
    operands = [(v, env[v]) for v in maker.eqn.invars if not is_literal(v) and v in env]
    types = ((v, x.type if is_typed(x) else x) for v, x in operands)
    typed = [(v, of) for v, of in types if isinstance(of, ShType)]  # others are plain arrays
    return [source_of_var(body, v) for v, of in typed if of == t and len(typed) == 1]


def argument_name(source: Source) -> str:
    """The name of an argument of the program, or of a function in it; empty for values of its closure."""
    body = source.body
    names = body.arguments() if body.outer is None else argument_names(body.jaxpr)
    return next((name for var, name in zip(body.jaxpr.invars, names, strict=False) if var is source.var), "")


def _of_argument(step: Step, source: Source) -> Name:
    """An argument, with the line where it is written: where it is read, or where the function begins.

    That is where the failing line means something else by the name, and where only a loop's body reads it.
    """
    text, outer, frames = argument_name(source), source.body.outer, step.frames()
    of_user = [f for f in frames if f.kind is Owner.USERS]
    if outer is not None:
        of_user = of_user[: len(of_user) - sum(f.kind is Owner.USERS for f in outer.frames())]
        text = name_in(source.body.jaxpr, text, of_user[-1]) if of_user else ""
    root = _root(text)
    begin = of_user[-1] if of_user else None
    if begin is None or root not in begin.code.co_varnames:
        return Name(text)
    name = Name(text, mapped=outer is not None and step.is_in_vmap(begin))
    written = begin.written()
    for part in [text] if written is None or begin.is_bound(root) else written.names_of(text):
        if (bound := _root(part)) != root and not begin.is_bound_once(bound):
            continue
        of_name = (f for i, f in enumerate(of_user) if _means(of_user[i:], bound, begin.code, is_part=bound != root))
        says = next((f for f in of_name if f.reads(part)), None)
        if says is not None:
            level = _level_of(step, source.body, says)
            if level.body is source.body or _readers(source) > 1:
                return _read_at(name, part, says, of_user[0], times_of_body(level.body))
    line = f"{begin.place.rpartition(':')[0]}:{begin.code.co_firstlineno}"  # where the function begins
    return name._replace(line=line, times=times_of_body(source.body))


def result_names(step: Step, branches: Sequence[Any], index: int) -> dict[str, Name]:
    """The names of one result of the branches of an equation, as ``result_0``, ... where they have one."""
    names = {}
    for i, body in enumerate(map(jaxpr_of, branches)):
        var, inside = body.outvars[index], Body.inside(step)._replace(jaxpr=body)
        maker = next((eqn for eqn in body.eqns if not is_literal(var) and var in eqn.outvars), None)
        if maker is not None:
            names[f"result_{i}"] = _name_by_frames(step, Source(Step(maker, inside), var, inside)) or Name()
        elif not is_literal(var):
            names[f"result_{i}"] = Name(argument_name(Source(None, var, inside)))
    return {result: name for result, name in names.items() if name}


def _read_at(name: Name, text: str, frame: Frame, here: Frame | None, times: int) -> Name:
    """A name for the expression ``text`` in that of a frame, for an error in the frame ``here``."""
    written = frame.written()
    place_in = None if written is None else written.place_of(text)
    line = "" if here is not None and frame.place == here.place else frame.place
    return name._replace(expression=text, line=line, times=times, place_in=place_in)


def _root(text: str) -> str:
    """The variable that an expression begins with."""
    return re.split(r"\W", text, maxsplit=1)[0]


def _means(frames: Sequence[Frame], name: str, program: Any, *, is_part: bool) -> bool:
    """Whether a name is that of the program's argument, or of a part of it, where the first frame is."""
    frame, *outer = frames
    if name in frame.code.co_freevars:
        owner = next((f.code for f in outer if name in f.code.co_cellvars), None)
        return owner is program
    return frame.code is program and frame.is_bound_before(name) == is_part


def _name_by_frames(step: Step, source: Source) -> Name | None:
    """The user's expression for the value that ``step`` uses; None if it is made in the same call."""
    maker, var = source.step, source.var
    assert maker is not None
    frames, maker_frames = step.frames(), maker.frames()
    used, gave = _user_frame(frames), _user_frame(maker_frames)
    if gave is None or (gave == used and not is_backward(step.eqn)) or is_backward(maker.eqn):
        return None
    name, use = Name(mapped=maker.is_in_vmap(gave)), "" if used is None else used.expression()
    text, node, (values, repeats) = gave.expression(), gave.written(), _values(maker, var, gave)
    bound, item = ({}, "") if node is None else (node.bound_names(), node.item())
    path = result_path(maker.eqn, maker.eqn.outvars.index(var), maker_frames)
    is_item = len(bound) > 1 and use  # of what the call returns; without an expression the line itself unpacks
    written = Name()
    if text and not is_item and path in (None, "", item) and (values == [var] or (repeats and var in values)):
        text += item if use != text + item else ""
        written = _read_at(name, text, gave, used, times_of(maker))
        if not _is_read_before(step, source):
            return written
    variables = maker.eqn.outvars if len(maker.eqn.outvars) > 1 else values
    text = _bound_name(bound, item if written and item in bound else "" if written else path, var, variables)
    reads = _reads(text, frames, gave) if text else None
    if reads is None:
        return written or None
    return _read_at(name, text, reads, used, times_of(_level_of(step, maker.body, reads), reads))


def _is_read_before(step: Step, source: Source) -> bool:
    """Whether an equation before the user's failing expression reads a value, which a fix must leave as it is."""
    level = step
    while level.body is not source.body and level.body.outer is not None:
        level = level.body.outer
    eqns = source.body.jaxpr.eqns
    place = next((i for i, eqn in enumerate(eqns) if eqn is level.eqn), 0)
    frames = [_user_frame(each.frames()) for each in (level, source.step) if each is not None]
    reads = (Step(eqn, source.body) for eqn in eqns[:place] if source.var in eqn.invars)
    if any(_user_frame(each.frames()) not in frames for each in reads):
        return True
    return source.inside is not None and _is_read_before(step, source.inside)


def _reads(text: str, frames: Sequence[Frame], gave: Frame) -> Frame | None:
    """The innermost frame whose expression reads a variable that one line binds."""
    root = _root(text)
    of_user = (f for f in frames if f.kind is Owner.USERS and gave.binds(root, f))
    return next((f for f in of_user if f.reads(text)), None)


def _bound_name(bound: dict[str, str], path: str | None, var: Any, variables: Sequence[Any]) -> str:
    """The name that a line binds to the part at a path of what it calls, or if that is unknown by the parts' order."""
    if path is not None:
        return name_at(bound, path)
    names = [*bound.values()]
    if list(bound) == ["[:]"]:
        return names[0]
    return dict(zip(variables, names, strict=True)).get(var, "") if 1 < len(names) == len(variables) else ""


def _name_before_broadcast(maker: Step) -> Name | None:
    """The name of the operand of an equation that only prepends dims of size 1, or enters a value of the closure."""
    eqn, body = maker.eqn, maker.body
    dims = _leading_dims(eqn)
    if dims is None:
        return None
    var = eqn.invars[0]
    source = next((e for e in body.jaxpr.eqns if var in e.outvars), None)
    if source is not None:
        name = _name_by_frames(maker, Source(Step(source, body), var, body))
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


def times_of(step: Step, frame: Frame | None = None) -> int:
    """The number of times that an expression runs: in loops of Python and of the program, and in functions.

    It is the user's innermost one for an equation, or that of another of its frames. 0 if the equation's operands or
    results have other shapes at other times, or other dims inside `jax.vmap`, for which a fix there names no type.
    """
    eqn, body = step.eqn, step.body
    while body.outer is not None and any(jaxpr_of(j) is body.jaxpr for j, _ in inner_jaxprs(body.outer.eqn)):
        body = body.outer.body
    within, backward = _within(eqn, frame), is_backward(eqn)
    here = within[-1] if within else None
    runs = [*_runs_of(eqn.primitive, body.jaxpr, here)]
    alike = [run for run in runs if _within(run.eqn, frame) == within and is_backward(run.eqn) == backward]
    shapes = {tuple(v.aval for v in (*run.eqn.invars, *run.eqn.outvars)) for run in alike}
    mapped = {run.is_mapped for run in runs if here in _innermost(run.eqn)[0]}
    return sum(run.times for run in alike) * times_of_body(body) if len(shapes) == 1 and len(mapped) < 2 else 0


class _Runs(NamedTuple):
    """The runs of an equation of a program, or of one inside it."""

    eqn: Any
    times: int
    is_mapped: bool  # whether an expression in its stack is inside `jax.vmap`


def _runs_of(
    primitive: Any, jaxpr: Any, here: Frame | None, times: int = 1, *, is_mapped: bool = False
) -> Iterator[_Runs]:
    """The runs of the equations of a primitive, but for those of constants alone."""
    for eqn in jaxpr_of(jaxpr).eqns:
        bodies = inner_jaxprs(eqn)
        if eqn.primitive is primitive and not variables(eqn.invars):
            continue
        if eqn.primitive is primitive or bodies:
            mapped = is_mapped or (here is not None and is_in_vmap(eqn, here))
            if eqn.primitive is primitive:
                yield _Runs(eqn, times, mapped)
            for inside, trips in bodies:
                yield from _runs_of(primitive, inside, here, times * (trips or 1), is_mapped=mapped)


def times_of_body(body: Body) -> int:
    """The number of times that a body of the program runs."""
    outer = body.outer
    return (
        1 if outer is None else times_of(outer) * max((trips or 1 for _, trips in inner_jaxprs(outer.eqn)), default=1)
    )


def _level_of(step: Step, body: Body, frame: Frame) -> Step:
    """The outermost equation around a step, up to those of a body, that is in what a frame calls."""
    while step.body is not body and (outer := step.body.outer) is not None and frame in outer.frames():
        step = outer
    return step


def _readers(source: Source) -> int:
    """The number of equations of a value's body that read it."""
    return sum(source.var in eqn.invars for eqn in source.body.jaxpr.eqns)


def _within(eqn: Any, frame: Frame | None) -> Sequence[Frame]:
    """The frames of an equation inside an expression and this one: the user's innermost, or that of a frame of its."""
    frames, count = _innermost(eqn)
    return frames[: frames.index(frame) + 1] if frame in frames else frames[:count]


@of_frames
def _innermost(frames: list[Frame]) -> tuple[list[Frame], int]:
    """The frames of an equation, and the number of those up to the user's innermost expression."""
    return frames, next((i + 1 for i, f in enumerate(frames) if f.kind is Owner.USERS), len(frames))


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
    place = next((p for p in candidates if is_result(var, maker.eqn, body.jaxpr, p, body.scope)), None)
    return None if place is None else Name(place=place)
