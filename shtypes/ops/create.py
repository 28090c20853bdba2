"""Arrays without operands: each device computes its shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from shtypes.core.array import Array, ArrayLike
from shtypes.core.conversion import array
from shtypes.core.device_put import type_of
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import Full
from shtypes.core.host import check_width
from shtypes.core.local import local, zeros_of
from shtypes.core.meshes import to_mesh
from shtypes.core.reshard import move
from shtypes.core.shard_fn import ShardFn, tell_apart
from shtypes.dispatch.apply import all_replicated, as_operands, dtype_name, is_number, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.ops.arithmetic import astype
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import current_mesh


def type_of_arguments(type: Any, dtype: Any, mesh: Any, default: str) -> ShType:
    """The type that a constructor's arguments name: a type, its text, or a shape, which is replicated by policy."""
    name = None if dtype is None else dtype_name(dtype)
    sizes = (type,) if isinstance(type, (int, np.integer)) else type
    is_shape = isinstance(sizes, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in sizes)
    if is_shape and not isinstance(type, PartitionSpec):
        where = current_mesh() if mesh is None else to_mesh(mesh)
        return ShType(where, name or default, [int(n) for n in sizes], all_replicated(where))
    if isinstance(type, ShType):
        return type if name is None else type.replace(dtype=name)
    return type_of(type, mesh, dtype=name or (default if isinstance(type, str) and type.lstrip()[:1] in "[{" else None))


def default_float() -> str:
    """JAX's default float."""
    return dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.float64))


def masked(fn: ShardFn, t: ShType) -> Array:
    """A value computed on each device; zero on unreduced axes except at index 0, so that it counts once."""
    check_width(t)
    return move(local(fn, out=t.with_axes(t.axes(State.UNREDUCED), State.REDUCED)), t)


@dataclass(frozen=True)
class ByIndex(ShardFn):
    """A function of the global indices of a device's shard, one array for each dim."""

    name: str
    fn: Callable[..., Any]
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]  # those that shard each dim
    dtype: str
    params: tuple[tuple[str, Any], ...] = field(compare=False)
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, *self.params)

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> Any:
        indices = [
            jnp.arange(n) + lax.axis_index(axes) * n if axes else jnp.arange(n)
            for n, axes in zip(self.shape, self.axes, strict=True)
        ]
        values = self.fn(*jnp.meshgrid(*indices, indexing="ij", sparse=True), **dict(self.params))
        return jnp.broadcast_to(values.astype(dtypes.to_numpy(self.dtype)), self.shape)


def by_index(name: str, fn: Callable[..., Any], t: ShType, **params: Any) -> Array:
    """A value of a type whose elements are a function of their global indices; each device computes its shard."""
    axes = tuple(d.axes for d in t.dims)
    return masked(ByIndex(name, fn, t.local_shape, axes, t.dtype_name, tuple(sorted(params.items()))), t)


@public
def zeros(type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Zeros of a type.

    Args:
        type: A text such as ``"f32[8@x,4]{U:y}"``, a `ShType`, or a shape, which is replicated by policy.
        dtype: The dtype, where the type leaves it out.
        shape: A shape by name, as in `jax.numpy`, instead of ``type``.
        mesh: The mesh of a text or shape; by default the one in context.

    Communicates: nothing; each device computes its shard.
    """
    t = type_of_arguments(_type_or_shape(type, shape), dtype, mesh, default_float())
    check_width(t)
    return zeros_of(t)


def _type_or_shape(type: Any, shape: Any) -> Any:
    if (type is None) == (shape is None):
        raise ShardingTypeError("an array from nothing needs a type or a shape", hints=['sh.zeros("f32[8@x, 4]")'])
    return shape if type is None else type


@public
def ones(type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Ones of a type; on unreduced axes they are on index 0, so that they denote ones. See `zeros`."""
    t = type_of_arguments(_type_or_shape(type, shape), dtype, mesh, default_float())
    return full(t, True if t.dtype_name == "bool" else 1)


@public
def full(type: Any = None, fill_value: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """One number everywhere.

    Args:
        type: As for `zeros`.
        fill_value: A Python number.
        dtype: The dtype, where the type leaves it out.
        shape: A shape by name, instead of ``type``.
        mesh: The mesh of a text or shape.

    Communicates: nothing; on unreduced axes the number is on index 0, so that it counts once.
    """
    if not is_number(fill_value):
        if isinstance(fill_value, np.generic):
            fill_value = fill_value.item()
        else:
            what = f"`full` takes a number, not {fill_value!r:.40}"
            raise ShardingTypeError(what, hints=["sh.broadcast_to(x, shape)"])
    default = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.asarray(fill_value).dtype))
    t = type_of_arguments(_type_or_shape(type, shape), dtype, mesh, default)
    return masked(Full(fill_value, t.local_shape, t.dtype_name), t)


@public
def zeros_like(a: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """Zeros of the type of ``a``, or of its dtype in another shape. Communicates: nothing."""
    return zeros(_like(a, dtype, shape))


@public
def empty_like(prototype: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """As `zeros_like`: XLA has no arrays that nobody wrote."""
    return zeros_like(prototype, dtype, shape)


def _like(a: Any, dtype: Any, shape: Any) -> ShType:
    """The type of a value, in another dtype or replicated in another shape."""
    ((a,), _) = as_operands([a])
    t: ShType = jax.typeof(a)
    if shape is not None:
        return type_of_arguments(tuple(shape) if not isinstance(shape, int) else shape, dtype, t.mesh, t.dtype_name)
    return t if dtype is None else t.like(dtype_name(dtype))


@public
def ones_like(a: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """Ones of the type of ``a``; where it is unreduced they count once. Communicates: nothing."""
    return full_like(a, 1, dtype, shape)


@public
def full_like(a: ArrayLike, fill_value: Any, dtype: Any = None, shape: Any = None) -> Array:
    """One number, in the type of ``a``; where it is unreduced it counts once. Communicates: nothing."""
    return full(_like(a, dtype, shape), fill_value)


@public
def copy(a: ArrayLike, order: str | None = None) -> Array:
    """The value itself: typed values do not change. ``order`` is accepted for compatibility and ignored."""
    return as_operands([a])[0][0]


@public
def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    type: Any = None,
    mesh: Any = None,
) -> Array:
    """A typed value from an array or from nested lists of numbers, as `jax.numpy.asarray`; a typed one stays as it is.

    Args:
        a (...): A typed value, a plain array or numbers.
        dtype: The dtype.
        order: Accepted for compatibility; ignored.
        copy: Accepted for compatibility; ignored: typed values do not change, and host arrays are copied.
        type: The type of what has none yet; replicated by policy by default.
        mesh: The mesh of a text; by default the one in context.

    Communicates: nothing.
    """
    if is_typed(a):
        return a if dtype is None else astype(a, dtype)
    plain = np.asarray(a) if not isinstance(a, jax.Array) else a
    return array(plain if dtype is None else plain.astype(dtypes.to_numpy(dtype_name(dtype))), type, mesh=mesh)


def _spaced(index: Any, start: Any, step: Any, dtype: Any) -> Any:
    return jnp.asarray(start, dtype) + index.astype(dtype) * jnp.asarray(step, dtype)


@public
def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, type: Any = None, mesh: Any = None
) -> Array:
    """Evenly spaced numbers, as in `jax.numpy.arange`; each device computes those of its shard.

    Args:
        start: The first number, or the end where ``stop`` is missing.
        stop: The end, not included.
        step: The distance; 1 by default.
        dtype: The dtype; by default that of the numbers.
        type: A type with one dim, such as ``"[n@x]"`` or ``"[_@x]"``; replicated by policy by default.
        mesh: The mesh of a text; by default the one in context.

    Communicates: nothing.
    """
    if not all(n is None or is_number(n) or isinstance(n, np.generic) for n in (start, stop, step)):
        raise ShardingTypeError("`arange` takes numbers, since the size of the result must be known")
    if step == 0:
        raise ShardingTypeError("`arange` needs a step that is not 0")
    sample = np.arange(start, stop, step) if stop is not None else np.arange(0, start, 1 if step is None else step)
    name = dtype_name(dtype) if dtype is not None else dtypes.from_numpy(jax.dtypes.canonicalize_dtype(sample.dtype))
    t = type_of(type if type is not None else "[...]", mesh, shape=sample.shape, dtype=name)
    first, step = 0 if stop is None else start, 1 if step is None else step
    return by_index(f"arange[{first}, {step}]", _spaced, t, start=first, step=step, dtype=dtypes.to_numpy(t.dtype_name))
