"""Resharding: the moves table, the search and the plans. Pure, and loaded on demand: `import shtypes` stays quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shtypes.reshard.moves import MOVES as MOVES
    from shtypes.reshard.moves import REINTERPRETATIONS as REINTERPRETATIONS
    from shtypes.reshard.moves import Grade as Grade
    from shtypes.reshard.moves import Kind as Kind
    from shtypes.reshard.moves import Move as Move
    from shtypes.reshard.planner import Price as Price
    from shtypes.reshard.planner import backward as backward
    from shtypes.reshard.planner import grade_of as grade_of
    from shtypes.reshard.planner import least_bytes as least_bytes
    from shtypes.reshard.planner import plan as plan
    from shtypes.reshard.planner import price as price
    from shtypes.reshard.steps import Plan as Plan
    from shtypes.reshard.steps import Step as Step
    from shtypes.reshard.steps import describe as describe

_HOMES: Final = {
    **dict.fromkeys(("MOVES", "REINTERPRETATIONS", "Grade", "Kind", "Move"), "moves"),
    **dict.fromkeys(("Price", "backward", "grade_of", "least_bytes", "plan", "price"), "planner"),
    **dict.fromkeys(("Plan", "Step", "describe"), "steps"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shtypes.reshard' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"shtypes.reshard.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
