"""What the results of a plain program are computed from."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import (
    ClosedCall,
    Cond,
    Control,
    Scan,
    UnknownEquationError,
    While,
    control,
    has_side_effects,
    is_literal,
    jaxpr_of,
    references,
)
from shtypes.rules.claims import Dependence

_NOTHING: Final = Dependence()


def dependences(program: Any) -> list[Dependence]:
    """For each result of a closed jaxpr, what it is computed from.

    The body of a loop, a branch or a call is looked through; a result of any other equation depends on all that the
    equation takes.
    """
    count = len(jaxpr_of(program).invars)
    return _through(program, [Dependence(frozenset([i])) for i in range(count)])


def _through(body: Any, operands: Sequence[Dependence]) -> list[Dependence]:
    jaxpr = jaxpr_of(body)
    env = dict.fromkeys(jaxpr.constvars, _NOTHING)
    env.update(zip(jaxpr.invars, operands[len(operands) - len(jaxpr.invars) :], strict=True))
    written: dict[Any, Dependence] = {}  # of references, what was written to them

    def read(atom: Any) -> Dependence:
        return _NOTHING if is_literal(atom) else _of_all([env[atom], written.get(atom, _NOTHING)])

    before = None
    while written != before:  # what is read from a reference may have been written further down, in a loop
        before = dict(written)
        for eqn in jaxpr.eqns:
            inputs, in_place = [read(atom) for atom in eqn.invars], references(eqn)
            written.update(dict.fromkeys(in_place, _of_all(inputs)))
            env.update(zip(eqn.outvars, _of_equation(eqn, inputs, opaque=bool(in_place)), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _of_equation(eqn: Any, operands: list[Dependence], *, opaque: bool) -> list[Dependence]:
    try:
        what = None if opaque else control(eqn)
    except UnknownEquationError:
        what = None
    if what is not None:
        return _of_control(what, operands)
    dependence = _of_all(operands)
    return [dependence._replace(impure=dependence.impure or has_side_effects(eqn))] * len(eqn.outvars)


def _of_control(what: Control, operands: list[Dependence]) -> list[Dependence]:
    match what:
        case ClosedCall(body):
            return _through(body, operands)
        case Cond(branches):
            index, *inputs = operands
            by_branch = [_through(body, inputs) for body in branches]
            return [_of_all([index, *each]) for each in zip(*by_branch, strict=True)]
        case Scan(body, consts, count):
            return _of_scan(body, operands[:consts], operands[consts : consts + count], operands[consts + count :])
        case While(cond, body, cond_consts, consts):
            inputs = operands[cond_consts : cond_consts + consts]

            def step(carry: list[Dependence]) -> list[Dependence]:
                pred = _through(cond, [*operands[:cond_consts], *carry])[0]  # says how often the body runs
                return [_of_all([pred, each]) for each in _through(body, [*inputs, *carry])]

            return _settled(step, operands[cond_consts + consts :])


def _of_scan(body: Any, consts: list[Dependence], carry: list[Dependence], xs: list[Dependence]) -> list[Dependence]:
    last = _settled(lambda carry: _through(body, [*consts, *carry, *xs])[: len(carry)], carry)
    return [*last, *_through(body, [*consts, *last, *xs])[len(carry) :]]


def _settled(step: Any, carry: list[Dependence]) -> list[Dependence]:
    """What a carry is computed from after any number of steps."""
    while True:
        after = [_of_all(pair) for pair in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _of_all(values: Sequence[Dependence]) -> Dependence:
    """That of what is computed from some values."""
    return Dependence(
        functools.reduce(frozenset.union, (v.operands for v in values), frozenset()), any(v.impure for v in values)
    )
