"""The operands on which each result of a plain jaxpr depends, by dataflow through loops, branches and calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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

#: Whether what an equation computes counts as independent of its operands.
Ends = Callable[[Any], bool]
_INDEPENDENT: Final = Dependence()


def dependences(program: Any, ends: Ends = lambda eqn: False) -> list[Dependence]:
    """The dependence of each result of a closed jaxpr.

    Bodies of loops, branches and calls are analysed; a result of any other equation depends on all its operands, or on
    none if the equation ``ends`` dependence.
    """
    return _body_results(program, [Dependence(frozenset([i])) for i in range(len(jaxpr_of(program).invars))], ends)


def _body_results(body: Any, operands: Sequence[Dependence], ends: Ends) -> list[Dependence]:
    """The dependences of a body's results, from those of its operands (the last ones, if it takes fewer)."""
    jaxpr = jaxpr_of(body)
    env = dict.fromkeys(jaxpr.constvars, _INDEPENDENT)
    env.update(zip(jaxpr.invars, operands[len(operands) - len(jaxpr.invars) :], strict=True))
    written: dict[Any, Dependence] = {}  # by reference, the dependence of its content

    def read(atom: Any) -> Dependence:
        return _INDEPENDENT if is_literal(atom) else _union([env[atom], written.get(atom, _INDEPENDENT)])

    before = None
    while written != before:  # in a loop, a reference may be read before the write in program order
        before = dict(written)
        for eqn in jaxpr.eqns:
            if ends(eqn):
                env.update(dict.fromkeys(eqn.outvars, _INDEPENDENT))
                continue
            inputs, in_place = [read(atom) for atom in eqn.invars], references(eqn)
            written.update(dict.fromkeys(in_place, _union(inputs)))
            env.update(zip(eqn.outvars, _equation_results(eqn, inputs, ends, opaque=bool(in_place)), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation_results(eqn: Any, operands: list[Dependence], ends: Ends, *, opaque: bool) -> list[Dependence]:
    try:
        what = None if opaque else control(eqn)
    except UnknownEquationError:
        what = None
    if what is not None:
        return _control_results(what, operands, ends)
    dependence = _union(operands)
    return [dependence._replace(impure=dependence.impure or has_side_effects(eqn))] * len(eqn.outvars)


def _control_results(what: Control, operands: list[Dependence], ends: Ends) -> list[Dependence]:
    results = functools.partial(_body_results, ends=ends)
    match what:
        case ClosedCall(body):
            return results(body, operands)
        case Cond(branches):
            index, *inputs = operands
            by_branch = [results(body, inputs) for body in branches]
            return [_union([index, *each]) for each in zip(*by_branch, strict=True)]
        case Scan(body, consts, count):
            return _scan_results(
                results, body, operands[:consts], operands[consts : consts + count], operands[consts + count :]
            )
        case While(cond, body, cond_consts, consts):
            inputs = operands[cond_consts : cond_consts + consts]

            def step(carry: list[Dependence]) -> list[Dependence]:
                pred = results(cond, [*operands[:cond_consts], *carry])[0]  # affects the trip count
                return [_union([pred, each]) for each in results(body, [*inputs, *carry])]

            return _fixed_point(step, operands[cond_consts + consts :])


def _scan_results(
    results: Any, body: Any, consts: list[Dependence], carry: list[Dependence], xs: list[Dependence]
) -> list[Dependence]:
    last = _fixed_point(lambda carry: results(body, [*consts, *carry, *xs])[: len(carry)], carry)
    return [*last, *results(body, [*consts, *last, *xs])[len(carry) :]]


def _fixed_point(step: Any, carry: list[Dependence]) -> list[Dependence]:
    """The carry's dependences after any number of iterations of ``step``."""
    while True:
        after = [_union(pair) for pair in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _union(values: Sequence[Dependence]) -> Dependence:
    """The dependence of a value computed from all of these."""
    return Dependence(
        functools.reduce(frozenset.union, (v.operands for v in values), frozenset()), any(v.impure for v in values)
    )
