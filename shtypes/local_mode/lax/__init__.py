"""Collectives of local mode, under the names, parameters and defaults of `jax.lax`: what devices send each other.

They take typed values that vary over the mesh axes they go along, as the arguments of a function under
`shtypes.shard_map` do; a tree of values is taken leaf by leaf.
"""

from shtypes.local_mode.lax import casts, devices, pieces, ragged, sums
from shtypes.local_mode.lax.casts import *  # noqa: F403  # the same shards in another state
from shtypes.local_mode.lax.devices import *  # noqa: F403  # where a device is
from shtypes.local_mode.lax.pieces import *  # noqa: F403  # put together, shared out, exchanged
from shtypes.local_mode.lax.ragged import *  # noqa: F403  # pieces of sizes known at run time
from shtypes.local_mode.lax.sums import *  # noqa: F403  # added up or compared

__all__ = casts.__all__ + devices.__all__ + pieces.__all__ + ragged.__all__ + sums.__all__


def __dir__() -> list[str]:
    return __all__
