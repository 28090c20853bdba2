"""Collectives of local mode, under the names, parameters and defaults of `jax.lax`: what devices send each other.

They take typed values that vary over the mesh axes they go along, as the arguments of a function under
`shtypes.shard_map` do; a tree of values is taken leaf by leaf.
"""

from shtypes.local_mode.lax import pieces, sums
from shtypes.local_mode.lax.arguments import axis_index as axis_index
from shtypes.local_mode.lax.arguments import axis_size as axis_size
from shtypes.local_mode.lax.pieces import *  # noqa: F403  # put together, shared out, exchanged
from shtypes.local_mode.lax.sums import *  # noqa: F403  # added up, compared, or cast to another state

__all__ = ["axis_index", "axis_size"] + pieces.__all__ + sums.__all__  # noqa: RUF005  # as type checkers read it


def __dir__() -> list[str]:
    return __all__
