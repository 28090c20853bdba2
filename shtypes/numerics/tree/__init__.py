"""`sh.tree`: trees of typed values, and types for whole models. A typed value is a leaf of every JAX tree."""

from shtypes.numerics.tree.sizes import bytes, show
from shtypes.numerics.tree.trees import from_jax, map, to_jax
from shtypes.numerics.tree.typed import array, reshard, types

__all__ = ["array", "bytes", "from_jax", "map", "reshard", "show", "to_jax", "types"]


def __dir__() -> list[str]:
    return __all__
