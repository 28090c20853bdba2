"""Lowers a whole typed program inside as few `jax.shard_map`s as possible, normally one.

The typed jaxpr is read equation by equation, on local shards where it can be (`on_shards`) and on global arrays
between the regions (`on_arrays`); `planning` decides which, and `control` runs loops, branches and calls for both.
"""

from shtypes.lowering.region.interpret import Lowering as Lowering
from shtypes.lowering.region.planning import UnsupportedError as UnsupportedError
