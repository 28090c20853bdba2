"""A program with its reshards merged: what `sh.jit` compiles, and what the ledger reads."""

from __future__ import annotations

import dataclasses
from typing import Any

from shtypes._compat.jaxprs import jaxpr_of, with_bodies, with_equations
from shtypes.context.ambient import current_ambient
from shtypes.context.scope import Scope, changed
from shtypes.core.operation import applied_by
from shtypes.primitives.merged import absorbed
from shtypes.primitives.reshard import Reshard
from shtypes.region.planning import live
from shtypes.traced.equations import control_of, place_of
from shtypes.traced.merging.body import Made, Sweep
from shtypes.traced.merging.chains import is_sum, merge_row, merge_sum
from shtypes.traced.merging.groups import grouped


def merge_reshards(on: bool = True, *, together: bool = False) -> Scope:
    """A scope that says which reshards `jit` merges; with False, programs run them as they are written.

    Without it, reshards in a row and sums of reshards are merged (docs: resharding, merged reshards). The ledger and
    `explain` of what `jit` made agree with what it compiles, in any scope.

    Args:
        on: Whether to merge reshards in a row and sums of reshards.
        together: Whether to send small all-reduces together too, one launch for each group of axes and each dtype: each
            waits for others as long as nothing takes its result. XLA combines all-reduces by itself, without copying
            them; this does it where its passes are off, or look at too few.

    Communicates: never more than the program as it is written.

    Examples:
        >>> import shtypes as sh
        >>> def twice(x):
        ...     return sh.shard(sh.all_reduce(x), "tp", 0)
        >>> with sh.use_mesh(sh.abstract_mesh({"tp": 4})):
        ...     t = sh.abstract_array("f32[8]{U:tp}")
        >>> [entry.kind for entry in sh.ledger(sh.jit(twice), t)]
        ['reduce-scatter']
        >>> with sh.merge_reshards(False):
        ...     [entry.kind for entry in sh.ledger(sh.jit(twice), t)]
        ['all-reduce']
    """
    return changed(lambda now: now._replace(merges=bool(on), together=bool(together)))


class Merged:
    """A program with its reshards merged.

    Attributes:
        jaxpr: The program.
        runs: By the id of an equation of the program as it was, the equation that says what runs in its place.
    """

    def __init__(self, program: Any) -> None:
        self._ambient = current_ambient()
        self._known: dict[int, tuple[Any, Any]] = {}
        self.runs: dict[int, Any] = {}
        self.jaxpr = self._body(program)

    def _body(self, jaxpr: Any) -> Any:
        """A body, open or closed, with its reshards merged; itself where there is nothing to merge."""
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._merged(jaxpr)
        return self._known[id(jaxpr)][1]

    def _merged(self, jaxpr: Any) -> Any:
        opened = jaxpr_of(jaxpr)
        eqns = live(opened)
        inner = [eqn if control_of(eqn) is None else with_bodies(eqn, self._body) for eqn in eqns]
        sweep = Sweep(inner, opened.outvars)
        for at, (eqn, origin) in enumerate(zip(inner, eqns, strict=True)):
            made = Made(sweep.operands(eqn), at, (origin,))
            if not (self._ambient.merges and _merge(sweep, made)):
                sweep.add(made)
        for origin in sweep.gone:
            self._gone(origin)
        swept = sweep.equations()
        after = [self._noted(made) for made in (grouped(swept) if self._ambient.together else swept)]
        if len(after) == len(eqns) and all(a is b for a, b in zip(after, eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, after, [sweep.read(v) for v in opened.outvars])

    def _noted(self, made: Made) -> Any:
        """The equation, with the lines of those that it stands for."""
        if len(made.origins) < 2:
            return made.eqn
        moves = [eqn for eqn in made.origins if isinstance(applied_by(eqn), Reshard)]
        op = dataclasses.replace(applied_by(made.eqn), merged=tuple(map(place_of, moves)))
        eqn = made.eqn.replace(params={**made.eqn.params, "operation": op})
        for origin in moves:
            self._gone(origin)
        self.runs[id(made.origins[-1])] = eqn
        return eqn

    def _gone(self, origin: Any) -> None:
        """Notes that an equation does nothing by itself."""
        op = applied_by(origin)
        if isinstance(op, Reshard):
            self.runs[id(origin)] = origin.replace(params={**origin.params, "operation": absorbed(op)})


def _merge(sweep: Sweep, made: Made) -> bool:
    """Puts in the place of an equation what it and equations before it are merged to, if they are."""
    if isinstance(applied_by(made.eqn), Reshard):
        return merge_row(sweep, made)
    return is_sum(made.eqn) and merge_sum(sweep, made)


def merge(program: Any) -> Merged | None:
    """A traced program, open or closed, with its reshards merged; None where a scope says not to."""
    now = current_ambient()
    return Merged(program) if now.merges or now.together else None


def merged(program: Any) -> Any:
    """A traced program with its reshards merged, unless a scope says not to."""
    found = merge(program)
    return program if found is None else found.jaxpr
