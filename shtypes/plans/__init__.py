"""Resharding: the moves table, the search and the plans. Pure."""

from shtypes.plans.moves import MOVES as MOVES
from shtypes.plans.moves import REINTERPRETATIONS as REINTERPRETATIONS
from shtypes.plans.moves import Grade as Grade
from shtypes.plans.moves import Kind as Kind
from shtypes.plans.moves import Move as Move
from shtypes.plans.planner import Cost as Cost
from shtypes.plans.planner import Direction as Direction
from shtypes.plans.planner import Price as Price
from shtypes.plans.planner import backward as backward
from shtypes.plans.planner import cost as cost
from shtypes.plans.planner import grade_of as grade_of
from shtypes.plans.planner import least_bytes as least_bytes
from shtypes.plans.planner import plan as plan
from shtypes.plans.steps import Plan as Plan
from shtypes.plans.steps import Step as Step
from shtypes.plans.transport import price as price
