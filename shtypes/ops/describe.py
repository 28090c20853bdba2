"""Properties of values that need no computation: shapes, dtypes, and how they combine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.user_line import public
from shtypes.core.array import ArrayLike
from shtypes.dispatch.apply import dtype_name, is_typed
from shtypes.types import dtypes


@public
def shape(a: ArrayLike) -> tuple[int, ...]:
    """The global shape."""
    return tuple(jax.typeof(a).shape) if is_typed(a) else tuple(np.shape(a))


@public
def ndim(a: ArrayLike) -> int:
    """The number of dims."""
    return len(shape(a))


@public
def size(a: ArrayLike, axis: int | None = None) -> int:
    """The number of elements, or the size of one dim."""
    return int(np.prod(shape(a), dtype=int)) if axis is None else shape(a)[axis]


def _described(x: Any) -> Any:
    """The dtype of a typed value, for JAX's functions of dtypes; else the argument."""
    if is_typed(x):
        return jax.typeof(x).dtype
    return np.dtype(jnp.dtype(dtypes.to_numpy(dtype_name(x)))) if isinstance(x, str) else x


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


@public
def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether the dtype of the first is one of the second's kind, as `jax.numpy.issubdtype`."""
    return bool(jnp.issubdtype(_described(arg1), arg2))


@public
def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind, as `jax.numpy.isdtype`."""
    return bool(jnp.isdtype(_described(dtype), kind))


@public
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    """Whether a dtype can be cast to another, as `jax.numpy.can_cast`."""
    return bool(jnp.can_cast(_described(from_), _described(to), casting=casting))


_finfo: Any = jnp.finfo
_iinfo: Any = jnp.iinfo


@public
def finfo(dtype: Any) -> Any:
    """The limits of a dtype of floats, as `jax.numpy.finfo`; of a value, those of its dtype."""
    return _finfo(_described(dtype))


@public
def iinfo(int_type: Any) -> Any:
    """The limits of a dtype of integers, as `jax.numpy.iinfo`; of a value, those of its dtype."""
    return _iinfo(_described(int_type))


@public
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that shapes broadcast to, as `jax.numpy.broadcast_shapes`."""
    return tuple(np.broadcast_shapes(*shapes))


# the dtypes and numbers of `jax.numpy`, so that a program can say `sh.float32` and `sh.pi`
bool_, float16, bfloat16, float32, float64 = jnp.bool_, jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64
int8, int16, int32, int64 = jnp.int8, jnp.int16, jnp.int32, jnp.int64
uint8, uint16, uint32, uint64 = jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64
complex64, complex128 = jnp.complex64, jnp.complex128
floating, inexact, integer, complexfloating = jnp.floating, jnp.inexact, jnp.integer, jnp.complexfloating
signedinteger, unsignedinteger, number = jnp.signedinteger, jnp.unsignedinteger, jnp.number
pi, e, inf, nan, newaxis = jnp.pi, jnp.e, jnp.inf, jnp.nan, None
