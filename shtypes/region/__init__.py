"""Lowers a whole typed program inside as few `jax.shard_map`s as possible, normally one.

The typed jaxpr is read equation by equation, on local shards where it can be (`on_shards`) and on global arrays
between the regions (`interpret`); `planning` decides which, and `control` runs loops, branches and calls for both.
"""

from shtypes.region.interpret import Lowering as Lowering
from shtypes.region.planning import UnknownReleaseError as UnknownReleaseError
from shtypes.region.planning import UnsupportedError as UnsupportedError
