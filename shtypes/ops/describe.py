"""What is known of values without computing: shapes, dtypes, and how they combine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.ops.dispatch import dtype_name, is_typed
from shtypes.where import public


@public
def shape(a: Any) -> tuple[int, ...]:
    """The global shape."""
    return tuple(jax.typeof(a).shape) if is_typed(a) else tuple(np.shape(a))


@public
def ndim(a: Any) -> int:
    """The number of dims."""
    return len(shape(a))


@public
def size(a: Any, axis: int | None = None) -> int:
    """The number of elements, or the size of one dim."""
    return int(np.prod(shape(a), dtype=int)) if axis is None else shape(a)[axis]


def _described(x: Any) -> Any:
    """What JAX's own functions of dtypes take: a typed value by its dtype."""
    if is_typed(x):
        return jax.typeof(x).dtype
    return np.dtype(jnp.dtype(_long(x))) if isinstance(x, str) else x


def _long(name: str) -> Any:
    from shtypes import dtypes

    return dtypes.to_numpy(dtype_name(name))


@public
def result_type(*args: Any) -> Any:
    """The dtype of a result of values, dtypes and numbers, by JAX's promotion."""
    return jnp.result_type(*map(_described, args))


@public
def promote_types(a: Any, b: Any) -> Any:
    """The dtype that two dtypes promote to."""
    return jnp.promote_types(_described(a), _described(b))


@public
def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return bool(jnp.issubdtype(result_type(x), jnp.complexfloating))


@public
def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


@public
def isscalar(element: Any) -> bool:
    """Whether this is a number, or a value without dims."""
    return not shape(element) if is_typed(element) else bool(jnp.isscalar(element))


__all__ = ["iscomplexobj", "isrealobj", "isscalar", "ndim", "promote_types", "result_type", "shape", "size"]
