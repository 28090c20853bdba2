"""What `implicit_comm` inserts for an op by itself: the cheapest of the reshards that make it type. Pure.

What it leaves to do counts: a pending sum is reduced before long. Of a whole program `solver.complete` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.resharding import Direction
from shtypes.rules.candidate_types import finishing, moved
from shtypes.rules.suggest_fixes import Candidate, FixPrice, Rule, Search, added
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State

#: How many ways are considered.
_WAYS: Final = 12
#: Functions whose module starts so are of this package.
_OWN: Final = f"{__package__.partition('.')[0]}."
#: The operands of the cheapest ways; empty where there is none.
_known: Final[Bounded[tuple[ShType, ...]]] = Bounded()


def chosen(
    rule: Rule, types: tuple[ShType, ...], minimize: Direction = "both", same: tuple[int, ...] = ()
) -> Typing | None:
    """The typing of an op with some operands resharded; None if no reshard makes it type.

    Args:
        rule: Types it from its operands' types.
        types: The types that the rule refuses.
        minimize: What is to be least.
        same: For each operand the first that is the same value.
    """
    key = (current_settings()._replace(tried=False), minimize, same, _parts(rule), tuple(t.serial for t in types))

    def cheapest() -> tuple[ShType, ...]:
        search = Search(rule, types, minimize=minimize, same=same, decides=True)
        ways = search.best(_WAYS)
        if not ways:
            return ()
        best = min(ways, key=lambda way: _in_order(way, minimize))
        return min([best, *_shared(search, best)], key=lambda way: _in_order(way, minimize)).operands

    operands = _known.get_or_create(key, cheapest)
    return rule(operands) if operands else None


def _parts(x: Any) -> Any:
    """What a rule computes from: two with the same parts are one rule, made twice. A user's function is itself."""
    if not isinstance(x, FunctionType) or not f"{x.__module__}".startswith(_OWN):
        return type(x), x
    cells = tuple(_parts(cell.cell_contents) for cell in x.__closure__ or ())
    return x.__code__, cells, x.__defaults__, tuple((x.__kwdefaults__ or {}).items())


def _in_order(way: Candidate, minimize: Direction) -> tuple[FixPrice, tuple[int, ...], str]:
    """Orders ways: by their price with what they leave to do, then those first that shard leading dims."""
    left = (finishing(t, minimize) for t in way.results)
    leading = tuple(d for t in way.operands for d, dim in enumerate(t.dims) for _ in dim.axes)
    return way.price._replace(counted=added((way.price.counted, *left))), leading, way.fix.code


def _shared(search: Search, way: Candidate) -> Iterator[Candidate]:
    """A way in which each device does all of the work, with a replicated operand sliced: each does its part."""
    sharded = [{a for t in some for a in t.axes(State.SHARDED)} for some in (search.operands, way.operands)]
    for axis in sorted(sharded[0] - sharded[1]):
        for i, t in enumerate(way.operands):
            for place in range(t.ndim) if search.operands[i].state(axis) is State.REDUCED else ():
                if (part := moved(t, axis, place)) is not None:
                    yield from search.of((*way.operands[:i], part, *way.operands[i + 1 :]))
