"""The equations of one body while reshards in it are merged: what makes each value, who takes it, and what is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shtypes._compat.jaxprs import is_literal
from shtypes.core.operation import applied_by
from shtypes.primitives.local import Local
from shtypes.primitives.reshard import Reshard


@dataclass(frozen=True, eq=False)
class Made:
    """An equation as it is now.

    Attributes:
        eqn: The equation.
        at: Where it is: the index, in the body as it was, of the equation that it stands for.
        origins: The equations of the program that it stands for, if it is a reshard.
    """

    eqn: Any
    at: int
    origins: tuple[Any, ...]


class Sweep:
    """The body; equations are added in program order.

    Args:
        eqns: The equations that results or effects need.
        outvars: The results.
    """

    def __init__(self, eqns: Sequence[Any], outvars: Sequence[Any]) -> None:
        self._uses = Counter(v for eqn in eqns for v in eqn.invars if not is_literal(v))
        self._uses.update({v: 2 for v in outvars if not is_literal(v)})  # a result is never anyone's own
        self._made: dict[Any, Made] = {}
        self._placed: list[list[Made]] = [[] for _ in eqns]
        self._instead: dict[Any, Any] = {}
        self.gone: list[Any] = []  # equations of the program for which there is nothing to do
        self._heavy = [0]
        for eqn in eqns:
            self._heavy.append(self._heavy[-1] + _computes(eqn))

    def operands(self, eqn: Any) -> Any:
        """The equation with its operands as they are called now."""
        found = [v if is_literal(v) else self._instead.get(v, v) for v in eqn.invars]
        return eqn if all(a is b for a, b in zip(found, eqn.invars, strict=True)) else eqn.replace(invars=found)

    def read(self, v: Any) -> Any:
        """What a result of the body is called now."""
        return v if is_literal(v) else self._instead.get(v, v)

    def add(self, made: Made) -> None:
        """Adds an equation."""
        self._placed[made.at].append(made)
        self._made.update(dict.fromkeys(made.eqn.outvars, made))

    def remove(self, made: Made) -> None:
        """Takes an equation out."""
        self._placed[made.at].remove(made)

    def rename(self, old: Any, new: Any, gone: Sequence[Any]) -> None:
        """Has whoever takes one value take another; the equations that made the old one from it are gone."""
        self.gone += gone
        self._instead[old] = new
        self._uses[new] += self._uses[old] - 1

    def own(self, v: Any) -> Made | None:
        """What makes a value that one equation takes, and once."""
        return self._made.get(v) if not is_literal(v) and self._uses[v] == 1 else None

    def fresh(self, v: Any) -> None:
        """Says that one equation takes a new value."""
        self._uses[v] = 1

    def nothing_between(self, first: int, last: int) -> bool:
        """Whether nothing is computed between two equations but reshards, sums and multiples."""
        return self._heavy[last] == self._heavy[first + 1]

    def equations(self) -> list[Made]:
        """All of them, in program order."""
        return [made for group in self._placed for made in group]


def _computes(eqn: Any) -> bool:
    op = applied_by(eqn)
    return not (isinstance(op, Reshard) or (isinstance(op, Local) and (op.fn.adds or op.fn.factor is not None)))


def reshard_of(made: Made | None) -> Reshard | None:
    """The reshard that an equation applies."""
    op = None if made is None else applied_by(made.eqn)
    return op if isinstance(op, Reshard) else None
