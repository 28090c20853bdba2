"""Walks a traced program: names the values of forward equations, links backward equations to their forward causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shtypes._compat.eqn_frames import user_frames
from shtypes._compat.jaxprs import ClosedCall, Cond, Scan, While, is_literal, jaxpr_of
from shtypes.analysis.explain.inputs import (
    backward_inputs,
    body_frame,
    forward_inputs,
    link_results_by_body,
    name_carry,
    result_names,
)
from shtypes.analysis.explain.source import Unique, assigned
from shtypes.analysis.explain.values import BodyRun, Links, Occurrence, Operand, Value, cotangent_type, resolve
from shtypes.core.operation import applied_by, direction_of
from shtypes.traced.coverage import control_of, why_not_covered
from shtypes.traced.equations import Body, BodyContext, Equation, Needs, SourceLine, Walk, place_of

#: The maximum length of a name that consists of an operation and its first operand.
_LONGEST = 24


class Walker:
    """One walk over a program and the bodies of its loops and conditionals."""

    def __init__(self) -> None:
        self._walk = Walk()
        self._choices = 0
        #: By source expression, a body with its forward equations.
        self.by_expression: dict[tuple[int, ...], BodyRun] = {}
        #: By record, the bodies of backward equations that wait for `resolve`.
        self._pending: dict[int, tuple[Needs, BodyContext]] = {}

    def program(self, jaxpr: Any, arguments: Sequence[str]) -> BodyRun:
        """Walks the program, with these argument names; `resolve` then links the cotangents."""
        opened = jaxpr_of(jaxpr)
        scope = BodyRun()
        scope.inputs = [Value(v.aval, scope.unique(n)) for v, n in zip(opened.invars, arguments, strict=True)]
        self._walk_body(scope, opened, (True,) * len(opened.outvars), BodyContext(), None)
        return scope

    def backward_bodies(self, scope: BodyRun) -> None:
        """Adds the bodies of the backward pass's loops and conditionals, after `resolve`."""
        for record in scope.records:
            if id(record) not in self._pending:
                continue
            use, context = self._pending.pop(id(record))
            linked = record.link.bodies if record.link is not None else []
            for i, (body, label, inner) in enumerate(self._bodies(record, use, context)):
                forward = linked[i] if i < len(linked) else None
                run = BodyRun(label, forward.unique if forward else Unique(), scope)
                run.inputs, targets = backward_inputs(record, i, forward, body)
                self._walk_body(run, body.jaxpr, body.used, inner, forward)
                record.bodies.append(run)
                resolve(run, targets)
                self.backward_bodies(run)
                link_results_by_body(record, run, forward)

    def _walk_body(
        self, scope: BodyRun, jaxpr: Any, used: tuple[bool, ...], context: BodyContext, linked: BodyRun | None
    ) -> None:
        """Fills a body whose inputs are set; bodies of its backward equations wait for `backward_bodies`."""
        scope.results = _BodyWalk(self, scope, linked).run(jaxpr, used, scope.inputs, context)

    def _bodies(self, record: Occurrence, use: Needs, context: BodyContext) -> Iterator[tuple[Body, str, BodyContext]]:
        """Each body of a loop or conditional, with its label and its context."""
        labels = _labels(record, len(use.bodies))
        self._choices += 1
        for body, label in zip(use.bodies, labels, strict=True):
            yield body, label, context.inside(body, self._choices, record.equation.place)


class _BodyWalk:
    """The walk of one body: inlines calls, names forward results, links backward equations."""

    def __init__(self, walker: Walker, scope: BodyRun, linked: BodyRun | None) -> None:
        self.walker, self.scope = walker, scope
        self.links = Links([*(linked.around if linked is not None else ()), *scope.around], walker.by_expression)

    def run(self, jaxpr: Any, used: tuple[bool, ...], inputs: Sequence[Operand], context: BodyContext) -> list[Operand]:
        env: dict[Any, Operand] = dict(zip(jaxpr.invars, inputs, strict=True))
        env |= {v: Value(v.aval, self.scope.unique("constant")) for v in jaxpr.constvars}
        live = self.walker._walk.live(jaxpr, used)[0]
        frames = [user_frames(eqn) for eqn, _ in live]
        stacks = [f"{context.stack}/{eqn.source_info.name_stack}" for eqn, _ in live]
        needed = _needed(jaxpr, live, stacks)
        finals = _computes_expression([str(applied_by(eqn)) for eqn, _ in live], frames)
        for (eqn, use), at, final, stack in zip(live, frames, finals, stacks, strict=True):
            operands = [_operand(env, v) for v in eqn.invars]
            inner = context._replace(stack=stack)
            what = control_of(eqn)
            if isinstance(what, ClosedCall) and not why_not_covered(eqn):
                outs = self.run(use.bodies[0].jaxpr, use.bodies[0].used, operands, inner)
            else:
                needs = [needed.get(v) for v in eqn.outvars]
                outs = self._results(self._record(eqn, use, at, operands, inner, final=final, needs=needs))
            env.update(zip(eqn.outvars, outs, strict=True))
        results = [_operand(env, v) for v in jaxpr.outvars]
        for value in results:
            if isinstance(value, Value):
                value.returned = True
        return results

    def _record(
        self,
        eqn: Any,
        use: Needs,
        frames: Any,
        operands: list[Operand],
        context: BodyContext,
        *,
        final: bool,
        needs: Sequence[str | None],
    ) -> Occurrence:
        place = place_of(eqn) if frames else SourceLine()
        equation = Equation(eqn, place, direction_of(context.stack), context.times, context.branches)
        record = Occurrence(equation, frames, operands, len(self.scope.records))
        self.scope.records.append(record)
        for value in record.values:
            value.uses.append(record)
        if equation.direction == "forward":
            self.links.restart()
            same = self.scope.forward.setdefault(record.key, [])
            self.walker.by_expression.setdefault(record.key, self.scope)
            record.instance = len(same)
            same.append(record)
            for i in range(1, len(record.key)):
                self.scope.calls.setdefault(record.key[i:], []).append(record)
        else:
            record.link = self.links.cause(record)
        record.outs = self._outs(record, final=final, needs=needs)
        if use.bodies and record.backward:
            self.walker._pending[id(record)] = use, context
        elif use.bodies:
            self._enter(record, use, context)
        return record

    def _outs(self, record: Occurrence, *, final: bool, needs: Sequence[str | None]) -> list[Value]:
        avals = [v.aval for v in record.equation.eqn.outvars]
        if record.backward:
            gradient = any(v.gradient for v in record.values) or self._seeded(record) or not record.values
            outs = [Value(t, producer=record, gradient=gradient) for t in avals]
            if record.link is not None and gradient:
                record.link.has_backward = True
            return outs
        outs = [Value(t, producer=record) for t in avals]
        forward = record.link.outs if record.link is not None else []  # recomputed values keep their names
        for i, value in enumerate(forward[: len(outs)]):
            if value.type == outs[i].type:
                value.saved = any(use.equation.direction != "forward" for use in value.uses)
                outs[i] = value
        for value, where in zip(outs, needs, strict=True):
            value.name = value.name or ("" if where else "_")
        # what a loop saves for the backward pass is named after its value in the loop
        is_body = isinstance(control_of(record.equation.eqn), (Scan, While, Cond))
        saved = [is_body and use not in (None, "forward") for use in needs]  # only the backward pass uses it
        fresh = [i for i, v in enumerate(outs) if not v.name and not saved[i]]
        names = result_names(record, assigned(record.frames) if final else (), fresh, len(outs))
        for i, name in zip(fresh, names, strict=True):
            outs[i].name = self.scope.unique(name or _default_name(record))
        return outs

    def _enter(self, record: Occurrence, use: Needs, context: BodyContext) -> None:
        """Walks the bodies of a forward loop or conditional."""
        recomputed = record.link.bodies if record.link is not None else []
        for i, (body, label, inner) in enumerate(self.walker._bodies(record, use, context)):
            forward = recomputed[i] if i < len(recomputed) else None
            run = BodyRun(label, forward.unique if forward else Unique(), self.scope)
            live = self.walker._walk.live(body.jaxpr, body.used)[0]
            frame = body_frame(record, [user_frames(eqn) for eqn, _ in live])
            inputs = forward_inputs(record, i, body, frame)
            if forward is not None and len(forward.inputs) == len(inputs):
                inputs = forward.inputs
            else:
                outer = set(map(id, record.values))
                for value in sorted(inputs, key=lambda v: id(v) not in outer):  # outer names come first
                    taken = run.unique(value.name)
                    value.name = value.name if id(value) in outer else taken
            run.inputs = inputs
            self.walker._walk_body(run, body.jaxpr, body.used, inner, forward)
            record.bodies.append(run)
            name_carry(record, run, frame)
            for out, result in zip(record.outs, run.results, strict=False):
                if isinstance(result, Value):
                    out.inner.setdefault(i, result)
            resolve(run, {})
            self.walker.backward_bodies(run)

    def _results(self, record: Occurrence) -> list[Operand]:
        """The values of an equation's results. A residual that all branches return unchanged is the operand."""
        if not isinstance(control_of(record.equation.eqn), Cond):
            return list(record.outs)
        operands, results = set(map(id, record.values)), list[Operand](record.outs)
        for i, out in enumerate(record.outs):
            inside = {id(v): v for body in record.bodies for v in body.results[i : i + 1] if isinstance(v, Value)}
            if not out.name and len(inside) == 1 and operands.issuperset(inside):
                results[i] = next(iter(inside.values()))
        return results

    # links

    def _seeded(self, record: Occurrence) -> bool:
        """Whether an equation uses the first cotangent of the backward pass; names it."""
        cause = record.link
        if cause is None or not cause.outs:
            return False
        forward = {id(v) for v in (*cause.values, *cause.outs)}
        for value in record.values:
            if id(value) not in forward and cotangent_type(cause.outs[0].type) == value.type:
                value.gradient, value.primal = True, cause.outs[0]
                value.name = self.scope.unique(f"g_{cause.outs[0].name}")
                return True
        return False


# equations


def _labels(record: Occurrence, count: int) -> list[str]:
    what = control_of(record.equation.eqn)
    if isinstance(what, While):
        return ["condition", "body"]
    if isinstance(what, Cond):
        return [f"branch {i} of {count}" for i in range(count)]
    return [""] * count


def _needed(jaxpr: Any, live: Sequence[tuple[Any, Needs]], stacks: Sequence[str]) -> dict[Any, str]:
    """The direction of the uses of each used variable: ``"forward"`` if any use is."""
    needed: dict[Any, str] = {}
    for (eqn, _), stack in zip(live, stacks, strict=True):
        direction = direction_of(stack)
        for v in eqn.invars:
            if not is_literal(v) and needed.get(v) != "forward":
                needed[v] = direction
    return needed | {v: "forward" for v in jaxpr.outvars if not is_literal(v)}


def _operand(env: dict[Any, Operand], atom: Any) -> Operand:
    if not is_literal(atom):
        return env.get(atom, "_")  # an unused result is not computed
    value = atom.val
    return str(value.item()) if getattr(value, "ndim", 1) == 0 and hasattr(value, "item") else _literal(value)


def _literal(value: Any) -> str:
    for plain in (bool, int, float, complex):
        if isinstance(value, plain):
            return plain.__repr__(value)  # JAX's subclasses print differently
    return str(value)


def _computes_expression(ops: Sequence[str], frames: Sequence[Any]) -> list[bool]:
    """Whether each equation computes the value of its source expression, and so gets its name.

    These are the last equation of an expression, and earlier ones of the same operation.
    """
    finals = [False] * len(ops)
    last = None
    for i in reversed(range(len(ops))):
        if i + 1 == len(ops) or frames[i] != frames[i + 1]:
            enters = i + 1 < len(ops) and len(frames[i + 1]) > len(frames[i]) > 0
            enters = enters and frames[i + 1][-len(frames[i]) :] == frames[i]
            last = None if enters else _base(ops[i])  # before a call, its operands are prepared
        finals[i] = _base(ops[i]) == last
    return finals


def _base(op: str) -> str:
    return op.split("[")[0]


def _default_name(record: Occurrence) -> str:
    """The name of an unassigned value: the operation and its first operand."""
    op = "".join(c if c.isalnum() else "_" for c in _base(record.op)).strip("_")
    first = next((v.name for v in record.values if v.name), "")
    name = f"{op}_{first}" if first else op
    return name if len(name) <= _LONGEST else op
