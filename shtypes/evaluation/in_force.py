"""The scopes that a plain program opened itself, entered again around the equations that it bound in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shtypes._compat.in_force import InForce, set_at, settings
from shtypes.scopes.comm import CommScope, ScopeRule

_NOTHING = InForce()


class Scopes:
    """What is open in a body of a program while its equations are evaluated, one after another.

    Scopes of communication stay open from one equation to the next, since they look at all that runs in them.

    Args:
        outer: What the equation is evaluated in whose body this is; nothing for the whole program.
    """

    def __init__(self, outer: InForce = _NOTHING) -> None:
        self._outer = outer
        self._open: list[tuple[Any, contextlib.AbstractContextManager[Any]]] = []
        self._runs: dict[ScopeRule, Any] = {}
        self.now = outer

    def enter(self, eqn: Any) -> None:
        """Opens the scopes of an equation, and leaves those that it is not in."""
        found = set_at(eqn)
        if found is None:
            found = self._outer
        if found is self.now:
            return
        inherited = len(self._outer.rules)
        own = found.rules[inherited:] if found.rules[:inherited] == self._outer.rules else found.rules
        wanted: list[Any] = list(own)
        if (found.fields, found.jax) != (self._outer.fields, self._outer.jax):
            wanted.append(InForce((), found.fields, found.jax))
        kept = 0
        while kept < min(len(wanted), len(self._open)) and self._open[kept][0] == wanted[kept]:
            kept += 1
        self.leave(kept)
        for layer in wanted[kept:]:
            scope = settings(layer) if isinstance(layer, InForce) else self._run(layer)
            scope.__enter__()
            self._open.append((layer, scope))
        self.now = found

    def _run(self, rule: ScopeRule) -> contextlib.AbstractContextManager[Any]:
        """A part of the run of a scope of communication: what it sent so far goes on counting."""
        if rule not in self._runs:
            self._runs[rule] = CommScope(rule).new_run()
        part: contextlib.AbstractContextManager[Any] = self._runs[rule]()
        return part

    def leave(self, kept: int = 0, error: BaseException | None = None) -> None:
        """Leaves the scopes but the outermost ``kept``."""
        while len(self._open) > kept:
            _, scope = self._open.pop()
            scope.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))
        self.now = self._outer


@contextlib.contextmanager
def scopes_of(outer: InForce) -> Iterator[Scopes]:
    """Around the evaluation of a body."""
    found = Scopes(outer)
    try:
        yield found
    except BaseException as error:
        found.leave(error=error)
        raise
    found.leave()
