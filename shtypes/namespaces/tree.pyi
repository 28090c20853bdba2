"""The names of `sh.tree`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.ops.tree import from_jax as from_jax
from shtypes.ops.tree import map as map
from shtypes.ops.tree import to_jax as to_jax
from shtypes.ops.tree import types as types
