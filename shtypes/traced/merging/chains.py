"""Reshards in a row, and sums of reshards: one reshard for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from shtypes._compat.jaxprs import is_literal, variable
from shtypes.core.operation import applied_by
from shtypes.primitives.local import Local
from shtypes.primitives.merged import MergedReshard, direct
from shtypes.primitives.reshard import Price, Reshard, reshard_p
from shtypes.traced.merging.body import Made, Sweep, reshard_of
from shtypes.types import State

#: Floats in which the terms of two sums may overflow on a device although both sums are small.
_SMALL_RANGE: Final = ("f16", "f8", "f4")
#: So many reshards in a row are looked at.
_LONGEST: Final = 6


def merge_row(sweep: Sweep, last: Made) -> bool:
    """Puts one reshard in the place of a row that ends with a new equation, if that saves something."""
    row = list(_row(sweep, last))
    best: tuple[Any, int, MergedReshard] | None = None
    for count in range(2, len(row) + 1):
        move = _of_row(sweep, row[:count])
        if move is not None:
            cost = Price.of([move, *_moves(row[count:])])
            if best is None or cost.saves(best[0]):
                best = cost, count, move
    if best is None:
        return False
    _, count, move = best
    first = row[count - 1]
    for made in row[1:count]:
        sweep.remove(made)
    (source,), (result,) = first.eqn.invars, last.eqn.outvars
    origins = tuple(o for made in reversed(row[:count]) for o in made.origins)
    if move.src.exact == move.dst.exact:
        sweep.rename(result, source, origins)
    else:
        sweep.add(Made(last.eqn.replace(invars=[source], params=_params(last.eqn, move)), last.at, origins))
    return True


def _row(sweep: Sweep, last: Made) -> Iterator[Made]:
    """The reshards in a row that end with one, the last first: what is in between has no other use."""
    made: Made | None = last
    for _ in range(_LONGEST):
        if made is None or reshard_of(made) is None:
            return
        yield made
        made = sweep.own(made.eqn.invars[0])


def _moves(row: Sequence[Made]) -> list[Reshard]:
    return [move for move in map(reshard_of, row) if move is not None]


def _of_row(sweep: Sweep, row: Sequence[Made]) -> MergedReshard | None:
    """One reshard for a row, the last first; None where it saves nothing, or may do harm."""
    moves = _moves(row)
    src, dst = moves[-1].src, moves[0].dst
    move = direct(moves, src, dst)
    if move is None or not Price.of([move]).saves(Price.of(moves)):
        return None
    if _peak_bytes(move) > max(map(_peak_bytes, moves)):
        return None
    # What the row starts from lives until its end: that may take more memory than what was in between.
    smallest = min(m.dst.local_bytes for m in moves[1:])
    if src.local_bytes > smallest and not sweep.nothing_between(row[-1].at, row[0].at):
        return None
    return move


def _peak_bytes(move: Reshard) -> int:
    return move.transport.plan(move.src, move.dst).peak_bytes


class _Term(NamedTuple):
    """A term of a sum: a reshard, and multiples of its result, the last first."""

    made: Made
    move: Reshard
    multiples: list[Made]


def merge_sum(sweep: Sweep, last: Made) -> bool:
    """Puts the reshard of a sum in the place of a new equation that adds reshards, if that saves something."""
    eqn, at = last.eqn, last.at
    op = applied_by(eqn)
    terms = [_term(sweep, v, op.results[0]) for v in eqn.invars]
    a, b = terms
    if a is None or b is None or a.made is b.made or a.move.src != b.move.src or a.move.dst != b.move.dst:
        return False
    if a.move.src.axes(State.UNREDUCED) and a.move.src.dtype_name.startswith(_SMALL_RANGE):
        return False
    move = direct([a.move, b.move], a.move.src, op.results[0])
    if move is None or op.results[0] != a.move.dst or not Price.of([move]).saves(Price.of([a.move, b.move])):
        return False
    first = min(a.made.at, b.made.at)
    if move.src.local_bytes > move.dst.local_bytes and not sweep.nothing_between(first, at):
        return False
    for term in (a, b):
        for made in (term.made, *term.multiples):
            sweep.remove(made)
    operands = [_moved_in(sweep, term, at) for term in (a, b)]
    total = variable(move.src)
    sweep.fresh(total)
    added = Local(op.fn, tuple(v.aval for v in operands), (move.src,))
    sweep.add(Made(eqn.replace(invars=operands, outvars=[total], params=_params(eqn, added)), at, ()))
    moved = eqn.replace(primitive=reshard_p, invars=[total], params=_params(eqn, move))
    sweep.add(Made(moved, at, (*a.made.origins, *b.made.origins, *last.origins)))
    return True


def _term(sweep: Sweep, v: Any, t: Any) -> _Term | None:
    """What a summand is: multiples of the result of a reshard that has no other use."""
    multiples: list[Made] = []
    while (made := sweep.own(v)) is not None:
        move = reshard_of(made)
        if move is not None:
            return _Term(made, move, multiples)
        if not _is_multiple(made.eqn, t):
            return None
        multiples.append(made)
        v = made.eqn.invars[0]
    return None


def _is_multiple(eqn: Any, t: Any) -> bool:
    """Whether an equation keeps the type, and does not make terms overflow whose sum does not."""
    op = applied_by(eqn)
    if not isinstance(op, Local) or op.results != (t,) or op.operands != (t,):
        return False
    factor = op.fn.factor
    if factor is None:
        return False
    return abs(factor.real) + abs(factor.imag) <= 1 or t.dtype_name[0] in "iu"


def _moved_in(sweep: Sweep, term: _Term, at: int) -> Any:
    """A summand without its reshard: the same multiples, of what was resharded."""
    (v,) = term.made.eqn.invars
    for made in reversed(term.multiples):
        out = variable(term.move.src)
        sweep.fresh(out)
        op = Local(applied_by(made.eqn).fn, (v.aval,), (term.move.src,))
        sweep.add(Made(made.eqn.replace(invars=[v], outvars=[out], params=_params(made.eqn, op)), at, ()))
        v = out
    return v


def _params(eqn: Any, operation: Any) -> dict[str, Any]:
    return {**eqn.params, "operation": operation}


def is_sum(eqn: Any) -> bool:
    """Whether an equation adds or subtracts two values of its result's type."""
    op = applied_by(eqn)
    if not isinstance(op, Local) or not op.fn.adds or any(map(is_literal, eqn.invars)):
        return False
    return all(t == op.results[0] for t in op.operands)
