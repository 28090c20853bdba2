"""The names of `sh.lax`, as type checkers see them. Written by `python generate/stubs.py`."""

from shtypes.local_mode.lax.arguments import axis_index as axis_index
from shtypes.local_mode.lax.arguments import axis_size as axis_size
from shtypes.local_mode.lax.pieces import all_gather as all_gather
from shtypes.local_mode.lax.pieces import all_gather_invariant as all_gather_invariant
from shtypes.local_mode.lax.pieces import all_to_all as all_to_all
from shtypes.local_mode.lax.pieces import ppermute as ppermute
from shtypes.local_mode.lax.pieces import pscatter as pscatter
from shtypes.local_mode.lax.pieces import pshuffle as pshuffle
from shtypes.local_mode.lax.pieces import pswapaxes as pswapaxes
from shtypes.local_mode.lax.pieces import ragged_all_to_all as ragged_all_to_all
from shtypes.local_mode.lax.sums import pbroadcast as pbroadcast
from shtypes.local_mode.lax.sums import pcast as pcast
from shtypes.local_mode.lax.sums import pmax as pmax
from shtypes.local_mode.lax.sums import pmean as pmean
from shtypes.local_mode.lax.sums import pmin as pmin
from shtypes.local_mode.lax.sums import psum as psum
from shtypes.local_mode.lax.sums import psum_scatter as psum_scatter
from shtypes.local_mode.lax.sums import pvary as pvary
