"""Programs by hand, made to break the types: each is a list of expressions, as in `tests.random_programs`."""

from __future__ import annotations

from tests.random_attacks.functions import FUNCTIONS
from tests.random_attacks.programs import PROGRAMS
from tests.random_attacks.states import STATES

ATTACKS = [*STATES, *PROGRAMS, *FUNCTIONS]
