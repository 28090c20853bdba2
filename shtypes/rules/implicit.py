"""The greedy choice of `implicit_comm` for one op: the cheapest reshards that make it type.

The price includes the reduction of pending results. `solver.complete` chooses for a program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from shtypes.caches import Bounded, Static
from shtypes.context.settings import current_settings
from shtypes.resharding import Direction
from shtypes.rules.candidate_types import finish_cost, with_axis_at
from shtypes.rules.price_fixes import Candidate, FixPrice, total_cost
from shtypes.rules.suggest_fixes import Rule, Search
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State

#: The most candidates.
_MOST: Final = 12
#: The prefix of module names of this package.
_PACKAGE: Final = f"{__package__.partition('.')[0]}."
#: The operands of the cheapest candidates; empty if there is none.
_cache: Final[Bounded[tuple[ShType, ...]]] = Bounded()


def cheapest_reshards(
    rule: Rule, types: tuple[ShType, ...], minimize: Direction = "both", same: tuple[int, ...] = ()
) -> Typing | None:
    """The typing of an op with some operands resharded; None if no reshard makes it type. ``same`` as for `fixes`."""
    key = (current_settings()._replace(speculative=False), minimize, same, _parts(rule), tuple(t.serial for t in types))

    def cheapest() -> tuple[ShType, ...]:
        search = Search(rule, types, minimize=minimize, same=same, decides=True)
        ways = search.best(_MOST)
        if not ways:
            return ()
        best = min(ways, key=lambda way: _in_order(way, minimize))
        return min([best, *_shared(search, best)], key=lambda way: _in_order(way, minimize)).operands

    operands = _cache.get_or_create(key, cheapest)
    return rule(operands) if operands else None


def _parts(x: Any) -> Any:
    """A cache key of a rule: its code and the values that it closes over. A user's function is the key itself."""
    if isinstance(x, tuple):
        return type(x), *map(_parts, x)
    if isinstance(x, functools.partial):
        return type(x), _parts(x.func), _parts(x.args), _parts(tuple(x.keywords.items()))
    if type(x).__module__ == "numpy":  # a number among the operands
        return type(x), str(x.dtype), x.shape, x.tobytes()
    if not isinstance(x, FunctionType) or not f"{x.__module__}".startswith(_PACKAGE):
        return Static(x)
    cells = tuple(_parts(cell.cell_contents) for cell in x.__closure__ or ())
    return x.__code__, cells, x.__defaults__, tuple((x.__kwdefaults__ or {}).items())


def _in_order(way: Candidate, minimize: Direction) -> tuple[FixPrice, tuple[int, ...], str]:
    """A sort key: the price with the reduction of pending results, then the sharded dims, leading ones first."""
    left = (finish_cost(t, minimize) for t in way.results)
    leading = tuple(d for t in way.operands for d, dim in enumerate(t.dims) for _ in dim.axes)
    return way.price._replace(counted=total_cost((way.price.counted, *left))), leading, way.fix.code


def _shared(search: Search, way: Candidate) -> Iterator[Candidate]:
    """Variants of a candidate that divide the work over an axis again, by slicing a replicated operand."""
    sharded = [{a for t in some for a in t.axes(State.SHARDED)} for some in (search.operands, way.operands)]
    for axis in sorted(sharded[0] - sharded[1]):
        for i, t in enumerate(way.operands):
            for place in range(t.ndim) if search.operands[i].state(axis) is State.REDUCED else ():
                if (part := with_axis_at(t, axis, place)) is not None:
                    yield from search.of((*way.operands[:i], part, *way.operands[i + 1 :]))
