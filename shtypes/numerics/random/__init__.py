"""`sh.random`: the functions of `jax.random` for typed arrays.

A key and a type stand for one global array, the one that `jax.random` makes with that key: its numbers do not depend on
the mesh, and each device makes its own part of them and nothing more. Where the type is sharded that part is a slice,
where it is unreduced the samples are on index 0, and where it is varying the device's index is folded into the key.

The bits are equal, and so are integers, bools and numbers of the unit interval. What is made of those by logarithms and
error functions may differ in the last bits, as two calls of `jax.random` do that XLA compiles with other code around.

Some distributions are sampled by rejection, or all at once (`gamma`, `poisson`, `orthogonal`, ...). Their numbers do
not depend on the mesh either, but each device makes all of them and keeps its own part; their docstrings say so.
"""

from shtypes.numerics.random import choices, keys, samples, whole
from shtypes.numerics.random.choices import *  # noqa: F403  # classes, orders and samples
from shtypes.numerics.random.keys import *  # noqa: F403  # keys
from shtypes.numerics.random.samples import *  # noqa: F403  # each device makes its own part
from shtypes.numerics.random.whole import *  # noqa: F403  # each device makes all and keeps its own part

__all__ = choices.__all__ + samples.__all__ + keys.__all__ + whole.__all__


def __dir__() -> list[str]:
    return __all__
