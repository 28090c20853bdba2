"""What `implicit_comm` inserts for an op by itself: the cheapest of the reshards that make it type. Pure.

What it leaves to do counts: a pending sum is reduced before long. Of a whole program `solver.complete` decides.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

from shtypes.caches import Bounded
from shtypes.context.settings import current_settings
from shtypes.resharding import Cost, Direction
from shtypes.rules.candidate_types import finishing
from shtypes.rules.suggest_fixes import Candidate, FixPrice, Rule, Search, added
from shtypes.rules.typing import Typing
from shtypes.types import ShType

#: How many ways are considered.
_WAYS: Final = 12
#: Functions whose module starts so are of this package.
_OWN: Final = f"{__package__.partition('.')[0]}."
#: The operands of the cheapest ways; empty where there is none.
_known: Final[Bounded[tuple[ShType, ...]]] = Bounded()


def chosen(rule: Rule, types: tuple[ShType, ...], minimize: Direction = "both") -> Typing | None:
    """The typing of an op with some operands resharded; None if no reshard makes it type.

    Args:
        rule: Types it from its operands' types.
        types: The types that the rule refuses.
        minimize: What is to be least.
    """
    key = (current_settings()._replace(tried=False), minimize, _parts(rule), tuple(t.serial for t in types))

    def cheapest() -> tuple[ShType, ...]:
        ways = Search(rule, types, minimize=minimize).best(_WAYS)
        return min(ways, key=lambda way: _in_order(way, minimize)).operands if ways else ()

    operands = _known.get_or_create(key, cheapest)
    return rule(operands) if operands else None


def _parts(x: Any) -> Any:
    """What a rule computes from: two with the same parts are one rule, made twice. A user's function is itself."""
    if not isinstance(x, FunctionType) or not f"{x.__module__}".startswith(_OWN):
        return type(x), x
    cells = tuple(_parts(cell.cell_contents) for cell in x.__closure__ or ())
    return x.__code__, cells, x.__defaults__, tuple((x.__kwdefaults__ or {}).items())


def _in_order(way: Candidate, minimize: Direction) -> tuple[Cost, FixPrice, str]:
    return added((way.price.sent, *(finishing(t, minimize) for t in way.results))), way.price, way.fix.code
