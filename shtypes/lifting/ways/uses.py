"""Which equations make and read the variables of a program, and rewrites of equations with those before them."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import dependent_vars, is_literal, jaxpr_of, variables, with_equations
from shtypes.evaluation.undo_ravel import used
from shtypes.lifting.ways.moving import is_mark, moves_alone
from shtypes.lifting.ways.opened import opened


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


class Pairs:
    """Rewrites the equations of a program, one after the other, with those that make what they read.

    Calls that move what some equations read, or what they compute, are opened. Marks of expressions do not count.

    Args:
        jaxpr: The program.
        primitives: The primitives of these equations.
    """

    def __init__(self, jaxpr: Any, *primitives: str) -> None:
        beside = [e for e in jaxpr.eqns if e.primitive.name in primitives]
        of = _marked(jaxpr.eqns)
        near = {of.get(v, v) for e in beside for v in (*variables(e.invars), *e.outvars)}

        def opens(eqn: Any, _: bool) -> bool:
            operands = {of.get(v, v) for v in variables(eqn.invars)}
            return moves_alone(eqn) and not near.isdisjoint(operands.union(eqn.outvars))

        self._jaxpr, self._eqns = jaxpr, opened(jaxpr, opens).eqns if beside else ()
        self._of = _marked(self._eqns)
        read = [v for e in self._eqns if self._of.keys().isdisjoint(e.outvars) for v in e.invars]
        self._count = collections.Counter(self._of.get(v, v) for v in variables([*read, *jaxpr.outvars]))
        self._made: dict[Any, Any] = {}  # by variable, the equation that makes it

    def maker(self, v: Any) -> Any:
        """The equation that makes a variable, or what that marks; None of others."""
        return None if is_literal(v) else self._made.get(self._of.get(v, v))

    def maker_alone(self, eqn: Any) -> Any:
        """The equation that makes the first operand, with the same settings and for this equation alone; else None."""
        maker = self.maker(eqn.invars[0]) if eqn.invars else None
        alone = maker is not None and self._count[self._of.get(eqn.invars[0], eqn.invars[0])] == 1
        return maker if alone and set_at(maker) == set_at(eqn) else None

    def rewritten(self, eqn: Any) -> list[Any]:
        """An equation, or those that take its place."""
        raise NotImplementedError

    def program(self) -> Any:
        """The rewritten program; the program itself if nothing changed."""
        eqns: list[Any] = []
        for eqn in self._eqns:
            new = self.rewritten(eqn)
            eqns += new
            self._made.update((v, e) for e in new for v in e.outvars)
        left = used(eqns, self._jaxpr.outvars)
        is_same = len(left) == len(self._eqns) and all(a is b for a, b in zip(left, self._eqns, strict=True))
        return self._jaxpr if is_same else with_equations(self._jaxpr, left, self._jaxpr.outvars)


def _marked(eqns: Sequence[Any]) -> dict[Any, Any]:
    """The variables that marks of `shtypes suggest --patch` name, and what they name."""
    of: dict[Any, Any] = {}
    for eqn in eqns:
        if is_mark(eqn) and not is_literal(eqn.invars[0]):
            of[eqn.outvars[0]] = of.get(eqn.invars[0], eqn.invars[0])
    return of
