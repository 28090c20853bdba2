"""Merges reshards: in programs that `sh.jit` compiles, and in their ledgers.

Adjacent reshards become one: an all-reduce and a slice of its result a reduce-scatter, a gather and the inverse slice
nothing. The types of the first operand and the last result determine the value, whatever the rest of the program.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import is_literal, jaxpr_of, with_bodies, with_equations
from shtypes.context.scope import Scope, changed
from shtypes.context.settings import current_settings
from shtypes.core.operation import applied_by
from shtypes.core.region_plan import live
from shtypes.core.reshard import Price, Reshard, merged_reshard
from shtypes.traced.coverage import control_of
from shtypes.traced.equations import place_of

#: The maximum length of a row of reshards.
_LONGEST: Final = 6


def merge_reshards(on: bool = True) -> Scope:
    """A scope that sets whether `jit` merges adjacent reshards; with False, they run as written.

    The default is to merge (docs: resharding, merged reshards). The ledger and `explain` of a function that `jit`
    returned agree with what it compiles, in any scope.

    Args:
        on: Whether to merge adjacent reshards.

    Communicates: never more than the program as written.

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
    return changed(lambda s: s._replace(merges=bool(on)))


class Merged:
    """A program with merged reshards.

    Attributes:
        jaxpr: The program.
        runs: The replacement of an equation of the original program, by the original's id.
    """

    def __init__(self, program: Any) -> None:
        self._bodies: dict[int, tuple[Any, Any]] = {}
        self.runs: dict[int, Any] = {}
        self.jaxpr = self._body(program)

    def _body(self, jaxpr: Any) -> Any:
        """A jaxpr, open or closed, with merged reshards; unchanged if there are none to merge."""
        if id(jaxpr) not in self._bodies:
            self._bodies[id(jaxpr)] = jaxpr, self._merged(jaxpr)
        return self._bodies[id(jaxpr)][1]

    def _merged(self, jaxpr: Any) -> Any:
        opened = jaxpr_of(jaxpr)
        eqns = live(opened)
        inner = [eqn if control_of(eqn) is None else with_bodies(eqn, self._body) for eqn in eqns]
        sweep = _Sweep(inner, opened.outvars)
        after = []
        for eqn, at in zip(sweep.eqns, range(len(eqns)), strict=True):
            row = [eqns[i] for i in sweep.rows.get(at, ())]
            if row and eqn is not None:
                op = dataclasses.replace(applied_by(eqn), merged=tuple(map(place_of, row)))
                eqn = eqn.replace(params={**eqn.params, "operation": op})
            for origin in row:
                self.runs[id(origin)] = origin.replace(
                    params={**origin.params, "operation": dataclasses.replace(applied_by(origin), absorbed=True)}
                )
            if eqn is not None:
                after.append(eqn)
                self.runs |= {id(eqns[at]): eqn} if row else {}
        if len(after) == len(eqns) and all(a is b for a, b in zip(after, eqns, strict=True)):
            return jaxpr
        return with_equations(jaxpr, after, [sweep.read(v) for v in opened.outvars])


class _Sweep:
    """One pass over the equations of a body, in program order.

    Attributes:
        eqns: The replacement of each equation; None for nothing.
        rows: The indices of a merged row's reshards, by the index of its last.
    """

    def __init__(self, eqns: Sequence[Any], outvars: Sequence[Any]) -> None:
        self.eqns: list[Any] = []
        self.rows: dict[int, tuple[int, ...]] = {}
        self._uses = Counter(v for eqn in eqns for v in eqn.invars if not is_literal(v))
        self._uses.update({v: 2 for v in outvars if not is_literal(v)})  # results must stay
        self._maker: dict[Any, int] = {}  # the index of a reshard by its result
        self._renamed: dict[Any, Any] = {}
        for eqn in eqns:
            operands = [self.read(v) for v in eqn.invars]
            same = all(a is b for a, b in zip(operands, eqn.invars, strict=True))
            self.eqns.append(eqn if same else eqn.replace(invars=operands))
            if _reshard(eqn) is not None:
                self._maker[eqn.outvars[0]] = len(self.eqns) - 1
                self._merge(len(self.eqns) - 1)

    def read(self, v: Any) -> Any:
        """The name of an operand or a result of the body after the pass."""
        return v if is_literal(v) else self._renamed.get(v, v)

    def _merge(self, last: int) -> None:
        """Replaces the row of reshards that ends here by one, as far back as is cheapest."""
        row = list(self._row(last))
        moves = [move for at in row if (move := _reshard(self.eqns[at])) is not None]
        best: tuple[Price, int, Reshard] | None = None
        for count in range(2, len(row) + 1):
            move = self._merged_reshard(row[:count], moves[:count])
            if move is not None:
                price = Price.of([move, *moves[count:]])
                if best is None or price.saves(best[0]):
                    best = price, count, move
        if best is None:
            return
        _, count, move = best
        (source,), (result,) = self.eqns[row[count - 1]].invars, self.eqns[last].outvars
        self.rows[last] = tuple(i for at in reversed(row[:count]) for i in self.rows.pop(at, (at,)))
        for at in row[1:count]:
            self.eqns[at] = None
        if move.src.exact == move.dst.exact:
            self.eqns[last] = None
            self._renamed[result] = source
            self._uses[source] += self._uses[result] - 1
        else:
            eqn = self.eqns[last]
            self.eqns[last] = eqn.replace(invars=[source], params={**eqn.params, "operation": move})

    def _row(self, at: int | None) -> Iterator[int]:
        """The indices of a row's reshards, the last first; values between them have no other use."""
        for _ in range(_LONGEST):
            if at is None:
                return
            yield at
            (operand,) = self.eqns[at].invars
            at = self._maker.get(operand) if not is_literal(operand) and self._uses[operand] == 1 else None

    def _merged_reshard(self, row: Sequence[int], moves: Sequence[Reshard]) -> Reshard | None:
        """The reshard that replaces a row, the last first; None if it saves nothing or takes more memory."""
        src, dst = moves[-1].src, moves[0].dst
        move = merged_reshard(moves, src, dst)
        if move is None or not Price.of([move]).saves(Price.of(moves)):
            return None
        if _peak_bytes(move) > max(map(_peak_bytes, moves)):
            return None
        # the first operand then lives until the end of the row, instead of a smaller value
        smallest = min(m.dst.local_bytes for m in moves[1:])
        between = self.eqns[row[-1] + 1 : row[0]]
        if src.local_bytes > smallest and any(eqn is not None and _reshard(eqn) is None for eqn in between):
            return None
        return move


def _reshard(eqn: Any) -> Reshard | None:
    op = applied_by(eqn)
    return op if isinstance(op, Reshard) else None


def _peak_bytes(move: Reshard) -> int:
    return move.transport.plan(move.src, move.dst).peak_bytes


def merge(program: Any) -> Merged | None:
    """Merges the reshards of a traced program, open or closed; None if a scope disables that."""
    return Merged(program) if current_settings().merges else None


def merged(program: Any) -> Any:
    """The traced program with merged reshards, unless a scope disables that."""
    result = merge(program)
    return program if result is None else result.jaxpr
