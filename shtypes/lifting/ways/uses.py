"""Which equations make and read the variables of a program."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from shtypes._compat.jaxprs import dependent_vars, is_literal, jaxpr_of, variables


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


def is_one_of(groups: Callable[[Any], Iterator[list[int]]]) -> Callable[[Any], bool]:
    """A predicate of calls: whether all that one computes is a group of equations as a function finds them."""

    def predicate(eqn: Any) -> bool:
        body = jaxpr_of(eqn.params["jaxpr"])
        return bool(body.eqns) and next(groups(body), None) == [*range(len(body.eqns))]

    return predicate
