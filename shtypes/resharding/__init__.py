"""Resharding: the table of moves, the search, and plans."""

from shtypes.resharding.moves import MOVES as MOVES
from shtypes.resharding.moves import REINTERPRETATIONS as REINTERPRETATIONS
from shtypes.resharding.moves import Grade as Grade
from shtypes.resharding.moves import Kind as Kind
from shtypes.resharding.moves import Move as Move
from shtypes.resharding.planner import Cost as Cost
from shtypes.resharding.planner import Direction as Direction
from shtypes.resharding.planner import Price as Price
from shtypes.resharding.planner import backward as backward
from shtypes.resharding.planner import collectives as collectives
from shtypes.resharding.planner import cost as cost
from shtypes.resharding.planner import grade_of as grade_of
from shtypes.resharding.planner import least_bytes as least_bytes
from shtypes.resharding.planner import plan as plan
from shtypes.resharding.steps import Plan as Plan
from shtypes.resharding.steps import Step as Step
from shtypes.resharding.transport import price as price
