"""The names of `sh.tree`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.numerics.tree.sizes import bytes as bytes
from shtypes.numerics.tree.sizes import show as show
from shtypes.numerics.tree.trees import from_jax as from_jax
from shtypes.numerics.tree.trees import map as map
from shtypes.numerics.tree.trees import to_jax as to_jax
from shtypes.numerics.tree.typed import array as array
from shtypes.numerics.tree.typed import reshard as reshard
from shtypes.numerics.tree.typed import types as types
