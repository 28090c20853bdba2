"""The inputs of bodies of loops and conditionals: their names forward, and their primals backward."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from shtypes._compat.eqn_frames import UserFrame
from shtypes._compat.jaxprs import ClosedCall, Cond, Scan, While
from shtypes.analysis.explain.source import Names, inside
from shtypes.analysis.explain.values import BodyRun, Occurrence, Operand, Value, cotangent_type
from shtypes.core.operation import applied_by
from shtypes.traced.coverage import control_of
from shtypes.traced.equations import Body

#: The primal of each result of a body, by position.
Targets = dict[int, Value]


def forward_inputs(record: Occurrence, index: int, body: Body, frame: UserFrame | None) -> list[Value]:
    """The inputs of a body: captured values, and parameters with their names.

    ``frame`` is that of the user's function for the body, if JAX records it.
    """
    what, invars = control_of(record.equation.eqn), body.jaxpr.invars
    if isinstance(what, (Cond, ClosedCall)):
        operands = record.operands[1:] if isinstance(what, Cond) else record.operands
        return [_as_value(v, x.aval) for v, x in zip(operands, invars, strict=True)]
    if isinstance(what, Scan):
        consts, carry = record.operands[: what.consts], what.carry
    elif isinstance(what, While):
        start, end = (0, what.cond_consts) if index == 0 else (what.cond_consts, what.cond_consts + what.body_consts)
        consts, carry = record.operands[start:end], len(invars) - (end - start)
    else:
        return [Value(x.aval, f"{applied_by(record.equation.eqn).name}_argument") for x in invars]
    inner = record.operands[-(len(invars) - len(consts)) :] if len(invars) > len(consts) else []
    parameters = () if frame is None else [p for p in frame.parameters if p not in ("self", "cls")]
    names = _parameter_names(inner, carry, parameters)
    outer = [_as_value(v, x.aval) for v, x in zip(consts, invars, strict=False)]
    return [*outer, *(Value(x.aval, n) for x, n in zip(invars[len(consts) :], names, strict=True))]


def _as_value(operand: Operand, t: Any) -> Value:
    return operand if isinstance(operand, Value) else Value(t, operand)


def body_frame(record: Occurrence, frames: Sequence[tuple[UserFrame, ...]]) -> UserFrame | None:
    """The frame of a body's function: the outermost frame that the loop does not have."""
    outside = set(map(id, record.frames))
    for stack in frames:
        inner = [frame for frame in stack if id(frame) not in outside]
        if inner:
            return inner[-1]
    return None


def _parameter_names(operands: Sequence[Operand], carry: int, parameters: Sequence[str]) -> list[str]:
    """The names of a carry and of slices, from the parameters ``(carry, x)``, or ``(i, carry)`` of a counted loop."""
    outer = [v.name if isinstance(v, Value) else "" for v in operands]
    if len(parameters) == 2 and carry == len(operands) > 1:
        return [parameters[0], *_leaves(outer[1:], parameters[1])]
    first, second = (*parameters, "", "")[:2]
    return [*_leaves(outer[:carry], first or "carry"), *_leaves(outer[carry:], second or "x")]


def _leaves(outer: Sequence[str], name: str) -> list[str]:
    """The names of the leaves of one parameter: by the paths of their sources, or numbered."""
    if len(outer) <= 1:
        return [name] * len(outer)
    least, most = min(outer), max(outer)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False))
    common = "".join(a for a, _ in same)
    common = common[: common.rfind("[")] if "[" in common else common.rstrip("'\"")
    paths = [text[len(common) :] for text in outer]
    if common and all(p.startswith("[") for p in paths) and len(set(paths)) == len(paths):
        return [f"{name}{p}" for p in paths]
    return [f"{name}[{i}]" for i in range(len(outer))]


def name_carry(record: Occurrence, body: BodyRun, frame: UserFrame | None) -> None:
    """Names the next carry of a scan like the carry, if no statement of the body names it."""
    scan = control_of(record.equation.eqn)
    if not isinstance(scan, Scan) or frame is None:
        return
    function = frame.function.rpartition(".")[2]
    for carry, result in zip(body.inputs[scan.consts :], body.results[: scan.carry], strict=False):
        if isinstance(result, Value) and result.name.startswith(f"{function}[") and result is not carry:
            result.name = body.unique(carry.name)


def result_names(record: Occurrence, names: Names, positions: Sequence[int], total: int) -> list[str]:
    """The names of an equation's results in the source, at some positions of ``total``; "" where there is none.

    ``names`` are those of its full value; for a scan, ``(carry, ys)``.
    """
    if isinstance(names, str):
        return [names for _ in positions]
    scan = control_of(record.equation.eqn)
    if isinstance(scan, Scan) and len(names) == 2:
        carry = record.operands[scan.consts : scan.consts + scan.carry]
        paths = _leaves([v.name if isinstance(v, Value) else "" for v in carry], "")
        leaves = [*(_leaf_name(names[0], path, scan.carry) for path in paths), *[_leaf_name(names[1], "", 1)] * total]
        return [leaves[i] for i in positions]
    texts = [n if isinstance(n, str) else "" for n in names]
    return [texts[i] for i in positions] if len(texts) == total else ["" for _ in positions]


def _leaf_name(names: Names, path: str, count: int) -> str:
    """The name of one leaf of a carry, from the path of its source."""
    if isinstance(names, str):
        return names if count == 1 or not path else f"{names}{path}"
    target, _ = inside(names, tuple([int(part) for part in re.findall(r"^\[(\d+)\]", path)]))
    return target if isinstance(target, str) else ""


def backward_inputs(record: Occurrence, index: int, forward: BodyRun | None, body: Body) -> tuple[list[Value], Targets]:
    """The inputs of a body of the backward pass, and the primals of its results.

    A residual is a value of the forward body. A carry of the loop is the cotangent of the next carry on entry, and that
    of the carry on exit; sums over the steps are sums so far. ``forward`` is the body of which this one is the
    transpose, if there is one.
    """
    what, invars, cause = control_of(record.equation.eqn), body.jaxpr.invars, record.link
    targets: Targets = {}
    if forward is not None and cause is not None:
        operands = cause.operands[1:] if isinstance(what, Cond) else cause.operands
        inside = {id(v): inputs for v, inputs in zip(operands, forward.inputs, strict=False) if isinstance(v, Value)}
        for i, out in enumerate(record.outs):
            if out.primal is not None and id(out.primal) in inside:
                targets[i] = inside[id(out.primal)]
    inputs = []
    for i, (operand, x) in enumerate(zip(_body_operands(what, record.operands, index), invars, strict=True)):
        if isinstance(operand, Value) and not operand.gradient:
            sliced = isinstance(what, Scan) and i >= what.consts + what.carry
            same = _residual_in_body(operand, cause, forward, index) if sliced or isinstance(what, Cond) else operand
            inputs.append(same or (operand if isinstance(what, Cond) else Value(x.aval, operand.name)))
            continue
        value = Value(x.aval, gradient=isinstance(operand, Value))
        if isinstance(operand, str):
            value.name = operand
        elif isinstance(what, Scan) and what.consts <= i < what.consts + what.carry:
            value.primal, so_far = _carry_primal(i - what.consts, targets, forward, cause)
            value.name = f"g_{value.primal.name}_so_far" if so_far and value.primal is not None else ""
        else:
            value.primal = _primal_in_body(operand, cause, forward)
        inputs.append(value)
    return inputs, targets


def _body_operands(what: Any, operands: Sequence[Operand], index: int) -> Sequence[Operand]:
    """The operands of a loop or conditional for one of its bodies."""
    if isinstance(what, Cond):
        return operands[1:]
    if isinstance(what, While):
        first, n = what.cond_consts, what.cond_consts + what.body_consts
        return [*(operands[first:n] if index else operands[:first]), *operands[n:]]
    return operands


def link_results_by_body(record: Occurrence, body: BodyRun, forward: BodyRun | None) -> None:
    """Finds the primals of a transposed loop's results from its body, if its operands do not determine them.

    This happens where JAX hoisted loop-invariant code out of the forward loop.
    """
    if forward is None or record.link is None:
        return
    operands = record.link.operands[len(record.link.operands) - len(forward.inputs) :]
    outside = {id(inner): v for inner, v in zip(forward.inputs, operands, strict=True)}
    for out, result in zip(record.outs, body.results, strict=False):
        result_primal = result.primal if isinstance(result, Value) else None
        if out.primal is not None or result_primal is None:
            continue
        primal = outside.get(id(result_primal), result_primal)
        producer = primal.producer if isinstance(primal, Value) else None
        inside = producer is not None and forward.records[producer.position : producer.position + 1] == [producer]
        if isinstance(primal, Value) and not inside and cotangent_type(primal.type) == out.type:
            out.primal = primal


def _residual_in_body(operand: Value, cause: Occurrence | None, forward: BodyRun | None, index: int) -> Value | None:
    """The value of a residual inside a body: computed or received by the forward body."""
    if index in operand.inner or cause is None or forward is None:
        return operand.inner.get(index)
    loop = control_of(cause.equation.eqn)
    start = loop.consts + loop.carry if isinstance(loop, Scan) else len(cause.operands)
    sliced = zip(cause.operands[start:], forward.inputs[start:], strict=False)
    return next((inner for v, inner in sliced if v is operand), None)


def _carry_primal(
    i: int, targets: Targets, forward: BodyRun | None, cause: Occurrence | None
) -> tuple[Value | None, bool]:
    """The primal of a transposed loop's carry, and whether it is a sum over the steps."""
    target = targets.get(i)
    if target is None or forward is None or cause is None:
        return target, target is not None
    loop = control_of(cause.equation.eqn)
    position = next((p for p, v in enumerate(forward.inputs) if v is target), -1)
    if not isinstance(loop, Scan) or not loop.consts <= position < loop.consts + loop.carry:
        return target, True
    result = forward.results[position - loop.consts]
    return (result if isinstance(result, Value) else target), False


def _primal_in_body(operand: Operand, cause: Occurrence | None, forward: BodyRun | None) -> Value | None:
    """The primal, in the body, of the cotangent of a loop's result."""
    if cause is None or forward is None or not isinstance(operand, Value) or operand.primal is None:
        return None
    for out, result in zip(cause.outs, forward.results, strict=False):
        if out is operand.primal and isinstance(result, Value):
            return result
    return None
