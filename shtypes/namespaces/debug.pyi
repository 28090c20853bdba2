"""The names of `sh.debug`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.control.debug import callback as callback
from shtypes.control.debug import print as print
