"""Which value a variable of the backward pass is the cotangent of.

It is an operand of the forward equation that the variable comes from. Which one, its type tells, then where the
cotangent goes, then which operands the equation does not take: an einsum's adjoint takes the other ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from shtypes.analysis.explain.values import BodyRun, Occurrence, Value

#: How many equations that add or copy, and so send a cotangent on as it is, are looked through.
_DEPTH = 8


def resolve(scope: BodyRun, targets: Mapping[int, Value]) -> None:
    """Finds what the cotangents of a body are cotangents of; ``targets`` says it of its results, by position."""
    returned: dict[int, Value] = {}
    for i, result in enumerate(scope.results):
        if isinstance(result, Value) and i in targets:
            returned[id(result)] = targets[i]
    for record in reversed(scope.records):
        if not record.backward:
            continue
        for value in record.outs:
            if value.gradient:
                value.of = _origin(value, record, returned)
    for record in scope.records:
        if record.sums and record.outs[0].of is None:  # nothing says where it goes, but its terms are of one value
            record.outs[0].of = next((v.of for v in record.values if v.of is not None), None)


def _origin(value: Value, record: Occurrence, returned: Mapping[int, Value]) -> Value | None:
    sinks = _sinks(value, record, returned)
    candidates = _operands(record.link, value.type) if record.link is not None else []
    if not candidates:
        return sinks[0] if sinks else None
    if len(candidates) == 1:
        return candidates[0]
    for depth in range(_DEPTH):
        for candidate in candidates:
            if _reaches(candidate, sinks, depth):
                return candidate
    taken = {id(v) for v in record.values}
    left = [c for c in candidates if id(c) not in taken]
    if len(left) == 1:
        return left[0]
    position = record.outs.index(value)
    return candidates[min(position, len(candidates) - 1)]


def _sinks(value: Value, record: Occurrence, returned: Mapping[int, Value]) -> list[Value]:
    """What the equations that take a cotangent take it for."""
    found = [returned[id(value)]] if id(value) in returned else []
    for use in value.uses:
        if use.sums:
            found += [v.of for v in use.outs if v.of is not None]
        elif use.backward and use.link is not None and (use.link is not record.link or record.sums):
            found += [out for out in use.link.outs if cotangent_type(out.type) == value.type]
    return found


def _operands(cause: Occurrence | None, t: Any) -> list[Value]:
    """The operands of a forward equation whose cotangents have this type."""
    found: dict[int, Value] = {}
    for value in cause.values if cause is not None else ():
        if cotangent_type(value.type) == t:
            found.setdefault(id(value), value)
    return list(found.values())


def _reaches(value: Value, sinks: Sequence[Value], depth: int) -> bool:
    """Whether a cotangent of this value goes to one of the sinks, through ``depth`` equations that only pass it on."""
    if not depth:
        return any(value is sink for sink in sinks)
    made = value.made
    if made is None or made.answered:
        return False
    return any(_reaches(v, sinks, depth - 1) for v in made.values)


@functools.lru_cache(maxsize=4096)
def cotangent_type(t: Any) -> Any:
    """The type of a cotangent of a value of this type, typed or JAX's own."""
    return t.to_ct_aval() if hasattr(t, "to_ct_aval") else t


def name_cotangents(scope: BodyRun) -> None:
    """Names the cotangents of a body, in program order: ``g_x``, and ``g_x_from_y`` where several lines send one."""
    for value in scope.given:
        if value.gradient and not value.name:
            value.name = scope.unique(f"g_{value.of.name}" if value.of is not None else "g")
    for record in scope.records:
        for value in record.outs:
            if not value.name and not value.gradient and record.bodies and not record.backward:
                value.name = scope.unique(f"saved_{_inside_name(value)}")
            elif not value.name:
                value.name = scope.unique(_name(value, record))
        for body in record.bodies:
            name_cotangents(body)


def saved_only(value: Value) -> bool:
    """Whether a result of a forward loop is there for the backward pass alone."""
    made = value.made
    forward = made is not None and made.found.direction != "backward"
    return forward and bool(value.uses) and all(use.found.direction != "forward" for use in value.uses)


def _inside_name(value: Value) -> str:
    """What a result of a loop is called in its body; of a conditional, in the branch that computes it."""
    own = [v for v in value.inner.values() if v.made is None or v.made.frames]
    return next((v.name for v in own), value.name)


def _name(value: Value, record: Occurrence) -> str:
    if not value.gradient:
        return "_".join(filter(None, (record.op.split("[")[0], next((v.name for v in record.values), ""))))
    if not record.values:
        return "zeros"
    if value.of is None:
        return "g" if record.link is None or not record.link.outs else f"g_in_{record.link.outs[0].name}"
    whole = f"g_{value.of.name}"
    if not any(use.sums and use.outs[0].of is value.of for use in value.uses):
        return whole
    if record.sums:
        return f"{whole}_so_far"
    sender = record.link.outs[0].name if record.link is not None and record.link.outs else ""
    return f"{whole}_from_{sender}" if sender else f"{whole}_part"
