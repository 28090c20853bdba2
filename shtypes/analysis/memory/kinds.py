"""What an operation does with memory: which of JAX's primitives the compiler fuses with their neighbours."""

from __future__ import annotations

import enum
import math
from typing import Any, Final

from shtypes.types import ShType


class Kind(enum.Enum):
    """What a step does with the memory of its operands and results."""

    VIEW = "its result is its operand in another shape"
    BARRIER = "its results are its operands, and nothing is fused across it"
    MAP = "it computes each element when that is asked for, from few others"
    COSTLY = "the same, but too dear to be done twice"
    FOLD = "it computes its operand as it reads it, and writes its result"
    STORE = "it computes its second operand as it reads it, and writes that into the first"
    SEND = "it adds up over devices; neighbours are done at once"
    KERNEL = "it reads and writes memory"
    LOOP = "it repeats a body"
    BRANCH = "it runs one of its bodies"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS: Final = _names(
    "reshape squeeze expand_dims stop_gradient copy pvary pcast name bitcast_convert_type sharding_constraint "
    "reduce_precision mesh_cast"
)
_MAPS: Final = _names(
    "add sub mul neg max min select_n and or xor not eq ne lt le gt ge convert_element_type abs sign floor ceil "
    "round clamp iota broadcast_in_dim transpose slice dynamic_slice gather concatenate pad rev square integer_pow "
    "add_any is_finite shift_left shift_right_logical shift_right_arithmetic real imag complex conj nextafter "
    "axis_index"
)
_COSTLY: Final = _names(
    "exp exp2 expm1 log log1p tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh rsqrt sqrt "
    "cbrt div rem pow erf erfc erf_inv lgamma digamma"
)


def kind_of(eqn: Any) -> Kind:
    """What an equation without bodies does with memory."""
    name = eqn.primitive.name
    if name == "optimization_barrier":
        return Kind.BARRIER
    if name in _VIEWS or (name in ("broadcast_in_dim", "convert_element_type") and _same(eqn)):
        return Kind.VIEW
    if name in _MAPS:
        return Kind.MAP
    if name in _COSTLY:
        return Kind.COSTLY
    if name.startswith("reduce_") and name != "reduce_scatter":
        return Kind.FOLD
    if name == "dynamic_update_slice":
        return Kind.STORE
    return Kind.SEND if name in ("psum", "psum_invariant", "pmax", "pmin") else Kind.KERNEL


def _same(eqn: Any) -> bool:
    """Whether the result is the operand, but for its shape."""
    x, y = eqn.invars[0].aval, eqn.outvars[0].aval
    return math.prod(x.shape) == math.prod(y.shape) and bool(x.dtype == y.dtype)


def bytes_of(t: Any) -> int:
    """Bytes of each device's part of a value, typed or plain."""
    if isinstance(t, ShType):
        return int(t.local_bytes)
    sharding = getattr(t, "sharding", None)
    sizes = getattr(getattr(sharding, "mesh", None), "shape", {})
    entries = (*getattr(sharding, "spec", ()), *(None,) * len(t.shape))
    parts = (math.prod(sizes.get(a, 1) for a in _axes(entry)) for entry in entries)
    return int(math.prod(-(-n // part) for n, part in zip(t.shape, parts, strict=False)) * t.dtype.itemsize)


def _axes(entry: Any) -> tuple[str, ...]:
    """The mesh axes that a dim is split over, by an entry of a `PartitionSpec`."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ()) if isinstance(entry, tuple) else ()


def needs_copy(shape: tuple[int, ...], contracting: tuple[int, ...], batch: tuple[int, ...], side: int) -> bool:
    """Whether an operand of a product is copied first: the compiler multiplies matrices, with batch dims in front.

    A matrix may be transposed as it is read; several dims are one dim of a matrix if they are in order.
    """
    large = [d for d in range(len(shape)) if shape[d] > 1]
    free = [d for d in large if d not in contracting and d not in batch]
    inner = [d for d in contracting if shape[d] > 1]
    front = [d for d in batch if shape[d] > 1]
    wanted = [*front, *free, *inner] if side == 0 else [*front, *inner, *free]
    turned = [*front, *inner, *free] if side == 0 else [*front, *free, *inner]
    return wanted != large and not (turned == large and len(free) <= 1 and len(inner) <= 1)
