"""The names of `sh.optim`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.training.optim import apply_updates as apply_updates
from shtypes.training.optim import lift as lift
