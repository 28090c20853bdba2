"""Resharding: the moves table, the search and the plans. Pure."""

from shtypes.reshard.moves import MOVES as MOVES
from shtypes.reshard.moves import REINTERPRETATIONS as REINTERPRETATIONS
from shtypes.reshard.moves import Grade as Grade
from shtypes.reshard.moves import Kind as Kind
from shtypes.reshard.moves import Move as Move
from shtypes.reshard.planner import Plan as Plan
from shtypes.reshard.planner import Price as Price
from shtypes.reshard.planner import Step as Step
from shtypes.reshard.planner import backward as backward
from shtypes.reshard.planner import describe as describe
from shtypes.reshard.planner import plan as plan
from shtypes.reshard.planner import price as price
