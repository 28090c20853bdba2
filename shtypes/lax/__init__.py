"""Collectives of local mode, under the names, parameters and defaults of `jax.lax`: what devices send each other.

They take typed values that vary over the mesh axes they go along, as the arguments of a function under
`shtypes.shard_map` do; a tree of values is taken leaf by leaf.
"""

from shtypes.lax.casts import pbroadcast as pbroadcast
from shtypes.lax.casts import pcast as pcast
from shtypes.lax.casts import pvary as pvary
from shtypes.lax.devices import axis_index as axis_index
from shtypes.lax.devices import axis_size as axis_size
from shtypes.lax.pieces import all_gather as all_gather
from shtypes.lax.pieces import all_gather_invariant as all_gather_invariant
from shtypes.lax.pieces import all_to_all as all_to_all
from shtypes.lax.pieces import ppermute as ppermute
from shtypes.lax.pieces import pscatter as pscatter
from shtypes.lax.pieces import pshuffle as pshuffle
from shtypes.lax.pieces import pswapaxes as pswapaxes
from shtypes.lax.ragged import ragged_all_to_all as ragged_all_to_all
from shtypes.lax.sums import pmax as pmax
from shtypes.lax.sums import pmean as pmean
from shtypes.lax.sums import pmin as pmin
from shtypes.lax.sums import psum as psum
from shtypes.lax.sums import psum_scatter as psum_scatter

__all__ = [
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pbroadcast",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pscatter",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "pvary",
    "ragged_all_to_all",
]
