"""Collectives of local mode, with the names, parameters and defaults of `jax.lax`.

Their operands are typed values that vary over the mesh axes of the collective, as in functions under
`shtypes.shard_map`, or pytrees of them.
"""

from shtypes.local_mode.lax import pieces, sums
from shtypes.local_mode.lax.arguments import axis_index as axis_index
from shtypes.local_mode.lax.arguments import axis_size as axis_size
from shtypes.local_mode.lax.pieces import *  # noqa: F403  # put together, shared out, exchanged
from shtypes.local_mode.lax.sums import *  # noqa: F403  # added up, compared, or cast to another state

__all__ = ["axis_index", "axis_size"] + pieces.__all__ + sums.__all__  # noqa: RUF005  # as type checkers read it


def __dir__() -> list[str]:
    return __all__
