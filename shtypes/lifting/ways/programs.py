"""Reads and rewrites programs: what makes and reads variables, calls that are opened, functions as equations."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax

from shtypes._compat.eqn_frames import is_of_a_library
from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import captured, dependent_vars, is_literal, jaxpr_of, variable, variables, with_equations
from shtypes._compat.plain_programs import alone, trace_plain
from shtypes._compat.program_keys import key_of_equation
from shtypes.lifting.ways.choice import CALLS


class Uses:
    """The equations of a program that make and read its variables.

    Attributes:
        number: By variable, the number of the equation that makes it.
        readers: By variable, the numbers of the equations that read it; for results also that of all equations.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr
        self.number: dict[Any, int] = {v: i for i, e in enumerate(jaxpr.eqns) for v in e.outvars}
        self.readers: dict[Any, set[int]] = collections.defaultdict(set)
        for i, read in enumerate([*(e.invars for e in jaxpr.eqns), jaxpr.outvars]):
            for v in variables(read):
                self.readers[v].add(i)

    def maker(self, v: Any, *names: str) -> Any:
        """The equation that makes a variable, if it is one of some primitives; else None."""
        eqn = None if is_literal(v) or v not in self.number else self.jaxpr.eqns[self.number[v]]
        return eqn if eqn is not None and eqn.primitive.name in names else None

    def read_by(self, v: Any, *names: str) -> list[tuple[int, Any]]:
        """The equations that read a variable, of some primitives if given, with their numbers."""
        eqns = self.jaxpr.eqns
        return [
            (i, eqns[i]) for i in sorted(self.readers[v] - {len(eqns)}) if eqns[i].primitive.name in names or not names
        ]

    @functools.cached_property
    def before(self) -> list[set[int]]:
        """For each equation, the numbers of those that make its operands."""
        return [{self.number[v] for v in variables(e.invars) if v in self.number} for e in self.jaxpr.eqns]

    def with_between(self, numbers: Collection[int]) -> set[int]:
        """The numbers of equations, and of those that depend on one and on which another depends."""
        inside = needed = {*numbers}
        for i in range(max(inside), min(inside), -1):
            if i in needed:
                needed = needed | self.before[i]
        for i in sorted(needed):
            if not self.before[i].isdisjoint(inside):
                inside = inside | {i}
        return inside

    @functools.cached_property
    def sized(self) -> set[Any]:
        """The variables that depend on an argument with dims."""
        return dependent_vars(self.jaxpr, [i for i, v in enumerate(self.jaxpr.invars) if v.aval.shape])


@functools.lru_cache(maxsize=256)
def uses_of(jaxpr: Any) -> Uses:
    """The equations of a program that make and read its variables."""
    return Uses(jaxpr)


def without_equal(jaxpr: Any, names: Collection[str]) -> Any:
    """The program with equations of some primitives once that are equal and have equal operands."""
    first: dict[Any, list[Any]] = collections.defaultdict(list)
    same: dict[Any, Any] = {}  # by variable, that of an equal equation before
    results, eqns = set(variables(jaxpr.outvars)), list[Any]()

    def is_equal(eqn: Any, other: Any) -> bool:
        return set_at(eqn) == set_at(other) and key_of_equation(eqn) == key_of_equation(other)

    for eqn in jaxpr.eqns:
        if not same.keys().isdisjoint(variables(eqn.invars)):
            eqn = eqn.replace(invars=[v if is_literal(v) else same.get(v, v) for v in eqn.invars])
        if eqn.primitive.name in names and results.isdisjoint(eqn.outvars):
            alike = first[eqn.primitive.name, *variables(eqn.invars)]
            if (before := next((e for e in alike if is_equal(e, eqn)), None)) is not None:
                same.update(zip(eqn.outvars, before.outvars, strict=True))
                continue
            alike.append(eqn)
        eqns.append(eqn)
    return with_equations(jaxpr, eqns, jaxpr.outvars) if same else jaxpr


def is_one_of(groups: Callable[[Any], Iterator[list[int]]]) -> Callable[[Any], bool]:
    """A predicate of calls: whether all that one computes is a group of equations as a function finds them."""

    def predicate(eqn: Any) -> bool:
        body = jaxpr_of(eqn.params["jaxpr"])
        return bool(body.eqns) and next(groups(body), None) == [*range(len(body.eqns))]

    return predicate


def opened(jaxpr: Any, opens: Callable[[Any, bool], bool], begins: Callable[[Any], bool] = lambda eqn: False) -> Any:
    """The program with the equations of some calls, and of such in these; its results are the same variables.

    Args:
        jaxpr: The program.
        opens: Whether to open a call, of which is known whether it depends on what equations that begin compute.
        begins: Whether an equation begins.
    """
    eqns: list[Any] = []
    after: set[Any] = set()  # variables that depend on equations that begin

    def add(block: Any, env: dict[Any, Any], names: Mapping[Any, Any], call: Any) -> list[Any]:
        def read(v: Any) -> Any:
            return v if is_literal(v) else env.get(v, v)

        for eqn in block.eqns:
            operands = list(map(read, eqn.invars))
            outs = [names[v] if v in names else variable(v.aval) for v in eqn.outvars]
            is_after = any(not is_literal(v) and v in after for v in operands)
            if _may_be_opened(eqn) and opens(eqn, is_after):
                body = jaxpr_of(eqn.params["jaxpr"])
                inner = {v: out for v, out in zip(body.outvars, outs, strict=True) if not is_literal(v)}
                from_call = eqn if call is None and is_of_a_library(eqn.params["jaxpr"]) else call
                outs = add(body, dict(zip(body.invars, operands, strict=True)), inner, from_call)
            else:
                source = (eqn if call is None else call).source_info
                eqns.append(eqn.replace(invars=operands, outvars=outs, source_info=source))
                if is_after or begins(eqn):
                    after.update(outs)
            env.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, block.outvars))

    outvars = add(jaxpr, {}, {v: v for eqn in jaxpr.eqns for v in eqn.outvars}, None)
    return with_equations(jaxpr, eqns, outvars) if outvars == list(jaxpr.outvars) else jaxpr


def _may_be_opened(eqn: Any) -> bool:
    """Whether a call captures nothing, and its settings stay: equations of a library's function have the call's."""
    if eqn.primitive.name not in CALLS or jaxpr_of(eqn.params["jaxpr"]).constvars:
        return False
    program = eqn.params["jaxpr"]
    return not captured(program) and (set_at(eqn) is None or is_of_a_library(program))


def equations_of(
    f: Callable[..., Any], operands: Sequence[Any], like: Any, outs: Sequence[Any] = (None,)
) -> tuple[list[Any], list[Any]]:
    """The equations of a function of variables at the place of an equation, and its results: ``outs`` where given."""
    avals = [jax.core.ShapedArray(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in operands]
    with alone():
        closed, *_ = trace_plain(f, avals)
    body, eqns = jaxpr_of(closed), list[Any]()
    env: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
    env.update((v, out) for v, out in zip(body.outvars, outs, strict=True) if out is not None)
    for e in body.eqns:
        env.update((v, variable(v.aval)) for v in e.outvars if v not in env)
        invars, outvars = [v if is_literal(v) else env[v] for v in e.invars], [env[v] for v in e.outvars]
        eqns.append(e.replace(invars=invars, outvars=outvars, source_info=like.source_info, ctx=like.ctx))
    return eqns, [env[v] for v in body.outvars]
